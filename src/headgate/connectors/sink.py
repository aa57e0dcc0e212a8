"""What a sink and its writer are."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import pyarrow as pa

from headgate.errors import PipelineError


class Writer(ABC):
    """Takes one query's results, in order, from one thread at a time."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take over the rows of ``batch``."""

    def close(self, error: bool) -> None:  # noqa: B027 - most writers hold nothing
        """The run is over, or (``error``) this query failed; what was written before stays."""


class StepWriter(Writer):
    """Takes the rows of a Spark step at once, with the step's number.

    After a crash the same rows come again under the same number, so the receiver can tell a repeat.
    """

    @abstractmethod
    def write_step(self, number: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Take over all rows of step ``number``; numbers grow, with gaps, also across restarts."""


class Sink(ABC):
    """A description of where a query's results go."""

    path: str | None = None
    """The folder it writes, for sinks that write one: a source must not read it."""
    shares = True
    """Other queries may write to the same ``path``."""
    order: str = "serial"
    """``"serial"``: results come in the order of serial execution.  ``"key"``: those of one key do."""

    @abstractmethod
    def open(self, query: str, schema: pa.Schema) -> Writer:
        """A writer of ``query``'s results; raises SinkError if they cannot be written there."""


def check_shared(query: str, sink: Sink, others: Iterable[tuple[str, Sink]]) -> None:
    """Raise PipelineError if ``query`` would write into the folder of one of the other queries."""
    if sink.path is None:
        return
    folder = os.path.realpath(sink.path)
    for other, its in others:
        if its.path is None or (sink.shares and its.shares) or os.path.realpath(its.path) != folder:
            continue
        raise PipelineError(
            f"Query '{query}' writes to '{sink.path}', and so does query '{other}'; give each a folder of "
            "its own, or pass append=True for both to have their parts in one."
        )
