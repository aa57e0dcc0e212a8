"""A table of a database as a query writes it: one transaction for a step's rows and its mark."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors import sql_dialect as dialects
from headgate.connectors.sql_dialect import column, quoted, text
from headgate.connectors.transactions import NOTHING, Transactions, is_taken
from headgate.errors import HeadgateError, SinkError, in_a_line

MARKS = "headgate_steps"
"""The table of marks: for every checkpoint and query, the last step that was written."""
_MARKS_COLUMNS = (
    "checkpoint CHAR(32) NOT NULL, query VARCHAR(1000) NOT NULL, step BIGINT NOT NULL, "
    "PRIMARY KEY (checkpoint, query)"
)
_STAGED = "headgate_staged"
_PLACE = "__place"


class SqlTable(Transactions):
    """``table`` of the database that ``connect`` reaches.  ``owner``: checkpoint and query."""

    def __init__(
        self,
        connect: Callable[[], Any],
        what: str,
        database: str,
        table: str,
        key: Sequence[str],
        owner: tuple[str, str],
        schema: pa.Schema,
        known: bool,
    ) -> None:
        self._connect, self._what, self._database = connect, what, database
        self._table, self._key, self._schema = table, list(key), schema
        self._checkpoint, query = owner
        folder, dot, _ = table.rpartition(".")
        self._marks = folder + dot + MARKS
        self._mine = f"checkpoint = {text(self._checkpoint)} AND query = {text(query)}"
        self._first = f"{text(self._checkpoint)}, {text(query)}"
        self._connection: Any = None
        self._thread = 0
        self._dialect = dialects.STANDARD
        self._arrow = False
        """The driver takes Arrow batches as they are."""
        self._types: pa.Schema | None = None
        """What the table's columns are, where the driver tells."""
        with self._attempt("cannot be written"):
            self._prepare(known)

    # --- a step -------------------------------------------------------------------------------------

    def take(self, step: int, batches: Iterable[pa.RecordBatch], repeated: bool) -> None:
        with self._attempt("did not take its rows"), self._transaction() as cursor:
            if self._checkpoint and self._is_there(cursor, step, repeated):
                return
            self._write(cursor, batches)
            if self._checkpoint:
                cursor.execute(f"UPDATE {quoted(self._marks)} SET step = {step} WHERE {self._mine}")

    def _is_there(self, cursor: Any, step: int, repeated: bool) -> bool:
        # Takes the row's lock before it is looked at, so that of two owners one waits for the other.
        cursor.execute(f"UPDATE {quoted(self._marks)} SET step = step WHERE {self._mine}")
        last = self._last(cursor)
        if is_taken(last, step, repeated, self._named):
            return True
        if last is None:
            self._mark(cursor)
        return False

    def _last(self, cursor: Any) -> int | None:
        cursor.execute(f"SELECT step FROM {quoted(self._marks)} WHERE {self._mine}")
        found = cursor.fetchall()
        return int(found[0][0]) if found else None

    def _mark(self, cursor: Any) -> None:
        cursor.execute(
            f"INSERT INTO {quoted(self._marks)} (checkpoint, query, step) VALUES ({self._first}, {NOTHING})"
        )

    # --- rows ---------------------------------------------------------------------------------------

    def _write(self, cursor: Any, batches: Iterable[pa.RecordBatch]) -> None:
        batches = [batch for batch in batches if batch.num_rows]
        if self._key and batches:
            batches = self._last_of_each_key(batches)
        if not batches:
            return
        if self._arrow:
            self._ingest(cursor, batches)
            return
        names = self._schema.names
        values = f"VALUES ({', '.join(dialects.places(self._connection, len(names)))})"
        statement = dialects.insert(self._table, names, values, self._key)
        for batch in batches:
            columns = [self._values(array) for array in batch.columns]
            cursor.executemany(statement, list(zip(*columns, strict=True)))

    def _values(self, array: pa.Array) -> list[Any]:
        """Python's values of a column, as the database's driver takes them."""
        if self._dialect == dialects.SQLITE and dialects.is_text_in_sqlite(array.type):
            array = array.cast(pa.string())
        values: list[Any] = array.to_pylist()
        return values

    def _ingest(self, cursor: Any, batches: Sequence[pa.RecordBatch]) -> None:
        """No Python per row: the driver copies Arrow batches into the table, or beside it and from there."""
        types = self._types or self._schema
        rows = pa.Table.from_batches(batches).cast(types)
        schema, _, table = self._table.rpartition(".")
        if not self._key:
            cursor.adbc_ingest(table, rows, mode="append", **({"db_schema_name": schema} if schema else {}))
            return
        cursor.execute(f"DROP TABLE IF EXISTS {quoted(_STAGED)}")
        cursor.adbc_ingest(_STAGED, rows, mode="create", temporary=True)
        names = self._schema.names
        # SQLite takes "ON CONFLICT" after a table's name for a join's condition, but not after WHERE.
        query = f"SELECT {', '.join(map(column, names))} FROM {quoted(_STAGED)} WHERE true"
        cursor.execute(dialects.insert(self._table, names, query, self._key))
        cursor.execute(f"DROP TABLE {quoted(_STAGED)}")

    def _last_of_each_key(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Of rows with one key the last: it would replace the others."""
        rows = pa.Table.from_batches(batches)
        for name in self._key:
            if rows.column(name).null_count:
                raise SinkError(f"{self._what}: key column '{name}' is null in a row of its results.")
        placed = rows.select(self._key).append_column(_PLACE, pa.array(np.arange(rows.num_rows)))
        last = placed.group_by(self._key).aggregate([(_PLACE, "max")]).column(f"{_PLACE}_max")
        kept: list[pa.RecordBatch] = rows.take(last.take(pc.sort_indices(last))).to_batches()
        return kept

    # --- the connection -----------------------------------------------------------------------------

    @property
    def _named(self) -> str:
        return f"{self._what}: {self._database}"

    def _open(self) -> Any:
        # SQLite's connections belong to the thread that made them, unless they were made otherwise.
        if self._thread != threading.get_ident() and isinstance(self._connection, sqlite3.Connection):
            self._close()
        if self._connection is None:
            connection = self._connection = self._connect()
            if getattr(connection, "autocommit", None) is True or (
                isinstance(connection, sqlite3.Connection) and connection.isolation_level is None
            ):
                raise SinkError(f"{self._what}: the connection is in autocommit; rows need transactions.")
            self._dialect = dialects.dialect_of(connection)
            self._thread = threading.get_ident()
        return self._connection

    @contextlib.contextmanager
    def _transaction(self, *, keep: bool = True) -> Iterator[Any]:
        """A cursor whose statements are one transaction; ``keep=False`` takes them back."""
        connection = self._open()
        cursor = connection.cursor()
        # DuckDB's cursors are connections of their own, and begin nothing by themselves.
        owner = cursor if hasattr(cursor, "commit") else connection
        try:
            if hasattr(owner, "begin"):
                owner.begin()
            yield cursor
            if keep:
                owner.commit()
            else:
                owner.rollback()
        except BaseException:
            with contextlib.suppress(Exception):
                owner.rollback()
            raise
        finally:
            with contextlib.suppress(Exception):
                cursor.close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    @contextlib.contextmanager
    def _attempt(self, failed: str) -> Iterator[None]:
        """After a failure the connection is made anew; the database takes back what was not committed."""
        try:
            yield
        except BaseException as error:
            self._close()
            if isinstance(error, HeadgateError) or not isinstance(error, Exception):
                raise
            raise SinkError(f"{self._named} {failed}: {in_a_line(error)}") from error

    def close(self, error: bool) -> None:
        self._close()

    # --- making ready -------------------------------------------------------------------------------

    def _prepare(self, known: bool) -> None:
        self._open()
        columns = dialects.columns(self._schema, self._dialect, self._key, self._what)
        self._make(self._table, columns)
        if self._checkpoint:
            self._make(self._marks, _MARKS_COLUMNS)
            if not known:
                self._prove_rollback()
        self._learn()
        if self._key:
            self._prove_key()

    def _make(self, table: str, columns: str) -> None:
        """Make a table unless it is there; asked first, as making may need a right that writing does not."""
        try:
            with self._transaction(keep=False) as cursor:
                cursor.execute(f"SELECT 1 FROM {quoted(table)} WHERE 1 = 0")
                cursor.fetchall()
        except Exception:
            with self._transaction() as cursor:
                cursor.execute(f"CREATE TABLE IF NOT EXISTS {quoted(table)} ({columns})")

    def _prove_rollback(self) -> None:
        """The promise rests on it: a database that keeps what was taken back is refused."""
        with self._transaction(keep=False) as cursor:
            if self._last(cursor) is not None:
                return
            self._mark(cursor)
        with self._transaction() as cursor:
            if self._last(cursor) is not None:
                raise SinkError(
                    f"{self._named} does not take back what is rolled back (autocommit, or a kind of table "
                    "without transactions), so a step could be written in part; use one that does."
                )
            self._mark(cursor)

    def _learn(self) -> None:
        """What an Arrow driver calls the table's columns: rows are cast to that."""
        with self._transaction(keep=False) as cursor:
            self._arrow = hasattr(cursor, "adbc_ingest")
            if not self._arrow:
                return
            cursor.execute(self._none())
            found = cursor.fetch_arrow_table().schema
        if self._dialect != dialects.SQLITE:  # whose columns take anything
            fields = zip(self._schema, found, strict=True)
            self._types = pa.schema(
                [own if isinstance(its.type, pa.BaseExtensionType) else its for own, its in fields]
            )

    def _prove_key(self) -> None:
        """An empty upsert: a database that cannot, or a table without that key, says so now."""
        try:
            with self._transaction(keep=False) as cursor:
                cursor.execute(dialects.insert(self._table, self._schema.names, self._none(), self._key))
        except Exception as error:
            keys = ", ".join(f"'{name}'" for name in self._key)
            raise SinkError(
                f"{self._named} cannot replace rows by key {keys}: {in_a_line(error)}. The table needs a "
                "primary key or a unique constraint of just these columns, and the database must know "
                "INSERT … ON CONFLICT."
            ) from error

    def _none(self) -> str:
        """A query without rows."""
        names = ", ".join(map(column, self._schema.names))
        return f"SELECT {names} FROM {quoted(self._table)} WHERE 1 = 0"
