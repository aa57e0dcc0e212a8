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
    from headgate.engines.simulated.run import SimulatedRun


class Cores:
    """``cores`` processors shared by ``threads`` threads, first come, first served, a quantum at a time."""

    def __init__(
        self, run: SimulatedRun, cores: int, threads: int, quantum: float, switch_cost: float
    ) -> None:
        self._run = run
        self._quantum = quantum
        self._switch_cost = switch_cost
        self._free: list[int] = []
        self._last: list[int | None] = []
        self._busy: set[int] = set()
        self._ready: deque[tuple[int, float, Callable[[], None]]] = deque()
        self.resize(cores, threads)

    def resize(self, cores: int, threads: int) -> None:
        """So many from now on; a core that is too many ends its turn."""
        self.count = min(cores, threads)
        self._cores = cores
        self._shared = threads > cores
        self._last += [None] * (cores - len(self._last))
        self._free = [core for core in range(cores) if core not in self._busy]
        self._dispatch()

    def run(self, thread: int, seconds: float, then: Callable[[], None]) -> None:
        """Let a thread compute for that long, then call ``then``."""
        self._ready.append((thread, seconds, then))
        self._dispatch()

    def _dispatch(self) -> None:
        while self._free and self._ready:
            thread, left, then = self._ready.popleft()
            core = self._free.pop(0)
            self._busy.add(core)
            turn = min(left, self._quantum) if self._shared else left
            switch = self._switch_cost if self._shared and self._last[core] != thread else 0.0
            self._last[core] = thread
            self._run.runtime.overhead.scheduler += switch
            self._run.at(
                self._run.clock.now() + switch + turn,
                lambda core=core, thread=thread, left=left - turn, then=then: self._turn_over(  # type: ignore[misc]
                    core, thread, left, then
                ),
            )

    def _turn_over(self, core: int, thread: int, left: float, then: Callable[[], None]) -> None:
        self._busy.discard(core)
        if core < self._cores:
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
        self._term = 0
        """Of the policy whose task is under way."""

    def abandon(self) -> None:
        """Another policy has taken over: a task that is due is not, and one under way comes to nothing."""
        self._called = None
        if not self._under_way:
            there, self._there = self._there, []
            for _, go_on in there:
                self._run.at(self._run.clock.now(), go_on)

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
        if self._called is None or self._under_way:
            return  # it has begun, or will when those who are there come again
        phases, self._called, self._under_way = self._called, None, True
        self._term = self._run.runtime.term
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
        if self._term == self._run.runtime.term:
            self._run.runtime.rescheduled(now)
        for _, go_on in there:
            go_on()
