"""``keyed.process(fn, packets=True)``: a user's function on whole packets, with states of all keys as arrays.

``state=`` gives the initial value of every part: ``{"count": 0, "last": np.zeros(5)}``.  Each part is one
numpy array with a row per key.  The function gets the packet's batch and a ``KeyArrays``: ``state["count"]``
is that array, and ``state.slots`` says for every row of the batch which row of the arrays is its key's.  It
changes the arrays in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.errors import OperatorError, PipelineError
from headgate.graph.columns import Ints
from headgate.graph.durations import Duration
from headgate.graph.numbering import grown
from headgate.graph.operators._user import map_batch, refuse_far_times
from headgate.graph.operators.process import SPARE_KEYS, KeyedProcess, KeyStates
from headgate.graph.operators.snapshots import marked, marks, tracked
from headgate.graph.packet import Packet
from headgate.graph.time import NEVER

Array = npt.NDArray[Any]
_PART = "_state."


class KeyArrays(Mapping[str, Array]):
    """What the function sees of the state: arrays with a row per key, and the row of each tuple's key."""

    def __init__(self, arrays: dict[str, Array], slots: Ints) -> None:
        self._arrays = arrays
        self.slots = slots

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Any:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


class KeyArraysState(KeyStates):
    """By slot of a key: its parts, and when it was last seen (``NEVER``: its state is as new)."""

    def __init__(self, operator: KeyedPackets) -> None:
        super().__init__(operator.key_types)
        self._operator = operator
        self.arrays: dict[str, Array] = {name: first[:0] for name, first in operator.initial.items()}

    def grow(self) -> None:
        """Room for every key that has a slot."""
        size = len(self.index)
        if len(self.seen) >= size:
            return
        self.seen = grown(self.seen, size, NEVER)
        for name, first in self._operator.initial.items():
            array = self.arrays[name]
            fresh = np.repeat(first, len(self.seen) - len(array), axis=0)
            self.arrays[name] = np.concatenate([array, fresh])

    def meet(self, slots: Ints, now: Ints) -> None:
        """Keys come at these times, all within one ``expire``; a state that has expired starts afresh."""
        expire = self._operator.expire
        if self._touched is not None:
            self._touched.add(slots)
        if expire is not None:
            gone = (now - self.seen[slots] > expire).nonzero()[0]
            if len(gone):
                # Only a key's first row can tell: later ones come at most one expire after it.
                first = np.empty(len(self.seen), dtype=np.int64)
                first[slots[::-1]] = np.arange(len(slots))[::-1]
                old = slots[gone[first[slots[gone]] == gone]]
                for name, initial in self._operator.initial.items():
                    self.arrays[name][old] = initial
        self.seen[slots] = np.maximum(now, NEVER + 1)

    def _live(self, slots: Ints) -> Ints:
        """Those of the slots that have a state."""
        seen, expire = self.seen[slots], self._operator.expire
        there = seen != NEVER
        live: Ints = slots[there if expire is None else there & (self.clock.maximum - seen <= expire)]
        return live

    def forget(self) -> None:
        if self._operator.expire is None or len(self.index) < self._look_at:
            return
        live = self._live(np.arange(len(self.index)))
        if 2 * len(live) < len(self.index):
            places = np.full(len(self.index), -1, dtype=np.int64)
            arrays, seen = {name: array[live] for name, array in self.arrays.items()}, self.seen[live]
            self.index, slots = self.index.retain(live)
            places[live] = slots
            self.seen = np.empty(0, dtype=np.int64)
            self.arrays = {name: first[:0] for name, first in self._operator.initial.items()}
            self.grow()
            self.seen[slots] = seen
            for name, array in arrays.items():
                self.arrays[name][slots] = array
            if self._touched is not None:
                self._touched.move(places)
        self._look_at = max(SPARE_KEYS, 2 * len(live))

    def snapshot(self) -> pa.Table:
        return self._table(self._live(np.arange(len(self.index))))

    def changes(self) -> pa.Table:
        return self._table(self._live(tracked(self._touched).take()))

    def load(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            slots = self.index.slots(batch.columns[: len(self._operator.keys)], batch.num_rows)
            self.grow()
            self.seen[slots] = batch.column("_seen").to_numpy()
            for name, first in self._operator.initial.items():
                column = batch.column(_PART + name)
                flat = column.flatten() if first.ndim > 1 else column
                values = flat.to_numpy(zero_copy_only=False)
                self.arrays[name][slots] = values.reshape(len(slots), *first.shape[1:])

    def _table(self, slots: Ints) -> pa.Table:
        columns = [*self.index.keys(slots), pa.array(self.seen[slots])]
        for name, first in self._operator.initial.items():
            values = pa.array(self.arrays[name][slots].ravel())
            if first.ndim > 1:
                values = pa.FixedSizeListArray.from_arrays(values, first[0].size)
            columns.append(values)
        table = pa.Table.from_arrays(columns, schema=self._operator.snapshot_schema())
        return marked(table, self.clock.maximum, 0, 0)


class KeyedPackets(KeyedProcess):
    """``fn(batch, arrays)`` with a state per key."""

    slow = False

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        fn: Callable[..., Any],
        out_schema: pa.Schema,
        state: Any = None,
        expire: Duration | None = None,
        on: str | None = None,
    ) -> None:
        super().__init__(schema, keys, fn, out_schema, {}, expire, on)
        self.initial = _initial(state() if callable(state) else state)
        """By part, its value for a new key, as an array of one row."""

    def open(self) -> KeyArraysState:  # type: ignore[override]
        return KeyArraysState(self)

    def process(self, packets: Sequence[Packet], state: KeyArraysState) -> list[Packet]:  # type: ignore[override]
        packet = packets[0]
        refuse_far_times(self, packets)
        slots = state.index.slots([packet.batch.column(name) for name in self.keys], len(packet))
        state.grow()
        times, maximum = self.times(packet, state.clock)
        parts = []
        for low, high in self._within_expire(times):
            own = slots[low:high]
            state.meet(own, times[low:high])
            call = partial(_call, self.fn, KeyArrays(state.arrays, own))
            piece = packet if high - low == len(packet) else packet.slice(low, high - low)
            parts.append(map_batch(piece, call, self.outputs[0], self.label))
        for name, first in self.initial.items():
            if state.arrays[name].shape[1:] != first.shape[1:]:
                raise OperatorError(f"{self.label}: state['{name}'] must be changed in place.")
        state.clock.maximum = maximum
        state.forget()
        return [parts[0] if len(parts) == 1 else Packet.concat(parts)]

    def _within_expire(self, times: Ints) -> list[tuple[int, int]]:
        """The packet in pieces in which no key can expire; nearly always one."""
        cuts = [0]
        if self.expire is not None and len(times):
            while times[-1] - times[cuts[-1]] > self.expire:
                cuts.append(int(np.searchsorted(times, times[cuts[-1]] + self.expire, side="right")))
        return list(zip(cuts, [*cuts[1:], len(times)], strict=True))

    def snapshot_schema(self) -> pa.Schema:
        keys = [self.inputs[0].field(name) for name in self.keys]
        parts = []
        for name, first in self.initial.items():
            kind = pa.from_numpy_dtype(first.dtype)
            parts.append(pa.field(_PART + name, pa.list_(kind, first[0].size) if first.ndim > 1 else kind))
        return pa.schema([*keys, pa.field("_seen", pa.int64()), *parts])

    def restore(self, tables: Sequence[pa.Table]) -> KeyArraysState:  # type: ignore[override]
        state = self.open()
        state.clock.maximum, _, _ = marks(tables, NEVER)
        for table in tables:
            state.load(table)
        return state


def _call(fn: Callable[..., Any], arrays: KeyArrays, batch: pa.RecordBatch) -> Any:
    return fn(batch, arrays)


def _initial(state: Any) -> dict[str, Array]:
    say = "process(packets=True): state= gives a new key's value of each part, numbers or numpy arrays"
    example = "e.g. state={'count': 0, 'last': np.zeros(5)}"
    if not isinstance(state, Mapping) or not state or not all(isinstance(name, str) for name in state):
        raise PipelineError(f"{say}, {example}; {state!r} is none.")
    parts = {name: np.asarray(value)[np.newaxis] for name, value in state.items()}
    for name, part in parts.items():
        if part.dtype.kind not in "biufmM" or part.size == 0:
            raise PipelineError(f"{say}, {example}; '{name}' is {state[name]!r}.")
    return parts
