"""The kernel of a simulation: a heap of actions in virtual time, and processes that wait.

A process is a generator.  It yields what it waits for: a function that is given how the process goes on and
sees to it that this is called, now or at a later time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator

from headgate.engines.clock import VirtualClock

Resume = Callable[[], None]
Wait = Callable[[Resume], None]
Process = Generator[Wait, None, None]


class Kernel:
    """Actions at times.

    Of equal times arrivals come first, so that a policy that decides then knows of all of them; all else
    comes in the order of its making.
    """

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.now = self.clock.now
        self._actions: list[tuple[float, bool, int, Callable[[], None]]] = []
        self._counter = itertools.count()

    def at(self, when: float, action: Callable[[], None], *, arrival: bool = False) -> None:
        """Have something done at a time."""
        heapq.heappush(self._actions, (when, not arrival, next(self._counter), action))

    def soon(self, action: Callable[[], None]) -> None:
        """Have something done at this time, after what is planned for it already."""
        self.at(self.now(), action)

    def next_time(self) -> float | None:
        """When the next action is due; None if there is none."""
        return self._actions[0][0] if self._actions else None

    def step(self) -> None:
        """Do the next action, at its time."""
        when, _, _, action = heapq.heappop(self._actions)
        self.clock.advance(when)
        action()

    def go_on(self, process: Process) -> None:
        """Let a process run until it waits again or is over."""
        wait = next(process, None)
        if wait is not None:
            wait(lambda: self.go_on(process))
