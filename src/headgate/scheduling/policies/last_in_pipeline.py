"""Last in pipeline (ordered processing, section 6.2: LP)."""

from __future__ import annotations

from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import Count


class LastInPipeline(Pull):
    """The box furthest from the sources that can run, a packet at a time: tuples leave as soon as they can.

    Boxes are numbered by their distance from the sources, so the last that is ready is the furthest.  A
    packet follows its way through the network while it is still in the cache.
    """

    name = "lp"

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        return (Call(ready[-1], Count(self.catalog.packet_rows)),) if ready else None
