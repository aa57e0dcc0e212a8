"""WITH (…) of a source or a query: which connector, and with what."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from headgate.connectors.console import to_console
from headgate.connectors.files import from_files
from headgate.connectors.kafka import from_kafka
from headgate.connectors.kafka_sink import to_kafka
from headgate.connectors.parquet import to_parquet
from headgate.connectors.rate import from_rate
from headgate.connectors.sink import Sink
from headgate.connectors.source import Source
from headgate.connectors.sql_sink import to_sql
from headgate.connectors.table import from_table
from headgate.connectors.table_sink import to_table
from headgate.errors import PipelineError, nearest

_SOURCES: dict[str, Callable[..., Source]] = {
    "files": from_files,
    "kafka": from_kafka,
    "rate": from_rate,
    "table": from_table,
}
_RENAMED = {"table": "reader_options"}
"""An option whose name in SQL is not the parameter's."""


def source(name: str, schema: pa.Schema | None, given: Mapping[str, Any]) -> Source:
    """The source that ``CREATE SOURCE name (columns) WITH (from = 'files', path = …)`` describes."""
    options = dict(given)
    kind = str(options.pop("from", "files" if "path" in options else ""))
    if kind not in _SOURCES:
        raise PipelineError(
            f"source '{name}': from = '{kind}'.{nearest(kind, _SOURCES)} There are: {', '.join(_SOURCES)}; "
            "write e.g. WITH (from = 'files', path = 'data/clicks')."
        )
    if schema is not None:
        if kind == "rate":
            raise PipelineError(f"source '{name}': a rate has its own columns, value and timestamp.")
        options["schema"] = schema
    return _called(_SOURCES[kind], f"source '{name}'", options)  # type: ignore[no-any-return]


def sink(name: str, to: Any, options: Mapping[str, Any]) -> Sink:
    """The sink that ``to = …`` of a query describes."""
    what = f"query '{name}'"
    if not isinstance(to, str) or not to:
        raise PipelineError(
            f"{what}: say where its results go with to = '…': a folder for Parquet files, 'console', "
            "'kafka://server:9092/topic', 'sqlite:///shop.db' or 'table:shop.alerts'."
        )
    if to == "console":
        return _called(to_console, what, options)  # type: ignore[no-any-return]
    if to.startswith("kafka://"):
        servers, _, topic = to.removeprefix("kafka://").partition("/")
        return _called(to_kafka, what, {"servers": servers, "topic": topic, **options})  # type: ignore[no-any-return]
    if to.startswith("table:"):
        return _called(to_table, what, {"name_or_options": to.removeprefix("table:"), **options})  # type: ignore[no-any-return]
    if to.startswith(("sqlite://", "postgresql://")):
        return _called(to_sql, what, {"database": to, **options})  # type: ignore[no-any-return]
    return _called(to_parquet, what, {"path": to.removeprefix("parquet:"), **options})  # type: ignore[no-any-return]


def _called(function: Callable[..., Any], what: str, given: Mapping[str, Any]) -> Any:
    """The function called with options by name; names with dots are the connector's own."""
    own = {key: str(value) for key, value in given.items() if "." in key}
    options = {_RENAMED.get(key, key): value for key, value in given.items() if "." not in key}
    if own:
        options["options"] = own
    parameters = inspect.signature(function).parameters
    for key in options:
        if key not in parameters:
            known = [*(k for k, v in _RENAMED.items() if v in parameters), *parameters]
            raise PipelineError(
                f"{what}: there is no option '{key}'.{nearest(key, known)} There are: {', '.join(known)}."
            )
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in options]
    if missing:
        names = {new: old for old, new in _RENAMED.items()}
        raise PipelineError(f"{what}: give {', '.join(names.get(m, m) for m in missing)} in WITH (…).")
    return function(**options)
