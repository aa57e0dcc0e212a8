"""What a sink and its writer are."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa


class Writer(ABC):
    """Takes one query's results, in order, from one thread at a time."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take over the rows of ``batch``."""

    def close(self, error: bool) -> None:  # noqa: B027 - most writers hold nothing
        """The run is over, or (``error``) this query failed; what was written before stays."""


class Sink(ABC):
    """A description of where a query's results go."""

    path: str | None = None
    """The folder it writes, for sinks that write one: a source must not read it."""

    @abstractmethod
    def open(self, query: str, schema: pa.Schema) -> Writer:
        """A writer of ``query``'s results; raises SinkError if they cannot be written there."""
