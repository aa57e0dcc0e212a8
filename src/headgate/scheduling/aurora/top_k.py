"""The dynamic superbox: top-k spanner (Aurora, section 4.1.1)."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.errors import PipelineError
from headgate.scheduling.aurora.priority import PriorityTuple
from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.steps import Step
from headgate.scheduling.trains import WHOLE_QUEUE, Train

K = 3


class TopK(PriorityTuple):
    """The k most urgent boxes of the most urgent query, with all that leads from them to its output.

    Urgency is the priority tuple.  The superbox is the tree rooted at the query's output box that spans the k
    boxes of highest priority among those that can run; by default every box of it is called once, after those
    that feed it (``traverse``).  Nothing starves: of every eight decisions one begins with the box that has
    been longest without a call.  A step takes the spanners of the next queries along until it is full.
    """

    name = "top_k"
    train: Train

    def __init__(self, k: int = K, train: Train = WHOLE_QUEUE, traverse: str = "mc") -> None:
        if k < 1:
            raise PipelineError(f"Policy 'top_k': k={k} must be at least 1.")
        super().__init__(train=train, traverse=traverse)
        self.k = k

    def begin(self, workers: int) -> None:
        super().begin(workers)
        boxes = self.catalog.boxes
        self._paths = [
            {q: [place, *(b for b in self._after[place] if q in boxes[b].queries)] for q in box.queries}
            for place, box in enumerate(boxes)
        ]
        """By box and query, the way from the box to the query's output."""

    def choose(self, worker: int, now: float) -> Plan | None:
        for spanner, _ in self._spanners(now, Step(self.catalog)):
            return self._called(spanner)
        return None

    def step(self, worker: int, now: float) -> Plan | None:
        step = Step(self.catalog)
        for spanner, top in self._spanners(now, step):
            step.add(spanner)
            for box in top:
                step.work(box)
            if step.full:
                break
        return self._called(step.plan)

    def _spanners(self, now: float, step: Step) -> Iterator[tuple[Plan, list[int]]]:
        """The spanners of the queries, the most urgent first, each with the boxes that it spans."""
        ready = self.catalog.ready
        if not ready:
            return
        ranks = {box: (*self.priority(box, now), -self._turns[box]) for box in ready}
        order = sorted(ready, key=lambda box: ranks[box], reverse=True)
        if self._is_fair():
            longest = min(ready, key=self._turns.__getitem__)
            order.remove(longest)
            order.insert(0, longest)
        spanned: set[str] = set()
        for first in order:
            query = next((query for query in self._paths[first] if query not in spanned), None)
            if query is None or first in step:
                continue
            spanned.add(query)
            top = [box for box in order if query in self._paths[box]][: self.k]
            spanner = dict.fromkeys(box for each in top for box in self._paths[each][query])
            assert self._traverser is not None
            yield tuple(Call(box, self.train) for box in self._traverser.order(spanner)), top
