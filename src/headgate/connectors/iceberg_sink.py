"""``hg.to_iceberg("shop.alerts", catalog=...)``: results appended to an Iceberg table, a step at a time.

A commit of Iceberg can change a table's rows and its properties at once: a property has the number of the
last step.  It outlives the snapshots, which expire.  Written by ``pyiceberg`` in the driver, not by Spark:
Iceberg's own connector has no release for Spark 4.3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from headgate.connectors.transactions import NOTHING, TransactionalSink, Transactions, is_taken, plain_name
from headgate.errors import HeadgateError, SinkError, in_a_line

_HELP = "to_iceberg needs the package pyiceberg: pip install 'headgate[iceberg]'."


class IcebergSink(TransactionalSink):
    """One table of a catalog: its name in pyiceberg's settings, and properties."""

    def __init__(self, table: str, catalog: str, properties: Mapping[str, str]) -> None:
        self.table = table
        self.catalog = catalog
        self.properties = dict(properties)
        self.target = f"Iceberg table {table} of catalog {catalog}"

    def load(self) -> Any:
        """A connection to the catalog."""
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise SinkError(_HELP) from error
        return load_catalog(self.catalog, **self.properties)

    def transactions(self, query: str, schema: pa.Schema, checkpoint: str, known: bool) -> Transactions:
        return IcebergTransactions(self, query, schema, checkpoint)


class IcebergTransactions(Transactions):
    """One query's transactions."""

    def __init__(self, sink: IcebergSink, query: str, schema: pa.Schema, checkpoint: str) -> None:
        self._sink, self._schema = sink, schema
        self._what = f"Query '{query}', to_iceberg: table '{sink.table}'"
        self._name = f"headgate.step.{checkpoint}.{plain_name(query)}" if checkpoint else ""
        with self._attempt("cannot be written"):
            self._catalog = sink.load()
            namespace, _, _ = sink.table.rpartition(".")
            self._catalog.create_namespace_if_not_exists(namespace)
            self._catalog.create_table_if_not_exists(sink.table, schema)

    def take(self, step: int, batches: Iterable[pa.RecordBatch], repeated: bool) -> None:
        with self._attempt("did not take its rows"):
            table = self._catalog.load_table(self._sink.table)
            marked = self._name and step != NOTHING
            if marked:
                # A table loses its properties only with its rows: if it was replaced.
                last = table.properties.get(self._name, NOTHING)
                if is_taken(int(last), step, repeated, self._what):
                    return
                self._look_before_retries(table)
            with table.transaction() as both:
                both.append(pa.Table.from_batches(batches, schema=self._schema))
                if marked:
                    both.set_properties({self._name: str(step)})

    def _look_before_retries(self, table: Any) -> None:
        """Where another commit came first, pyiceberg reads the table anew and appends the rows behind it.

        If that one was this very step, by a run that has taken over, they must not be appended.
        """
        refresh, last = table.refresh, table.properties.get(self._name)

        def look() -> Any:
            found = refresh()
            if found.properties.get(self._name) != last:
                # Not one of pyiceberg's errors, on which it deletes the files it has written.
                raise SinkError(f"{self._what} got a step of this checkpoint from another run just now.")
            return found

        table.refresh = look

    @contextlib.contextmanager
    def _attempt(self, failed: str) -> Iterator[None]:
        """Catalogs raise errors of their clients: whatever it is, the step may be there."""
        try:
            yield
        except HeadgateError:
            raise
        except Exception as error:
            raise SinkError(f"{self._what} {failed}: {in_a_line(error)}.") from error


def to_iceberg(
    table: str, *, catalog: str = "default", properties: Mapping[str, str] | None = None
) -> IcebergSink:
    """A sink that appends to an Iceberg table ("shop.alerts"), which is made if it is not there.

    ``catalog`` is a name in pyiceberg's settings, or any name together with ``properties`` such as
    ``{"type": "rest", "uri": "http://host:8181"}``.  With a checkpoint each row is there once, also after a
    crash.

    >>> to_iceberg("shop.alerts", catalog="lake").table
    'shop.alerts'
    """
    if not isinstance(table, str) or "." not in table or not all(table.split(".")):
        raise SinkError(f"to_iceberg: table must be a namespace and a name ('shop.alerts'), not {table!r}.")
    if not isinstance(catalog, str) or not catalog:
        raise SinkError(f"to_iceberg: catalog must be a catalog's name, not {catalog!r}.")
    return IcebergSink(table, catalog, {str(key): str(value) for key, value in (properties or {}).items()})
