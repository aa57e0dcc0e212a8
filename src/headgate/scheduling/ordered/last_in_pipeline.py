"""Last in pipeline (ordered processing, section 6.2: LP)."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.scheduling.events import Event, Finished, Idle
from headgate.scheduling.interface import Call, Decision, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.steps import Step
from headgate.scheduling.trains import WHOLE_QUEUE, Count, Time, Train

SLICE = 0.016
"""Seconds for which a worker takes a box and what follows it."""
USUAL_TRAIN = 8192
"""Trains begin here and get shorter only where tuples are really dear."""
LONGEST_TRAIN = 1 << 24
DEAR = 50e-6
"""Seconds per tuple above which a train shorter than the usual one pays."""


class LastInPipeline(Pull):
    """The box furthest from the sources that can run, for a time slice, and on with its results.

    Nothing waits downstream of the furthest box that is ready: what it makes goes on through all boxes that
    follow, as a superbox.  Boxes that are equally far take turns, so that no query waits for ever.  The
    slice becomes a number of tuples by what plans of that box have really taken, all the way through: a
    train grows while they take less and shrinks when they take more.  Much of a short call is not the
    tuples' own, nor is waiting for the interpreter, so short trains look dear and would stay short for ever:
    below the usual length a train shrinks only if that much per tuple cannot be overhead.

    A step has whole queues, and takes the next superboxes along until it is full.

    ``fused=False`` is LP as the paper prints it: a worker gets that one box for a slice, and asks again.
    """

    name = "lp"

    def __init__(self, time_slice: float = SLICE, *, fused: bool = True) -> None:
        self.time_slice = time_slice
        self.fused = fused

    def begin(self, workers: int) -> None:
        self._after: dict[int, Plan] = {}
        self._trains: dict[int, int] = {}
        self._under_way: dict[int, list[_Turn]] = {}
        """By worker."""
        self._turns_with: dict[tuple[int, int], list[_Turn]] = {}
        """By worker and box: a step has many superboxes, and few of them have one box."""
        self._last = -1
        self._distance = self.catalog.distances()

    def handle(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Finished):
            for turn in self._turns_with.get((event.worker, event.box), ()):
                turn.seconds += event.seconds
                if event.box == turn.box:
                    turn.tuples += event.tuples_in
        elif isinstance(event, Idle) and event.worker in self._under_way:
            for turn in self._under_way.pop(event.worker):
                self._learn(turn)
                for box in turn.boxes:
                    self._turns_with.pop((event.worker, box), None)
        return super().handle(event)

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        if not ready:
            return None
        box = min(ready, key=self._rank) if len(ready) > 1 else ready[0]
        if not self.fused:
            self._last = box
            return (Call(box, Time(self.time_slice)),)
        return self._superbox(box, worker, Count(self._trains.get(box, USUAL_TRAIN)))

    def step(self, worker: int, now: float) -> Plan | None:
        step = Step(self.catalog)
        for box in sorted(self.catalog.ready, key=self._rank):
            if box in step:
                continue
            step.work(box)
            step.add(self._superbox(box, worker, WHOLE_QUEUE))
            if step.full:
                break
        return step.plan or None

    def _rank(self, box: int) -> tuple[int, int]:
        """The furthest from the sources first, and of those the next after the last one chosen."""
        return -self._distance[box], (box - self._last - 1) % len(self._distance)

    def _superbox(self, box: int, worker: int, train: Train) -> Plan:
        """A box with all that follows it."""
        self._last = box
        if box not in self._after:
            self._after[box] = tuple(Call(b, WHOLE_QUEUE) for b in self.catalog.downstream(box))
            self._trains[box] = USUAL_TRAIN
        turn = _Turn(box, (box, *(call.box for call in self._after[box])))
        self._under_way.setdefault(worker, []).append(turn)
        for own in turn.boxes:
            self._turns_with.setdefault((worker, own), []).append(turn)
        return (Call(box, train), *self._after[box])

    def _learn(self, turn: _Turn) -> None:
        """Bring the train nearer to the slice; finding few tuples says nothing against a longer one."""
        train, time_slice = self._trains[turn.box], self.time_slice
        if turn.seconds > 2 * time_slice and turn.tuples > 1:
            least = 1 if turn.seconds > DEAR * turn.tuples else USUAL_TRAIN
            self._trains[turn.box] = max(least, min(train, turn.tuples) // 2)
        elif turn.seconds < time_slice and 2 * turn.tuples > train:
            self._trains[turn.box] = min(2 * train, LONGEST_TRAIN)


class _Turn:
    """A superbox of a worker's plan under way: its first box, all its boxes, and what it has taken so far."""

    __slots__ = ("box", "boxes", "seconds", "tuples")

    def __init__(self, box: int, boxes: tuple[int, ...]) -> None:
        self.box, self.boxes = box, boxes
        self.tuples = 0
        self.seconds = 0.0
