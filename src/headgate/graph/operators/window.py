"""Aggregates over windows of event time: tumbling, sliding and session.

A window closes at the first tuple that brings time to its end, and its results are caused by that tuple.
Because time does not decrease, a window that closes within a packet has met all its rows by then: rows that
come later are late for it.  So a packet is first folded in as a whole and then windows close, and the answer
is that of going tuple by tuple.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import PipelineError
from headgate.graph.aggregates import Input, accumulator
from headgate.graph.columns import Ints, key_columns, lexical_order, refuse_duplicates, sort_keys, taken
from headgate.graph.durations import Duration, parse_period
from headgate.graph.operator import Kind
from headgate.graph.operators.panes import Closed, Panes, countable, joined
from headgate.graph.operators.session import Sessions
from headgate.graph.operators.snapshots import marks
from headgate.graph.operators.window_gather import GatheredWindows
from headgate.graph.operators.window_state import WindowState, sliced
from headgate.graph.packet import Packet
from headgate.graph.time import LIMIT, NEVER, Passage, time_array, time_column, window_time
from headgate.graph.windows import Window
from headgate.sql import compile_aggregate

_Batches = list[pa.RecordBatch]


class WindowAggregate(GatheredWindows):
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
        early: Duration | None = None,
    ) -> None:
        what = f"{window.kind} window"
        self.keys, self.key_types = key_columns(schema, keys, f"{what}: key")
        self.keys_by_input = (self.keys,)
        self.window = window
        if not self.keys:
            self.kind = Kind.STATEFUL  # type: ignore[misc]
        if not aggregates:
            raise PipelineError(f"{what}: agg() needs at least one aggregate, e.g. agg('count(*) AS n').")
        self.key_indices = [schema.get_field_index(name) for name in self.keys]
        self.time_index = time_column(schema, window.on, f"{what}: on")
        self.times_by_input = (schema.field(self.time_index).name,)
        self._time_type = window_time(schema.field(self.time_index).type)
        self.aggregates = [compile_aggregate(text, schema) for text in aggregates]
        for aggregate in self.aggregates:
            accumulator(aggregate)
        self.early = parse_period(early, what, "early")
        names = [*self.keys, "window_start", "window_end", *(a.name for a in self.aggregates)]
        types = [*self.key_types, self._time_type, self._time_type, *(a.type for a in self.aggregates)]
        if self.early is not None:
            names, types = [*names, "early"], [*types, pa.bool_()]
        refuse_duplicates(names, what)
        # Early results come last among those of one cause, and their windows end after all that it closes.
        self.ties_by_output = (("window_end", *self.keys), ())
        super().__init__([schema], [pa.schema(list(zip(names, types, strict=True))), schema])

    @property
    def label(self) -> str:
        return f"{self.window.kind} window: {', '.join(a.text for a in self.aggregates)}"

    @property
    def time_limit(self) -> int:  # type: ignore[override]
        """Panes of sliding windows are numbered, and the numbers must fit too."""
        direct = self.early is not None or self.window.kind != "sliding"
        return LIMIT if direct else min(LIMIT, countable(self.window))

    @property
    def time_grain(self) -> tuple[int, int] | None:  # type: ignore[override]
        """Ends of windows are multiples of a pane; sessions and early results can come at any time."""
        window = self.window
        if self.early is not None or window.kind == "session":
            return None
        return math.gcd(window.size, window.every), window.lateness

    def needed(self, wanted: Sequence[frozenset[str]]) -> tuple[frozenset[str], ...]:
        read = frozenset[str]().union(*(aggregate.columns for aggregate in self.aggregates))
        return (read.union(self.keys, filter(None, self.times_by_input), wanted[1]),)

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

    @property
    def gathers(self) -> bool:  # type: ignore[override]
        panes = self.early is None and self.window.kind != "session"
        return panes and all(accumulator(aggregate).orderless for aggregate in self.aggregates)

    def process(self, packets: Sequence[Packet], state: WindowState) -> list[Packet]:
        packet = packets[0]
        passage, rows, slots, inputs, late_packet = self.take_in(packet, state)
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
            end = tick + 1 if place is None else int(np.searchsorted(place, tick, side="right"))
            part = slice(start, end)
            state.add(
                slots[part],
                times[part],
                before[part],
                [sliced(i, start, end) for i in inputs],
                sequence[part],
            )
            start = end
            self.emit(state, int(passage.after[tick]), passage, batches, causes)
            self._emit_early(state, tick, batches, causes)
        if start:
            inputs = [sliced(i, start, len(slots)) for i in inputs]
        state.add(slots[start:], times[start:], before[start:], inputs, sequence[start:])
        self.emit(state, passage.end(state.clock.now), passage, batches, causes)
        return self.stacked(batches, causes)

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

    def emit(
        self, state: WindowState, now: int, passage: Passage, batches: _Batches, causes: list[Ints]
    ) -> None:
        closed = state.close(now)
        if closed is not None:
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
        if len(closed.slots) > 1:
            by_key: list[Any] = [part for key in keys for part in sort_keys(key)]
            order = lexical_order([closed.ends, *by_key])
            closed, keys = closed.ordered(order), [taken(key, order) for key in keys]
        columns = [
            *keys,
            time_array(closed.starts, self._time_type),
            time_array(closed.ends, self._time_type),
            *joined(state.accumulators, closed),
        ]
        if self.early is not None:
            columns.append(pa.array(np.full(len(closed.slots), early)))
        return pa.RecordBatch.from_arrays(columns, schema=self.outputs[0]), closed.ends

    def finish(self, state: WindowState, end: Packet) -> list[Packet]:
        batches: list[pa.RecordBatch] = []
        closed = state.close(-NEVER - 2 * self.window.size)
        if closed is not None:
            batches.append(self._batch(state, closed, False)[0])
        state.end()
        rows = sum(b.num_rows for b in batches)
        batch, causes = self.stacked(batches, [np.zeros(rows, dtype=np.int64)])
        return [end.caused(batch, causes), end.caused(self.nothing(1), causes[:0])]

    def stacked(self, batches: _Batches, causes: list[Ints]) -> tuple[pa.RecordBatch, Ints]:
        if not batches:
            return self.nothing(), np.zeros(0, dtype=np.int64)
        if len(batches) == 1:
            return batches[0], causes[0]
        return pa.concat_batches(batches), np.concatenate(causes)
