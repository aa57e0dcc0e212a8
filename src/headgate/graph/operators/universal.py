"""``stream.universal(cost=, selectivity=)``: the papers' synthetic box, whose cost and selectivity are given.

Aurora's experiments and those of ordered processing use it: it works for ``cost`` seconds per tuple and
makes ``selectivity`` tuples of one, chosen by a hash of (box, serial), so that every engine, worker and cut
chooses the same ones.  With ``matrix``, it works on the tuple itself instead, as the parametric operators of
ordered processing do (section 7): its cost is then measured, not stated.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.errors import PipelineError
from headgate.graph import arrays
from headgate.graph.columns import key_columns
from headgate.graph.keys import KeyIndex
from headgate.graph.operator import Kind, Operator, State
from headgate.graph.operators.snapshots import Touched, tracked
from headgate.graph.packet import Packet, Serials
from headgate.graph.partition import Hashes, chosen, hashes, seed_of, splitmix64

_PAYLOAD = "payload"
_PRODUCT = "product"
_VECTOR_VALUES = 1 << 15
"""Values of the tuples' vectors that are made at once: what a cache holds."""
_BUFFER = memoryview(bytes(1 << 20))
_CHUNK_SECONDS = 20e-6
_FIRST_CHUNK = 16_384
_LEAST_CHUNK = 4_096  # hashlib lets go of the GIL above 2,047 bytes


def busy(seconds: float) -> None:
    """Keep a core busy for ``seconds`` of this thread's own CPU time, without holding the GIL.

    ``time.thread_time`` counts the CPU time of the thread; it is no wall clock, and does not run while
    the thread waits.
    """
    if seconds <= 0:
        return
    clock = time.thread_time
    begin = now = clock()
    end = begin + seconds
    chunk = _FIRST_CHUNK
    while now < end:
        hashlib.sha256(_BUFFER[:chunk])
        before, now = now, clock()
        # The size of a chunk follows the machine: small at the end so as not to overshoot, long before it
        # so that the loop's own Python is nothing.
        wanted = min(end - now, 50 * _CHUNK_SECONDS)
        rate = chunk / max(now - before, 1e-6)
        chunk = min(max(int(rate * wanted), _LEAST_CHUNK), len(_BUFFER))


class UniversalState(State):
    """A buffer of bytes per key, in the key's slot; without keys one buffer."""

    def __init__(self, operator: Universal) -> None:
        self._operator = operator
        self.index = KeyIndex(operator.key_types) if operator.keys else None
        self.buffers = np.zeros((0, operator.state_bytes), dtype=np.uint8)
        self._touched: Touched | None = None

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return self._known * self._operator.state_bytes

    @property
    def _known(self) -> int:
        return len(self.buffers) if self.index is None else len(self.index)

    def touch(self, packet: Packet) -> None:
        """Change every byte of the buffers of this packet's keys."""
        slots = np.unique(self._slots([packet.batch.column(k) for k in self._operator.keys], len(packet)))
        self.buffers[slots] += 1
        if self._touched is not None:
            self._touched.add(slots)

    def _slots(self, columns: Sequence[pa.Array], rows: int) -> npt.NDArray[np.int64]:
        if self.index is None:
            slots = np.zeros(rows, dtype=np.int64)
        else:
            slots = self.index.slots(columns, rows)
        missing = (bool(rows) if self.index is None else len(self.index)) - len(self.buffers)
        if missing > 0:
            more = np.zeros((max(missing, len(self.buffers)), self._operator.state_bytes), dtype=np.uint8)
            self.buffers = np.concatenate([self.buffers, more])
        return slots

    def fill(self, batch: pa.RecordBatch) -> None:
        slots = self._slots(batch.columns[:-1], batch.num_rows)
        for slot, content in zip(slots.tolist(), batch.column(-1).to_pylist(), strict=True):
            self.buffers[slot] = np.frombuffer(content, dtype=np.uint8)

    def track(self) -> None:
        self._touched = Touched()

    def changes(self) -> pa.Table:
        return self._table(tracked(self._touched).take())

    def apply(self, changes: pa.Table) -> None:
        for batch in changes.to_batches():
            self.fill(batch)

    def snapshot(self) -> pa.Table:
        return self._table(np.flatnonzero(self.buffers[: self._known].any(axis=1)))

    def _table(self, slots: npt.NDArray[np.int64]) -> pa.Table:
        operator = self._operator
        fields = [operator.inputs[0].field(name) for name in operator.keys]
        schema = pa.schema([*fields, pa.field("_buffer", pa.binary())])
        keys = [] if self.index is None else self.index.keys(slots)
        contents = [self.buffers[slot].tobytes() for slot in slots]
        return pa.Table.from_arrays([*keys, pa.array(contents, pa.binary())], schema=schema)


class Universal(Operator):
    """``floor(selectivity)`` copies of every tuple, and one more with the probability that is left.

    ``tuple_bytes`` adds a column ``payload`` of that size.  ``keys`` make it a keyed operator, which touches
    ``state_bytes`` of state per key; without keys, ``state_bytes`` make it a stateful one.  ``matrix`` adds a
    column ``product``: each tuple's values, spread over a vector of that length, times a matrix.
    """

    def __init__(
        self,
        schema: pa.Schema,
        name: str,
        cost: float | None,
        selectivity: float = 1.0,
        tuple_bytes: int = 0,
        keys: Sequence[str] = (),
        state_bytes: int = 0,
        matrix: int = 0,
    ) -> None:
        what = f"universal '{name}'"
        if (cost is None) != bool(matrix):
            raise PipelineError(f"{what}: give either cost= (seconds per tuple) or matrix= (its rows).")
        if cost is not None:
            _check(cost, what, "cost", "seconds per tuple")
        _check(matrix, what, "matrix", "rows")
        _check(selectivity, what, "selectivity", "tuples out per tuple in")
        _check(tuple_bytes, what, "tuple_bytes", "bytes")
        _check(state_bytes, what, "state_bytes", "bytes")
        self.name = name
        self.cost = None if cost is None else float(cost)
        self.matrix = int(matrix)
        self.selectivity: float = float(selectivity)
        self.tuple_bytes = int(tuple_bytes)
        self.state_bytes = int(state_bytes)
        self.spin = True
        """Whether to spend the cost; the simulated engine, which only counts it, says no."""
        self.keys, self.key_types = key_columns(schema, keys, f"{what}: key")
        self.keys_by_input = (self.keys,)
        self.times_by_input = (None,)
        if self.keys:
            self.kind = Kind.KEYED  # type: ignore[misc]  # one class for all, as in the papers
        elif self.state_bytes:
            self.kind = Kind.STATEFUL  # type: ignore[misc]
        added = [pa.field(_PRODUCT, pa.float64())] * bool(self.matrix)
        added += [pa.field(_PAYLOAD, pa.binary())] * bool(self.tuple_bytes)
        names = {field.name for field in added}
        output = pa.schema([*[field for field in schema if field.name not in names], *added])
        super().__init__([schema], [output])
        self._seed = seed_of(name)

    def in_simulation(self) -> Universal:
        """Its cost is virtual there: it keeps no core busy."""
        still = copy.copy(self)
        still.spin = False
        return still

    @property
    def label(self) -> str:
        return f"universal({self.name})"

    def open(self) -> UniversalState | None:
        return UniversalState(self) if self.keys or self.state_bytes else None

    def restore(self, tables: Sequence[pa.Table]) -> UniversalState | None:
        state = self.open()
        if state is not None:
            for table in tables:
                for batch in table.to_batches():
                    state.fill(batch)
        return state

    def copies(self, serials: Serials) -> npt.NDArray[np.int64]:
        """How many tuples leave for each serial."""
        whole = math.floor(self.selectivity)
        part = self.selectivity - whole
        if not part:
            return np.full(len(serials), whole, dtype=np.int64)
        return whole + chosen(serials, self._seed, part).astype(np.int64)

    def process(self, packets: Sequence[Packet], state: Any) -> list[Packet]:
        packet = packets[0]
        if self.spin and self.cost:
            busy(self.cost * len(packet))
        if state is not None and self.state_bytes:
            state.touch(packet)
        products, causes = self._products(packet.batch) if self.matrix else None, None
        if self.selectivity != 1:
            causes = np.repeat(np.arange(len(packet)), self.copies(packet.order.origins))
            packet = packet.caused(packet.batch.take(pa.array(causes)), causes)
        if self.matrix or self.tuple_bytes:
            made = {name: packet.batch.column(name) for name in packet.batch.schema.names}
            made[_PAYLOAD] = self._payload(len(packet)) if self.tuple_bytes else made.get(_PAYLOAD)
            if products is not None:
                made[_PRODUCT] = products if causes is None else products.take(pa.array(causes))
            columns = [made[name] for name in self.outputs[0].names]
            packet = packet.with_batch(pa.RecordBatch.from_arrays(columns, schema=self.outputs[0]))
        return [packet]

    def _products(self, batch: pa.RecordBatch) -> pa.Array:
        """Of each tuple: its vector times the matrix, and the mean of that."""
        rows = batch.num_rows
        values = np.zeros(rows, dtype=np.uint64)
        for column in batch.columns:
            values = splitmix64(values ^ hashes(column))
        spread = np.arange(1, self.matrix + 1, dtype=np.uint64)
        matrix = _unit(splitmix64(np.arange(self.matrix**2, dtype=np.uint64) ^ self._seed))
        matrix = matrix.reshape(self.matrix, self.matrix)
        found = np.empty(rows)
        step = max(1, _VECTOR_VALUES // self.matrix)
        for first in range(0, rows, step):
            vectors = _unit(splitmix64(values[first : first + step, None] ^ spread))
            found[first : first + step] = np.einsum("ij,jk->i", vectors, matrix) / self.matrix
        return pa.array(found)

    def _payload(self, rows: int) -> pa.Array:
        offsets = arrays.empty(rows + 1, np.int32)
        np.multiply(np.arange(rows + 1, dtype=np.int32), self.tuple_bytes, out=offsets)
        content = arrays.empty(rows * self.tuple_bytes, np.uint8)
        content.fill(0)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
        return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _unit(bits: Hashes) -> npt.NDArray[np.float64]:
    """Numbers from 0 to 1."""
    return (bits >> np.uint64(11)).astype(np.float64) / 2**53


def _check(value: Any, what: str, name: str, unit: str) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:
        raise PipelineError(f"{what}: {name} must be a number of {unit}, 0 or more, not {value!r}.")
