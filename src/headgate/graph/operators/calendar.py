"""A calendar: items by the event time when they are due, in sorted runs of geometrically growing length.

Adding n items and taking the due ones costs their number times the logarithm of the state.  Items
that are not due are not looked at, and nothing is sorted until an item is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headgate.graph.columns import Ints
from headgate.graph.runs import outgrown

_NEVER = (1 << 63) - 1
_MANY = 64
_NONE: Ints = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class _Run:
    times: Ints
    items: Ints

    def __len__(self) -> int:
        return len(self.times)


class Calendar:
    """Items with the times at which they fall due."""

    def __init__(self) -> None:
        self.first = _NEVER
        """When the first item falls due."""
        self._runs: list[_Run] = []
        self._entered: list[_Run] = []
        """Runs that are not sorted yet."""

    def push(self, times: Ints, items: Ints) -> None:
        """Enter items; the caller must not change the arrays any more."""
        if not len(times):
            return
        self._entered.append(_Run(times, items))
        self.first = min(self.first, int(times.min()))
        if len(self._entered) > _MANY:
            self._sort()

    def pop(self, now: int) -> tuple[Ints, Ints]:
        """Remove what is due at ``now`` or before; their times and the items."""
        if self.first > now:
            return _NONE, _NONE
        self._sort()
        due: list[_Run] = []
        left: list[_Run] = []
        for run in self._runs:
            end = int(run.times.searchsorted(now, side="right"))
            if end:
                due.append(_Run(run.times[:end], run.items[:end]))
                run.times, run.items = run.times[end:], run.items[end:]
            if len(run):
                left.append(run)
        self._runs = left
        self.first = min([_NEVER, *(int(run.times[0]) for run in left)])
        both = _joined(due)
        return both.times, both.items

    def entries(self) -> tuple[Ints, Ints]:
        """Everything that is entered."""
        everything = _joined([*self._runs, *self._entered])
        return everything.times, everything.items

    def _sort(self) -> None:
        if not self._entered:
            return
        count = sum(map(len, self._entered))
        run = _joined([*outgrown(self._runs, count), *self._entered])
        self._entered.clear()
        order = run.times.argsort(kind="stable")
        self._runs.append(_Run(run.times[order], run.items[order]))


def _joined(runs: Sequence[_Run]) -> _Run:
    if len(runs) == 1:
        return runs[0]
    if not runs:
        return _Run(_NONE, _NONE)
    return _Run(np.concatenate([r.times for r in runs]), np.concatenate([r.items for r in runs]))
