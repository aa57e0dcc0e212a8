"""Trains (Aurora, section 4.2): how many queued tuples a box call takes.

A rule is evaluated when the call starts, against the queue as it then stands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.scheduling.catalog import BoxEntry


@dataclass(frozen=True, slots=True)
class Share:
    """A share of the queue, rounded up; 1 is the whole queue."""

    share: float = 1.0

    def size(self, box: BoxEntry) -> int:
        return math.ceil(box.queue.tuples * self.share)


@dataclass(frozen=True, slots=True)
class Count:
    """At most that many tuples."""

    tuples: int

    def size(self, box: BoxEntry) -> int:
        return min(self.tuples, box.queue.tuples)


@dataclass(frozen=True, slots=True)
class Time:
    """As many tuples as are expected to take that many seconds; at least one."""

    seconds: float

    def size(self, box: BoxEntry) -> int:
        cost = box.cost
        if cost <= 0.0:
            return box.queue.tuples
        return max(1, min(box.queue.tuples, int(self.seconds / cost)))


Train = Share | Count | Time

WHOLE_QUEUE = Share(1.0)
