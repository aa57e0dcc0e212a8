"""The dynamic superbox where a plan costs something to start (Aurora, sections 4.1 and 6.1): whose turn it is.

A plan that cannot be interrupted and costs something by itself, a Spark job, is a *step*.  Two things decide
what utility it delivers: which queries are in it, and how long it lasts, since whoever is not in it waits for
the next one.

- A step is planned to last half of the shortest time after which any query's utility changes, so that a tuple
  that has just missed one step is delivered by the next in time; but with at least as much work as a step
  costs to start.
- A query is urgent if the utility of what waits for it would be less after the next step than after this
  one.  Urgent queries go first, those first whose tuples lose most by a second of work spent on others.
- What is left of the step's time goes to queries that can wait, the smallest slack first, each with all that
  waits for it; the last one's train is cut to what is left.  So they wait, and ride in long trains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headgate.scheduling.catalog import Catalog
from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.trains import WHOLE_QUEUE, Share

LEAST = 1e-9
"""Seconds of work of a query whose cost is not known."""


class DynamicSuperbox:
    """Makes the plans of steps; it remembers nothing but the topology."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._boxes: dict[str, list[int]] = {}
        for place, box in enumerate(catalog.boxes):
            for query in box.queries:
                self._boxes.setdefault(query, []).append(place)
        self._tightest = min([goal.slack(0.0) for goal in catalog.goals.values()], default=math.inf)

    @property
    def room(self) -> float:
        """Seconds of work for which there is room in a step."""
        overhead = self._catalog.plan_overhead
        return max(self._tightest / 2 - overhead, overhead)

    def plan(self, now: float, turns: Sequence[int], first: int | None = None) -> Plan:
        """The next step.  ``turns`` say when each box was last called, for ties; ``first``: a box whose turn
        it is, whatever it is worth, and which gets half of the step at most."""
        boxes, waiting = self._catalog.boxes, self._waiting()
        ranks = {query: self._rank(query, places, now) for query, places in waiting.items()}
        order = sorted(waiting, key=lambda query: (ranks[query], min(turns[b] for b in waiting[query])))
        room, calls = self.room, {}
        if first is not None:
            favoured = next(query for query in order if query in boxes[first].queries)
            order.remove(favoured)
            room -= self._take(favoured, waiting[favoured], room / 2, calls)
        for query in order:
            room -= self._take(query, waiting[query], room, calls)
            if room <= 0:
                break
        return tuple(calls[box] for box in sorted(calls))

    def _waiting(self) -> dict[str, list[int]]:
        """Of each query that has something to do, the boxes that could run."""
        found: dict[str, list[int]] = {}
        for place in self._catalog.ready:
            for query in self._catalog.boxes[place].queries:
                found.setdefault(query, []).append(place)
        return found

    # --- whose turn it is -----------------------------------------------------------------------------

    def _rank(self, query: str, places: Sequence[int], now: float) -> tuple[float, float]:
        """Negative utility that is lost per second of work if a query waits for the next step, and its slack."""
        goal = self._catalog.goals.get(query)
        if goal is None:
            return 0.0, math.inf
        step = self._catalog.plan_overhead + self.room
        loss, slack, tuples = 0.0, math.inf, 0
        for place in places:
            queue = self._catalog.boxes[place].queue
            # Oldest, mean and newest stand for all: of a long queue the first may be past saving, not the last.
            ages = [now - queue.oldest, now - queue.mean, now - (2 * queue.mean - queue.oldest)]
            delivered = [max(age, 0.0) + step for age in ages]
            lost = [goal.utility(each) - goal.utility(each + step) for each in delivered]
            loss += queue.tuples * sum(lost) / len(lost)
            tuples += queue.tuples
            slack = min(slack, goal.slack(delivered[0]))
        seconds = max(self._work(query, places, {}), LEAST)
        return -loss / seconds, slack

    # --- what a step takes ----------------------------------------------------------------------------

    def _take(self, query: str, places: Sequence[int], room: float, calls: dict[int, Call]) -> float:
        """Add a query to a step that has so much room; the seconds that it takes."""
        seconds = self._work(query, places, calls)
        train = WHOLE_QUEUE if seconds <= room else Share(room / seconds)
        for place in places:
            calls.setdefault(place, Call(place, train))
        for place in self._boxes[query]:
            if any(up in calls for up in self._catalog.boxes[place].upstream):
                calls.setdefault(place, Call(place, WHOLE_QUEUE))
        return min(seconds, room)

    def _work(self, query: str, places: Sequence[int], calls: dict[int, Call]) -> float:
        """Seconds that what waits for a query takes, without what the step does already."""
        boxes = self._catalog.boxes
        tuples = {place: float(boxes[place].queue.tuples) for place in places}
        seconds = 0.0
        for place in self._boxes[query]:  # in the order in which tuples reach them
            count = tuples.get(place, 0.0)
            if count:
                box = boxes[place]
                if place not in calls:
                    seconds += count * box.cost + box.fixed
                for down in box.downstream:
                    tuples[down] = tuples.get(down, 0.0) + count * box.selectivity
        return seconds
