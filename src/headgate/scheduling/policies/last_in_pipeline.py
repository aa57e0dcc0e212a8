"""Last in pipeline (ordered processing, section 6.2: LP)."""

from __future__ import annotations

from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import WHOLE_QUEUE, Time

SLICE = 0.005
"""Seconds for which a worker takes an operator."""


class LastInPipeline(Pull):
    """The box furthest from the sources that can run, for a time slice, and on with its results.

    Boxes are numbered by their distance from the sources, so the last that is ready is the furthest, and
    nothing waits downstream of it: what it makes goes on through all boxes that follow, as a superbox.
    """

    name = "lp"

    def __init__(self, time_slice: float = SLICE) -> None:
        self.train = Time(time_slice)

    def begin(self, workers: int) -> None:
        self._plans: dict[int, Plan] = {}

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        if not ready:
            return None
        last = ready[-1]
        if last not in self._plans:
            after = [Call(box, WHOLE_QUEUE) for box in self.catalog.downstream(last)]
            self._plans[last] = (Call(last, self.train), *after)
        return self._plans[last]
