"""``hg.from_table("shop.orders", follow_column="id")``: a table that grows, read by the Spark engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headgate.connectors.source import Reader, Source
from headgate.errors import SourceError
from headgate.graph.schema import normalise, require_columns


class TableSource(Source):
    """Rows in the order of ``follow_column``; each of its values is read once.

    ``table`` is a name in Spark's catalog, or None if ``format`` and ``options`` are those of Spark's reader.
    """

    def __init__(
        self,
        table: str | None,
        format: str | None,
        options: Mapping[str, str],
        schema: pa.Schema,
        follow_column: str,
        follow: bool,
    ) -> None:
        self.table = table
        self.format = format
        self.options = dict(options)
        self.schema = schema
        self.follow_column = follow_column
        self.finite = not follow
        self.live = follow

    @property
    def named(self) -> str:
        """What to call it in messages."""
        return named(self.table, self.format, self.options)

    def open(self) -> Reader:
        raise SourceError(f"from_table ({self.named}) needs the Spark engine: app.run(engine='spark').")


def from_table(
    reader_options: str | Mapping[str, Any], follow_column: str, *, schema: Any = None, follow: bool = True
) -> TableSource:
    """A source of the rows of any table that Spark can read, on the Spark engine.

    ``reader_options`` is a table's name in Spark's catalog ("shop.orders"), or
    ``{"format": "jdbc", "options": {...}}`` as Spark's reader takes them (a ``"path"`` among the options
    where the format has one).  ``follow_column`` orders the rows: new rows have a larger value than those
    that were there before (a serial number, a time of insertion); rows whose value is null are not read.
    ``schema`` is that of the columns to read.  ``follow=False`` ends with the rows that are there.

    >>> import pyarrow as pa
    >>> from_table("shop.orders", "id", schema=pa.schema([("id", pa.int64())])).follow_column
    'id'
    """
    table, format, options = check_table(reader_options, "from_table", SourceError)
    what = named(table, format, options)
    if schema is None:
        raise SourceError(
            f"from_table ({what}): the schema must be known before Spark runs; pass schema=, e.g. "
            "pa.schema([('id', pa.int64()), ('name', pa.string())]); with a session at hand, "
            "schema=session.table(...).limit(0).toArrow().schema gives it."
        )
    columns = normalise(schema)
    if not isinstance(follow_column, str):
        raise SourceError(
            f"from_table ({what}): follow_column must be a column's name, not {follow_column!r}."
        )
    (column,) = require_columns(columns, [follow_column], f"from_table ({what}), follow_column")
    type_ = columns.field(column).type
    ordered = (pt.is_integer, pt.is_date, pt.is_timestamp, pt.is_decimal, pt.is_string)
    if not any(is_type(type_) for is_type in ordered):
        raise SourceError(
            f"from_table ({what}): follow_column '{column}' is {type_}, which has no exact order to follow; "
            "use an integer, decimal, date, timestamp or string column."
        )
    return TableSource(table, format, options, columns, column, follow)


def check_table(
    given: Any, what: str, error: type[Exception]
) -> tuple[str | None, str | None, dict[str, str]]:
    """(table, format, options) of a name or of ``{"format", "options"}``."""
    if isinstance(given, str):
        if not given.strip():
            raise error(f"{what}: the table's name is empty.")
        return given.strip(), None, {}
    if not isinstance(given, Mapping):
        raise error(
            f"{what}: give a table's name or {{'format': 'jdbc', 'options': {{...}}}}, not {given!r}."
        )
    unknown = [key for key in given if key not in ("format", "options")]
    if unknown:
        raise error(
            f"{what}: {unknown[0]!r} is not known here; give 'format' and 'options', and put "
            f"{unknown[0]!r} into 'options' if it is one of Spark's."
        )
    format, options = given.get("format"), given.get("options", {})
    if not isinstance(format, str) or not format:
        raise error(
            f"{what}: 'format' is missing; name one that Spark knows, such as jdbc, delta or iceberg."
        )
    if not isinstance(options, Mapping):
        raise error(f"{what}: 'options' must be a dict, not {options!r}.")
    texts = {}
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, (str, int, float, bool)):
            raise error(f"{what}: option {key!r} must be a string, not {value!r}.")
        texts[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return None, format, texts


def named(table: str | None, format: str | None, options: Mapping[str, str]) -> str:
    """A table in words, without the secrets that its options may hold."""
    if table is not None:
        return f"table '{table}'"
    place = next((options[key] for key in ("dbtable", "path", "table") if key in options), None)
    return f"{format} table" + (f" '{place}'" if place else "")
