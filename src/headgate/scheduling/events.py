"""Events: what an engine tells a policy, one at a time and in order.

Each event carries the time and every measurement that a decision may use.  Events are plain records, made for
every box call: not frozen, which would triple their cost, but never changed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class QueueState:
    """A box's queue as it stands: tuples that a call could take, boxes that find no room in it, and its ages.

    ``full`` holds the boxes upstream (-1: a source) whose results have no room here.  ``oldest`` and
    ``mean`` are arrival times (seconds of the run) of the tuples queued; they are measured only for
    policies that need ``"latency"``, ``oldest`` also for those that need ``"head"``.
    """

    tuples: int
    full: frozenset[int] = frozenset()
    oldest: float = 0.0
    mean: float = 0.0


@dataclass(slots=True)
class Spawned:
    """A box that had nothing to do has work: a task is born (immediate: by a packet's arrival)."""

    time: float
    box: int
    queue: QueueState
    immediate: bool = True
    worker: int | None = None
    request: int = 0


@dataclass(slots=True)
class Started:
    """A worker has begun a call; its tuples have left the queue."""

    time: float
    worker: int
    box: int
    tuples: int
    queue: QueueState


@dataclass(slots=True)
class Finished:
    """A call is over; ``queues`` are those its results went to."""

    time: float
    worker: int
    box: int
    tuples_in: int
    tuples_out: int
    seconds: float
    overhead: float
    queues: tuple[tuple[int, QueueState], ...] = ()


@dataclass(slots=True)
class Idle:
    """A worker asks for work; ``overhead``: seconds that its last plan took apart from its calls."""

    time: float
    worker: int
    overhead: float = 0.0


@dataclass(slots=True)
class Moved:
    """The operating system has put a worker on another core of its group.

    Told only to policies that pin workers.
    """

    time: float
    worker: int
    core: int


@dataclass(slots=True)
class Timer:
    """A timer that the policy had set."""

    time: float
    name: str


@dataclass(slots=True)
class Changed:
    """Something about the set-up changed: a box's queue was emptied or drained from outside, or removed."""

    time: float
    box: int
    queue: QueueState
    removed: bool = False


@dataclass(slots=True)
class Joined:
    """Queries have joined, with these boxes.  Told only to policies that ``grows``; others begin anew."""

    time: float
    boxes: tuple[int, ...]


@dataclass(slots=True)
class Left:
    """A request has ended: its boxes are gone, and later ones may get their numbers.

    Told only to policies that ``grows``.
    """

    time: float
    boxes: tuple[int, ...]
    request: int


@dataclass(slots=True)
class Arrived:
    """A source has brought tuples; the newest one arrived at ``newest``.

    Told only to policies that need ``"arrivals"``.  A source that finds no room brings nothing until it does,
    so what it then brings is older: the source lags behind.
    """

    time: float
    source: int
    tuples: int
    newest: float


@dataclass(slots=True)
class Rescheduled:
    """All phases of a ``Reschedule`` are over; workers that took part, or were woken, ask for work next."""

    time: float


Event = Spawned | Started | Finished | Idle | Moved | Timer | Changed | Joined | Left | Arrived | Rescheduled
