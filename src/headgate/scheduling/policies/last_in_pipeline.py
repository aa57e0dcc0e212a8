"""Last in pipeline (ordered processing, section 6.2: LP)."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.scheduling.interface import Call, Decision, Event, Finished, Idle, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import WHOLE_QUEUE, Count

SLICE = 0.016
"""Seconds for which a worker takes a box and what follows it."""
USUAL_TRAIN = 8192
"""Trains begin here and get shorter only where tuples are really dear."""
LONGEST_TRAIN = 1 << 24
DEAR = 50e-6
"""Seconds per tuple above which a train shorter than the usual one pays."""


class LastInPipeline(Pull):
    """The box furthest from the sources that can run, for a time slice, and on with its results.

    Boxes are numbered by their distance from the sources, so the last that is ready is the furthest, and
    nothing waits downstream of it: what it makes goes on through all boxes that follow, as a superbox.  The
    slice becomes a number of tuples by what plans of that box have really taken, all the way through: a
    train grows while they take less and shrinks when they take more.  Much of a short call is not the
    tuples' own, nor is waiting for the interpreter, so short trains look dear and would stay short for ever:
    below the usual length a train shrinks only if that much per tuple cannot be overhead.
    """

    name = "lp"

    def __init__(self, time_slice: float = SLICE) -> None:
        self.time_slice = time_slice

    def begin(self, workers: int) -> None:
        self._after: dict[int, Plan] = {}
        self._trains: dict[int, int] = {}
        self._under_way: dict[int, _Turn] = {}

    def handle(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Finished):
            turn = self._under_way.get(event.worker)
            if turn is not None:
                turn.seconds += event.seconds
                if event.box == turn.box:
                    turn.tuples += event.tuples_in
        elif isinstance(event, Idle) and event.worker in self._under_way:
            self._learn(self._under_way.pop(event.worker))
        return super().handle(event)

    def choose(self, worker: int, now: float) -> Plan | None:
        ready = self.catalog.ready
        if not ready:
            return None
        box = ready[-1]
        if box not in self._after:
            self._after[box] = tuple(Call(b, WHOLE_QUEUE) for b in self.catalog.downstream(box))
            self._trains[box] = USUAL_TRAIN
        self._under_way[worker] = _Turn(box)
        return (Call(box, Count(self._trains[box])), *self._after[box])

    def _learn(self, turn: _Turn) -> None:
        """Bring the train nearer to the slice; finding few tuples says nothing against a longer one."""
        train = self._trains[turn.box]
        if turn.seconds > 2 * self.time_slice and turn.tuples > 1:
            least = 1 if turn.seconds > DEAR * turn.tuples else USUAL_TRAIN
            self._trains[turn.box] = max(least, min(train, turn.tuples) // 2)
        elif turn.seconds < self.time_slice and 2 * turn.tuples > train:
            self._trains[turn.box] = min(2 * train, LONGEST_TRAIN)


class _Turn:
    """A worker's plan under way: its first box, and what it has taken so far."""

    __slots__ = ("box", "seconds", "tuples")

    def __init__(self, box: int) -> None:
        self.box = box
        self.seconds = 0.0
        self.tuples = 0
