"""QoS-driven scheduling by the priority tuple (Aurora, section 6.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headgate.scheduling.aurora.superbox import DynamicSuperbox
from headgate.scheduling.aurora.traverser import Traverser
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
    follows it, for a time slice.  No box starves: of every eight decisions one goes to the box that has been
    longest without a call, so one that is ready runs after at most eight times as many decisions as there
    are boxes.

    Section 6.1 is for queries that are in time.  Once a result is too late to be worth all it could be, what
    counts is how much utility a second of work wins back (``gain``).  Results leave in order, so a query wins
    by working off its backlog.  So a tight query that is a little late goes first; of several that are far
    behind one after the other comes back, the one with the least backlog first, instead of all of them a
    little; and what is worth nothing whenever it comes waits.

    With ``train``, calls take what that rule says.  With ``traverse``, the whole query of the box runs, in
    the order of that traversal.

    A step takes the queries whose utility would fall before the next step is over, then others as far as its
    time allows (``aurora/superbox.py``).  Of every eighth step, up to half goes first to the queries that
    have been longest without a call, which gives the same bound.
    """

    name = "qos"
    needs = frozenset({"latency"})
    settings = frozenset({"batch"})
    train: Train | None

    def __init__(
        self, time_slice: float = SLICE, train: Train | None = None, traverse: str | None = None
    ) -> None:
        self.time_slice = time_slice
        self.train = train
        self._traverser = None if traverse is None else Traverser(traverse)
        if self._traverser is not None:
            self.needs |= self._traverser.needs

    def begin(self, workers: int) -> None:
        boxes = self.catalog.boxes
        self._queries = self.catalog.superboxes()
        if self._traverser is not None:
            self._traverser.begin(self.catalog)
        self._after = [self.catalog.downstream(place) for place in range(len(boxes))]
        self._calls = [tuple(Call(box, WHOLE_QUEUE) for box in after) for after in self._after]
        self._below = [self._of_queries(place) for place in range(len(boxes))]
        self._superbox = DynamicSuperbox(self.catalog)
        self._decisions = 0
        self._last = -1
        self._turns = [0] * len(boxes)
        """The decision that last called each box."""
        self._through: dict[int, float] = {}
        """By box, the seconds that a tuple takes from there on, as this decision has found them."""

    def _of_queries(self, place: int) -> list[tuple[str, list[int]]]:
        """The queries with goals that need a box, each with the box and those downstream that it needs."""
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

    def gain(self, place: int, now: float) -> float:
        """Utility that a second of work wins back at the most, if it goes into what waits before a box.

        Of a backlog that began to arrive so long ago, so large a part must be worked off before results are
        as new as a critical point asks for: the best of these points counts.  What is in time wins nothing.
        """
        boxes = self.catalog.boxes
        queue = boxes[place].queue
        waited = now - queue.oldest
        if not queue.tuples or waited <= 0:
            return 0.0
        work = max(queue.tuples * self.catalog.through(place, self._through), self.time_slice)
        found = 0.0
        for query, below in self._below[place]:
            goal = self.catalog.goals[query]
            ahead = sum([boxes[box].cost for box in below])
            late, best = goal.utility(waited + ahead), 0.0
            for point in goal.critical_points:
                newer = waited + ahead - point
                if newer > 0:
                    part = min(newer / waited, 1.0)
                    best = max(best, (goal.utility(point) - late) / (part * work))
            found += best
        return found

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        if not ready:
            return None
        if self._is_fair():
            return self._called(self._plan(min(ready, key=self._turns.__getitem__), now))
        return self._called(self._box(ready, now))

    def step(self, worker: int, now: float) -> Plan | None:
        if not self.catalog.ready:
            return None
        fair = self._is_fair()
        return self._called(self._superbox.plan(now, self._turns, fair=fair))

    def _is_fair(self) -> bool:
        """Count a decision: whether it goes to the box that has been longest without a call."""
        self._decisions += 1
        return self._decisions % OLDEST_EVERY == 0

    def _called(self, plan: Plan) -> Plan | None:
        for call in plan:
            self._turns[call.box] = self._decisions
        return plan or None

    def _box(self, ready: Sequence[int], now: float) -> Plan:
        """The box of the highest priority; of equal ones they take turns."""
        count, self._through = len(self.catalog.boxes), {}
        gains = {box: self.gain(box, now) for box in ready}
        if any(gains.values()):
            best = max(gains.values())
            ready = [box for box in ready if gains[box] == best]
        ranks = {box: (*self.priority(box, now), -((box - self._last - 1) % count)) for box in ready}
        return self._plan(max(ready, key=ranks.__getitem__), now)

    def _plan(self, place: int, now: float) -> Plan:
        """The superbox of a box: all that follows it, or the query to which it is worth most."""
        self._last = place
        if self._traverser is not None:
            query = self._worth_most(place, now)
            train = self.train or WHOLE_QUEUE
            return tuple(Call(box, train) for box in self._traverser.order(self._queries[query], query))
        if self.train is not None:
            return tuple(Call(box, self.train) for box in (place, *self._after[place]))
        return (Call(place, self._train(place)), *self._calls[place])

    def _worth_most(self, place: int, now: float) -> str:
        """The query of a box that loses most by waiting, the first of equals."""
        boxes = self.catalog.boxes
        latency = boxes[place].latency(now)
        lost = {
            query: self.catalog.goals[query].gradient(latency + sum([boxes[box].cost for box in below]))
            for query, below in self._below[place]
        }
        return max(boxes[place].queries, key=lambda query: lost.get(query, 0.0))

    def _train(self, place: int) -> Train:
        through = self.catalog.through(place, {})
        return WHOLE_QUEUE if through <= 0 else Count(max(1, int(self.time_slice / through)))
