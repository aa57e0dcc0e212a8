"""A calendar of what falls due: items by event time, in sorted runs of geometrically growing length.

Adding n items and taking the due ones costs their number times the logarithm of the state; what is not due
is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headgate.graph.columns import Ints


@dataclass(slots=True)
class _Run:
    times: Ints
    items: Ints


class Calendar:
    """Items with the times at which they fall due."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def push(self, times: Ints, items: Ints) -> None:
        if not len(times):
            return
        run = _sorted(times, items)
        while self._runs and len(self._runs[-1].times) <= 2 * len(run.times):
            other = self._runs.pop()
            run = _sorted(np.concatenate([other.times, run.times]), np.concatenate([other.items, run.items]))
        self._runs.append(run)

    def pop(self, now: int) -> tuple[Ints, Ints]:
        """Remove what is due at ``now`` or before; their times and the items."""
        times: list[Ints] = [np.zeros(0, dtype=np.int64)]
        items: list[Ints] = [np.zeros(0, dtype=np.int64)]
        for run in self._runs:
            if run.times[0] > now:
                continue
            due = int(np.searchsorted(run.times, now, side="right"))
            times.append(run.times[:due])
            items.append(run.items[:due])
            run.times, run.items = run.times[due:], run.items[due:]
        if len(times) > 1:
            self._runs = [run for run in self._runs if len(run.times)]
        return np.concatenate(times), np.concatenate(items)

    def entries(self) -> tuple[Ints, Ints]:
        """Everything that is entered."""
        none = np.zeros(0, dtype=np.int64)
        return (
            np.concatenate([none, *(r.times for r in self._runs)]),
            np.concatenate([none, *(r.items for r in self._runs)]),
        )


def _sorted(times: Ints, items: Ints) -> _Run:
    order = np.argsort(times, kind="stable")
    return _Run(times[order], items[order])
