"""Heuristics of ordered processing (section 6) that give a worker one box for a time slice: QST, ET, CT.

The paper has chains; here is any loop-free graph.  A box's *cumulative selectivity* is what leaves it for
each tuple of the sources, along all paths to it: its own selectivity times the sum of what the boxes before
it let through, a source counting 1.  *Earlier* is nearer to the sources.  What waits at a box's *output* is
the longest of the queues that it feeds; a box that feeds only sinks has none.  Boxes that are equal take
turns, so that no query starves.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.scheduling.events import Event, Finished
from headgate.scheduling.interface import Call, Decision, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import WHOLE_QUEUE, Time

SLICE = 0.016
"""Seconds for which a worker is given a box."""
CAPACITY = 1 << 18
"""Tuples that all queues together may hold before QST moves on: the paper's C."""
WINDOW = 0.25
"""Seconds over which CT adds up the time that boxes were given."""
LEAST = 1e-6
"""A selectivity of nothing is taken for this, since it is divided by."""
LOOK_AGAIN = 32
"""Decisions for which cumulative selectivities are good."""


class TimeSliced(Pull):
    """Base of the heuristics: a slice becomes a number of tuples by the box's measured cost."""

    def __init__(self, time_slice: float = SLICE) -> None:
        self.time_slice = time_slice

    def begin(self, workers: int) -> None:
        self._train = Time(self.time_slice)
        self._last = -1
        self._decisions = 0
        self._reached: list[float] = []
        self._distance = self.catalog.distances()

    def run(self, box: int) -> Plan:
        self._last = box
        # Where starting a plan costs something, short trains do not pay, and the engine bounds long ones.
        return (Call(box, WHOLE_QUEUE if self.catalog.plan_overhead else self._train),)

    def turn(self, box: int) -> int:
        """How long ago its turn was, among equals: the next after the last one chosen comes first."""
        return (box - self._last - 1) % len(self._distance)

    def cumulative(self) -> list[float]:
        """By box, the tuples that leave it per source tuple."""
        if not self._reached or self._decisions % LOOK_AGAIN == 0:
            self._reached = []
            for box in self.catalog.boxes:
                arriving = len(box.fed_by) + sum([self._reached[up] for up in box.upstream])
                self._reached.append(max(arriving * box.selectivity, LEAST))
        self._decisions += 1
        return self._reached

    def waiting_at_output(self, box: int) -> int:
        """Tuples in the longest queue that a box feeds."""
        boxes = self.catalog.boxes
        return max([boxes[down].queue.tuples for down in boxes[box].downstream], default=0)


class QueueSizeThrottling(TimeSliced):
    """The earliest box whose results do not yet wait in a queue that is longer than its share of all.

    The share of a box's output queue is ``capacity`` times its cumulative selectivity over the sum of all.
    """

    name = "qst"

    def __init__(self, time_slice: float = SLICE, capacity: int = CAPACITY) -> None:
        super().__init__(time_slice)
        self.capacity = capacity

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        if not ready:
            return None
        reached = self.cumulative()
        whole = sum(reached)
        fed = [
            box
            for box in ready
            if self.waiting_at_output(box) < max(1.0, self.capacity * reached[box] / whole)
        ]
        if not fed:
            return None
        return self.run(min(fed, key=lambda box: (self._distance[box], self.turn(box))))


class EstimatedTime(TimeSliced):
    """The box whose queue would take longest to work off, with one worker more than it has now."""

    name = "et"

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        if not ready:
            return None
        return self.run(min(ready, key=lambda box: (-self._seconds(box), self.turn(box))))

    def _seconds(self, place: int) -> float:
        box = self.catalog.boxes[place]
        cost = box.cost if box.calls or box.stated_cost is not None else 1.0  # to get to know it
        return box.queue.tuples * cost / (box.running + 1)


class CurrentThroughput(TimeSliced):
    """The box that has kept up worst: least effective tuples in the current window, by the time it was given.

    Effective tuples are those of the sources: time over cost, and over what of a source tuple comes there.
    """

    name = "ct"

    def __init__(self, time_slice: float = SLICE, window: float = WINDOW) -> None:
        super().__init__(time_slice)
        self.window = window

    def begin(self, workers: int) -> None:
        super().begin(workers)
        self._window = -1
        self._spent = [0.0] * len(self.catalog.boxes)

    def handle(self, event: Event) -> Sequence[Decision]:
        window = int(event.time / self.window)
        if window != self._window:
            self._window = window
            self._spent = [0.0] * len(self._spent)
        if isinstance(event, Finished):
            self._spent[event.box] += event.seconds
        return super().handle(event)

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        if not ready:
            return None
        reached = self.cumulative()
        return self.run(min(ready, key=lambda box: (self._effective(box, reached[box]), self.turn(box))))

    def _effective(self, place: int, reached: float) -> float:
        box = self.catalog.boxes[place]
        if not box.cost:
            return 0.0  # to get to know it
        return (self._spent[place] + box.running * self.time_slice) / (box.cost * reached)
