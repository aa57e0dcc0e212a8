"""The QoS monitor (Aurora, section 2.2): how much work arrives, how much gets done, and who is late.

Work is in seconds of box time, by the catalog's costs.  Rates are counted on the clock of the tuples' own
arrival times: a source that back-pressure holds back brings fewer tuples a second than have arrived, but of
each second of arrivals it brings all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from headgate.scheduling.catalog import Catalog, Goal
from headgate.scheduling.events import Arrived, Changed, Event, Finished, Idle, QueueState, Spawned, Started
from headgate.scheduling.interface import Decision, Run, Wake

WEIGHT = 0.5
"""How much of a measurement the newest period makes up."""
FASTEST = 100
"""A source counts as at most that many times as fast as its tuples were let in: all may have come at once."""
LEFT = 0.1
"""Whatever those in more of a hurry take, so much of the capacity is left for others."""
PLANS = 2
"""A tuple waits for the plan under way and for its own: no drop makes that shorter."""
FULL = 2
"""A plan that leaves so many times as much as it takes is as long as plans can be.  One that leaves less may
be short for another reason: `qos` makes such plans for queries that have waited longest."""
MEMORY = 4
"""Capacity is what got done in the last so many periods, or in as many of the longest calls."""


@dataclass
class _Source:
    """What a source has brought."""

    tuples: int = 0
    newest: float = 0.0
    last: float = 0.0
    """When it last brought something."""
    seen_tuples: int = 0
    seen_newest: float = 0.0
    """As they stood at the end of the last period."""
    rate: float = 0.0
    """Tuples that arrive per second, whether or not they find room."""
    lag: float = 0.0
    """Seconds by which what it brings is behind the time."""


class _Plans:
    """Where a plan costs something to start: how full plans are, and how much more full ones would do.

    A plan that takes all that waits is short because there is no more, and its start-up weighs the more.  So
    what gets done then is no measure of what could be: a shedder that takes it for the capacity drops more,
    and plans are shorter still.
    """

    def __init__(self) -> None:
        self._under_way: dict[int, tuple[float, float, bool]] = {}
        """By worker: work, seconds of its boxes, and whether the plan left anything behind."""
        self._count = self._work = self._beside = 0.0
        self._full: float | None = None
        """Work of a plan that did not take all that waited."""
        self.seconds = 0.0
        """That a plan takes; 0 where it costs nothing to start."""

    def began(self, worker: int, left: bool) -> None:
        work, seconds, before = self._under_way.get(worker, (0.0, 0.0, False))
        self._under_way[worker] = work, seconds, before or left

    def worked(self, worker: int, work: float, seconds: float) -> None:
        before, spent, left = self._under_way.get(worker, (0.0, 0.0, False))
        self._under_way[worker] = before + work, spent + seconds, left

    def ended(self, worker: int, costs: bool) -> None:
        work, seconds, left = self._under_way.pop(worker, (0.0, 0.0, False))
        if not costs or not work:
            return
        self._count += 1
        self._work += work
        self._beside += max(seconds - work, 0.0)
        if left:
            self._full = work if self._full is None else self._full + WEIGHT * (work - self._full)

    def fuller(self, kept: float, overhead: float, limit: float) -> float:
        """How many times as much full plans do in the same time; a period is over."""
        if not self._count or not overhead:
            return 1.0
        work = self._work / self._count
        overhead += self._beside / self._count
        full = max(limit if self._full is None else self._full, work)
        self.seconds = overhead + work
        self._count, self._work, self._beside = kept * self._count, kept * self._work, kept * self._beside
        return (full / (overhead + full)) * ((overhead + work) / work)


@dataclass
class Monitor:
    """Measures period by period; ``close`` ends one."""

    catalog: Catalog
    workers: int
    latency: float
    """Seconds that a query without a QoS graph may take."""
    sources: list[_Source] = field(default_factory=list)
    capacity: float = 0.0
    """Seconds of work that get done per second when there is no lack of it."""
    expected: dict[str, float] = field(default_factory=dict)
    """By query, the latency of the results that are due now, or that what waits now will have, if greater."""
    growth: dict[str, float] = field(default_factory=dict)
    """By query, by how many seconds that rises per second."""

    def __post_init__(self) -> None:
        boxes = self.catalog.boxes
        self.capacity = float(self.workers)
        self.sources = [_Source() for _ in range(1 + max([s for b in boxes for s in b.fed_by], default=-1))]
        self.queries = sorted({query for box in boxes for query in box.queries})
        self._stated = {query: self._room(self.catalog.goals.get(query)) for query in self.queries}
        self.room = dict(self._stated)
        """By query, the latency from which on it loses utility; but no less than plans need."""
        self.expected = dict.fromkeys(self.queries, 0.0)
        self.growth = dict.fromkeys(self.queries, 0.0)
        self._entries: list[list[int]] = [[] for _ in self.sources]
        for place, box in enumerate(boxes):
            for source in box.fed_by:
                self._entries[source].append(place)
        self.smooth = dict.fromkeys(self.queries, 0.0)
        """By query, the same latency over some periods: between trains it falls back each time."""
        self._done = self._spare = 0.0
        self._recent_done = self._recent_busy = 0.0
        self._longest = 0.0
        self._plans = _Plans()
        self._begun = False
        """Some call has ended: what it takes until then is the system's start, and tells nothing."""
        self._parked: set[int] = set()
        """Workers without work."""
        self._calm = False
        """Some are, and nothing waits: who finds no lane free among tuples that wait is not spare."""
        self._waiting = {place for place, box in enumerate(boxes) if box.queue.tuples}
        """Boxes at which tuples wait."""
        self._at = self._since = self.catalog.since

    def _room(self, goal: Goal | None) -> float:
        """Where a QoS graph begins to fall; infinite if it never does."""
        if goal is None:
            return self.latency
        latency = 0.0
        while goal.gradient(latency) <= 0 and latency < float("inf"):
            latency += goal.slack(latency)
        return latency

    # --- events -------------------------------------------------------------------------------------

    def note(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Take in what happened, and what was decided on it."""
        self._pass_time(event.time)
        if isinstance(event, Arrived):
            source = self.sources[event.source] if event.source < len(self.sources) else _Source()
            source.tuples += event.tuples
            source.newest = max(source.newest, event.newest)
            source.last = event.time
        elif isinstance(event, Finished):
            work = event.tuples_in * self.catalog.boxes[event.box].cost
            if self._begun:
                self._done += work
                self._plans.worked(event.worker, work, event.seconds)
            else:
                self._begun, self._since, self._spare = True, max(self._since, event.time), 0.0
            self._longest = max(self._longest, event.seconds)
        elif isinstance(event, Started):
            self._plans.began(event.worker, event.queue.tuples > FULL * event.tuples)
        elif isinstance(event, Idle):
            given = any(isinstance(d, Run) and d.worker == event.worker for d in decisions)
            (self._parked.discard if given else self._parked.add)(event.worker)
            self._plans.ended(event.worker, event.overhead > 0)
        for decision in decisions:
            if isinstance(decision, Wake):
                self._parked.difference_update(decision.workers)
        for place, queue in _queues(event):
            (self._waiting.add if queue.tuples else self._waiting.discard)(place)
        self._calm = bool(self._parked) and not self._waiting

    def _pass_time(self, now: float) -> None:
        """Until now it was as the last event left it."""
        if self._calm:
            self._spare += max(now - self._at, 0.0) * len(self._parked)
        self._at = max(self._at, now)

    # --- the end of a period ------------------------------------------------------------------------

    def close(self, now: float) -> None:
        """A period is over: renew what is known."""
        elapsed = now - self._since
        if elapsed <= 0:
            return
        self._measure_capacity(now, elapsed)
        for place, source in enumerate(self.sources):
            self._measure_source(source, elapsed, self._held_back(place))
        self._measure_latencies(now, elapsed)
        self._since = now

    def _measure_capacity(self, now: float, elapsed: float) -> None:
        """What got done in the time in which workers had something to do."""
        self._pass_time(now)
        kept = math.exp(-elapsed / (MEMORY * max(elapsed, self._longest)))
        self._recent_done = kept * self._recent_done + self._done
        self._recent_busy = kept * self._recent_busy + elapsed - self._spare / self.workers
        fuller = self._plans.fuller(kept, self.catalog.plan_overhead, self.catalog.plan_limit)
        if self._recent_done > 0 and self._recent_busy > 0:
            self.capacity = fuller * self._recent_done / self._recent_busy
        least = PLANS * self._plans.seconds
        self.room = {query: max(room, least) for query, room in self._stated.items()}
        self._longest *= kept
        self._done = self._spare = 0.0

    def _held_back(self, source: int) -> bool:
        """Whether a source finds no room."""
        return any(-1 in self.catalog.boxes[place].queue.full for place in self._entries[source])

    def _measure_source(self, source: _Source, elapsed: float, held_back: bool) -> None:
        came, span = source.tuples - source.seen_tuples, source.newest - source.seen_newest
        source.seen_tuples, source.seen_newest = source.tuples, source.newest
        if not came and held_back:
            source.lag += elapsed
            return
        # What came after a silence did not arrive all through it.
        span = max(min(span, elapsed + source.lag), elapsed / FASTEST)
        source.rate += WEIGHT * (came / span - source.rate)
        source.lag = max(source.last - source.newest, 0.0) if came else 0.0

    def _measure_latencies(self, now: float, elapsed: float) -> None:
        found = self._clearing()
        below: dict[int, float] = {}
        for place, box in enumerate(self.catalog.boxes):
            if box.removed:
                continue
            age = now - box.queue.oldest if box.queue.tuples else 0.0
            age = max([age, *(self.sources[source].lag for source in box.fed_by)])
            if age > 0:
                age += self._cost_below(place, below)
                for query in box.queries:
                    found[query] = max(found[query], age)
        for query, latency in found.items():
            rise = WEIGHT * (latency - self.smooth[query])
            self.smooth[query] += rise
            self.growth[query] += WEIGHT * (rise / elapsed - self.growth[query])
        self.expected = found

    def waiting(self, place: int) -> float:
        """Tuples that wait for a box: in its queue, and in sources that are held back."""
        box = self.catalog.boxes[place]
        return box.queue.tuples + sum([self.sources[s].lag * self.sources[s].rate for s in box.fed_by])

    def _clearing(self) -> dict[str, float]:
        """By query, the seconds until what waits for it now is done, if those in more of a hurry go first."""
        backlog, demand = dict.fromkeys(self.queries, 0.0), dict.fromkeys(self.queries, 0.0)
        flows, through = self.inflows(), dict[int, float]()
        for place, box in enumerate(self.catalog.boxes):
            if box.queries and not box.removed:
                first = min(box.queries, key=lambda query: self.room[query])
                backlog[first] += self.waiting(place) * self.catalog.through(place, through)
                demand[first] += flows[place] * box.cost
        found: dict[str, float] = {}
        work = taken = 0.0
        for room in sorted(set(self.room.values())):
            alike = [query for query in self.queries if self.room[query] == room]
            work += sum([backlog[query] for query in alike])
            left = max(self.capacity - taken, LEFT * self.capacity)
            found |= dict.fromkeys(alike, work / left if left > 0 else 0.0)
            taken += sum([demand[query] for query in alike])
        return found

    def _cost_below(self, place: int, known: dict[int, float]) -> float:
        """Seconds that a tuple takes on its longest way out."""
        cost = known.get(place)
        if cost is None:
            box = self.catalog.boxes[place]
            cost = box.cost + max([self._cost_below(down, known) for down in box.downstream], default=0.0)
            known[place] = cost
        return cost

    # --- what follows from it -----------------------------------------------------------------------

    def late(self, horizon: float) -> set[str]:
        """The queries that lack room now or, as things go, soon: within the horizon or their room."""
        return {
            query
            for query, latency in self.expected.items()
            if latency + max(self.growth[query], 0.0) * min(horizon, self.room[query]) > self.room[query]
        }

    def inflows(self) -> list[float]:
        """Tuples per second that would come to every box if none were dropped."""
        boxes = self.catalog.boxes
        flows = [0.0] * len(boxes)
        for place, box in enumerate(boxes):  # they stand in topological order
            flows[place] += sum([self.sources[source].rate for source in box.fed_by])
            out = flows[place] * box.selectivity
            for down in box.downstream:
                flows[down] += out
        return flows


def _queues(event: Event) -> Sequence[tuple[int, QueueState]]:
    """The queues that an event tells of, by box."""
    if isinstance(event, Finished):
        return event.queues
    return ((event.box, event.queue),) if isinstance(event, Started | Spawned | Changed) else ()
