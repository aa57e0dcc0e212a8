"""What an engine tells the core: everything that can happen to a running network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headgate.connectors.sink import Writer
from headgate.graph.network import Output, Request
from headgate.graph.packet import Packet
from headgate.runtime.admission import Group
from headgate.runtime.boxes import LiveBox, LiveOutput, Work
from headgate.runtime.change import Change
from headgate.runtime.instructions import TimerKey
from headgate.scheduling.interface import Policy


class Stimulus:
    """Something that happened."""

    __slots__ = ()


@dataclass(slots=True)
class Admitted(Stimulus):
    """Admission has given packets their serials: (source, packet).  Sources may have ended or failed too.

    ``version``: of what was read for them (``Admission.version``).
    """

    packets: Sequence[tuple[int, Packet]]
    version: int


@dataclass(slots=True)
class Free(Stimulus):
    """A worker is free: for the next call of its plan, or for a new plan.

    ``overhead``: seconds that its last plan took apart from its calls.
    """

    worker: int
    overhead: float = 0.0


@dataclass(slots=True)
class CallEnded(Stimulus):
    """A call is over and its results have been sent."""

    work: Work


@dataclass(slots=True)
class CallProgressed(Stimulus):
    """A worker's call on a box goes on; some of its results may have left."""

    box: LiveBox
    worker: int


@dataclass(slots=True)
class TimerDue(Stimulus):
    """The time of a timer has come."""

    key: TimerKey


@dataclass(slots=True)
class Rescheduled(Stimulus):
    """All phases of a ``Meet`` have been carried out."""


@dataclass(slots=True)
class Seen(Stimulus):
    """A worker runs on this core now."""

    worker: int
    core: int


@dataclass(slots=True)
class Asked(Stimulus):
    """A change is asked for, with the outputs of the queries to add and writers for their sinks.

    ``fit`` adds what this run needs to the policy that takes over.
    """

    change: Change
    outputs: Sequence[Output] = ()
    writers: Sequence[Writer] = ()
    fit: Callable[[Policy], Policy] = lambda policy: policy


@dataclass(slots=True)
class TakeOver(Stimulus):
    """Let this policy decide with so many workers: a change that could not be made is taken back."""

    policy: Policy
    requested: int


@dataclass(slots=True)
class QueriesFailed(Stimulus):
    """Queries cannot go on: a box, a source or a sink of theirs hangs."""

    queries: Sequence[str]
    error: BaseException


@dataclass(slots=True)
class RequestCancelled(Stimulus):
    """The caller of a request does not want it any more."""

    request: Request


@dataclass(slots=True)
class RequestOver(Stimulus):
    """A request has nothing left to do, and its sinks have been closed."""

    group: Group


@dataclass(slots=True)
class SinkFailed(Stimulus):
    """A sink could not take what was handed to it."""

    output: LiveOutput
    error: BaseException
