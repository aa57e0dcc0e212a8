"""Cores and the threads on them: the operating system's part of a simulation.

With at most as many threads as cores, a call simply takes its time.  With more, cores serve threads in
turns of a quantum and pay for every switch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

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
