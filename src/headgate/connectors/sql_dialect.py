"""What databases spell differently: types, places for values, which statement replaces a row."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headgate.errors import SinkError

SQLITE, POSTGRESQL, STANDARD = "sqlite", "postgresql", "standard"
_BY_MODULE = {"sqlite3": SQLITE, "psycopg": POSTGRESQL, "psycopg2": POSTGRESQL, "pg8000": POSTGRESQL}
_SIMPLE = (
    (pt.is_boolean, "BOOLEAN"),
    (pt.is_int8, "SMALLINT"),
    (pt.is_int16, "SMALLINT"),
    (pt.is_int32, "INTEGER"),
    (pt.is_int64, "BIGINT"),
    (pt.is_float32, "REAL"),
    (pt.is_float64, "DOUBLE PRECISION"),
    (pt.is_string, "TEXT"),
    (pt.is_date, "DATE"),
)


def dialect_of(connection: Any) -> str:
    """Which dialect a DB-API connection's database speaks, as far as it matters here."""
    for module in _modules(connection):
        if module.startswith("adbc_driver"):
            vendor = str(connection.adbc_get_info().get("vendor_name", "")).lower()
            return vendor if vendor in (SQLITE, POSTGRESQL) else STANDARD
        if module in _BY_MODULE:
            return _BY_MODULE[module]
    return STANDARD


def places(connection: Any, count: int) -> list[str]:
    """Where values go in a statement, in the style of the connection's module (PEP 249)."""
    styles = [getattr(sys.modules.get(module), "paramstyle", None) for module in _modules(connection)]
    style = next(filter(None, styles), "qmark")
    if style in ("numeric", "named"):
        return [f":{number}" for number in range(1, count + 1)]
    return ["?" if style == "qmark" else "%s"] * count


def _modules(connection: Any) -> list[str]:
    """The packages of a connection's class and of those that it is derived from."""
    return [kind.__module__.split(".")[0] for kind in type(connection).__mro__]


def quoted(name: str) -> str:
    """A table's or column's name as it is: dots divide schema and table."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


def column(name: str) -> str:
    """A column's name, dots and all."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A string as a literal."""
    return "'" + value.replace("'", "''") + "'"


def check_types(schema: pa.Schema, what: str) -> None:
    """Raise SinkError for a column that no table can hold."""
    for field in schema:
        _type(field, STANDARD, what)


def columns(schema: pa.Schema, dialect: str, key: Sequence[str], what: str) -> str:
    """The columns of a table that is to be made."""
    parts = [f"{column(field.name)} {_type(field, dialect, what)}" for field in schema]
    if key:
        parts.append(f"PRIMARY KEY ({', '.join(map(column, key))})")
    return ", ".join(parts)


def _type(field: pa.Field, dialect: str, what: str) -> str:
    type_ = field.type
    if dialect == SQLITE and is_text_in_sqlite(type_):
        return "TEXT"
    for is_type, name in _SIMPLE:
        if is_type(type_):
            return name
    if pt.is_binary(type_):
        return "BYTEA" if dialect == POSTGRESQL else "BLOB"
    if pt.is_timestamp(type_):
        return "TIMESTAMP WITH TIME ZONE" if type_.tz else "TIMESTAMP"
    if pt.is_decimal(type_):
        return f"NUMERIC({type_.precision}, {type_.scale})"
    raise SinkError(
        f"{what}: column '{field.name}' is {type_}, which no column of a table can hold; select its parts, "
        "or make it a string."
    )


def is_text_in_sqlite(type_: pa.DataType) -> bool:
    """SQLite has neither times nor exact decimals; as text they stay what they are, and sort."""
    return bool(pt.is_date(type_) or pt.is_timestamp(type_) or pt.is_decimal(type_))


def insert(table: str, names: Sequence[str], values: str, key: Sequence[str]) -> str:
    """An INSERT of ``values`` ("VALUES (...)" or a query); with a key, it replaces the row of that key."""
    statement = f"INSERT INTO {quoted(table)} ({', '.join(map(column, names))}) {values}"
    if not key:
        return statement
    rest = [name for name in names if name not in key]
    change = ", ".join(f"{column(name)} = excluded.{column(name)}" for name in rest)
    found = f"DO UPDATE SET {change}" if rest else "DO NOTHING"
    return f"{statement} ON CONFLICT ({', '.join(map(column, key))}) {found}"
