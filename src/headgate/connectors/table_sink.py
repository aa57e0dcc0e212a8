"""``hg.to_table("shop.alerts")``: results appended to any table that Spark can write, by the Spark engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headgate.connectors.sink import Sink, Writer
from headgate.connectors.table import check_table, named
from headgate.errors import SinkError


class TableSink(Sink):
    """A name in Spark's catalog (``table``), or what Spark's writer takes (``format`` and ``options``)."""

    def __init__(self, table: str | None, format: str | None, options: Mapping[str, str], mode: str) -> None:
        self.table = table
        self.format = format
        self.options = dict(options)
        self.mode = mode
        # Local folders only: a source must not read them.
        self.path = self.options.get("path")

    @property
    def named(self) -> str:
        """What to call it in messages."""
        return named(self.table, self.format, self.options)

    def open(self, query: str, schema: pa.Schema) -> Writer:
        raise SinkError(
            f"Query '{query}': to_table ({self.named}) needs the Spark engine: app.run(engine='spark')."
        )


def to_table(name_or_options: str | Mapping[str, Any], mode: str = "append") -> TableSink:
    """A sink that appends to a table in Spark's catalog ("shop.alerts"), or to
    ``{"format": "jdbc", "options": {...}}`` as Spark's writer takes them, on the Spark engine.
    """
    table, format, options = check_table(name_or_options, "to_table", SinkError)
    if mode != "append":
        raise SinkError(
            f"to_table: mode={mode!r} is not supported; results can only be appended (mode='append')."
        )
    return TableSink(table, format, options, mode)
