"""Scheduling tasks in virtual time (Haren's T_S): workers meet, share the phases, and go back to work."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from headgate.engines.simulated.kernel import Kernel, Resume
from headgate.runtime.report import Overhead
from headgate.scheduling.interface import Phase


class Barrier:
    """Parked workers come at once, others when their calls are over.

    As on threads, a task begins with the first worker that is there, and no worker inside a call is waited
    for.  ``cost``: seconds per box and phase.  ``over`` is called when a task is, unless it was abandoned.
    """

    def __init__(self, kernel: Kernel, overhead: Overhead, cost: float, over: Callable[[], None]) -> None:
        self._kernel, self._overhead, self._cost, self._over = kernel, overhead, cost, over
        self.asleep: dict[int, Resume] = {}
        """Parked workers, and how they go on."""
        self._called: Sequence[Phase] | None = None
        self._there: list[tuple[float, Resume]] = []
        """Since when workers take part, and how they go on."""
        self._under_way = False
        self._void = False
        """The task under way is of a policy that is no longer in force."""

    def abandon(self) -> None:
        """Another policy has taken over: a task that was due is dropped, and one under way has no effect."""
        self._called = None
        if self._under_way:
            self._void = True
            return
        there, self._there = self._there, []
        for _, go_on in there:
            self._kernel.soon(go_on)

    def call(self, phases: Sequence[Phase]) -> None:
        """A scheduling task is due."""
        self._called = phases
        if self.asleep:
            self._kernel.soon(self._begin)

    @property
    def open(self) -> bool:
        """Whether a worker that comes by takes part."""
        return self._called is not None or self._under_way

    def join(self, resume: Resume) -> None:
        """A worker takes part until the task is over."""
        self._there.append((self._kernel.now(), resume))
        if not self._under_way:
            self._kernel.soon(self._begin)  # after the others that come at this very time

    def _begin(self) -> None:
        """The workers that are there share each phase's slices; the next one free takes the next slice."""
        if self._called is None or self._under_way:
            return  # it has begun, or will when those who are there come again
        phases, self._called = self._called, None
        self._under_way, self._void = True, False
        now = self._kernel.now()
        self._there += [(now, self.asleep[worker]) for worker in sorted(self.asleep)]
        self.asleep.clear()
        seconds = 0.0
        for phase in phases:
            busy = [0.0] * len(self._there)
            for piece in phase.slices:
                heapq.heapreplace(busy, busy[0] + self._cost * piece())
            seconds += max(busy)
        self._kernel.at(now + seconds, self._end)

    def _end(self) -> None:
        there, self._there, self._under_way = self._there, [], False
        now, overhead = self._kernel.now(), self._overhead
        for since, _ in there:
            overhead.scheduler += now - since
            overhead.rescheduling += now - since
        if not self._void:
            self._over()
        for _, go_on in there:
            go_on()
