"""Application at a time (Aurora, section 4.1): a query's boxes as one superbox, traversed in three ways."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.scheduling.aurora.traversals import Traversal, mean_latency, min_cost, min_latency, min_memory
from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.steps import Step
from headgate.scheduling.trains import WHOLE_QUEUE, Train

LOOK_AGAIN = 16
"""Plans of a superbox after which its traversal is chosen anew."""
BETTER = 0.95
"""Another traversal must promise that share of the present one's latency, so that noise changes nothing."""


class ApplicationAtATime(Pull):
    """Each query that has something to do in its turn, all its boxes at once.

    A box that several queries share runs with the first of them.  A step takes the next queries along until
    it is full.
    """

    settings = frozenset({"batch"})
    train: Train
    traversal: Traversal

    def __init__(self, train: Train = WHOLE_QUEUE) -> None:
        self.train = train

    def begin(self, workers: int) -> None:
        self._superboxes = self.catalog.superboxes()
        self._queries = list(self._superboxes)
        self._number = {query: number for number, query in enumerate(self._queries)}
        self._last = -1

    def choose(self, worker: int, now: float) -> Plan | None:
        for superbox in self._in_turn():
            return tuple(Call(box, self.train) for box in self.order(superbox))
        return None

    def step(self, worker: int, now: float) -> Plan | None:
        step = Step(self.catalog)
        for superbox in self._in_turn():
            for box in superbox:
                if box not in step:
                    step.work(box)
            step.add(Call(box, self.train) for box in self.order(superbox))
            if step.full:
                break
        return step.plan or None

    def _in_turn(self) -> Iterator[list[int]]:
        """The boxes of each query that has something to do, from the query after the last one on."""
        boxes, count, last = self.catalog.boxes, len(self._queries), self._last
        ready = self.catalog.ready
        for turn in sorted(
            {(self._number[query] - last - 1) % count for box in ready for query in boxes[box].queries}
        ):
            self._last = (last + 1 + turn) % count
            yield self._superboxes[self._queries[self._last]]

    def order(self, superbox: list[int]) -> list[int]:
        return type(self).traversal(self.catalog.boxes, superbox)


class MinCost(ApplicationAtATime):
    """A query at a time, every box once: fewest calls per result, for throughput."""

    name = "mc"
    traversal = staticmethod(min_cost)

    def begin(self, workers: int) -> None:
        super().begin(workers)
        self._orders = {query: super(MinCost, self).order(boxes) for query, boxes in self._superboxes.items()}

    def order(self, superbox: list[int]) -> list[int]:
        return self._orders[self._queries[self._last]]


class MinLatency(ApplicationAtATime):
    """A query at a time, tuples nearest to the output first: soonest results, for more calls."""

    name = "ml"
    traversal = staticmethod(min_latency)


class MinMemory(ApplicationAtATime):
    """A query at a time, the boxes first that shorten queues fastest: least memory."""

    name = "mm"
    needs = frozenset({"bytes"})
    traversal = staticmethod(min_memory)


class AutoTraversal(ApplicationAtATime):
    """A query at a time, for each the traversal that promises the lower latency: few calls or early results.

    The overhead of a call and the cost of a tuple are measured; with the lengths of the queues they say when
    results would leave by Min-Cost and by Min-Latency (Aurora, section 5.3).  Costs drift, so the choice is
    made again after some plans of the superbox, and changes if the other promises clearly less.
    """

    name = "auto_traversal"

    def begin(self, workers: int) -> None:
        super().begin(workers)
        self.chosen: dict[str, str] = {}
        """Each query's traversal: ``"mc"`` or ``"ml"``."""
        self._plans = dict.fromkeys(self._queries, 0)
        self._min_cost = {q: min_cost(self.catalog.boxes, boxes) for q, boxes in self._superboxes.items()}

    def order(self, superbox: list[int]) -> list[int]:
        query = self._queries[self._last]
        few = self._min_cost[query]
        again = self._plans[query] % LOOK_AGAIN == 0
        self._plans[query] += 1
        if not again and self.chosen[query] == "mc":
            return few
        early = min_latency(self.catalog.boxes, superbox)
        if again:
            promised = {"mc": mean_latency(self.catalog.boxes, superbox, few)}
            promised["ml"] = mean_latency(self.catalog.boxes, superbox, early)
            present = self.chosen.setdefault(query, "mc")
            other = "ml" if present == "mc" else "mc"
            if promised[other] < BETTER * promised[present]:
                self.chosen[query] = other
        return early if self.chosen[query] == "ml" else few
