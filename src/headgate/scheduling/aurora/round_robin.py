"""Round robin, a box at a time (Aurora, section 5.2: RR-BAAT)."""

from __future__ import annotations

from bisect import bisect_right

from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import WHOLE_QUEUE, Train


class RoundRobin(Pull):
    """Each box that can run in its turn, with all the tuples that wait there."""

    name = "round_robin"
    settings = frozenset({"batch"})
    train: Train

    def __init__(self, train: Train = WHOLE_QUEUE) -> None:
        self.train = train

    def begin(self, workers: int) -> None:
        self._last = -1

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        if not ready:
            return None
        place = bisect_right(ready, self._last)
        self._last = ready[place if place < len(ready) else 0]
        return (Call(self._last, self.train),)
