"""The dynamic superbox where a plan costs something to start (Aurora, sections 4.1 and 6.1).

A plan that cannot be interrupted and costs something by itself, a Spark job, is a *step*.  Two things decide
what utility it delivers: which queries are in it, and how long it lasts, since a query that is not in it
waits for the next one.

- A step is planned to last half of the shortest time after which any query's utility changes, so that a tuple
  that has just missed one step is delivered by the next in time; but with at least as much work as a step
  costs to start, and never more than the engine lets it have, which would cut urgent trains with the rest.
- A query is urgent if what waits for it is worth less when left to a later step: at the end of this one, or
  two steps later, since the next may take longer than planned.  Urgent queries go first, in the order of
  what they would lose.
- What is left of the step's time goes to queries that can wait, the smallest slack first, each with all that
  waits for it; the last one's train is cut to what is left.  So they wait, and ride in long trains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headgate.scheduling.catalog import Catalog
from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.trains import WHOLE_QUEUE, Share

LATER = 2
"""Steps by which a query that is left out is taken to be later."""
LEAST = 1e-9
"""A loss of utility that is none."""
NOTHING_TO_LOSE = 100
"""A rank behind that of every loss."""


class DynamicSuperbox:
    """Makes the plans of steps; it remembers nothing but the topology."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._boxes = catalog.superboxes()
        self._tightest = min([goal.slack(0.0) for goal in catalog.goals.values()], default=math.inf)

    @property
    def room(self) -> float:
        """Seconds of work for which there is room in a step."""
        overhead = self._catalog.plan_overhead
        return min(max(self._tightest / 2 - overhead, overhead), self._catalog.plan_limit)

    def plan(self, now: float, turns: Sequence[int], *, fair: bool = False) -> Plan:
        """The next step, or nothing; ``turns`` say when each box was last called.

        ``fair``: whatever they are worth, up to half of it goes to the queries longest without a call.
        """
        waiting = self._waiting(fair)
        last = {query: min(turns[box] for box in places) for query, places in waiting.items()}
        left = sorted(waiting, key=lambda query: (*self._rank(query, waiting[query], now), last[query]))
        calls: dict[int, Call] = {}
        room = self.room
        if fair:
            half = room / 2
            for query in sorted(waiting, key=lambda query: last[query]):
                left.remove(query)
                half -= self._take(query, waiting[query], half, calls)
                if half <= 0:
                    break
            room = room / 2 + max(half, 0.0)
        for query in left:
            if room <= 0:
                break
            room -= self._take(query, waiting[query], room, calls)
        return tuple(calls[box] for box in sorted(calls))

    def _waiting(self, fair: bool) -> dict[str, list[int]]:
        """The queries that have something to do, with their boxes that could run.

        A query that another step works on waits for that step: this one could only be committed after it.
         If there is nothing else to do, those go that can go all the way; of the others only a part
        could run, and what it made would have to be stored for a later step.  A fair step takes them all:
        a query must run at some time, even if others keep the boxes busy that it shares with them.
        """
        boxes = self._catalog.boxes
        found: dict[str, list[int]] = {}
        for place in self._catalog.ready:
            for query in boxes[place].queries:
                found.setdefault(query, []).append(place)
        free = {q: places for q, places in found.items() if not any(boxes[b].running for b in self._boxes[q])}
        if fair or free:
            return found if fair else free
        whole = (q for q in found if all(boxes[b].running < boxes[b].lanes for b in self._boxes[q]))
        return {query: found[query] for query in whole}

    # --- whose turn it is -----------------------------------------------------------------------------

    def _rank(self, query: str, places: Sequence[int], now: float) -> tuple[int, float]:
        """The smaller, the sooner: how much utility falls if a query is not in this step; or else its slack.

        Losses within a factor of two are equal, and those queries take turns: small differences must not
        decide who is always last.
        """
        goal = self._catalog.goals.get(query)
        if goal is None:
            return NOTHING_TO_LOSE, math.inf
        step = self._catalog.plan_overhead + self.room
        worst, slack = 0.0, math.inf
        for place in places:
            queue = self._catalog.boxes[place].queue
            # Oldest, mean and newest stand for all: the oldest may be past saving when the newest are not.
            arrivals = (queue.oldest, queue.mean, 2 * queue.mean - queue.oldest)
            ends = [max(now - arrival, 0.0) + step for arrival in arrivals]
            loss = sum([goal.utility(end) - goal.utility(end + LATER * step) for end in ends]) / len(ends)
            worst, slack = max(worst, loss), min(slack, goal.slack(ends[0]))
        return (NOTHING_TO_LOSE, slack) if worst <= LEAST else (-math.frexp(worst)[1], 0.0)

    # --- what a step takes ----------------------------------------------------------------------------

    def _take(self, query: str, places: Sequence[int], room: float, calls: dict[int, Call]) -> float:
        """Add a query to a step that has so much room; the seconds that it takes."""
        fixed, seconds = self._work(query, places, calls)
        # What calls take whatever they are given cannot be saved by giving them less.
        most = max(room - fixed, fixed, room / 4)
        train = WHOLE_QUEUE if seconds <= most else Share(most / seconds)
        for place in places:
            calls.setdefault(place, Call(place, train))
        for place in self._boxes[query]:
            if any(up in calls for up in self._catalog.boxes[place].upstream):
                calls.setdefault(place, Call(place, WHOLE_QUEUE))
        return fixed + min(seconds, most)

    def _work(self, query: str, places: Sequence[int], calls: dict[int, Call]) -> tuple[float, float]:
        """Seconds for a query, without what the step does already: of its calls, and of what waits for it."""
        boxes = self._catalog.boxes
        tuples: dict[int, float] = {}
        for place in places:
            queue = boxes[place].queue.tuples
            tuples[place] = calls[place].train.size(boxes[place]) if place in calls else queue
        fixed = seconds = 0.0
        for place in self._boxes[query]:  # in the order in which tuples reach them
            count = tuples.get(place, 0.0)
            if count:
                box = boxes[place]
                if place not in calls:
                    fixed += box.fixed
                    seconds += count * box.cost
                for down in box.downstream:
                    tuples[down] = tuples.get(down, 0.0) + count * box.selectivity
        return fixed, seconds
