"""Running aggregates: every row goes out as it came, with the values of its key after including it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headgate.errors import BadRow, PipelineError
from headgate.graph.aggregates import evaluate
from headgate.graph.aggregates.running_functions import running_state, scan_all
from headgate.graph.aggregates.scans import Segments, stable_order
from headgate.graph.columns import Ints, Mask, key_columns, refuse_duplicates
from headgate.graph.durations import Duration, parse_period
from headgate.graph.keys import KeyIndex
from headgate.graph.numbering import grown
from headgate.graph.operator import Kind, Operator, State
from headgate.graph.operators._user import located, refuse_far_times
from headgate.graph.operators.calendar import Calendar
from headgate.graph.operators.snapshots import Touched, column, marked, marks, tracked
from headgate.graph.packet import Packet
from headgate.graph.time import NEVER, Clock, time_column
from headgate.sql import Aggregate, compile_aggregate

_FEW = 1024


class RunningState(State):
    """Keys with the values of their aggregates, and when each was last seen."""

    def __init__(self, operator: Remembering) -> None:
        self._operator = operator
        self.clock = Clock()
        self.keys = KeyIndex(operator.key_types)
        self.states = [running_state(a) for a in operator.aggregates]
        self.seen: Ints = np.full(0, NEVER, dtype=np.int64)
        """Time when the key was last seen."""
        self.present = np.zeros(0, dtype=np.bool_)
        """Slots that hold something: ``live`` of them had not expired at the last check."""
        self.live = 0
        self.calendar = Calendar()
        self._touched: Touched | None = None

    def grow(self) -> None:
        for state in self.states:
            state.grow(len(self.keys))
        self.seen = grown(self.seen, len(self.keys), NEVER)
        self.present = grown(self.present, len(self.keys), False)

    def meet(self, slots: Ints, times: Ints | None) -> None:
        """Note that ``slots`` were seen, at ``times``."""
        fresh = slots[~self.present[slots]]
        self.present[fresh] = True
        self.live += len(fresh)
        if times is not None and self._operator.expire is not None:
            self.seen[slots] = times
            self.calendar.push(self.seen[fresh] + self._operator.expire, fresh)
        if self._touched is not None:
            self._touched.add(slots)

    def forget(self) -> None:
        """Let go of keys that have expired, once they are more than half."""
        expire = self._operator.expire
        if expire is None:
            return
        _, slots = self.calendar.pop(self.clock.now - 1)
        ends = self.seen[slots] + expire
        # A key that was seen since it was entered is entered again.
        stays = ends >= self.clock.now
        self.calendar.push(ends[stays], slots[stays])
        self.present[slots[~stays]] = False
        self.live -= int((~stays).sum())
        if len(self.keys) - self.live > max(_FEW, len(self.keys) // 2):
            self._keep(np.flatnonzero(self.present[: len(self.keys)]))

    def _keep(self, live: Ints) -> None:
        due, entered = self.calendar.entries()
        self.keys, slots = self.keys.retain(live)
        moved = np.full(len(self.present), -1, dtype=np.int64)
        moved[live] = slots
        # Slot 0 is a null key's, so that live keys may not be the first slots: fill the hole with any.
        back = np.zeros(len(self.keys), dtype=np.int64)
        back[slots] = live
        for state in self.states:
            state.keep(back)
        holes = np.ones(len(self.keys), dtype=np.bool_)
        holes[slots] = False
        self.seen, self.present = self.seen[back], ~holes
        self.seen[holes] = NEVER
        self.calendar = Calendar()
        self.calendar.push(due, moved[entered])
        if self._touched is not None:
            self._touched.move(moved)

    def track(self) -> None:
        self._touched = Touched()
        for state in self.states:
            state.told()

    def changes(self) -> pa.Table:
        slots = tracked(self._touched).take()
        # Keys that have expired since they were touched need no entry: time alone expires them.
        slots = slots[self.present[slots]]
        table = self._table(slots, [state.changes(slots) for state in self.states])
        for state in self.states:
            state.told()
        return table

    def apply(self, changes: pa.Table) -> None:
        self.clock.maximum = marks([changes], NEVER)[0]
        if changes.num_rows:
            self.load(changes, known=True)
        for state in self.states:
            state.told()
        self.grow()
        self.forget()

    def snapshot(self) -> pa.Table:
        slots = np.flatnonzero(self.present[: len(self.keys)])
        return self._table(slots, [state.snapshot(slots) for state in self.states])

    def _table(self, slots: Ints, parts: Sequence[dict[str, pa.Array]]) -> pa.Table:
        columns = {"seen": pa.array(self.seen[slots])}
        for place, part in enumerate(parts):
            columns |= {f"{place}.{name}": values for name, values in part.items()}
        names = [*self._operator.keys, *(f"state.{name}" for name in columns)]
        table = pa.Table.from_arrays([*self.keys.keys(slots), *columns.values()], names=names)
        return marked(table, self.clock.maximum, 0, 0)

    def load(self, table: pa.Table, known: bool = False) -> None:
        """Add the keys of a snapshot; with ``known``, of changes, whose keys may exist here already."""
        names = self._operator.keys
        slots = self.keys.slots([column(table, name) for name in names], table.num_rows)
        columns = {n.removeprefix("state."): column(table, n) for n in table.column_names[len(names) :]}
        self.grow()
        for place, state in enumerate(self.states):
            prefix = f"{place}."
            mine = {n.removeprefix(prefix): c for n, c in columns.items() if n.startswith(prefix)}
            if known:
                state.apply(slots, mine)
            else:
                state.restore(slots, mine)
        fresh = slots[~self.present[slots]]
        self.present[fresh] = True
        self.live += len(fresh)
        self.seen[slots] = columns["seen"].to_numpy()
        if self._operator.expire is not None:
            self.calendar.push(self.seen[fresh] + self._operator.expire, fresh)


class Remembering(Operator):
    """Keyed by columns; a key may expire by event time.  Its state may have aggregates."""

    kind = Kind.KEYED

    def __init__(
        self,
        schema: pa.Schema,
        output: pa.Schema,
        keys: tuple[tuple[str, ...], list[pa.DataType]],
        aggregates: Sequence[Aggregate],
        expire: int | None,
        on: str | None,
        what: str,
    ) -> None:
        self.keys, self.key_types = keys
        self.aggregates = aggregates
        self.keys_by_input = (self.keys,)
        self.expire = expire
        self._key_columns = [schema.get_field_index(name) for name in self.keys]
        self._time_column = None if expire is None or on is None else time_column(schema, on, f"{what}: on")
        self.times_by_input = (None if self._time_column is None else schema.field(self._time_column).name,)
        super().__init__([schema], [output])

    def needed(self, wanted: Sequence[frozenset[str]]) -> tuple[frozenset[str], ...]:
        read = frozenset[str]().union(*(aggregate.columns for aggregate in self.aggregates))
        passed = wanted[0].intersection(self.inputs[0].names)
        return (read.union(self.keys, filter(None, self.times_by_input), passed),)

    def open(self) -> RunningState:
        return RunningState(self)

    def restore(self, tables: Sequence[pa.Table]) -> RunningState:
        state = self.open()
        state.clock.maximum = marks(tables, NEVER)[0]
        for table in tables:
            if table.num_rows:
                state.load(table)
        return state


class Running(Remembering):
    """Adds running aggregates to every row.

    With ``expire``, a key that was not seen for more than that much event time (of the whole stream, from
    when the key's last row came up to and including the row at hand) starts afresh.
    """

    extends = True

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        aggregates: Sequence[str],
        expire: Duration | None = None,
        on: str | None = None,
    ) -> None:
        named = key_columns(schema, keys, "running: key")
        if not named[0]:
            self.kind = Kind.STATEFUL  # type: ignore[misc]
        if not aggregates:
            raise PipelineError("running: give at least one aggregate, e.g. running('sum(x) AS total').")
        compiled = [compile_aggregate(text, schema) for text in aggregates]
        for aggregate in compiled:
            running_state(aggregate)
        period = parse_period(expire, "running", "expire")
        if period is not None and on is None:
            raise PipelineError("running: expire= needs on=, the column that says what time it is.")
        output = pa.schema([*schema, *(pa.field(a.name, a.type) for a in compiled)])
        refuse_duplicates(output.names, "running")
        super().__init__(schema, output, named, compiled, period, on, "running")

    @property
    def label(self) -> str:
        return f"running {', '.join(a.text for a in self.aggregates)}"

    def process(self, packets: Sequence[Packet], state: RunningState) -> list[Packet]:
        packet = packets[0]
        refuse_far_times(self, packets)
        try:
            return [packet.with_batch(self._scan(packet, state))]
        except BadRow as bad:
            raise located(bad, self.label, packet) from bad

    def _scan(self, packet: Packet, state: RunningState) -> pa.RecordBatch:
        """The packet's columns and the aggregates so far; a bad row leaves the state as it was."""
        batch = packet.batch
        inputs = evaluate(self.aggregates, batch)
        slots = state.keys.slots([batch.column(c) for c in self._key_columns], batch.num_rows)
        state.grow()
        order = stable_order(slots)
        times, maximum = None, NEVER
        if self._time_column is not None and self.expire is not None:
            passage = state.clock.pass_by(packet, self._time_column)
            times, maximum = np.maximum(passage.before, passage.times)[order], passage.maximum
            segments = Segments.of(slots, order, self._restarts(state, slots[order], times, self.expire))
        else:
            segments = Segments.of(slots, order)
        results, changes = scan_all(state.states, inputs, len(packet), segments)
        for change in changes:
            change()
        final = segments.final
        state.meet(segments.slots[final], None if times is None else times[segments.ends[final]])
        if times is not None:
            state.clock.maximum = maximum
            state.forget()
        columns = [*batch.columns, *results]
        return pa.RecordBatch.from_arrays(columns, schema=self.outputs[0])

    def _restarts(self, state: RunningState, slots: Ints, times: Ints, expire: int) -> Mask:
        """Which sorted rows come after their key has expired."""
        before = np.empty_like(times)
        before[1:] = times[:-1]
        first = np.ones(len(slots), dtype=np.bool_)
        first[1:] = slots[1:] != slots[:-1]
        before[first] = state.seen[slots[first]]
        return times - before > expire
