"""``keyed.top(3, by="price DESC")``: every row that is among the best of its key when it comes.

The best ``n`` rows of a key among those that have left are the best of all its rows so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.errors import BadRow, PipelineError
from headgate.graph.columns import Ints, from_places, key_columns, lexical_order, sort_keys, taken
from headgate.graph.keys import KeyIndex
from headgate.graph.operator import Kind, Operator, State
from headgate.graph.operators._user import located
from headgate.graph.operators.snapshots import Touched, marked, marks, tracked
from headgate.graph.packet import Packet, empty_batch
from headgate.graph.time import NEVER
from headgate.sql import compile_ordering

_SPARE_ROWS = 1024


class TopPerKeyState(State):
    """The best rows of every key."""

    def __init__(self, operator: TopPerKey) -> None:
        self._operator = operator
        self.seen = 0
        self.index = KeyIndex(operator.key_types)
        self._rows: list[pa.RecordBatch] = [empty_batch(operator.candidates)]
        self._stored = 0
        self._live = 0
        self._places: npt.NDArray[np.int64] = np.full((0, operator.n), -1, dtype=np.int64)
        """By slot, where its rows are among those stored, best first; -1 behind the last."""
        self._touched: Touched | None = None

    def of(self, slots: Ints) -> tuple[pa.RecordBatch, Ints]:
        """The rows of ``slots``, best first, and the slot of each."""
        places = self._places[slots]
        there = places >= 0
        found = pa.Table.from_batches(self._rows).take(from_places(places[there])).combine_chunks()
        batches = found.to_batches()
        batch = batches[0] if batches else empty_batch(self._operator.candidates)
        return batch, slots.repeat(there.sum(axis=1))

    def grow(self) -> None:
        if len(self._places) < len(self.index):
            more = max(len(self.index), 2 * len(self._places), 64) - len(self._places)
            empty = np.full((more, self._operator.n), -1, dtype=np.int64)
            self._places = np.concatenate([self._places, empty])

    def put(self, slots: Ints, rows: pa.RecordBatch, starts: Ints) -> None:
        """Let ``rows``, sorted by slot and rank, be all that the distinct ``slots`` have."""
        self._live += len(rows) - int((self._places[slots] >= 0).sum())
        counts = np.diff(np.append(starts, len(rows)))
        column = np.arange(len(rows)) - starts.repeat(counts)
        self._places[slots] = -1
        self._places[slots.repeat(counts), column] = self._stored + np.arange(len(rows))
        self._rows.append(rows)
        self._stored += len(rows)
        if self._touched is not None:
            self._touched.add(slots)
        if self._stored > 2 * self._live + _SPARE_ROWS:
            self._compact()

    def _compact(self) -> None:
        """Forget the rows that are no longer among the best."""
        batch, _ = self.of(np.arange(len(self._places)))
        self._places[self._places >= 0] = np.arange(len(batch))
        self._rows, self._stored = [batch], len(batch)

    def snapshot(self) -> pa.Table:
        return self._table(np.arange(len(self._places), dtype=np.int64))

    def track(self) -> None:
        self._touched = Touched()

    def changes(self) -> pa.Table:
        return self._table(tracked(self._touched).take())

    def _table(self, slots: Ints) -> pa.Table:
        return marked(pa.Table.from_batches([self.of(slots)[0]]), NEVER, self.seen, 0)

    def apply(self, changes: pa.Table) -> None:
        self.seen = max(self.seen, marks([changes], NEVER)[1])
        for batch in changes.combine_chunks().to_batches():
            rows = pa.RecordBatch.from_arrays(batch.columns, schema=self._operator.candidates)
            slots = self.index.slots(rows.columns[: len(self._operator.keys)], len(rows))
            self.grow()
            order, starts = self._operator.ranked(rows, slots)
            touched, self._touched = self._touched, None
            self.put(slots[order][starts], taken(rows, order), starts)
            self._touched = touched


class TopPerKey(Operator):
    """Lets a row pass if fewer than ``n`` earlier rows of its key are at least as good."""

    kind = Kind.KEYED

    def __init__(
        self, schema: pa.Schema, keys: Sequence[str], n: int, by: str, rank: str | None = None
    ) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise PipelineError(f"top: {n!r} is not a number of rows; give an integer of at least 1.")
        self.n, self.by, self.rank = n, by, rank
        self.keys, self.key_types = key_columns(schema, keys, "top: key")
        self.keys_by_input = (self.keys,)
        self.times_by_input = (None,)
        self.ordering = compile_ordering(by, schema)
        extra = [pa.field(f"key.{place}", kind) for place, kind in enumerate(self.key_types)]
        extra += [pa.field("sequence", pa.int64())]
        extra += [pa.field(f"by.{place}", e.type) for place, (e, _, _) in enumerate(self.ordering)]
        self.candidates = pa.schema([*extra, *schema])
        output = schema
        if rank is not None:
            if rank in schema.names:
                raise PipelineError(f"top: there is a column '{rank}'; give rank= another name.")
            output = schema.append(pa.field(rank, pa.int32()))
        super().__init__([schema], [output])

    @property
    def label(self) -> str:
        return f"top {self.n} by {self.by} per {', '.join(self.keys)}"

    def open(self) -> TopPerKeyState:
        return TopPerKeyState(self)

    def ranked(self, rows: pa.RecordBatch, slots: Ints) -> tuple[Ints, Ints]:
        """The order by slot and rank, and where in it each slot begins."""
        keys: list[Any] = [slots]
        first = len(self.keys) + 1
        for place, (_, descending, nulls_first) in enumerate(self.ordering):
            keys += sort_keys(rows.column(first + place), descending, nulls_first)
        order = lexical_order([*keys, rows.column(first - 1).to_numpy()])
        begins = np.ones(len(order), dtype=np.bool_)
        begins[1:] = slots[order][1:] != slots[order][:-1]
        return order, np.flatnonzero(begins)

    def process(self, packets: Sequence[Packet], state: TopPerKeyState) -> list[Packet]:
        packet = packets[0]
        batch = packet.batch
        try:
            by = [expression.evaluate(batch) for expression, _, _ in self.ordering]
        except BadRow as bad:
            raise located(bad, self.label, packet) from bad
        keys = [batch.column(name) for name in self.keys]
        slots = state.index.slots(keys, len(packet))
        state.grow()
        sequence = np.arange(state.seen, state.seen + len(packet), dtype=np.int64)
        new = pa.RecordBatch.from_arrays(
            [*keys, from_places(sequence), *by, *batch.columns], schema=self.candidates
        )
        state.seen += len(packet)
        old, old_slots = state.of(np.unique(slots))
        rows, slots = pa.concat_batches([old, new]), np.concatenate([old_slots, slots])
        order, starts = self.ranked(rows, slots)
        counts = np.diff(np.append(starts, len(order)))
        better = _better(order, slots, starts.repeat(counts))
        passing = np.flatnonzero(better[len(old) :] < self.n)
        kept = (np.arange(len(order)) - starts.repeat(counts)) < self.n
        best = order[kept]
        begins = np.cumsum(np.minimum(counts, self.n)) - np.minimum(counts, self.n)
        state.put(slots[order][starts], taken(rows, best), begins)
        columns = [taken(column, passing) for column in batch.columns]
        if self.rank is not None:
            columns.append(pa.array((better[len(old) :][passing] + 1).astype(np.int32)))
        return [packet.caused(pa.RecordBatch.from_arrays(columns, schema=self.outputs[0]), passing)]


def _better(order: Ints, slots: Ints, starts: Ints) -> Ints:
    """For each row, how many earlier rows of its slot come before it in ``order``.

    ``starts`` says by place in the order where the place's slot begins.  Rows are looked at slot by slot as
    they came, and counted by halving the ranks, the highest bit first: a row whose bit is set comes behind
    all of its half's rows whose bit is not.
    """
    count = len(order)
    rank = np.empty(count, dtype=np.int64)
    rank[order] = np.arange(count)
    row = np.argsort(slots, kind="stable")
    values, found = rank[row], np.zeros(count, dtype=np.int64)
    for bit in reversed(range(max(count - 1, 0).bit_length())):
        half = values >> (bit + 1)
        high = (values >> bit) & 1 == 1
        low_before = np.cumsum(~high)
        begins = np.searchsorted(half, half)
        base = np.where(begins > 0, low_before[begins - 1], 0)
        found[row[high]] += (low_before - base)[high]
        ascending = np.argsort(values >> bit, kind="stable")
        values, row = values[ascending], row[ascending]
    # Rows of earlier slots were counted too: all of them rank before.
    first = np.empty(count, dtype=np.int64)
    first[order] = starts
    return found - first
