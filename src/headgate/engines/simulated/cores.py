"""Cores and the threads on them: the operating system's part of a simulation.

With at most as many threads as cores, a call simply takes its time.  With more, cores serve threads in turns
of a quantum and pay for every switch.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from headgate.engines.simulated.kernel import Kernel, Resume
from headgate.runtime.report import Overhead


class Cores:
    """``cores`` processors shared by ``threads`` threads, first come, first served, a quantum at a time."""

    def __init__(
        self, kernel: Kernel, overhead: Overhead, cores: int, threads: int, quantum: float, switch_cost: float
    ) -> None:
        self._kernel, self._overhead = kernel, overhead
        self._quantum = quantum
        self._switch_cost = switch_cost
        self._free: list[int] = []
        self._last: list[int | None] = []
        self._busy: set[int] = set()
        self._ready: deque[tuple[int, float, Resume]] = deque()
        self.resize(cores, threads)

    def resize(self, cores: int, threads: int) -> None:
        """So many from now on; a core that is too many ends its turn."""
        self.count = min(cores, threads)
        self._cores = cores
        self._shared = threads > cores
        self._last += [None] * (cores - len(self._last))
        self._free = [core for core in range(cores) if core not in self._busy]
        self._dispatch()

    def run(self, thread: int, seconds: float, resume: Resume) -> None:
        """Let a thread compute for that long, then go on."""
        self._ready.append((thread, seconds, resume))
        self._dispatch()

    def _dispatch(self) -> None:
        while self._free and self._ready:
            thread, left, resume = self._ready.popleft()
            core = self._free.pop(0)
            self._busy.add(core)
            turn = min(left, self._quantum) if self._shared else left
            switch = self._switch_cost if self._shared and self._last[core] != thread else 0.0
            self._last[core] = thread
            self._overhead.scheduler += switch
            end = self._kernel.now() + switch + turn
            self._kernel.at(end, partial(self._turn_over, core, thread, left - turn, resume))

    def _turn_over(self, core: int, thread: int, left: float, resume: Resume) -> None:
        self._busy.discard(core)
        if core < self._cores:
            self._free.append(core)
        if left > 1e-15:
            self._ready.append((thread, left, resume))
        else:
            resume()
        self._dispatch()
