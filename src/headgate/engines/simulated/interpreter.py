"""Python's lock in a simulation: of all threads, one at a time computes with it, in turns.

Kernels of Arrow and numpy work without it.  So a call holds it for what it costs however few tuples it has,
and leaves it for what its tuples cost.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from headgate.engines.simulated.cores import Cores
from headgate.engines.simulated.kernel import Resume

TURN = 0.0005
"""Seconds after which a thread must give it to another one: the switch interval of the threads engine."""
FEEDER = -1
"""The number of the thread that reads the sources."""


class Interpreter:
    """The lock of one process: first come, first served, a turn at a time."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._held = False
        self._ready: deque[tuple[int, float, Resume]] = deque()

    def run(self, thread: int, seconds: float, resume: Resume) -> None:
        """Let a thread compute with the lock for that long, then go on."""
        self._ready.append((thread, seconds, resume))
        self._dispatch()

    def _dispatch(self) -> None:
        if not self._held and self._ready:
            thread, left, resume = self._ready.popleft()
            turn = min(left, TURN)
            self._held = True
            self._cores.run(thread, turn, partial(self._turn_over, thread, left - turn, resume))

    def _turn_over(self, thread: int, left: float, resume: Resume) -> None:
        self._held = False
        if left > 0:
            self._ready.append((thread, left, resume))
        else:
            resume()
        self._dispatch()
