"""Aggregates over windows of event time: tumbling, sliding and session.

A window closes at the first tuple that brings time to its end, and its results are caused by that tuple.
Because time does not decrease, a window that closes within a packet has met all its rows by then: rows that
come later are late for it.  So a packet is first folded in as a whole and then windows close, and the answer
is that of going tuple by tuple.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import BadRow, PipelineError
from headgate.graph.aggregates import Accumulators, Input, accumulator, evaluate
from headgate.graph.columns import Ints, check_key, lexical_order, refuse_duplicates, sort_keys
from headgate.graph.durations import parse_duration
from headgate.graph.expressions import compile_aggregate
from headgate.graph.keys import KeyIndex, grown
from headgate.graph.operator import Kind, Operator, State
from headgate.graph.operators.panes import Closed, Panes, joined
from headgate.graph.operators.session import Sessions
from headgate.graph.operators.snapshots import column, marked, marks
from headgate.graph.packet import Packet, empty_batch
from headgate.graph.schema import require_columns
from headgate.graph.time import NEVER, Clock, Passage, time_array, time_column, window_time
from headgate.graph.windows import Window

_FEW = 1024
_Batches = list[pa.RecordBatch]


class WindowState(State):
    """Open windows: keys, groups of rows, and what is accumulated for each group."""

    def __init__(self, operator: WindowAggregate) -> None:
        self._operator = operator
        self.late = 0
        self.seen = 0
        self.clock = Clock(operator.window.lateness)
        self.keys = KeyIndex(operator.key_types)
        self.groups = operator.new_groups()
        self.accumulators = Accumulators(operator.aggregates)
        self.changed = np.zeros(0, dtype=np.bool_)
        """Groups that have changed since their last early result."""
        self.changes: list[Ints] = []
        self.dead = 0

    def add(self, slots: Ints, times: Ints, before: Ints, inputs: Sequence[Input], sequence: Ints) -> None:
        """Fold in rows that are not late."""
        assignment = self.groups.assign(slots, times, before)
        groups, rows = assignment.groups, assignment.rows
        self.accumulators.grow(self.groups.count)
        if assignment.merged is not None and assignment.into is not None:
            self.accumulators.merge(assignment.into, self.accumulators, assignment.merged)
            self.dead += len(assignment.merged)
        if rows is not None:
            inputs = [_expanded(given, rows, len(slots)) for given in inputs]
            sequence = sequence[rows]
        self.accumulators.update(groups, inputs, sequence)
        if self._operator.early is not None and len(groups):
            self.changed = grown(self.changed, self.groups.count, False)
            fresh = np.unique(groups[~self.changed[groups]])
            self.changed[fresh] = True
            self.changes.append(fresh)

    def close(self, now: int) -> Closed:
        closed = self.groups.close(now)
        self.dead += len(closed.dropped)
        return closed

    def take_changed(self) -> Ints:
        """The open groups that changed since this was last asked."""
        groups = np.concatenate([np.zeros(0, dtype=np.int64), *self.changes])
        self.changes.clear()
        self.changed[groups] = False
        live: Ints = groups[self.groups.alive[groups]]
        return live

    def tidy(self) -> None:
        """Forget closed groups, and keys without open groups, once they are more than half."""
        if self.dead <= max(_FEW, self.groups.count // 2):
            return
        live = np.flatnonzero(self.groups.alive[: self.groups.count])
        slots = self.groups.slots(live)
        used = np.unique(slots)
        if 2 * len(used) < len(self.keys):
            self.keys, moved = self.keys.retain(used)
            slots = moved[np.searchsorted(used, slots)]
        changed = self.changed[live] if self._operator.early is not None else self.changed
        self.groups = self.groups.compacted(self._operator.window, live, slots)
        self.accumulators = self.accumulators.take(live)
        self.changed, self.changes = changed, [np.flatnonzero(changed)]
        self.dead = 0

    def snapshot(self) -> pa.Table:
        groups, columns = self.groups.snapshot()
        keys = self.keys.keys(self.groups.slots(groups))
        changed = grown(self.changed, self.groups.count, False)[groups]
        columns = columns | {"changed": pa.array(changed)} | self.accumulators.snapshot(groups)
        names = [*self._operator.keys, *(f"state.{name}" for name in columns)]
        table = pa.Table.from_arrays([*keys, *columns.values()], names=names)
        return marked(table, self.clock.maximum, self.seen, self.late)

    def load(self, table: pa.Table) -> None:
        """Add the groups of a snapshot."""
        keys = [column(table, name) for name in self._operator.keys]
        columns = {
            name.removeprefix("state."): column(table, name) for name in table.column_names[len(keys) :]
        }
        groups = self.groups.restore(self.keys.slots(keys, table.num_rows), columns)
        self.accumulators.grow(self.groups.count)
        self.accumulators.restore(groups, columns)
        self.changed = grown(self.changed, self.groups.count, False)
        fresh = groups[columns["changed"].to_numpy(zero_copy_only=False)]
        self.changed[fresh] = True
        self.changes.append(fresh)


def _expanded(given: Input, rows: Ints, count: int) -> Input:
    """An aggregate's input where row i of the new rows is row ``rows[i]`` of the old."""
    chosen, values = given
    if chosen is None:
        return None, None if values is None else values.take(pa.array(rows))
    place = np.full(count, -1, dtype=np.int64)
    place[chosen] = np.arange(len(chosen))
    places = place[rows]
    kept = np.flatnonzero(places >= 0)
    return kept, None if values is None else values.take(pa.array(places[kept]))


def _sliced(given: Input, start: int, end: int) -> Input:
    """An aggregate's input for the rows from ``start`` to ``end``."""
    rows, values = given
    if rows is None:
        return None, None if values is None else values.slice(start, end - start)
    low, high = np.searchsorted(rows, [start, end])
    return rows[low:high] - start, None if values is None else values.slice(low, high - low)


class WindowAggregate(Operator):
    """Aggregates per key and window.

    Outputs: results (the keys, window_start, window_end, the aggregates and, with ``early``, whether the
    result is an early one), and late rows as they came.  A row without event time is late: it fits no window.
    """

    kind = Kind.KEYED

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        window: Window,
        aggregates: Sequence[str],
        early: str | float | None = None,
    ) -> None:
        what = f"{window.kind} window"
        self.keys = tuple(require_columns(schema, keys, f"{what}: key"))
        self.window = window
        if not self.keys:
            self.kind = Kind.STATEFUL  # type: ignore[misc]
        if not aggregates:
            raise PipelineError(f"{what}: agg() needs at least one aggregate, e.g. agg('count(*) AS n').")
        self._key_columns = [schema.get_field_index(name) for name in self.keys]
        for place in self._key_columns:
            check_key(schema.field(place), what)
        self.key_types = [schema.field(place).type for place in self._key_columns]
        self._time_column = time_column(schema, window.on, f"{what}: on")
        self._time_type = window_time(schema.field(self._time_column).type)
        self.aggregates = [compile_aggregate(text, schema) for text in aggregates]
        for aggregate in self.aggregates:
            accumulator(aggregate)
        self.early = None if early is None else parse_duration(early, f"{what}: early")
        if self.early == 0:
            raise PipelineError(f"{what}: early= must be more than zero.")
        names = [*self.keys, "window_start", "window_end", *(a.name for a in self.aggregates)]
        types = [*self.key_types, self._time_type, self._time_type, *(a.type for a in self.aggregates)]
        if self.early is not None:
            names, types = [*names, "early"], [*types, pa.bool_()]
        refuse_duplicates(names, what)
        super().__init__([schema], [pa.schema(list(zip(names, types, strict=True))), schema])

    @property
    def label(self) -> str:
        return f"{self.window.kind} window: {', '.join(a.text for a in self.aggregates)}"

    def new_groups(self) -> Panes | Sessions:
        if self.window.kind == "session":
            return Sessions(self.window)
        return Panes(self.window, self.early is not None)

    def open(self) -> WindowState:
        return WindowState(self)

    def restore(self, tables: Sequence[pa.Table]) -> WindowState:
        state = self.open()
        state.clock.maximum, state.seen, state.late = marks(tables, NEVER)
        for table in tables:
            if table.num_rows:
                state.load(table)
        return state

    def process(self, packets: Sequence[Packet], state: WindowState) -> list[Packet]:
        packet = packets[0]
        passage = state.clock.pass_by(packet, self._time_column)
        late = (passage.times == NEVER) | state.groups.late(passage.times, passage.before)
        late_rows = np.flatnonzero(late)
        batch, rows = packet.batch, None
        if len(late_rows):
            rows = np.flatnonzero(~late)
            batch = batch.take(pa.array(rows))
        try:
            inputs = evaluate(self.aggregates, batch)
        except BadRow as bad:
            raise BadRow(str(bad), bad.index if rows is None else int(rows[bad.index])) from bad
        state.late += len(late_rows)
        if not len(late_rows):
            late_packet = packet.slice(0, 0)
        else:
            late_packet = packet.caused(packet.batch.take(pa.array(late_rows)), late_rows)
        slots = state.keys.slots([batch.column(c) for c in self._key_columns], batch.num_rows)
        results, causes = self._pass(state, passage, rows, slots, inputs)
        state.seen += len(packet)
        state.clock.maximum = passage.maximum
        state.tidy()
        main = Packet(results, passage.order.take(causes), packet.markers, packet.request)
        return [main, late_packet]

    def _pass(
        self, state: WindowState, passage: Passage, rows: Ints | None, slots: Ints, inputs: list[Input]
    ) -> tuple[pa.RecordBatch, Ints]:
        """Fold the rows in and close windows, stopping wherever early results are due."""
        times, before = passage.times, passage.before
        sequence = np.arange(state.seen, state.seen + len(times), dtype=np.int64)
        place = passage.place
        if rows is not None:
            times, before, sequence = times[rows], before[rows], sequence[rows]
            place = rows if place is None else place[rows]
        batches: list[pa.RecordBatch] = []
        causes: list[Ints] = []
        start = 0
        for tick in self._crossings(state, passage):
            if tick + 1 == len(passage.after):
                end = len(slots) if place is None else int(np.searchsorted(place, tick, side="right"))
            else:
                end = tick + 1 if place is None else int(np.searchsorted(place, tick, side="right"))
            part = slice(start, end)
            state.add(
                slots[part],
                times[part],
                before[part],
                [_sliced(i, start, end) for i in inputs],
                sequence[part],
            )
            start = end
            self._emit(state, int(passage.after[tick]), passage, batches, causes)
            self._emit_early(state, tick, batches, causes)
        if start:
            inputs = [_sliced(i, start, len(slots)) for i in inputs]
        state.add(slots[start:], times[start:], before[start:], inputs, sequence[start:])
        self._emit(state, passage.end(state.clock.now), passage, batches, causes)
        return _stacked(batches, causes, self.outputs[0])

    def _crossings(self, state: WindowState, passage: Passage) -> list[int]:
        """The ticks at which early results leave: those that bring time past a multiple of ``early``."""
        if self.early is None or not len(passage.after):
            return []
        laps = np.concatenate([[state.clock.now], passage.after]) // self.early
        crossed = laps[1:] > laps[:-1]
        if state.clock.maximum == NEVER:
            # The first event time starts the clock; it does not pass anything.
            known = np.concatenate([[state.clock.now], passage.after])[:-1] > NEVER
            crossed &= known
        return np.flatnonzero(crossed).tolist()

    def _emit(
        self, state: WindowState, now: int, passage: Passage, batches: _Batches, causes: list[Ints]
    ) -> None:
        closed = state.close(now)
        if len(closed.slots):
            batch, ends = self._batch(state, closed, False)
            batches.append(batch)
            causes.append(passage.causes(ends))

    def _emit_early(self, state: WindowState, tick: int, batches: _Batches, causes: list[Ints]) -> None:
        groups = state.take_changed()
        if len(groups):
            starts, ends = state.groups.bounds(groups)
            current = Closed(state.groups.slots(groups), starts, ends, groups, None, groups[:0])
            batches.append(self._batch(state, current, True)[0])
            causes.append(np.full(len(groups), tick, dtype=np.int64))

    def _batch(self, state: WindowState, closed: Closed, early: bool) -> tuple[pa.RecordBatch, Ints]:
        """Results by (window end, key), which no two windows share, and their ends."""
        keys = state.keys.keys(closed.slots)
        by_key: list[Any] = [part for key in keys for part in sort_keys(key)]
        order = lexical_order([closed.ends, *by_key])
        columns = [
            *keys,
            time_array(closed.starts, self._time_type),
            time_array(closed.ends, self._time_type),
            *joined(state.accumulators, closed),
        ]
        if self.early is not None:
            columns.append(pa.array(np.full(len(order), early)))
        batch = pa.RecordBatch.from_arrays(columns, schema=self.outputs[0])
        return batch.take(pa.array(order)), closed.ends[order]

    def finish(self, state: WindowState, end: Packet) -> list[Packet]:
        batches: list[pa.RecordBatch] = []
        closed = state.close(-NEVER - 2 * self.window.size)
        if len(closed.slots):
            batches.append(self._batch(state, closed, False)[0])
        rows = sum(b.num_rows for b in batches)
        batch, causes = _stacked(batches, [np.zeros(rows, dtype=np.int64)], self.outputs[0])
        return [end.caused(batch, causes), end.caused(empty_batch(self.outputs[1]), causes[:0])]


def _stacked(batches: _Batches, causes: list[Ints], schema: pa.Schema) -> tuple[pa.RecordBatch, Ints]:
    if not batches:
        return empty_batch(schema), np.zeros(0, dtype=np.int64)
    if len(batches) == 1:
        return batches[0], causes[0]
    return pa.concat_batches(batches), np.concatenate(causes)
