"""A scheduling task under way (Haren's T_S): workers meet, do its phases, and go back to work.

The barrier is for the workers that are there: one inside a call or a sink is not waited for, the others do
its slices, and if it comes while the task goes on it joins in.  So no worker waits longer than for the slices
that others have begun; if the task has become void, not even for these.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headgate.scheduling.interface import Phase

Slice = Callable[[], int]


class Meeting:
    """Phases, one after the other; slices of a phase by everyone who is there."""

    def __init__(self, phases: Sequence[Phase], adopt: Callable[[], None]) -> None:
        def last() -> int:
            adopt()
            return 0

        # What was decided comes into force as the last phase, before anyone leaves.
        self._phases: list[tuple[Slice, ...]] = [*(phase.slices for phase in phases if phase.slices), (last,)]
        self._phase = 0
        self._begun = 0
        self._left = len(self._phases[0])
        self._door = threading.Condition()
        self._broken = False

    def join(self) -> None:
        """Take part until it is over."""
        door = self._door
        with door:
            while self._phase < len(self._phases) and not self._broken:
                slices = self._phases[self._phase]
                if self._begun == len(slices):
                    door.wait()
                    continue
                work = slices[self._begun]
                self._begun += 1
                self._do(work)

    def dissolve(self) -> None:
        """The task is void: workers that wait go back to work."""
        with self._door:
            self._broken = True
            self._door.notify_all()

    def _do(self, work: Slice) -> None:
        """Door held, but not while the slice is done."""
        door = self._door
        done = False
        door.release()
        try:
            work()
            done = True
        finally:
            door.acquire()
            self._left -= 1
            self._broken = self._broken or not done
            if self._broken:
                door.notify_all()
            elif not self._left:
                self._next()

    def _next(self) -> None:
        """Door held: begin the next phase, and wake as many workers as there are slices for."""
        self._phase += 1
        self._begun = 0
        if self._phase == len(self._phases):
            self._door.notify_all()
        else:
            self._left = len(self._phases[self._phase])
            self._door.notify(self._left - 1)
