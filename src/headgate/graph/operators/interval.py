"""Rows by key and time: what an interval join remembers of one input, and how it finds partners.

Rows are kept in runs, each sorted by (slot, time), of sizes that grow geometrically, so that adding a
packet costs little and a search visits few runs.  Rows that no tuple can meet any more are dropped when
runs are merged, and when they are more than half of a run.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headgate.graph.columns import Ints, Mask, taken
from headgate.graph.runs import outgrown

_NONE: Ints = np.zeros(0, dtype=np.int64)


class Run:
    """Rows sorted by (slot, time); ``sequence`` is their place in the input they came from.

    ``matched`` says which have had a partner; None if the join does not ask.
    """

    __slots__ = (
        "_codes",
        "_last_slot",
        "_ranks",
        "_span",
        "batch",
        "first",
        "last",
        "matched",
        "sequence",
        "slots",
        "times",
    )

    def __init__(
        self, batch: pa.RecordBatch, slots: Ints, times: Ints, sequence: Ints, matched: Mask | None = None
    ) -> None:
        self.first, self.last = (int(times.min()), int(times.max())) if len(times) else (0, 0)
        self._last_slot = int(slots.max()) if len(slots) else 0
        self._ranks: Ints | None = None
        self._span = self.last - self.first + 2
        if (self._last_slot + 2) * self._span >= 1 << 62:
            # Times so far apart that (slot, time) does not fit one integer: their ranks stand for them.
            self._ranks = np.sort(times)
            self._span = len(times) + 2
        codes = slots * self._span + self._scaled(times)
        if not bool(np.all(codes[:-1] <= codes[1:])):
            by_code = np.argsort(codes, kind="stable")
            batch = taken(batch, by_code)
            slots, times, sequence = slots[by_code], times[by_code], sequence[by_code]
            codes = codes[by_code]
            matched = None if matched is None else matched[by_code]
        self.batch, self.slots, self.times, self.sequence = batch, slots, times, sequence
        self.matched = matched
        self._codes = codes

    def __len__(self) -> int:
        return len(self.slots)

    def _scaled(self, times: Ints) -> Ints:
        """Times as integers below the span, in the same order; all later than the last are one."""
        if self._ranks is not None:
            return np.searchsorted(self._ranks, times)
        return np.clip(times, self.first, self.last + 1) - self.first

    def pairs(self, slots: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
        """(i, row) for every i and every row of slot ``slots[i]`` with a time in ``low[i] .. high[i]``.

        Fast if the questions are sorted by slot and time.
        """
        base = np.minimum(slots, self._last_slot + 1) * self._span
        first = self._codes.searchsorted(base + self._scaled(low))
        last = self._codes.searchsorted(base + self._scaled(high + 1))
        counts = np.maximum(last - first, 0)
        if not np.count_nonzero(counts):
            return _NONE, _NONE
        through = counts.cumsum()
        asked = np.arange(len(slots), dtype=np.int64).repeat(counts)
        rows = np.arange(through[-1], dtype=np.int64) + (first - through + counts).repeat(counts)
        return asked, rows

    def before(self, time: int) -> int:
        """How many rows are older than ``time``."""
        if time <= self.first:
            return 0
        return len(self) if time > self.last else int(np.count_nonzero(self.times < time))

    def since(self, time: int) -> Run:
        """The rows that are not older than ``time``."""
        if time <= self.first:
            return self
        return self.at(np.flatnonzero(self.times >= time))

    def at(self, rows: Ints) -> Run:
        """Some of the rows."""
        matched = None if self.matched is None else self.matched[rows]
        return Run(taken(self.batch, rows), self.slots[rows], self.times[rows], self.sequence[rows], matched)

    def marked(self, slots: Ints, sequence: Ints) -> None:
        """Note that the rows with these slots and sequences have had partners."""
        assert self.matched is not None
        known = np.unique(sequence)
        place = np.minimum(known.searchsorted(self.sequence), max(len(known) - 1, 0))
        found = self.slots * len(known) + place
        self.matched |= (known[place] == self.sequence) & np.isin(
            found, slots * len(known) + known.searchsorted(sequence)
        )


class Shelf:
    """The rows of one input that may still find partners."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def add(self, run: Run, oldest: int) -> None:
        """Put a run on the shelf; rows older than ``oldest`` may be forgotten."""
        run = run.since(oldest)
        if not len(run):
            return
        runs = [r for r in (old.since(oldest) for old in outgrown(self.runs, len(run))) if len(r)]
        if runs:
            runs.append(run)
            run = Run(
                pa.concat_batches([r.batch for r in runs]),
                np.concatenate([r.slots for r in runs]),
                np.concatenate([r.times for r in runs]),
                np.concatenate([r.sequence for r in runs]),
                None if run.matched is None else np.concatenate([_flags(r) for r in runs]),
            )
        self.runs.append(run)

    def forget(self, oldest: int) -> None:
        """Rewrite each run with more rows older than ``oldest`` than not."""
        if any(2 * run.before(oldest) > len(run) for run in self.runs):
            kept = [run.since(oldest) if 2 * run.before(oldest) > len(run) else run for run in self.runs]
            self.runs = [run for run in kept if len(run)]

    def renumber(self, numbers: Ints) -> None:
        """Slot s becomes ``numbers[s]``."""
        self.runs = [Run(r.batch, numbers[r.slots], r.times, r.sequence, r.matched) for r in self.runs]


def _flags(run: Run) -> Mask:
    assert run.matched is not None
    return run.matched
