"""Thread per box (Aurora, section 3): the baseline in which the operating system schedules."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.scheduling.interface import Call, Decision, Plan, Wake
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import WHOLE_QUEUE


class ThreadPerBox(Pull):
    """A thread of its own for every box; the operating system decides which one runs."""

    name = "thread_per_box"
    assigns = True

    def workers(self, boxes: int, requested: int) -> int:
        return max(boxes, 1)

    def choose(self, worker: int, now: float) -> Plan | None:
        if worker < len(self.catalog.boxes) and self.catalog.can_run(worker):
            return (Call(worker, WHOLE_QUEUE),)
        return None

    def wake(self) -> Sequence[Decision]:
        woken = tuple(box for box in self.catalog.ready if box in self._parked)
        for worker in woken:
            del self._parked[worker]
        return (Wake(woken),) if woken else ()
