"""Train size tuned while running (Aurora, section 8: future work); the traversal tunes itself.

Long trains make few calls, which saves their overhead; short ones let others have a turn sooner.  Which is
better depends on the load, and load changes its shape.  So trains are made four times as long or as short for
a period, and stay so if results come sooner: hill climbing on the mean latency of the queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from headgate.errors import PipelineError
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Changed, Event, Finished, Spawned, Started, Timer
from headgate.scheduling.interface import Decision, Policy, SetTimer
from headgate.scheduling.trains import Count
from headgate.scheduling.tuning.climbing import Climber, check_climb
from headgate.scheduling.wrapper import Around

PERIOD = 1.0
MARGIN = 0.05
FACTOR = 4
LONGEST = 10
"""Trains are at most the factor to the power of this."""
OTHER = 2.0
"""Latencies by that factor higher or lower than usual mean another load, and what was learned is void."""
LEAST = 1e-9
_TIMER = "train"


class Tuned(Around):
    """Another policy, with trains of the length that serves the queries' latency best."""

    def __init__(self, policy: Policy, period: float = PERIOD, margin: float = MARGIN) -> None:
        check_climb("tuned", period, margin)
        if policy.train is None:
            raise PipelineError(
                f"tuned('{policy.name}'): that policy says itself how long trains are; tune "
                "'auto_traversal', 'mc', 'ml', 'mm', 'round_robin' or 'top_k'."
            )
        super().__init__(policy, "tuned")
        self.period = period
        self.margin = margin

    @property
    def settings(self) -> frozenset[str]:  # type: ignore[override]
        """Trains are what it sets itself."""
        return self.policy.settings - {"batch"}

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        self._catalog = catalog
        self._climber = self._new_climber(LONGEST)
        self._latencies = _Latencies(catalog)
        self._usual = 0.0
        self._longest = 1
        """Tuples of the longest call of this period."""
        self.history: list[tuple[float, int]] = []
        """When trains changed, and to how many tuples."""
        return [*self.policy.start(catalog, workers, seed), SetTimer(catalog.since + self.period, _TIMER)]

    def _new_climber(self, exponent: int) -> Climber:
        wanted = 1 + self.margin
        return Climber(0, LONGEST, exponent, up=wanted, down=wanted)

    def handle(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Timer) and event.name == _TIMER:
            self._reconsider(event.time)
            return (SetTimer(event.time + self.period, _TIMER),)
        self._latencies.take_in(event)
        if isinstance(event, Started):
            self._longest = max(self._longest, event.tuples)
        return self.policy.handle(event)

    def _reconsider(self, now: float) -> None:
        latency = self._latencies.of_period(now)
        if self._catalog.plan_overhead or not latency:
            return  # the engine bounds steps, so their trains have the best length already
        before, trying = self._climber.value, self._climber.trying
        # A trial has another latency by its train, not by the load: what was learned stays, and so do pauses.
        if not trying:
            if self._usual and not self._usual / OTHER < latency < self._usual * OTHER:
                self._climber = self._new_climber(before)
            self._usual = latency
        # Trains longer than any queue are all the same: the shortest of them is where to go on from.
        most = math.ceil(math.log(self._longest, FACTOR) - LEAST)
        self._climber.bound(most + (self._longest == FACTOR**before))
        self._longest = 1
        after = self._climber.reconsider(1.0 / latency)
        if trying:
            self._usual = latency if after == before else 0.0
        if after != before:
            self.history.append((now, FACTOR**after))
            self.policy.train = Count(FACTOR**after)


class _Latencies:
    """How long tuples are with a query's boxes: those queued or in calls over time, by those that left."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._queries = sorted({query for box in catalog.boxes for query in box.queries})
        self._number = {query: number for number, query in enumerate(self._queries)}
        self._there = [0] * len(catalog.boxes)
        """By box, tuples in its queue and in its calls."""
        self._called = [0] * len(catalog.boxes)
        self._of_query = [0] * len(self._queries)
        self._held = [0.0] * len(self._queries)
        """By query, tuples times the seconds that they were there, in this period."""
        self._left = [0] * len(self._queries)
        self._since = catalog.since
        for place in range(len(catalog.boxes)):
            self._look(place)

    def take_in(self, event: Event) -> None:
        if isinstance(event, Finished):
            self._pass(event.time)
            # It may have begun before there was anyone to count it.
            self._called[event.box] = max(self._called[event.box] - event.tuples_in, 0)
            box = self._catalog.boxes[event.box]
            if not box.downstream:
                for query in box.queries:
                    self._left[self._number[query]] += event.tuples_out
            self._look(event.box)
            for place, _ in event.queues:
                self._look(place)
        elif isinstance(event, Spawned | Started | Changed):
            self._pass(event.time)
            if isinstance(event, Started):
                self._called[event.box] += event.tuples
            self._look(event.box)

    def _pass(self, now: float) -> None:
        seconds = now - self._since
        if seconds > 0:
            self._since = now
            for number, there in enumerate(self._of_query):
                self._held[number] += there * seconds

    def _look(self, place: int) -> None:
        box = self._catalog.boxes[place]
        there = box.queue.tuples + self._called[place]
        more, self._there[place] = there - self._there[place], there
        if more:
            for query in box.queries:
                self._of_query[self._number[query]] += more

    def of_period(self, now: float) -> float:
        """The mean over queries, since the last time it was asked; 0 if nothing has left."""
        self._pass(now)
        found = [held / left for held, left in zip(self._held, self._left, strict=True) if left]
        self._held = [0.0] * len(self._queries)
        self._left = [0] * len(self._queries)
        return sum(found) / len(found) if found else 0.0
