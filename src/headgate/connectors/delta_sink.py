"""``hg.to_delta("lake/alerts")``: results appended to a Delta table, each step by one of its transactions.

Delta's log has a place for the number of the last step: the version of an application's transactions.  It is
committed with the rows, and two commits of one application never both succeed on one version of the table.
Written by ``deltalake`` in the driver, not by Spark: Delta's own connector has no release for Spark 4.3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from headgate.connectors.transactions import NOTHING, TransactionalSink, Transactions, is_taken
from headgate.errors import SinkError

_HELP = "to_delta needs the package deltalake: pip install 'headgate[delta]'."


class DeltaSink(TransactionalSink):
    """One table, by its path or URL.  ``options`` are those of its store."""

    def __init__(self, table: str, options: Mapping[str, str]) -> None:
        self.table = table
        self.options = dict(options)
        self.target = f"Delta table {table}"
        if "://" not in table:
            self.path = table
        self.shares = True

    def transactions(self, query: str, schema: pa.Schema, checkpoint: str, known: bool) -> Transactions:
        return DeltaTransactions(self, query, schema, checkpoint)


class DeltaTransactions(Transactions):
    """One query's transactions."""

    def __init__(self, sink: DeltaSink, query: str, schema: pa.Schema, checkpoint: str) -> None:
        self._sink, self._schema = sink, schema
        self._what = f"Query '{query}', to_delta: table '{sink.table}'"
        self._name = f"headgate/{checkpoint}/{query}" if checkpoint else ""
        deltalake = _deltalake()
        with self._attempt("cannot be written"):
            deltalake.DeltaTable.create(sink.table, schema, mode="ignore", storage_options=sink.options)

    def take(self, step: int, batches: Iterable[pa.RecordBatch], repeated: bool) -> None:
        deltalake = _deltalake()
        with self._attempt("did not take its rows"):
            table = deltalake.DeltaTable(self._sink.table, storage_options=self._sink.options)
            marks = None
            if self._name and step != NOTHING:
                last = table.transaction_version(self._name)
                # A table loses the number only with its rows: if it was replaced.
                if is_taken(NOTHING if last is None else last, step, repeated, self._what):
                    return
                marks = deltalake.CommitProperties(app_transactions=[deltalake.Transaction(self._name, step)])
            rows = pa.RecordBatchReader.from_batches(self._schema, batches)
            deltalake.write_deltalake(table, rows, mode="append", commit_properties=marks)

    @contextlib.contextmanager
    def _attempt(self, failed: str) -> Iterator[None]:
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
            raise SinkError(f"{self._what} {failed}: {str(error).rstrip('.')}.") from error


def _deltalake() -> Any:
    try:
        import deltalake
    except ImportError as error:
        raise SinkError(_HELP) from error
    return deltalake


def to_delta(table: str, *, options: Mapping[str, str] | None = None) -> DeltaSink:
    """A sink that appends to the Delta table at ``table``, which is made if it is not there.

    ``table`` is a folder or the URL of a store ("s3://lake/alerts"), whose ``options`` are those of
    ``deltalake`` (``storage_options``).  With a checkpoint each row is there once, also after a crash.

    >>> to_delta("lake/alerts").table
    'lake/alerts'
    """
    if not isinstance(table, str) or not table:
        raise SinkError(f"to_delta: table must be a folder or a URL ('s3://lake/alerts'), not {table!r}.")
    return DeltaSink(table, {str(key): str(value) for key, value in (options or {}).items()})
