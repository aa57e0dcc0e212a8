"""``hg.to_sql("postgresql://...", "alerts", key=["id"])``: results as rows of a database's table.

A step on Spark, or a packet on threads, is one transaction.  With a checkpoint the transaction also moves the
step's mark, a row of the table ``headgate_steps``: a step that comes again after a crash finds its mark and
writes nothing.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headgate.checkpoint.places import local_path
from headgate.connectors import sql_dialect
from headgate.connectors.sql_table import SqlTable
from headgate.connectors.transactions import TransactionalSink, Transactions
from headgate.errors import SinkError
from headgate.graph.schema import require_columns

_LOCKED_SECONDS = 60.0
"""For how long SQLite waits for another writer."""
_LOGIN = re.compile(r"//[^/@]*@")


class SqlSink(TransactionalSink):
    """One table.  ``connect`` makes a DB-API or ADBC connection that is not in autocommit."""

    def __init__(self, connect: Callable[[], Any], named: str, table: str, key: Sequence[str]) -> None:
        self.connect = connect
        self.named = named
        """The database in words, without its password."""
        self.table = table
        self.key = list(key)
        # Writers of one SQLite file wait for each other anyway.
        self.target = f"{named} table {table}" if named.startswith("postgresql") else named

    def transactions(self, query: str, schema: pa.Schema, checkpoint: str, known: bool) -> Transactions:
        what = f"Query '{query}', to_sql (table '{self.table}')"
        sql_dialect.check_types(schema, what)
        key = require_columns(schema, self.key, f"{what}, key")
        return SqlTable(self.connect, what, self.named, self.table, key, (checkpoint, query), schema, known)


def to_sql(
    database: str | Callable[[], Any], table: str, *, key: str | Sequence[str] | None = None
) -> SqlSink:
    """A sink that writes rows into ``table``, which is made if it is not there.

    ``database`` is "sqlite:///shop.db", "postgresql://user@host/shop" (needs the extra ``sql``), or a
    function that connects to any database with a DB-API or ADBC driver.  Without ``key``, rows are appended.
    With it, a row replaces the one that has its key; the table must have that key as its primary key or
    as a unique one.  With a checkpoint each row is written once, also after a crash.

    >>> to_sql("sqlite:///shop.db", "alerts", key="id").key
    ['id']
    """
    if not isinstance(table, str) or not all(table.split(".")):
        raise SinkError(f"to_sql: table must be a name such as 'alerts' or 'shop.alerts', not {table!r}.")
    keys = [key] if isinstance(key, str) else list(key or ())
    if not all(isinstance(one, str) for one in keys) or len(set(keys)) < len(keys):
        raise SinkError(f"to_sql: key must be the names of different columns, not {key!r}.")
    if callable(database):
        named = getattr(database, "__qualname__", type(database).__name__)
        return SqlSink(database, f"database of '{named}'", table, keys)
    if not isinstance(database, str):
        raise SinkError(
            "to_sql: give the database as 'sqlite:///file.db' or 'postgresql://host/name', or a function "
            f"that connects to it; not {database!r}."
        )
    scheme, _, rest = database.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return SqlSink(_Sqlite(local_path(rest[1:], "to_sql", SinkError)), database, table, keys)
    if scheme in ("postgresql", "postgres") and rest:
        return SqlSink(_Postgresql(database), _LOGIN.sub("//", f"postgresql://{rest}"), table, keys)
    raise SinkError(
        f"to_sql: '{_LOGIN.sub('//', database)}' is no database that Headgate can open itself: write "
        "'sqlite:///file.db' ('sqlite:////data/file.db' for /data/file.db) or 'postgresql://host/name', or "
        "give a function that connects, such as lambda: psycopg.connect(…)."
    )


class _Sqlite:
    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self) -> Any:
        # Used by one thread at a time, but on Spark by several.
        return sqlite3.connect(self.path, timeout=_LOCKED_SECONDS, check_same_thread=False)


class _Postgresql:
    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self) -> Any:
        try:
            from adbc_driver_postgresql import dbapi
        except ImportError as error:
            raise SinkError(
                "to_sql: PostgreSQL needs a driver: pip install 'headgate[sql]', or give a function that "
                "connects, such as lambda: psycopg.connect(…)."
            ) from error
        return dbapi.connect(self.url)
