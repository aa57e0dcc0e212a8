"""Trains (Aurora, section 4.2): how many queued tuples a box call takes.

A rule is evaluated when the call starts, against the queue as it then stands.  There are five: a share of the
queue, a count, an expected processing time, a spread of latencies, and a memory footprint; ``PerBox`` gives
boxes rules of their own.

    hg.policies.get("mc", train=hg.trains.PerBox({"dear": hg.trains.Time(0.01)}))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from headgate.errors import PipelineError
from headgate.scheduling.catalog import BoxEntry

FIRST = 16
"""Tuples by which a cost is learned: enough to tell it, few enough if a tuple takes a millisecond."""


class Waiting(Protocol):
    """What an engine can say of the tuples that wait at a box."""

    def arrived_by(self, time: float) -> int:
        """How many arrived at that time or before."""
        ...

    def within(self, size: float) -> int:
        """How many of the first fit into so many bytes."""
        ...

    def oldest(self) -> float:
        """When the first arrived."""
        ...


class Train:
    """How many of the queued tuples a call takes; a call takes one at least."""

    def size(self, box: BoxEntry, waiting: Waiting | None = None) -> int:
        """``waiting`` says more of the tuples than the box's entry, where the engine knows it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Share(Train):
    """A share of the queue, rounded up; 1 is the whole queue."""

    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise _wrong(f"Share({self.share:g})", "a share is above 0 and at most 1")

    def size(self, box: BoxEntry, waiting: Waiting | None = None) -> int:
        return math.ceil(box.queue.tuples * self.share)


@dataclass(frozen=True, slots=True)
class Count(Train):
    """At most that many tuples."""

    tuples: int

    def __post_init__(self) -> None:
        if isinstance(self.tuples, bool) or not isinstance(self.tuples, int):
            raise _wrong(f"Count({self.tuples!r})", "tuples are counted in whole numbers")
        if self.tuples < 1:
            raise _wrong(f"Count({self.tuples})", "a call takes at least one tuple")

    def size(self, box: BoxEntry, waiting: Waiting | None = None) -> int:
        return min(self.tuples, box.queue.tuples)


@dataclass(frozen=True, slots=True)
class Time(Train):
    """As many tuples as are expected to take that many seconds; at least one.

    While a box's cost is unknown, a few: the slice must hold from the first call.
    """

    seconds: float

    def __post_init__(self) -> None:
        if not self.seconds > 0.0:
            raise _wrong(f"Time({self.seconds:g})", "the seconds must be positive")

    def size(self, box: BoxEntry, waiting: Waiting | None = None) -> int:
        cost = box.cost
        if cost <= 0.0:
            known = box.calls or box.stated_cost is not None
            return box.queue.tuples if known else min(FIRST, box.queue.tuples)
        return max(1, min(box.queue.tuples, int(self.seconds / cost)))


@dataclass(frozen=True, slots=True)
class Spread(Train):
    """The tuples that arrived at most that many seconds after the oldest: their latencies are alike."""

    seconds: float

    def __post_init__(self) -> None:
        if not self.seconds >= 0.0:
            raise _wrong(f"Spread({self.seconds:g})", "the seconds cannot be negative")

    def size(self, box: BoxEntry, waiting: Waiting | None = None) -> int:
        queue = box.queue
        if waiting is not None:
            return min(queue.tuples, waiting.arrived_by(waiting.oldest() + self.seconds))
        whole = 2 * (queue.mean - queue.oldest)  # as if they had come evenly
        share = 1.0 if whole <= self.seconds else self.seconds / whole
        return max(1, math.floor(queue.tuples * share))


@dataclass(frozen=True, slots=True)
class Bytes(Train):
    """As many tuples as take that much memory; at least one."""

    size_in_bytes: float

    def __post_init__(self) -> None:
        if not self.size_in_bytes > 0:
            raise _wrong(f"Bytes({self.size_in_bytes:g})", "the bytes must be positive")

    def size(self, box: BoxEntry, waiting: Waiting | None = None) -> int:
        if waiting is not None:
            return max(1, min(box.queue.tuples, waiting.within(self.size_in_bytes)))
        return max(1, min(box.queue.tuples, int(self.size_in_bytes / box.tuple_bytes)))


@dataclass(frozen=True)
class PerBox(Train):
    """Rules for some boxes by their names, and one for all others."""

    boxes: Mapping[str, Train]
    others: Train = Share(1.0)

    def size(self, box: BoxEntry, waiting: Waiting | None = None) -> int:
        return self.boxes.get(box.name, self.others).size(box, waiting)


def _wrong(rule: str, why: str) -> PipelineError:
    return PipelineError(f"Train {rule}: {why}.")


WHOLE_QUEUE = Share(1.0)
