"""Cores and the threads on them: the operating system's part of a simulation; and workers that meet.

With at most as many threads as cores, a call simply takes its time.  With more, cores serve threads in
turns of a quantum and pay for every switch.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headgate.scheduling.interface import Phase

if TYPE_CHECKING:
    from headgate.engines.simulated.engine import SimulatedRun


class Cores:
    """``cores`` processors shared by ``threads`` threads, first come, first served, a quantum at a time."""

    def __init__(
        self, run: SimulatedRun, cores: int, threads: int, quantum: float, switch_cost: float
    ) -> None:
        self._run = run
        self.count = min(cores, threads)
        self._shared = threads > cores
        self._quantum = quantum
        self._switch_cost = switch_cost
        self._free = list(range(cores))
        self._last: list[int | None] = [None] * cores
        self._ready: deque[tuple[int, float, Callable[[], None]]] = deque()

    def run(self, thread: int, seconds: float, then: Callable[[], None]) -> None:
        """Let a thread compute for that long, then call ``then``."""
        if not self._shared:
            self._run.at(self._run.clock.now() + seconds, then)
            return
        self._ready.append((thread, seconds, then))
        self._dispatch()

    def _dispatch(self) -> None:
        while self._free and self._ready:
            thread, left, then = self._ready.popleft()
            core = self._free.pop(0)
            turn = min(left, self._quantum)
            switch = self._switch_cost if self._last[core] != thread else 0.0
            self._last[core] = thread
            self._run.runtime.overhead.scheduler += switch
            self._run.at(
                self._run.clock.now() + switch + turn,
                lambda core=core, thread=thread, left=left - turn, then=then: self._turn_over(  # type: ignore[misc]
                    core, thread, left, then
                ),
            )

    def _turn_over(self, core: int, thread: int, left: float, then: Callable[[], None]) -> None:
        self._free.append(core)
        if left > 1e-15:
            self._ready.append((thread, left, then))
        else:
            then()
        self._dispatch()


class Meetings:
    """Scheduling tasks: those who sleep come at once, others when their calls are over.

    As on threads, a task begins with the first who is there, and nobody inside a call is waited for.
    """

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self.asleep: dict[int, Callable[[], None]] = {}
        """Workers without work, and how they go on."""
        self._called: Sequence[Phase] | None = None
        self._there: list[tuple[float, Callable[[], None]]] = []
        """Since when workers take part, and how they go on."""
        self._under_way = False

    def call(self, phases: Sequence[Phase]) -> None:
        """A scheduling task is due."""
        self._called = phases
        if self.asleep:
            self._run.at(self._run.clock.now(), self._begin)

    def joined(self, worker: int, then: Callable[[], None]) -> bool:
        """Whether a worker that comes by takes part in a task; ``then`` it goes on."""
        self.asleep.pop(worker, None)
        if self._called is None and not self._under_way:
            return False
        now = self._run.clock.now()
        self._there.append((now, then))
        if not self._under_way:
            self._run.at(now, self._begin)  # after whoever else comes at this very time
        return True

    def _begin(self) -> None:
        """Those who are there share each phase's slices, the next one taking the next slice."""
        if self._called is None:
            return  # it has begun
        phases, self._called, self._under_way = self._called, None, True
        now, cost = self._run.clock.now(), self._run.engine.reschedule_cost
        self._there += [(now, self.asleep[worker]) for worker in sorted(self.asleep)]
        self.asleep.clear()
        seconds = 0.0
        for phase in phases:
            busy = [0.0] * len(self._there)
            for piece in phase.slices:
                heapq.heapreplace(busy, busy[0] + cost * piece())
            seconds += max(busy)
        self._run.at(now + seconds, self._end)

    def _end(self) -> None:
        there, self._there, self._under_way = self._there, [], False
        now, overhead = self._run.clock.now(), self._run.runtime.overhead
        for since, _ in there:
            overhead.scheduler += now - since
            overhead.rescheduling += now - since
        self._run.runtime.rescheduled(now)
        for _, go_on in there:
            go_on()
