"""Last in pipeline (ordered processing, section 6.2: LP)."""

from __future__ import annotations

from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import WHOLE_QUEUE, Count

SLICE = 0.004
"""Seconds for which a worker takes a box and what follows it."""
REFRESH = 16
"""Plans of a box after which its train is reckoned anew from measured costs."""


class LastInPipeline(Pull):
    """The box furthest from the sources that can run, for a time slice, and on with its results.

    Boxes are numbered by their distance from the sources, so the last that is ready is the furthest, and
    nothing waits downstream of it: what it makes goes on through all boxes that follow, as a superbox.  The
    train is as many tuples as take the slice, all the way through.
    """

    name = "lp"

    def __init__(self, time_slice: float = SLICE) -> None:
        self.time_slice = time_slice

    def begin(self, workers: int) -> None:
        self._after: dict[int, tuple[Call, ...]] = {}
        self._plans: dict[int, tuple[int, Plan]] = {}

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        if not ready:
            return None
        last = ready[-1]
        left, plan = self._plans.get(last, (0, ()))
        if not left:
            left, plan = REFRESH, self._plan(last)
        self._plans[last] = (left - 1, plan)
        return plan

    def _plan(self, box: int) -> Plan:
        if box not in self._after:
            self._after[box] = tuple(Call(b, WHOLE_QUEUE) for b in self.catalog.downstream(box))
        after = self._after[box]
        seconds = self._seconds_per_tuple(box, after)
        train = Count(max(1, int(self.time_slice / seconds))) if seconds > 0.0 else WHOLE_QUEUE
        return (Call(box, train), *after)

    def _seconds_per_tuple(self, box: int, after: tuple[Call, ...]) -> float:
        """What a tuple of ``box`` costs with all that comes of it downstream."""
        boxes = self.catalog.boxes
        flow = {box: 1.0}
        total = 0.0
        for place in (box, *(call.box for call in after)):
            entry, tuples = boxes[place], flow[place]
            total += tuples * entry.cost
            for down in entry.downstream:
                flow[down] = flow.get(down, 0.0) + tuples * entry.selectivity
        return total
