"""The catalog (Aurora, section 2.2): topology, statistics and queues, as the events have told them."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headgate.machine.topology import Topology
from headgate.scheduling.events import Changed, Event, Finished, Idle, Moved, QueueState, Spawned, Started

SMOOTHING = 0.1
"""How fast cost, selectivity and overhead forget older calls."""
KEPT = 1 - SMOOTHING
DIFFERENT = 0.1
"""Calls whose numbers of tuples spread by less than this share of their mean tell nothing about the slope."""
LEAST = 0.1
"""A tuple costs at least that share of what calls take per tuple: a slope from noisy times may be nil."""
NOT_MEASURED = 1.0
"""The size of a tuple before a policy that needs ``"bytes"`` has seen one."""


class Goal(Protocol):
    """A query's QoS graph, as far as a policy needs it."""

    def utility(self, latency: float) -> float:
        """What a result of that latency is worth."""
        ...

    def gradient(self, latency: float) -> float:
        """Utility lost per second of further delay."""
        ...

    def slack(self, latency: float) -> float:
        """Seconds to the next critical point."""
        ...

    @property
    def critical_points(self) -> Sequence[float]:
        """Latencies at which the gradient may change, in order."""
        ...


@dataclass(slots=True)
class BoxEntry:
    """What is known of a box."""

    name: str
    lanes: int
    upstream: tuple[int, ...]
    downstream: tuple[int, ...]
    queries: tuple[str, ...]
    stated_cost: float | None = None
    fed_by: tuple[int, ...] = ()
    """The sources that feed it, one entry per arrow."""
    request: int = 0
    """The oldest request (query) that needs it; requests are numbered in the order in which they came."""
    importance: bool | None = None
    """Whether its tuples can be told apart by importance; None: none of its queries says what that is."""
    tuple_bytes: float = NOT_MEASURED
    """About how large a tuple of its queue is; measured only for policies that need ``"bytes"``."""
    stated_selectivity: float | None = None
    outlets: int = 0
    """Queries that take its results as they are."""
    query_class: int = 0
    """The highest class of the queries that it works for."""
    merges: bool = False
    """Several arrows meet there in serial order, so tuples may have to wait for others."""
    queue: QueueState = field(default_factory=lambda: QueueState(0))
    running: int = 0
    calls: int = 0
    tuples_in: int = 0
    tuples_out: int = 0
    busy: float = 0.0
    inside: int = 0
    """Tuples that calls under way have taken."""
    most_out: float = 0.0
    """The most results per tuple of any recent call."""
    removed: bool = False
    _recent: float = 0.0
    _recent_in: float = 0.0
    _recent_out: float = 0.0
    _recent_busy: float = 0.0
    _recent_squares: float = 0.0
    _recent_products: float = 0.0
    _overhead: float = 0.0

    @property
    def cost(self) -> float:
        """Seconds per tuple, measured; stated ones win.

        The slope of seconds over tuples of recent calls, if calls differ enough to tell it: the fixed
        part of a call must not make short trains look dear.
        """
        if self.stated_cost is not None:
            return self.stated_cost
        if not self._recent_in:
            return 0.0
        tuples, ratio = self._recent_in / self._recent, self._recent_busy / self._recent_in
        variance = self._recent_squares / self._recent - tuples * tuples
        if variance <= (DIFFERENT * tuples) ** 2:
            return ratio
        slope = (self._recent_products / self._recent - tuples * tuples * ratio) / variance
        return min(max(slope, LEAST * ratio), ratio)

    @property
    def fixed(self) -> float:
        """Seconds of a call that its number of tuples does not change."""
        if self.stated_cost is not None or not self._recent_in:
            return 0.0
        return max((self._recent_busy - self.cost * self._recent_in) / self._recent, 0.0)

    @property
    def call_overhead(self) -> float:
        """Seconds that a call takes apart from its tuples."""
        return self._overhead + self.fixed

    @property
    def selectivity(self) -> float:
        """Tuples out per tuple in, measured; stated ones win."""
        if self.stated_selectivity is not None:
            return self.stated_selectivity
        return self._recent_out / self._recent_in if self._recent_in else 1.0

    def learn(self, event: Finished) -> None:
        self.calls += 1
        self.tuples_in += event.tuples_in
        self.tuples_out += event.tuples_out
        self.busy += event.seconds
        # Ratios of decaying sums, not averages of ratios: a call of three tuples that closes a large window
        # must not count as much as one of thirty thousand.
        tuples, seconds = event.tuples_in, event.seconds
        if tuples:
            self._recent = KEPT * self._recent + 1.0
            self._recent_squares = KEPT * self._recent_squares + tuples * tuples
            self._recent_products = KEPT * self._recent_products + tuples * seconds
            self._recent_in = KEPT * self._recent_in + tuples
            self._recent_out = KEPT * self._recent_out + event.tuples_out
            self._recent_busy = KEPT * self._recent_busy + seconds
            self.most_out = max(KEPT * self.most_out, event.tuples_out / tuples)
        weight = 1.0 if self.calls == 1 else SMOOTHING
        self._overhead += weight * (event.overhead - self._overhead)

    def learn_from(self, other: BoxEntry) -> None:
        """All that was measured of the same box in another catalog."""
        for name in _MEASURED:
            setattr(self, name, getattr(other, name))

    def latency(self, now: float) -> float:
        """Mean latency of the tuples queued."""
        return now - self.queue.mean if self.queue.tuples else 0.0


_MEASURED = (
    *("calls", "tuples_in", "tuples_out", "busy", "_recent", "_recent_in", "_recent_out", "_recent_busy"),
    *("_recent_squares", "_recent_products", "_overhead", "most_out"),
)


def reached(following: Callable[[int], Iterable[int]], start: int) -> list[int]:
    """All boxes on the ways that begin with a box, without the box itself, in order of their numbers."""
    found: set[int] = set()
    todo = list(following(start))
    while todo:
        box = todo.pop()
        if box not in found:
            found.add(box)
            todo += following(box)
    return sorted(found)


class Catalog:
    """Every box's entry, and which boxes could run now."""

    def __init__(self, boxes: Sequence[BoxEntry], goals: Mapping[str, Goal] | None = None) -> None:
        self.boxes = list(boxes)
        self.goals = dict(goals or {})
        """The QoS graphs of the queries that have one."""
        self.is_ready = [False] * len(self.boxes)
        """By box, whether it has tuples, a free lane and room for its results."""
        self.changed: dict[int, None] = {}
        """Boxes whose queue or readiness changed, in order; a policy that works them off clears it."""
        self._taken: dict[tuple[int, int], int] = {}
        """By worker and box, the tuples that a call under way has taken."""
        self._ready: list[int] = []
        self._turned: set[int] = set()
        """Boxes whose readiness is not in that list yet: an update costs its length, so readers do it."""
        self.plan_overhead = 0.0
        """Seconds that a plan takes apart from its calls: nothing on threads, starting a job on Spark."""
        self.packet_rows = 0
        """Rows of a packet, where the engine cuts any: what travels between boxes at once."""
        self.plan_limit = math.inf
        """Seconds of calls beyond which the engine cuts every train of a plan alike."""
        self.since = 0.0
        """When the policy that is in force took over."""
        self.topology: Topology | None = None
        """The machine, where the workers are cores of one."""
        self.cores: tuple[int, ...] = ()
        """By worker, the core of that machine that it was last seen on."""

    def look_again(self, now: float, queues: Sequence[QueueState]) -> None:
        """A policy takes over: take in all queues, and mark all boxes as changed."""
        self.since = now
        for place, queue in enumerate(queues):
            self._queue(place, queue)
            self._refresh(place)
        self.changed.update(dict.fromkeys(range(len(self.boxes))))

    def add(self, entry: BoxEntry, place: int) -> None:
        """Add a box under the next number, or under one that is vacant."""
        if place == len(self.boxes):
            self.is_ready.append(False)
        self.boxes[place : place + 1] = [entry]
        self._refresh(place)

    @property
    def ready(self) -> list[int]:
        """Boxes that have tuples, a free lane and room for their results, in order of their numbers."""
        if self._turned:
            for place in self._turned:
                if self.is_ready[place]:
                    insort(self._ready, place)
                else:
                    del self._ready[bisect_left(self._ready, place)]
            self._turned.clear()
        return self._ready

    def apply(self, event: Event) -> None:
        """Take an event in."""
        if isinstance(event, Finished):
            box = self.boxes[event.box]
            box.learn(event)
            box.running -= 1
            box.inside -= self._taken.pop((event.worker, event.box), 0)
            for place, queue in event.queues:
                self._queue(place, queue)
            self._refresh(event.box)
        elif isinstance(event, Spawned):
            self._queue(event.box, event.queue)
        elif isinstance(event, Started):
            box = self.boxes[event.box]
            box.running += 1
            box.inside += event.tuples
            self._taken[event.worker, event.box] = event.tuples
            self._queue(event.box, event.queue)
        elif isinstance(event, Idle):
            if event.overhead:
                weight = SMOOTHING if self.plan_overhead else 1.0
                self.plan_overhead += weight * (event.overhead - self.plan_overhead)
        elif isinstance(event, Moved):
            self.cores = (*self.cores[: event.worker], event.core, *self.cores[event.worker + 1 :])
        elif isinstance(event, Changed):
            self.boxes[event.box].removed = event.removed or self.boxes[event.box].removed
            self._queue(event.box, event.queue)

    def _queue(self, place: int, queue: QueueState) -> None:
        entry = self.boxes[place]
        before = entry.queue
        if queue is before:
            return
        entry.queue = queue
        self.changed[place] = None
        self._refresh(place)
        if before.full != queue.full:
            for up in entry.upstream:
                self._refresh(up)

    def can_run(self, place: int) -> bool:
        """Haren's condition: input waiting, room for output; and a lane free."""
        boxes = self.boxes
        box = boxes[place]
        if box.queue.tuples <= 0 or box.running >= box.lanes or box.removed:
            return False
        # As has_room, without another call: this is asked at every event.
        for down in box.downstream:  # noqa: SIM110 - a generator takes longer
            if place in boxes[down].queue.full:
                return False
        return True

    def has_room(self, place: int) -> bool:
        """Whether a box's results find room in every queue that they go to."""
        return not any(place in self.boxes[down].queue.full for down in self.boxes[place].downstream)

    def superboxes(self) -> dict[str, list[int]]:
        """Every query's boxes, in order of their numbers."""
        found: dict[str, list[int]] = {}
        for place, box in enumerate(self.boxes):
            for query in box.queries:
                found.setdefault(query, []).append(place)
        return found

    def first(self) -> frozenset[int]:
        """The boxes that sources feed."""
        return frozenset(place for place, box in enumerate(self.boxes) if box.fed_by)

    def distances(self) -> list[int]:
        """By box, the number of boxes on the longest way from a source to it."""
        found: list[int] = []
        for box in self.boxes:  # those that feed a box have lower numbers
            found.append(max((found[up] + 1 for up in box.upstream), default=0))
        return found

    def downstream(self, place: int) -> list[int]:
        """All boxes that a box's results can reach, in order of their numbers."""
        return reached(lambda box: self.boxes[box].downstream, place)

    def through(self, place: int, known: dict[int, float]) -> float:
        """Seconds that a tuple of a box takes, with all that it causes downstream; ``known`` is a memo."""
        found = known.get(place)
        if found is None:
            box = self.boxes[place]
            behind = sum([self.through(down, known) for down in box.downstream])
            found = known[place] = box.cost + box.selectivity * behind
        return found

    def least_latencies(self) -> dict[str, float]:
        """By query, the seconds that a tuple takes to its output if it waits nowhere, on the longest way."""
        longest: dict[str, float] = {}
        ways: list[float] = []
        for box in self.boxes:  # those that feed a box have lower numbers
            way = max([ways[up] for up in box.upstream], default=0.0) + box.cost + box.call_overhead
            ways.append(way)
            for query in box.queries:
                longest[query] = max(longest.get(query, 0.0), way)
        return {query: seconds + self.plan_overhead for query, seconds in longest.items()}

    def _refresh(self, place: int) -> None:
        ready = self.can_run(place)
        if ready == self.is_ready[place]:
            return
        self.is_ready[place] = ready
        self.changed[place] = None
        self._turned ^= {place}
