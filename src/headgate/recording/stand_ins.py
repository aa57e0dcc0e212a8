"""Operators and sources that do as was recorded of the real ones, without any data."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.connectors.sink import Sink, Writer
from headgate.connectors.source import Chunk, Reader, Source, Wait
from headgate.graph.operator import Kind, Operator, State
from headgate.graph.packet import Packet
from headgate.recording.format import Rows
from headgate.recording.model import BoxModel

ROWS = pa.schema([("row", pa.null())])
"""Rows of nothing: they take no memory and no time."""
NUMBERED = pa.schema([("row", pa.int64())])
"""Rows with a number, for keyed boxes that several workers share: it stands for the key."""
LATE_SHARE = 0.25
"""A source was held back by full queues where it was later than in this share of its packets."""


class _Nothing(State):
    """The state of a stand-in that is split by bucket."""

    def snapshot(self) -> pa.Table:
        return NUMBERED.empty_table()

    def apply(self, changes: pa.Table) -> None:
        pass


class StandIn(Operator):
    """Makes as many results as the recorded operator made of the same tuples."""

    def __init__(self, told: Mapping[str, Any], model: BoxModel, schema: pa.Schema) -> None:
        self.model, self.taken, self.closed = model, 0, False
        """``taken``: tuples so far; calls of a box take theirs in order."""
        self._label = str(told["label"])
        self.cost, self.selectivity, self.slow = told["cost"], told["selectivity"], told["slow"]
        kind = Kind(told["kind"])
        if kind is Kind.KEYED and schema is not NUMBERED:
            kind = Kind.STATEFUL
        self.kind = kind  # type: ignore[misc]
        if kind is Kind.KEYED:
            self.keys_by_input = (("row",),) * len(told["ports"])
            self.times_by_input = (None,) * len(told["ports"])
        super().__init__([schema] * len(told["ports"]), [schema] * told["outputs"])

    @property
    def label(self) -> str:
        return self._label

    def in_simulation(self) -> StandIn:
        """For a run of its own: nothing has been taken yet."""
        fresh = copy.copy(self)
        fresh.taken, fresh.closed = 0, False
        return fresh

    def open(self) -> State | None:
        return None if self.kind is Kind.STATELESS else _Nothing()

    def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
        packet = Packet.merge(list(packets))
        rows = len(packet)
        counts = self.model.made_by(self.taken, rows)
        before, self.taken = self.taken, self.taken + rows
        causes = np.repeat(np.arange(rows), counts)
        results = [packet if len(causes) == rows and bool((counts == 1).all()) else _caused(packet, causes)]
        for _ in self.outputs[1:]:
            share = self.model.more
            some = np.diff(np.floor(np.arange(before, before + rows + 1) * share))
            results.append(_caused(packet, np.repeat(np.arange(rows), some.astype(np.int64))))
        return results


class ClosingStandIn(StandIn):
    """One that makes results at the end."""

    def finish(self, state: Any, end: Packet) -> list[Packet]:
        first = 0 if self.closed else self.model.end_results  # a box that is split closes bucket by bucket
        self.closed = True
        counts = [first] + [0] * (len(self.outputs) - 1)
        return [_caused(end, np.zeros(count, dtype=np.int64)) for count in counts]


def _caused(packet: Packet, causes: npt.NDArray[np.int64]) -> Packet:
    schema = packet.schema
    if schema.names and pa.types.is_null(schema.field(0).type):
        batch = pa.RecordBatch.from_arrays([pa.nulls(len(causes))], schema=schema)
    elif len(packet.batch) or not len(causes):
        batch = packet.batch.take(pa.array(causes))
    else:  # the final punctuation has no row of its own
        batch = pa.RecordBatch.from_arrays([pa.array(causes)], schema=schema)
    return packet.caused(batch, causes)


def stand_in(told: Mapping[str, Any], model: BoxModel, schema: pa.Schema) -> StandIn:
    return (ClosingStandIn if told["closes"] else StandIn)(told, model, schema)


@dataclass
class Arrivals:
    """What a source brought: packets with the times at which they could be read, and those of their rows."""

    rows: npt.NDArray[np.int64]
    visible: npt.NDArray[np.float64]
    times: list[float | npt.NDArray[np.float64]] = field(default_factory=list)
    by_row: bool = False
    """Each row can be read when it arrives, not only with its packet."""
    due: list[float | npt.NDArray[np.float64]] | None = None
    """When rows can be read, if not when they arrive."""

    @staticmethod
    def of(rows: Rows, *, exact: bool, lag: float | None = None) -> Arrivals:
        """Rows of one source.

        A packet can be read when it was admitted, or earlier where full queues kept it waiting: that depends
        on the schedule.  ``lag``: each row can be read so long after its arrival, also apart from others.
        """
        values, first, last = rows.values, rows["seconds"], rows["overhead"]
        times: list[float | npt.NDArray[np.float64]] = []
        for place, count in enumerate(rows["rows"]):
            own = values[place]
            if own is not None:
                times.append(own)
            elif first[place] == last[place]:
                times.append(float(first[place]))
            else:
                times.append(np.linspace(first[place], last[place], int(count)))
        visible = last
        if lag is not None:
            shifted = [one + lag for one in times]
            return Arrivals(rows["rows"], last + lag, times, by_row=True, due=shifted)
        if not exact and len(rows):
            usual = float(np.quantile(np.maximum(rows["at"] - last, 0.0), LATE_SHARE))
            visible = np.maximum.accumulate(np.minimum(rows["at"], last + usual))
        return Arrivals(rows["rows"], visible, times, by_row=exact)


class RecordedSource(Source):
    """Brings rows when they came."""

    finite = True

    def __init__(self, arrivals: Arrivals, live: bool, schema: pa.Schema) -> None:
        self.arrivals, self.live, self.schema = arrivals, live, schema

    def open(self) -> Reader:
        return _Reader(self)


class _Reader(Reader):
    def __init__(self, source: RecordedSource) -> None:
        self._source, self._own = source, source.arrivals
        self._next = self._offset = self._count = 0

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        own, parts, found = self._own, [], 0
        while found < max_rows and self._next < len(own.rows):
            times = own.times[self._next]
            ready = self._ready(now) - self._offset
            if ready <= 0:
                break
            taken = min(ready, max_rows - found)
            part = times if isinstance(times, float) else times[self._offset : self._offset + taken]
            parts.append((part, taken))
            found += taken
            self._offset += taken
            if self._offset == own.rows[self._next]:
                self._next, self._offset = self._next + 1, 0
        if found:
            return Chunk(self._batch(found), _together(parts))
        return None if self._next == len(own.rows) else Wait(self._due())

    def _ready(self, now: float) -> int:
        """Rows of the next packet that can be read."""
        own = self._own
        times = (own.due or own.times)[self._next]
        if not self._source.live:
            return int(own.rows[self._next])
        if own.by_row and not isinstance(times, float):
            return int(np.searchsorted(times, now, side="right"))
        due = times if own.by_row else own.visible[self._next]
        return int(own.rows[self._next]) if due <= now else 0

    def _due(self) -> float:
        own, times = self._own, (self._own.due or self._own.times)[self._next]
        if own.by_row:
            return times if isinstance(times, float) else float(times[self._offset])
        return float(own.visible[self._next])

    def _batch(self, rows: int) -> pa.RecordBatch:
        schema = self._source.schema
        if schema is ROWS:
            return pa.RecordBatch.from_arrays([pa.nulls(rows)], schema=schema)
        self._count += rows
        numbers = np.arange(self._count - rows, self._count)
        return pa.RecordBatch.from_arrays([pa.array(numbers)], schema=schema)


def _together(parts: Sequence[tuple[Any, int]]) -> Any:
    """Arrivals of several packets."""
    first = parts[0][0]
    if all(isinstance(part, float) and part == first for part, _ in parts):
        return first
    arrays = [np.full(rows, part) if isinstance(part, float) else part for part, rows in parts]
    return np.concatenate(arrays)


class Nowhere(Sink):
    """Takes results and drops them: only their times are wanted."""

    def open(self, query: str, schema: pa.Schema) -> Writer:
        return _Dropping()


class _Dropping(Writer):
    def write(self, batch: pa.RecordBatch) -> None:
        pass
