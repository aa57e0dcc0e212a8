"""What a join remembers: rows of both inputs that may still find partners, and the time."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headgate.graph.columns import Ints, taken
from headgate.graph.keys import KeyIndex
from headgate.graph.operator import State
from headgate.graph.operators.interval import Run, Shelf
from headgate.graph.operators.join_shape import LEFT, RIGHT, SIDES, JoinShape
from headgate.graph.operators.snapshots import is_whole, tracked, whole
from headgate.graph.time import NEVER

META = b"headgate.join"
_MARKS = 2
"""A side plus this: not a row, but the news that one which was told has had a partner."""
_SPARE_KEYS = 65_536

Moves = tuple[Ints, Ints]
"""Serials and event times of the rows that move an input's time."""


class JoinState(State):
    """Rows of both inputs that may still find partners, and the current time."""

    def __init__(self, join: JoinShape) -> None:
        self._join = join
        self.index = KeyIndex(join.key_types)
        self.shelves = (Shelf(), Shelf())
        self.counts = [0, 0]
        self.maxima = [NEVER, NEVER]
        self.clock = NEVER
        self.settled = NEVER
        """The time at which rows without partner last left: at the last row that moved an input's time."""
        self._untold: tuple[list[Run], list[Run]] | None = None
        """Rows of both inputs since the last call of ``changes``; None: changes are not tracked."""
        self._marks: list[pa.RecordBatch] = []
        """Rows that have had their first partner since."""
        self._ended = False
        """Whether the end of the stream has let rows without partner leave."""

    def oldest(self, side: int) -> int:
        """The time before which rows of ``side`` are gone."""
        now = self.settled if self._join.alone[side] else self.clock
        return max(now, NEVER) - self._join.reach[side]

    def advance(self, moved: Sequence[Moves], at: Ints) -> Ints:
        """Time at each of the serials ``at``, ascending; the call's last is among them."""
        times = np.full(len(at), NEVER, dtype=np.int64)
        held = np.zeros(len(at), dtype=bool)
        for side, (moved_at, moves) in enumerate(moved):
            highest = np.maximum.accumulate(np.concatenate([[self.maxima[side]], moves]))
            self.maxima[side] = int(highest[-1])
            mine = highest[np.searchsorted(moved_at, at, side="right")] - self._join.lateness
            out = self.ended.get(side)
            if out is None and side in self.idle:
                out = int(moved_at[-1]) + 1 if len(moved_at) else NEVER
            holds = np.ones(len(at), dtype=bool) if out is None else at < out
            times = np.where(holds & held, np.minimum(times, mine), np.where(holds, mine, times))
            held |= holds
        times = np.maximum.accumulate(np.concatenate([[self.clock], times]))
        self.clock = int(times[-1])
        return times[1:]

    def remember(self, side: int, run: Run) -> None:
        self.shelves[side].add(run, self.oldest(side))
        if self._untold is not None:
            self._untold[side].append(run)

    def match(self, side: int, run: Run, rows: Ints) -> Ints:
        """Note that remembered rows have partners; those for which it is the first."""
        assert run.matched is not None
        first = np.unique(rows[~run.matched[rows]])
        run.matched[first] = True
        if self._untold is not None and len(first):
            keys = [taken(run.batch.column(name), first) for name in self._join.keys_by_input[side]]
            self._marks.append(self._join.marks(keys, side + _MARKS, run.sequence[first]))
        return first

    def forget(self) -> None:
        """Let go of rows that are gone, and of keys without rows, once they are many."""
        for side in SIDES:
            self.shelves[side].forget(self.oldest(side))
        if len(self.index) > _SPARE_KEYS + 2 * sum(map(len, self.shelves)):
            self._forget_keys()

    def _forget_keys(self) -> None:
        runs = [run.slots for shelf in self.shelves for run in shelf]
        live = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *runs]))
        numbers = np.full(len(self.index), -1, dtype=np.int64)
        self.index, numbers[live] = self.index.retain(live)
        for shelf in self.shelves:
            shelf.renumber(numbers)

    def end(self) -> None:
        """Forget all rows: those without partner have left, because the stream has ended."""
        self._ended = True
        self._clear()

    def _clear(self) -> None:
        self.shelves = (Shelf(), Shelf())
        self.index = KeyIndex(self._join.key_types)

    def snapshot(self) -> pa.Table:
        return self._table((self.shelves[LEFT].runs, self.shelves[RIGHT].runs), [])

    def track(self) -> None:
        self._untold, self._marks, self._ended = ([], []), [], False

    def changes(self) -> pa.Table:
        """The rows that have come and are not gone yet, and which of the others have had partners."""
        untold, ended = tracked(self._untold), self._ended
        table = whole(self.snapshot()) if ended else self._table(untold, self._marks)
        self.track()
        return table

    def apply(self, changes: pa.Table) -> None:
        meta = json.loads((changes.schema.metadata or {})[META])
        self.clock, self.maxima, self.counts = meta["clock"], meta["maxima"], meta["counts"]
        self.settled = meta.get("settled", NEVER)
        if is_whole(changes):
            self._clear()
        self.load(changes)
        self.forget()

    def load(self, table: pa.Table) -> None:
        """Add rows that were written."""
        for batch in table.to_batches():
            sides = batch.column("_side").to_numpy()
            for side in SIDES:
                rows = np.flatnonzero(sides == side)
                if len(rows):
                    run = self._join.written(taken(batch, rows), side, self.index)
                    self.shelves[side].add(run, self.oldest(side))
        for batch in table.to_batches():
            sides = batch.column("_side").to_numpy()
            for side in SIDES:
                rows = np.flatnonzero(sides == side + _MARKS)
                if len(rows):
                    marks = taken(batch, rows)
                    slots = self.index.slots(marks.columns[: len(self._join.key_types)], len(rows))
                    for run in self.shelves[side]:
                        run.marked(slots, marks.column("_sequence").to_numpy())

    def _table(self, runs: tuple[list[Run], list[Run]], marks: list[pa.RecordBatch]) -> pa.Table:
        join = self._join
        notes = {"maxima": self.maxima, "clock": self.clock, "counts": self.counts}
        if any(join.watched):
            notes["settled"] = self.settled
        schema = join.snapshot_schema().with_metadata({META: json.dumps(notes).encode()})
        batches = []
        for side in SIDES:
            for run in (run.since(self.oldest(side)) for run in runs[side]):
                rows = run.batch
                columns = [rows.column(name) for name in join.keys_by_input[side]]
                columns += [pa.array(np.full(len(run), side, dtype=np.int8)), pa.array(run.sequence)]
                if any(join.watched):
                    matched = np.zeros(len(run), dtype=bool) if run.matched is None else run.matched
                    columns.append(pa.array(matched))
                for other, input_schema in enumerate(join.inputs):
                    if other == side:
                        columns.append(pa.StructArray.from_arrays(rows.columns, fields=list(input_schema)))
                    else:
                        columns.append(pa.nulls(len(run), pa.struct(list(input_schema))))
                batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        batches += [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in marks]
        return pa.Table.from_batches(batches, schema=schema)
