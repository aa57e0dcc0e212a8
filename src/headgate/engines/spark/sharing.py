"""What sharing a step out has been measured to cost, and which way of sharing out pays.

A step takes a fixed time (starting its job and its levels) and a time for each second of box work in it (the
boxes themselves on so many tasks, reading, writing, and the exchange of packets).  Both are learned from the
steps as they run, for each shape separately, so a cluster whose shuffle is slow, or a machine with fewer real
cores than it offers, falls back to fewer tasks by itself.

Box work is counted as one task would do it, whatever the shape: tasks that run beside each other slow each
other down, and with their seconds as the unit one task would look as slow as they are.

Trying a shape costs time if it loses.  Steps begin in one task, which is the measure.  Another shape is first
tried in two small steps; the first, which starts Spark's workers, teaches nothing.  A shape that was seen to
lose is tried again when conditions may have changed, but only as long as all such trials have lost less than
a twentieth of the time.  So sharing out never costs more than that, however badly it does.
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
_TRIALS = 2
"""Steps of a shape that are tried whatever is known; the first of them teaches nothing."""
_STAKE = 0.05
"""The share of all time that trials may lose."""
_BETWEEN = 8
"""Steps of the best shape between two such trials."""
_BULK_FIXED = 8.0
"""How many times its fixed time a step takes, where only the rate counts."""
_GROWTH = 3.0
"""How many times the work of the largest step so far the next may have: its cost is not known well yet."""
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
    told: int = 0
    """Steps that were large enough to tell something."""
    largest: float = 0.0
    """The most work of a step since the shape was chosen again."""

    def seconds(self, work: float) -> float:
        return self.fixed + self.per_work * work


class Sharing:
    """Predicts how long a step of a shape takes."""

    def __init__(self, cores: int, budget: float = 1.0, bulk: bool = False) -> None:
        self._known: dict[Shape, _Known] = {}
        self._budget, self._bulk = budget, bulk
        self._time = self._lost = 0.0
        """Seconds of all steps, and those that steps took longer than the best shape known would have."""
        self._since = 0
        """Steps of the best shape since another one was tried."""
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
        if not self._bulk or self._on_trial(shape):
            return seconds / known.per_work
        longer = max(seconds, min(_BULK_FIXED * known.fixed, LONGEST))
        return max(seconds / known.per_work, min(longer / known.per_work, _GROWTH * known.largest))

    def best(self, shapes: Sequence[Shape], work: float) -> Shape:
        """The shape that gets most work done per second, or one that is worth a trial."""
        if work <= 0.0 or len(shapes) == 1:
            return shapes[0]
        rates = {shape: self._rate(shape, work) for shape in shapes}
        if ALONE in rates and not self.has_measure:
            return ALONE
        tried = [shape for shape in shapes if not self._on_trial(shape)]
        best = max(tried, key=rates.__getitem__) if tried else shapes[0]
        others = sorted((shape for shape in shapes if shape != best), key=rates.__getitem__, reverse=True)
        for shape in others:
            done = min(work, self.room(shape))
            loss = self._of(shape).seconds(done) - done / max(rates[best], 1e-9)
            if self._on_trial(shape):
                if loss < 0.0:
                    return shape
            elif (
                self._since >= _BETWEEN
                and 2.0 * work >= self.room(shape)
                and self._lost + loss < _STAKE * self._time
            ):
                return shape
        return best

    def learn(self, shape: Shape, work: float, tasks: float, wall: float) -> None:
        """A step of ``work`` took ``wall`` seconds, ``tasks`` of them in the longest tasks of its levels."""
        known = self._known.setdefault(shape, self._of(shape))
        tells = work >= _TELLING
        known.told += tells
        if shape != ALONE and known.told <= 1:
            return
        self._time += wall
        best = max(self._known, key=lambda each: self._rate(each, LONGEST))
        self._since = self._since + 1 if best == shape else 0
        if tells and best != shape:
            self._lost += max(wall - work / self._rate(best, LONGEST), 0.0)
        for other in self._known.values():
            other.largest = max(known.largest, work) if other is known else 0.0
        # The first step that counts replaces a guess.
        weight = max(_WEIGHT, 1.0 / max(known.told - (shape != ALONE), 1)) * min(work / _TELLING, 1.0)
        known.fixed += max(weight, 0.05) * (max(wall - tasks, 0.001) - known.fixed)
        if weight:
            known.per_work += weight * (max(tasks / work, 1e-3) - known.per_work)

    @property
    def has_measure(self) -> bool:
        """Whether it is known what work takes in one task."""
        return not self._on_trial(ALONE)

    def _rate(self, shape: Shape, work: float) -> float:
        done = min(work, self.room(shape))
        return done / self._of(shape).seconds(done)

    def _on_trial(self, shape: Shape) -> bool:
        return self._of(shape).told < _TRIALS

    def _of(self, shape: Shape) -> _Known:
        known = self._known.get(shape)
        if known is not None:
            return known
        one = self._known.get(ALONE, _Known(LAUNCH, 1.0))
        share = 1.0 / shape.tasks + _EXTRA[shape.kind]
        return _Known(one.fixed + _LEVELS[shape.kind], one.per_work * min(share, 1.0))
