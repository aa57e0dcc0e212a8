"""The features that Headgate brings along; importing this module registers them."""

from __future__ import annotations

import math

from headgate.scheduling.haren.feature_table import BoxView
from headgate.scheduling.haren.features import TREMBLE, ship


@ship(tolerance=TREMBLE)
def cost(box: BoxView) -> float:
    """Seconds per tuple, measured or stated."""
    return box.entry.cost


@ship(tolerance=TREMBLE)
def selectivity(box: BoxView) -> float:
    """Tuples out per tuple in, to each box that it feeds."""
    return box.entry.selectivity


@ship()
def queue_length(box: BoxView) -> int:
    """Tuples that wait and could be taken."""
    return box.entry.queue.tuples


@ship(needs="bytes", tolerance=TREMBLE)
def tuple_bytes(box: BoxView) -> float:
    """Bytes of a waiting tuple, on average."""
    return box.entry.tuple_bytes


@ship(needs="bytes")
def queued_bytes(box: BoxView) -> float:
    """Bytes that wait."""
    return box.entry.queue.tuples * box.entry.tuple_bytes


@ship(needs="head")
def head_arrival(box: BoxView) -> float:
    """When the oldest waiting tuple arrived, in seconds of the run; infinite if none waits."""
    return box.entry.queue.oldest if box.entry.queue.tuples else math.inf


@ship("time", needs="head")
def head_latency(box: BoxView) -> float:
    """Seconds since the oldest waiting tuple arrived; 0 if none waits."""
    return box.now - box.entry.queue.oldest if box.entry.queue.tuples else 0.0


@ship("time", needs="latency")
def mean_latency(box: BoxView) -> float:
    """Seconds since the waiting tuples arrived, on average; 0 if none waits."""
    return box.entry.latency(box.now)


@ship("time")
def arrival_rate(box: BoxView) -> float:
    """Tuples that came to its queue per second, since the last scheduling task."""
    return box.per_second("arrival_rate", _arrived(box))


@ship("time")
def output_rate(box: BoxView) -> float:
    """Tuples that left it per second, since the last scheduling task."""
    return box.per_second("output_rate", box.entry.tuples_out)


@ship()
def load(box: BoxView) -> float:
    """Seconds of work that waits or is under way, and that a second brought since it was last looked at."""
    held = box.entry.queue.tuples + box.entry.inside
    return float(box.cost * (held + box.per_second("load", _arrived(box))))


def _arrived(box: BoxView) -> int:
    """Tuples that have come to it, with those inside calls: they have left the queue, and are not done."""
    return box.entry.tuples_in + box.entry.inside + box.entry.queue.tuples


@ship("downstream")
def downstream_load(box: BoxView, downstream: list[BoxView]) -> float:
    """Its load and that of all boxes that continue it."""
    following = [down.downstream_load for down in downstream if down.upstream[0] is box]
    return float(box.load + sum(following))


@ship("time")
def age(box: BoxView) -> float:
    """Seconds since it last ran, or since the run began."""
    return box.now - box.last_run


@ship("constant")
def query_class(box: BoxView) -> int:
    """The highest class of the queries that it works for: ``stream.to(…, query_class=1)``."""
    return box.entry.query_class


@ship("downstream")
def downstream_cost(box: BoxView, downstream: list[BoxView]) -> float:
    """Seconds that a tuple takes here and in all that it causes downstream."""
    return float(box.cost + box.selectivity * sum([down.downstream_cost for down in downstream]))


@ship("downstream")
def downstream_selectivity(box: BoxView, downstream: list[BoxView]) -> float:
    """Results of queries that a tuple of its queue becomes, on average."""
    outlets = box.entry.outlets if downstream else max(box.entry.outlets, 1)
    return float(box.selectivity * (outlets + sum([down.downstream_selectivity for down in downstream])))


@ship()
def worker_last_run_on(box: BoxView) -> int:
    """The worker that last ran it; -1 before its first run."""
    return box.last_worker


@ship("upstream")
def cache_level_shared(box: BoxView, upstream: list[BoxView]) -> int:
    """The nearest cache that its last worker shares with one that last ran a box before it; 0 for none.

    1 is that of one core: what the box before has made is still there.
    """
    levels = [box.shared_level(box.worker_last_run_on, up.worker_last_run_on) for up in upstream]
    return min([level for level in levels if level], default=0)
