"""Windows of a range of rows, gathered where the rows are and folded in where the state is.

A range does not know the time that the stream had reached before it.  It need not: a group is a window (or a
pane with the first window that its rows still enter), and time before the range decides about whole groups.
It can only close windows, so a group whose windows were all closed is late, and a group that has lost some
of its windows starts with a later one.  Within the range, rows are late by the range's own time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headgate.errors import BadRow
from headgate.graph.aggregates import Accumulators, Input, evaluate
from headgate.graph.columns import Ints
from headgate.graph.gathered import Gathered
from headgate.graph.numbering import grown
from headgate.graph.operator import Operator
from headgate.graph.operators._user import located, refuse_far_times, set_apart
from headgate.graph.operators.panes import Panes
from headgate.graph.operators.window_state import WindowState
from headgate.graph.packet import Order, Packet, Ticks, empty_batch
from headgate.graph.time import NEVER, Passage, ticks_of
from headgate.sql import Aggregate

Batches = list[pa.RecordBatch]
_PAYS = 0.25
"""Groups per row of the first packet up to which groups are sent instead of rows."""


class TakenIn(NamedTuple):
    """How time moved with a packet; its rows that are not late (None: all), their keys' slots and inputs."""

    passage: Passage
    rows: Ints | None
    slots: Ints
    inputs: list[Input]
    late: Packet


class GatheredWindows(Operator):
    """Windows whose rows can be gathered range by range."""

    keys: tuple[str, ...]
    aggregates: list[Aggregate]
    key_indices: list[int]
    time_index: int

    def open(self) -> WindowState:
        raise NotImplementedError

    def emit(
        self,
        state: WindowState,
        now: int,
        passage: Passage,
        batches: Batches,
        causes: list[Ints],
    ) -> None:
        """Close windows: their results and causes."""
        raise NotImplementedError

    def stacked(self, batches: Batches, causes: list[Ints]) -> tuple[pa.RecordBatch, Ints]:
        """All results as one batch, with their causes."""
        raise NotImplementedError

    def take_in(self, packet: Packet, state: WindowState) -> TakenIn:
        """A packet as a state sees it; late rows are set apart and counted."""
        refuse_far_times(self, [packet])
        passage = state.clock.pass_by(packet, self.time_index)
        late = (passage.times == NEVER) | state.groups.late(passage.times, passage.before)
        batch, rows, late_packet = set_apart(packet, late, self.nothing(1))
        try:
            inputs = evaluate(self.aggregates, batch)
        except BadRow as bad:
            raise located(bad, self.label, packet, rows) from bad
        state.late += len(late_packet)
        slots = state.keys.slots([batch.column(c) for c in self.key_indices], batch.num_rows)
        return TakenIn(passage, rows, slots, inputs, late_packet)

    def gather(self, packets: Sequence[Packet]) -> Gathered | None:
        """The groups of the rows of ``packets``; None if there are nearly as many of them as rows."""
        state = self.open()
        groups = state.groups
        assert isinstance(groups, Panes)
        counts: Ints = np.zeros(0, dtype=np.int64)
        ticks: list[Ticks] = []
        seen = 0
        for packet in packets:
            passage, rows, slots, inputs, _ = self.take_in(packet, state)
            numbered = Packet(packet.batch, packet.order.with_ordinals(np.arange(seen, seen + len(packet))))
            ticks.append(ticks_of(numbered, self.time_index, self.time_limit, self.time_grain))
            times, before = passage.times, passage.before
            if rows is not None:
                times, before = times[rows], before[rows]
            # The order of rows matters to none of the aggregates here, so they all have the same number.
            found = state.add(slots, times, before, inputs, np.zeros(len(times), dtype=np.int64))
            counts = grown(counts, groups.count, 0)
            counts[: groups.count] += np.bincount(found, minlength=groups.count)
            state.clock.maximum = passage.maximum
            if not seen and groups.count > _PAYS * len(packet):
                return None
            seen += len(packet)
        all_groups = np.arange(groups.count)
        columns = {
            "part": pa.array(groups.parts(all_groups)),
            "rows": pa.array(counts[: groups.count]),
            **state.accumulators.snapshot(all_groups),
        }
        keys = state.keys.keys(groups.slots(all_groups))
        names = [*self.keys, *(f"state.{name}" for name in columns)]
        batch = pa.RecordBatch.from_arrays([*keys, *columns.values()], names=names)
        moves = Ticks(Order.concat([t.order for t in ticks]), np.concatenate([t.times for t in ticks]))
        return Gathered(batch, moves, seen - state.late, state.late)

    def absorb(self, gathered: Gathered, state: WindowState) -> list[Packet]:
        """Fold the groups of a range in and close windows: what its rows would have given."""
        groups = state.groups
        assert isinstance(groups, Panes)
        batch, keys = gathered.groups, len(self.keys)
        columns = {
            name.removeprefix("state."): column
            for name, column in zip(batch.schema.names[keys:], batch.columns[keys:], strict=True)
        }
        nothing = Packet(empty_batch(self.inputs[0]), Order(0, 0.0, 0), ticks=gathered.ticks)
        passage = state.clock.pass_by(nothing, self.time_index)
        state.late += gathered.late
        state.seen += gathered.rows
        if batch.num_rows:
            slots = state.keys.slots(batch.columns[:keys], batch.num_rows)
            groups.reserve(len(state.keys))
            into, late = groups.enter(slots, columns["part"].to_numpy(), state.clock.now)
            state.late += int(columns["rows"].to_numpy()[late].sum())
            given = Accumulators(self.aggregates)
            given.grow(batch.num_rows)
            given.restore(np.arange(batch.num_rows), columns)
            state.fold(into, given, np.flatnonzero(~late))
        batches: list[pa.RecordBatch] = []
        causes: list[Ints] = []
        self.emit(state, passage.end(state.clock.now), passage, batches, causes)
        results, by = self.stacked(batches, causes)
        state.clock.maximum = passage.maximum
        state.tidy()
        main = Packet(results, passage.order.take(by))
        return [main, Packet(self.nothing(1), passage.order.take(by[:0]))]
