"""QoS-driven scheduling by the priority tuple (Aurora, section 6.1)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import WHOLE_QUEUE, Count, Train

SLICE = 0.016
"""Seconds for which a worker takes a box and what follows it."""
OLDEST_EVERY = 8
"""Every so many decisions the longest waiting box is chosen, whatever it is worth."""


class PriorityTuple(Pull):
    """The box whose delay costs most utility now, and of those the one nearest to a critical point.

    A box's expected output latency is the mean latency of its queue plus the cost of everything downstream.
    Its gradient says how much utility a second of delay loses there, its slack how long until that changes;
    where several queries need it, gradients add up and the smallest slack counts.  The box runs with all that
    follows it, for a time slice.  No box starves, though utility past its last critical point has nothing
    more to lose: of every eight decisions one goes to the box that has waited longest, so a box that is ready
    runs after at most eight times as many decisions as there are boxes.

    Where starting a plan costs something by itself, a plan takes all boxes whose utility is falling or will
    before the next plan could be over, and none else; if there are none, all until it has as much work as it
    costs to start.
    """

    name = "qos"
    needs = frozenset({"latency"})

    def __init__(self, time_slice: float = SLICE) -> None:
        self.time_slice = time_slice

    def begin(self, workers: int) -> None:
        boxes = self.catalog.boxes
        self._after = [self.catalog.downstream(place) for place in range(len(boxes))]
        self._calls = [tuple(Call(box, WHOLE_QUEUE) for box in after) for after in self._after]
        self._below = [self._of_queries(place) for place in range(len(boxes))]
        self._decisions = 0
        self._last = -1

    def _of_queries(self, place: int) -> list[tuple[str, list[int]]]:
        """Of each query with a goal that needs a box: that box and those downstream that the query needs."""
        boxes = self.catalog.boxes
        return [
            (query, [place, *(box for box in self._after[place] if query in boxes[box].queries)])
            for query in boxes[place].queries
            if query in self.catalog.goals
        ]

    # --- priorities ---------------------------------------------------------------------------------

    def priority(self, place: int, now: float) -> tuple[float, float]:
        """Utility lost per second of delay, and the negative slack: the greater, the sooner."""
        boxes = self.catalog.boxes
        latency = boxes[place].latency(now)
        gradient, slack = 0.0, math.inf
        for query, below in self._below[place]:
            expected = latency + sum([boxes[box].cost for box in below])
            goal = self.catalog.goals[query]
            gradient += goal.gradient(expected)
            slack = min(slack, goal.slack(expected))
        return gradient, -slack

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        if not ready:
            return None
        self._decisions += 1
        if self.catalog.plan_overhead:
            return self._step(ready, now)
        if self._decisions % OLDEST_EVERY == 0:
            self._last = self._oldest()
        else:
            count = len(self.catalog.boxes)
            ranks = {box: (*self.priority(box, now), -((box - self._last - 1) % count)) for box in ready}
            self._last = max(ready, key=ranks.__getitem__)
        return (Call(self._last, self._train(self._last)), *self._calls[self._last])

    def _oldest(self) -> int:
        """The box that could run whose oldest tuple is oldest; of equals, the next in turn."""
        boxes, count = self.catalog.boxes, len(self.catalog.boxes)
        return min(
            self.catalog.ready, key=lambda box: (boxes[box].queue.oldest, (box - self._last - 1) % count)
        )

    def _train(self, place: int) -> Train:
        through = self.catalog.through(place, {})
        return WHOLE_QUEUE if through <= 0 else Count(max(1, int(self.time_slice / through)))

    # --- where a plan costs something to start --------------------------------------------------------

    def _step(self, ready: Sequence[int], now: float) -> Plan:
        """Those that cannot wait; or, if all can, enough of them to be worth a plan."""
        ranks = {box: self.priority(box, now) for box in ready}
        order = sorted(ready, key=ranks.__getitem__, reverse=True)
        soon = 2 * self.catalog.plan_overhead
        urgent = [box for box in order if ranks[box][0] > 0 or -ranks[box][1] < soon]
        return self._fused(urgent or self._enough(order))

    def _enough(self, order: Iterable[int]) -> list[int]:
        """The first boxes that together have as much work as a plan costs to start."""
        known: dict[int, float] = {}
        work, chosen = 0.0, []
        for box in order:
            chosen.append(box)
            work += self.catalog.boxes[box].queue.tuples * self.catalog.through(box, known)
            if work >= self.catalog.plan_overhead:
                break
        return chosen

    def _fused(self, chosen: Sequence[int]) -> Plan:
        """Boxes with all that follows them, each once; and the longest waiting if it is its turn."""
        if self._decisions % OLDEST_EVERY == 0:
            chosen = [*chosen, self._oldest()]
        calls = {box: Call(box, WHOLE_QUEUE) for first in chosen for box in (first, *self._after[first])}
        return tuple(calls.values())
