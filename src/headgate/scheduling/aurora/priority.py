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
    follows it, for a time slice.  A box past its last critical point has nothing more to lose, but something
    to win back (``worth``).  No box starves: of every eight decisions one goes to the box that has been
    longest without a call, so one that is ready runs after at most eight times as many decisions as there
    are boxes.

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

    def worth(self, place: int, now: float) -> tuple[float, float]:
        """The priority, in which what can be won back counts like what can be lost."""
        gradient, slack = self.priority(place, now)
        if slack > -math.inf:
            return gradient, slack
        latency = self.catalog.boxes[place].latency(now)
        goals = [self.catalog.goals[query] for query, _ in self._below[place]]
        return self._regained(place, sum([g.utility(0.0) - g.utility(latency) for g in goals])), slack

    def _regained(self, place: int, lost: float) -> float:
        """Utility per second that queries which have lost it win back, if a backlog is worked off at once.

        Section 6.1 looks at what waits, and that has nothing more to lose: after an overload tight queries
        would stay late for ever.  But what comes after the backlog is worth something again, and results
        leave in order, so the backlog has to go first.
        """
        if lost <= 0:
            return 0.0
        backlog = self.catalog.boxes[place].queue.tuples * self.catalog.through(place, {})
        return lost / max(backlog, self.time_slice)

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
        count = len(self.catalog.boxes)
        ranks = {box: (*self.worth(box, now), -((box - self._last - 1) % count)) for box in ready}
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
