"""The four states of a box's tasks (Bobox, section 4): nothing, scheduled, running, running-and-scheduled.

A wake-up that comes while the box runs is remembered, so it is never lost; a box with one lane is never
on two workers at once.  With several lanes (stateless boxes), "running" means that no lane is free for
more, and the count of workers inside is kept.
"""

from __future__ import annotations

import enum


class TaskState(enum.Enum):
    NOTHING = "nothing"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    RUNNING_AND_SCHEDULED = "running and scheduled"


class Task:
    """State of one box's task; the transitions are the only way to change it.

    ``arrive``, ``begin`` and ``finish`` return whether a task is born that the policy has to be told of:
    input is there, a lane is free, and no earlier word of it is still outstanding.
    """

    __slots__ = ("_told", "lanes", "running", "scheduled")

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.running = 0
        self.scheduled = False
        self._told = False

    @property
    def state(self) -> TaskState:
        if self.running:
            return TaskState.RUNNING_AND_SCHEDULED if self.scheduled else TaskState.RUNNING
        return TaskState.SCHEDULED if self.scheduled else TaskState.NOTHING

    @property
    def free(self) -> bool:
        """Whether one more worker may enter."""
        return self.running < self.lanes

    def _born(self) -> bool:
        if not self.scheduled or self._told or self.running >= self.lanes:
            return False
        self._told = True
        return True

    def arrive(self) -> bool:
        """Input has come."""
        self.scheduled = True
        return self._born()

    def begin(self, more: bool) -> bool:
        """A worker enters; ``more``: input is left that another could take."""
        if self.running >= self.lanes:
            raise AssertionError("a box was given to more workers than it has lanes")
        self.running += 1
        self.scheduled, self._told = more, False
        return self._born()

    def again(self, more: bool) -> bool:
        """Another policy has taken over, which knows of nothing; ``more``: input is there."""
        self.scheduled, self._told = self.scheduled or more, False
        return self._born()

    def finish(self, more: bool) -> bool:
        """A worker leaves; ``more``: input is left."""
        if not self.running:
            raise AssertionError("a box that was not running has finished")
        self.running -= 1
        self.scheduled = self.scheduled or more
        return self._born()
