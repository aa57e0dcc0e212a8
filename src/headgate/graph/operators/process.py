"""``stream.process(fn, schema=, state=)`` and ``keyed.process(...)``: a user's function with a memory.

The function changes its state in place.  A keyed one has a state per key, which starts afresh when the key
was not seen for more than ``expire`` of event time.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import OperatorError, PipelineError
from headgate.graph.columns import Ints, key_columns
from headgate.graph.durations import Duration, parse_period
from headgate.graph.keys import KeyIndex
from headgate.graph.numbering import grown
from headgate.graph.operator import Kind, Operator, State
from headgate.graph.operators._user import (
    Row,
    function_name,
    map_batch,
    map_rows,
    refuse_far_times,
    require_function,
)
from headgate.graph.operators.snapshots import Touched, marked, marks, tracked
from headgate.graph.packet import Packet
from headgate.graph.schema import normalise, require_columns
from headgate.graph.time import NEVER, Clock, event_times, time_column

_STATE = pa.schema([("_state", pa.binary())])
SPARE_KEYS = 1024


class Initial:
    """Makes fresh states from what the user gave: a function, or a value that is copied."""

    def __init__(self, given: Any, what: str) -> None:
        self._given = {} if given is None else given
        if callable(given):
            try:
                first = given()
            except Exception as error:
                raise PipelineError(
                    f"{what}: state={function_name(given)} could not be called without arguments: {error}"
                ) from error
        else:
            first = self._given
        if first is None or isinstance(first, (int, float, str, bytes, tuple, frozenset)):
            raise PipelineError(
                f"{what}: a state of {first!r} cannot be changed in place, so nothing would be remembered; "
                "use something that can, e.g. state={'n': 0}."
            )

    def __call__(self) -> Any:
        return self._given() if callable(self._given) else copy.deepcopy(self._given)


def _pickled(value: Any, label: str) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise OperatorError(
            f"{label}: its state cannot be saved ({type(error).__name__}: {error}); keep plain values in it, "
            "or objects of classes that are defined in a module."
        ) from error


class ProcessState(State):
    """The one object that the function remembers things in."""

    def __init__(self, value: Any, label: str) -> None:
        self.value = value
        self._label = label
        self._touched: bool | None = None
        """Whether the function was called since the last ``changes``; None: changes are not tracked."""

    def touch(self) -> Any:
        """The object, for the function to change."""
        if self._touched is not None:
            self._touched = True
        return self.value

    def snapshot(self) -> pa.Table:
        return pa.table([[_pickled(self.value, self._label)]], schema=_STATE)

    def track(self) -> None:
        self._touched = False

    def changes(self) -> pa.Table:
        """The object if it may have changed: what a function does to it cannot be seen."""
        touched = tracked(self._touched)
        table = self.snapshot() if touched else _STATE.empty_table()
        self._touched = False
        return table

    def apply(self, changes: pa.Table) -> None:
        for saved in changes.column("_state").to_pylist():
            self.value = pickle.loads(saved)


class Process(Operator):
    """``fn(row, state)``, or ``fn(batch, state)`` with ``packets=True``, over the whole stream."""

    kind = Kind.STATEFUL

    def __init__(
        self,
        schema: pa.Schema,
        fn: Callable[..., Any],
        out_schema: pa.Schema,
        state: Any = None,
        *,
        packets: bool = False,
    ) -> None:
        require_function(fn, "process")
        super().__init__([schema], [normalise(out_schema)])
        self.fn = fn
        self.packets = packets
        self.slow = not packets
        self._initial = Initial(state, "process")

    @property
    def label(self) -> str:
        return f"process({function_name(self.fn)})"

    def open(self) -> ProcessState:
        return ProcessState(self._initial(), self.label)

    def restore(self, tables: Sequence[pa.Table]) -> ProcessState:
        values = [v for table in tables for v in table.column("_state").to_pylist()]
        if len(values) > 1:
            raise ValueError(f"{self.label} has one state, but {len(values)} were given to restore")
        return ProcessState(pickle.loads(values[0]), self.label) if values else self.open()

    def process(self, packets: Sequence[Packet], state: ProcessState) -> list[Packet]:
        packet, fn = packets[0], self.fn
        memory = state.touch() if len(packet) else state.value
        if not self.packets:
            return [map_rows(packet, lambda _, row: fn(row, memory), self.outputs[0], self.label)]
        return [map_batch(packet, lambda batch: fn(batch, memory), self.outputs[0], self.label)]


class KeyStates(State):
    """A state per key, in the key's slot, and when the key was last seen."""

    def __init__(self, key_types: Sequence[pa.DataType]) -> None:
        self.index = KeyIndex(key_types)
        self.seen: Ints = np.empty(0, dtype=np.int64)
        self.clock = Clock()
        self._look_at = SPARE_KEYS
        self._touched: Touched | None = None

    def track(self) -> None:
        self._touched = Touched()

    def apply(self, changes: pa.Table) -> None:
        self.clock.maximum, _, _ = marks([changes], NEVER)
        self.load(changes)
        self.forget()

    def load(self, table: pa.Table) -> None:
        """Put back the states of keys, in place of those that they have."""
        raise NotImplementedError

    def forget(self) -> None:
        """Drop expired keys, now and then."""
        raise NotImplementedError


class KeyedProcessState(KeyStates):
    """One object per key."""

    def __init__(self, operator: KeyedProcess) -> None:
        super().__init__(operator.key_types)
        self._operator = operator
        self.values: dict[int, Any] = {}

    def touch(self, slots: Ints) -> None:
        """Note that the states of ``slots`` may be about to change."""
        if self._touched is not None:
            self._touched.add(slots)

    def live(self, slots: Ints | None = None) -> Ints:
        """The slots, or those of ``slots``, whose state has not expired."""
        if slots is None:
            slots = np.fromiter(self.values, dtype=np.int64, count=len(self.values))
        expire = self._operator.expire
        if expire is None:
            return slots
        seen = self.seen[slots]
        live: Ints = slots[self.clock.maximum - seen <= expire]
        return live

    def forget(self) -> None:
        if self._operator.expire is None or len(self.index) < self._look_at:
            return
        live = self.live()
        if 2 * len(live) < len(self.index):
            values, seen = [self.values[slot] for slot in live.tolist()], self.seen[live]
            if self._touched is not None:
                places = np.full(len(self.index), -1, dtype=np.int64)
            self.index, slots = self.index.retain(live)
            if self._touched is not None:
                places[live] = slots
                self._touched.move(places)
            self.values = dict(zip(slots.tolist(), values, strict=True))
            self.seen = np.full(len(self.index), NEVER, dtype=np.int64)
            self.seen[slots] = seen
        self._look_at = max(SPARE_KEYS, 2 * len(live))

    def snapshot(self) -> pa.Table:
        return self._table(self.live())

    def changes(self) -> pa.Table:
        slots = self.live(tracked(self._touched).take())
        there = np.fromiter((slot in self.values for slot in slots.tolist()), dtype=bool, count=len(slots))
        return self._table(slots[there])

    def load(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            slots = self.index.slots(batch.columns[: len(self._operator.keys)], batch.num_rows)
            self.seen = grown(self.seen, len(self.index), NEVER)
            self.seen[slots] = batch.column("_seen").to_numpy()
            pickles = batch.column("_state").to_pylist()
            self.values.update(zip(slots.tolist(), map(pickle.loads, pickles), strict=True))

    def _table(self, slots: Ints) -> pa.Table:
        label = self._operator.label
        states = [_pickled(self.values[slot], label) for slot in slots.tolist()]
        columns = [*self.index.keys(slots), pa.array(self.seen[slots]), pa.array(states, pa.binary())]
        table = pa.Table.from_arrays(columns, schema=self._operator.snapshot_schema())
        return marked(table, self.clock.maximum, 0, 0)


class KeyedProcess(Operator):
    """``fn(row, state)`` with a state per key."""

    kind = Kind.KEYED
    slow = True

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        fn: Callable[[Row, Any], Any],
        out_schema: pa.Schema,
        state: Any = None,
        expire: Duration | None = None,
        on: str | None = None,
    ) -> None:
        require_function(fn, "process")
        self.keys, self.key_types = key_columns(schema, keys, "process: key")
        if not self.keys:
            raise PipelineError("process: a keyed process needs at least one key column.")
        self.expire = parse_period(expire, "process", "expire")
        self.on: str | None = None
        if on is not None:
            [self.on] = require_columns(schema, [on], "process: on")
            time_column(schema, self.on, "process: on")
        elif expire is not None:
            raise PipelineError("process: expire= needs on=, the column of event time.")
        self.keys_by_input = (self.keys,)
        self.times_by_input = (None if self.expire is None else self.on,)
        super().__init__([schema], [normalise(out_schema)])
        self.fn = fn
        self._initial = Initial(state, "process")

    @property
    def label(self) -> str:
        return f"process({function_name(self.fn)} by {', '.join(self.keys)})"

    def open(self) -> KeyedProcessState:
        return KeyedProcessState(self)

    def process(self, packets: Sequence[Packet], state: KeyedProcessState) -> list[Packet]:
        packet = packets[0]
        refuse_far_times(self, packets)
        batch, fn, fresh = packet.batch, self.fn, self._initial
        slots = state.index.slots([batch.column(name) for name in self.keys], batch.num_rows)
        state.seen = grown(state.seen, len(state.index), NEVER)
        state.touch(slots)
        values, expire = state.values, self.expire
        where, before = slots.tolist(), state.seen[slots].tolist()
        times, maximum = self.times(packet, state.clock)
        now = times.tolist()
        seen: dict[int, int] = {}
        """When the keys of this packet were last seen in it."""

        def call(place: int, row: Row) -> Any:
            slot = where[place]
            if expire is not None:
                time = now[place]
                if time - seen.get(slot, before[place]) > expire:
                    values.pop(slot, None)
                seen[slot] = time
            if slot not in values:
                values[slot] = fresh()
            return fn(row, values[slot])

        results = map_rows(packet, call, self.outputs[0], self.label)
        state.seen[list(seen)] = list(seen.values())
        state.clock.maximum = maximum
        state.forget()
        return [results]

    def times(self, packet: Packet, clock: Clock) -> tuple[Ints, int]:
        """Time at every row, itself included, and after the packet; 0 where nothing expires."""
        if self.on is None or self.expire is None:
            return np.zeros(len(packet), dtype=np.int64), clock.maximum
        passage = clock.pass_by(packet, packet.schema.get_field_index(self.on))
        own = event_times(packet.batch.column(self.on))
        return np.maximum(passage.before, own), passage.maximum

    def snapshot_schema(self) -> pa.Schema:
        keys = [self.inputs[0].field(name) for name in self.keys]
        return pa.schema([*keys, pa.field("_seen", pa.int64()), *_STATE])

    def restore(self, tables: Sequence[pa.Table]) -> KeyedProcessState:
        state = self.open()
        state.clock.maximum, _, _ = marks(tables, NEVER)
        for table in tables:
            state.load(table)
        return state
