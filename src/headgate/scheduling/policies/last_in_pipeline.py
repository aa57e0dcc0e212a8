"""Last in pipeline (ordered processing, section 6.2: LP)."""

from __future__ import annotations

from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import Time

SLICE = 0.005
"""Seconds for which a worker takes an operator."""


class LastInPipeline(Pull):
    """The box furthest from the sources that can run, for a time slice: tuples leave as soon as they can.

    Boxes are numbered by their distance from the sources, so the last that is ready is the furthest.
    """

    name = "lp"

    def __init__(self, time_slice: float = SLICE) -> None:
        self.train = Time(time_slice)

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        return (Call(ready[-1], self.train),) if ready else None
