"""What a source and its reader are, and how batches of any size are cut to the size that is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headgate.connectors.refused import COLUMN, has_refused, together
from headgate.errors import HeadgateError, PipelineError, SourceError, nearest
from headgate.graph.needs import Needs
from headgate.graph.packet import Seconds
from headgate.graph.schema import normal_type, normalise_batch


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

    selective: bool = False
    """It can read less than all columns and rows: ``narrow``."""

    @abstractmethod
    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        """At most ``max_rows`` rows that have arrived by ``now``; None: the source has ended for good.

        How many rows come at a time makes no difference to the order of admission.
        """

    def narrow(self, needs: Needs, back: int) -> None:
        """From now on read only what is needed; the last ``back`` rows that were given come again.

        Columns that are not read are null, and so are rows.  Only a reader that is ``selective`` is asked.
        """
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most readers hold nothing
        """Give back what the reader holds; it is not polled again."""


class Source(ABC):
    """A description of a stream: its schema, whether it ends, and how to read it."""

    schema: pa.Schema
    finite: bool
    """It ends by itself."""
    computed_by_tasks: bool = False
    """Its rows follow from their numbers alone, so a task can make them from this description."""
    path: str | None = None
    """The folder or files it reads, for sources that read some: a sink must not write there."""
    live: bool = False
    """Its tuples arrive over time, so they are admitted in the order of arrival and not in turns."""
    refuses: bool = False
    """It may refuse rows (``sources.refused``): they are dead letters, or fail the queries that read it."""

    @abstractmethod
    def open(self) -> Reader:
        """A reader from the beginning."""


class Cutter:
    """Batches of any size in, batches of the size asked for out: slices where possible, copies where not."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def take(self, rows: int, least: int | None = None) -> pa.RecordBatch | None:
        """``rows`` rows, fewer at the end, None after it.

        With ``least``, batches are put together only up to that many rows, since that copies them.
        """
        pieces: list[pa.RecordBatch] = []
        least, have = rows if least is None else least, 0
        while have < least:
            batch = self._rest if self._rest is not None else next(self._batches, None)
            self._rest = None
            if batch is None:
                break
            wanted = least - have if pieces else rows
            if batch.num_rows > wanted:
                self._rest = batch.slice(wanted)
                batch = batch.slice(0, wanted)
            if batch.num_rows:
                pieces.append(batch)
                have += batch.num_rows
        if not pieces:
            return None
        return together(pieces)


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


def fitted(found: Any, name: str, schema: pa.Schema) -> Chunk | Wait | None:
    """What the reader of source ``name`` gave, in the types of ``schema``; SourceError if it does not fit.

    Every engine asks this of every reader.  A source of the user's own may give anything, and a batch of
    another schema would fail far from here, in an operator of a query that reads something else as well.
    """
    if found is None or isinstance(found, Wait):
        return found
    if not isinstance(found, Chunk):
        raise SourceError(
            f"Source '{name}': its reader gave a {type(found).__name__}; it must be a Chunk, a Wait or None."
        )
    batch, arrivals = found.batch, found.arrivals
    if not isinstance(batch, pa.RecordBatch):
        raise SourceError(
            f"Source '{name}': its reader gave a chunk with a {type(batch).__name__} where a pyarrow "
            "RecordBatch should be."
        )
    if isinstance(arrivals, int):
        arrivals = float(arrivals)
    if not isinstance(arrivals, float) and len(arrivals) != batch.num_rows:
        raise SourceError(
            f"Source '{name}': its reader gave {len(arrivals)} arrival times for {batch.num_rows} rows; give "
            "one for each row, or a single number for all."
        )
    expected = schema.append(COLUMN) if has_refused(batch) else schema
    if batch.schema.equals(expected) and arrivals is found.arrivals:
        return found
    _check_columns(batch.schema, name, expected)
    try:
        return Chunk(normalise_batch(batch, expected), arrivals)
    except pa.ArrowException as error:
        raise SourceError(f"Source '{name}': a batch cannot be brought to its schema: {error}.") from error


def _check_columns(given: pa.Schema, name: str, schema: pa.Schema) -> None:
    for field in schema:
        if given.names.count(field.name) != 1:
            has = ", ".join(map(repr, given.names)) or "no columns"
            raise SourceError(
                f"Source '{name}': its schema promises one column '{field.name}' ({field.type}), but a "
                f"batch has {has}."
            )
        type_ = given.field(field.name).type
        if not pt.is_null(type_) and _normal(type_, field.name) != field.type:
            raise SourceError(
                f"Source '{name}': its schema promises column '{field.name}' as {field.type}, but a batch "
                f"has it as {type_}; change the source's schema or what its reader gives."
            )
    extra = [column for column in given.names if column not in schema.names]
    if extra:
        raise SourceError(
            f"Source '{name}': a batch has a column '{extra[0]}' that the source's schema does not promise."
            f"{nearest(extra[0], schema.names)}"
        )


def _normal(type_: pa.DataType, column: str) -> pa.DataType | None:
    try:
        return normal_type(type_, column)
    except PipelineError:
        return None


def source_error(name: str, error: Exception) -> HeadgateError:
    """What a source raised, in the user's words."""
    if isinstance(error, HeadgateError):
        return error
    found = SourceError(f"Source '{name}' failed: {type(error).__name__}: {error}")
    found.__cause__ = error
    return found
