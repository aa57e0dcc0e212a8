"""What a source and its reader are, and how batches of any size are cut to the size that is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from headgate.graph.packet import Seconds
from headgate.graph.schema import normalise_batch


@dataclass(slots=True)
class Chunk:
    """Rows that have arrived; times are seconds since the run's start."""

    batch: pa.RecordBatch
    arrivals: float | Seconds

    def slice(self, start: int, rows: int) -> Chunk:
        """``rows`` rows from ``start``, or as many as there are."""
        times = self.arrivals
        part = times if isinstance(times, float) else times[start : start + rows]
        return Chunk(self.batch.slice(start, rows), part)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing has arrived; ask again at ``until``, or when the engine likes if it is None."""

    until: float | None = None


class Reader(ABC):
    """One pass over a source."""

    @abstractmethod
    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        """At most ``max_rows`` rows that have arrived by ``now``; None: the source has ended for good.

        A finite source gives exactly ``max_rows`` until its last chunk, so that an order of admission
        that takes turns does not depend on how the source happens to store its rows.
        """

    def close(self) -> None:  # noqa: B027 - most readers hold nothing
        """Give back what the reader holds; it is not polled again."""


class Source(ABC):
    """A description of a stream: its schema, whether it ends, and how to read it."""

    schema: pa.Schema
    finite: bool
    """It ends by itself."""
    live: bool = False
    """Its tuples arrive over time, so they are admitted as they come and not in turns."""

    @abstractmethod
    def open(self) -> Reader:
        """A reader from the beginning."""


class Cutter:
    """Batches of any size in, batches of the size asked for out: slices where possible, copies where not."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def take(self, rows: int) -> pa.RecordBatch | None:
        """Exactly ``rows`` rows, fewer at the end, None after it."""
        pieces: list[pa.RecordBatch] = []
        wanted = rows
        while wanted > 0:
            batch = self._rest if self._rest is not None else next(self._batches, None)
            self._rest = None
            if batch is None:
                break
            if batch.num_rows > wanted:
                self._rest = batch.slice(wanted)
                batch = batch.slice(0, wanted)
            if batch.num_rows:
                pieces.append(batch)
                wanted -= batch.num_rows
        if not pieces:
            return None
        return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)


class BatchReader(Reader):
    """Reads an iterator of record batches, whose rows all arrive at time 0.

    Enough for most finite sources: ``open`` returns ``BatchReader(batches, self.schema)``.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._cutter = Cutter(batches)
        self._schema = schema

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        batch = self._cutter.take(max_rows)
        return None if batch is None else Chunk(normalise_batch(batch, self._schema), 0.0)
