"""Application at a time (Aurora, section 4.1): queries in turn, each one's boxes as one superbox."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headgate.scheduling.aurora.traverser import Traverser
from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.steps import Step
from headgate.scheduling.trains import WHOLE_QUEUE, Train


class ApplicationAtATime(Pull):
    """Each query that has something to do in its turn, all its boxes at once.

    A box that several queries share runs with the first of them.  A step takes the next queries along until
    it is full.
    """

    settings = frozenset({"batch"})
    train: Train

    def __init__(self, train: Train = WHOLE_QUEUE, traverse: str = "mc") -> None:
        self.train = train
        self._traverser = Traverser(traverse)
        self.needs = self._traverser.needs

    def begin(self, workers: int) -> None:
        self._traverser.begin(self.catalog)
        self._superboxes = self.catalog.superboxes()
        self._queries = list(self._superboxes)
        self._number = {query: number for number, query in enumerate(self._queries)}
        self._last = -1

    def choose(self, worker: int, now: float) -> Plan | None:
        for query in self._in_turn():
            return tuple(Call(box, self.train) for box in self._order(query))
        return None

    def step(self, worker: int, now: float) -> Plan | None:
        step = Step(self.catalog)
        for query in self._in_turn():
            for box in self._superboxes[query]:
                if box not in step:
                    step.work(box)
            step.add(Call(box, self.train) for box in self._order(query))
            if step.full:
                break
        return step.plan or None

    def _in_turn(self) -> Iterator[str]:
        """The queries that have something to do, from the one after the last one on."""
        boxes, count, last = self.catalog.boxes, len(self._queries), self._last
        ready = self.catalog.ready
        for turn in sorted(
            {(self._number[query] - last - 1) % count for box in ready for query in boxes[box].queries}
        ):
            self._last = (last + 1 + turn) % count
            yield self._queries[self._last]

    def _order(self, query: str) -> list[int]:
        return self._traverser.order(self._superboxes[query], query)


class MinCost(ApplicationAtATime):
    """A query at a time, every box once: fewest calls per result, for throughput."""

    name = "mc"

    def __init__(self, train: Train = WHOLE_QUEUE) -> None:
        super().__init__(train, "mc")


class MinLatency(ApplicationAtATime):
    """A query at a time, tuples nearest to the output first: soonest results, for more calls."""

    name = "ml"

    def __init__(self, train: Train = WHOLE_QUEUE) -> None:
        super().__init__(train, "ml")


class MinMemory(ApplicationAtATime):
    """A query at a time, the boxes first that shorten queues fastest: least memory."""

    name = "mm"

    def __init__(self, train: Train = WHOLE_QUEUE) -> None:
        super().__init__(train, "mm")


class AutoTraversal(ApplicationAtATime):
    """A query at a time, for each the traversal that promises the lower latency: few calls or early results.

    The overhead of a call and the cost of a tuple are measured; with the lengths of the queues they say when
    results would leave by Min-Cost and by Min-Latency (Aurora, section 5.3).  Costs drift, so the choice is
    made again after some plans of the superbox, and changes if the other promises clearly less.
    """

    name = "auto_traversal"

    def __init__(self, train: Train = WHOLE_QUEUE) -> None:
        super().__init__(train, "auto")

    @property
    def chosen(self) -> Mapping[str, str]:
        """Each query's traversal: ``"mc"`` or ``"ml"``."""
        return self._traverser.chosen
