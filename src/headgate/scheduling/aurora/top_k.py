"""The dynamic superbox: top-k spanner (Aurora, section 4.1.1)."""

from __future__ import annotations

from headgate.errors import PipelineError
from headgate.scheduling.aurora.priority import OLDEST_EVERY, PriorityTuple
from headgate.scheduling.aurora.traversals import min_cost
from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.trains import WHOLE_QUEUE, Train

K = 3


class TopK(PriorityTuple):
    """The k most urgent boxes of the most urgent query, with all that leads from them to its output.

    Urgency is the priority tuple.  The superbox is the tree rooted at the query's output box that spans the k
    boxes of highest priority among those that can run; every box of it is called once, after those that feed
    it.  Nothing starves: of every eight decisions one begins with the box that has been longest without a
    call.  Where starting a plan costs something by itself, the next queries come along until there is as much
    work as that.
    """

    name = "top_k"
    settings = frozenset({"batch"})

    def __init__(self, k: int = K, train: Train = WHOLE_QUEUE) -> None:
        if k < 1:
            raise PipelineError(f"Policy 'top_k': k={k} must be at least 1.")
        super().__init__()
        self.k = k
        self.train = train

    def begin(self, workers: int) -> None:
        super().begin(workers)
        boxes = self.catalog.boxes
        self._paths = [
            {q: [place, *(b for b in self._after[place] if q in boxes[b].queries)] for q in box.queries}
            for place, box in enumerate(boxes)
        ]
        """Of every box, for each query that needs it, the way to that query's output."""

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        if not ready:
            return None
        self._decisions += 1
        ranks = {box: (*self.priority(box, now), -self._turns[box]) for box in ready}
        order = sorted(ready, key=lambda box: ranks[box], reverse=True)
        if self._decisions % OLDEST_EVERY == 0:
            longest = min(ready, key=self._turns.__getitem__)
            order.remove(longest)
            order.insert(0, longest)
        plan = self._spanners(order)
        for call in plan:
            self._turns[call.box] = self._decisions
        return plan

    def _spanners(self, order: list[int]) -> Plan:
        """The spanner of the first box's query, and of further ones while that is too little for a plan."""
        boxes, known = self.catalog.boxes, dict[int, float]()
        calls: dict[int, Call] = {}
        spanned: set[str] = set()
        work = 0.0
        for first in order:
            query = next((query for query in self._paths[first] if query not in spanned), None)
            if query is None or first in calls:
                continue
            spanned.add(query)
            top = [box for box in order if query in self._paths[box]][: self.k]
            spanner = dict.fromkeys(box for each in top for box in self._paths[each][query])
            for box in min_cost(boxes, spanner):
                calls.setdefault(box, Call(box, self.train))
            work += sum([self.catalog.waiting_work(box, known) for box in top])
            if not work < self.catalog.plan_overhead:
                break
        return tuple(calls.values())
