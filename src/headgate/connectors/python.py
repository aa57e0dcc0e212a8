"""``hg.to_list(list)`` and ``hg.to_function(fn)``: results that stay in the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headgate.connectors.sink import Sink, Writer
from headgate.errors import SinkError
from headgate.graph.rows import to_rows


class ListSink(Sink):
    """Appends one dict per row."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def open(self, query: str, schema: pa.Schema) -> Writer:
        return _ListWriter(self.rows)


class _ListWriter(Writer):
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows.extend(to_rows(batch))


class FunctionSink(Sink):
    """Calls a function with the query's name and each batch."""

    def __init__(self, fn: Callable[[str, pa.RecordBatch], object]) -> None:
        self.fn = fn

    def open(self, query: str, schema: pa.Schema) -> Writer:
        return _FunctionWriter(query, self.fn)


class _FunctionWriter(Writer):
    def __init__(self, query: str, fn: Callable[[str, pa.RecordBatch], object]) -> None:
        self._query = query
        self._fn = fn

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        try:
            self._fn(self._query, batch)
        except Exception as error:
            name = getattr(self._fn, "__name__", type(self._fn).__name__)
            raise SinkError(
                f"Query '{self._query}': the function '{name}' of to_function failed on a batch of "
                f"{batch.num_rows} rows: {type(error).__name__}: {error}"
            ) from error


def to_list(rows: list[dict[str, Any]]) -> ListSink:
    """A sink that appends one dict per row to ``rows``, in order."""
    if not isinstance(rows, list):
        raise SinkError(f"to_list: give it a list to append to, not a {type(rows).__name__}.")
    return ListSink(rows)


def to_function(fn: Callable[[str, pa.RecordBatch], object]) -> FunctionSink:
    """A sink that calls ``fn(query_name, record_batch)`` with each batch of results, in order."""
    if not callable(fn):
        raise SinkError(
            f"to_function: {fn!r} is not a function; it is called as fn(query_name, record_batch)."
        )
    return FunctionSink(fn)
