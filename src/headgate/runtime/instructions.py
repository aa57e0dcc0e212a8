"""What the core asks its engine to do; the engine carries instructions out in the order it gets them.

Policies decide (``scheduling/interface.py``), the core turns decisions and its own progress into
instructions, and an engine interprets them: it owns the threads, the clock, the waiting and the sinks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.runtime.boxes import LiveOutput, Work
from headgate.scheduling.interface import Phase

TimerKey = tuple[int, str]
"""The term of the policy that set a timer, and its name."""


class Instruction:
    """What an engine has to do."""

    __slots__ = ()


@dataclass(slots=True)
class RunCall(Instruction):
    """Let this worker run this call, and say so with ``CallEnded`` when its results have been sent."""

    worker: int
    work: Work


@dataclass(slots=True)
class Planned(Instruction):
    """The policy has made a plan for this worker; without ``RunCall`` it asks again for the first call."""

    worker: int


@dataclass(slots=True)
class Park(Instruction):
    """There is nothing for this worker; it sleeps until it is woken.

    ``soon``: it has a plan that cannot run yet, and may ask again in a moment without being woken.
    """

    worker: int
    soon: bool = False


@dataclass(slots=True)
class Wake(Instruction):
    """Wake a parked worker; ``ANYONE`` of them, where the policy leaves that open."""

    worker: int


@dataclass(slots=True)
class SetTimer(Instruction):
    """Send ``TimerDue`` with this key at that time."""

    at: float
    key: TimerKey


@dataclass(slots=True)
class Meet(Instruction):
    """Have these phases carried out by the workers that are not inside a call, then send ``Rescheduled``."""

    phases: Sequence[Phase]


@dataclass(slots=True)
class NewTerm(Instruction):
    """Another policy decides: so many workers from now on, scheduling tasks under way are void, all ask."""

    workers: int


@dataclass(slots=True)
class Deliver(Instruction):
    """Hand what waits at this output to its sink."""

    output: LiveOutput


@dataclass(slots=True)
class CloseSink(Instruction):
    """A query was removed: close its sink once no thread hands results to it."""

    output: LiveOutput
