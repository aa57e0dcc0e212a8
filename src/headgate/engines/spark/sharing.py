"""What sharing a step out has been measured to cost, and which way of sharing out pays.

A step takes a fixed time (starting its job and its levels) and a time for each second of box work in it (the
boxes themselves on so many tasks, reading, writing, and the exchange of packets).  Both are learned from the
steps as they run, for each shape separately, so a cluster whose shuffle is slow, or a machine with fewer real
cores than it offers, falls back to fewer tasks by itself.  A shape that was not used for a while looks a
little cheaper with every step, so it is tried again when conditions may have changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ONE, SLICED, SHARES, STAGED = "one", "sliced", "shares", "staged"
"""One task; slices of the source; whole queries; slices, shards and merges that exchange packets."""
LAUNCH = 0.05
"""Seconds that a step takes beside its tasks, before any was measured."""
_LEVELS = {ONE: 0.0, SLICED: 0.005, SHARES: 0.01, STAGED: 0.06}
"""A guess of the further seconds of each shape: levels that follow each other."""
_EXTRA = {ONE: 0.0, SLICED: 0.02, SHARES: 0.1, STAGED: 0.2}
"""A guess of what sharing out adds to each second of work."""
_WEIGHT = 0.5
"""Of the newest step in what is known."""
_FADE, _MOST_HOPE = 0.99, 0.75
"""A shape that is not used looks so much cheaper with every step, and never by more than a quarter."""
_BULK_FIXED = 8.0
"""How many times its fixed time a step takes, where only the rate counts."""
LONGEST = 2.0
"""Seconds of the longest of such steps: a user who looks wants to see progress."""
_TELLING = 0.05
"""Seconds of work from which on a step counts in full: small and first ones tell more of start-up."""


@dataclass(frozen=True)
class Shape:
    kind: str
    tasks: int


ALONE = Shape(ONE, 1)


@dataclass
class _Known:
    fixed: float
    per_work: float
    hope: float = 1.0
    """What it may cost now, as a share of what it was last seen to cost."""


class Sharing:
    """Predicts how long a step of a shape takes."""

    def __init__(self, cores: int, budget: float = 1.0, bulk: bool = False) -> None:
        self._known: dict[Shape, _Known] = {}
        self._budget, self._bulk = budget, bulk
        self.counts: list[int]
        """How many tasks are tried: powers of two, and all cores."""
        self.resize(cores)

    def resize(self, cores: int) -> None:
        """So many tasks can run at once from now on."""
        self.counts = sorted({cores, *(1 << power for power in range(1, cores.bit_length()))} - {1})

    def room(self, shape: Shape) -> float:
        """The box work that fits into a step, beside its fixed time.

        Where only the rate counts, a step grows with what it takes to share it out.
        """
        known = self._of(shape)
        seconds = self._budget
        if self._bulk:
            seconds = max(seconds, min(_BULK_FIXED * known.fixed, LONGEST))
        return seconds / known.per_work

    def best(self, shapes: Sequence[Shape], work: float) -> Shape:
        """The shape that gets most work done per second."""

        def rate(shape: Shape) -> float:
            known = self._of(shape)
            done = min(work, self.room(shape))
            return done / (known.fixed + known.hope * known.per_work * done)

        if work <= 0.0:
            return shapes[0]
        chosen = max(shapes, key=rate)
        for shape, known in self._known.items():
            if shape != chosen:
                known.hope = max(known.hope * _FADE, _MOST_HOPE)
        return chosen

    def learn(self, shape: Shape, work: float, tasks: float, wall: float) -> None:
        """A step of ``work`` took ``wall`` seconds, ``tasks`` of them in the longest tasks of its levels."""
        known = self._known.setdefault(shape, self._of(shape))
        known.hope = 1.0
        weight = _WEIGHT * min(work / _TELLING, 1.0)
        known.fixed += max(weight, 0.05) * (max(wall - tasks, 0.001) - known.fixed)
        if weight:
            known.per_work += weight * (max(tasks / work, 1e-3) - known.per_work)

    def _of(self, shape: Shape) -> _Known:
        known = self._known.get(shape)
        if known is not None:
            return known
        one = self._known.get(ALONE, _Known(LAUNCH, 1.0))
        share = 1.0 / shape.tasks + _EXTRA[shape.kind]
        return _Known(one.fixed + _LEVELS[shape.kind], one.per_work * min(share, 1.0))
