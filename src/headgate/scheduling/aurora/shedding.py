"""The load shedder (Aurora, section 2.2; the drop boxes are those of its reference 21).

Every period the QoS monitor says how much work arrives, how much gets done, and which queries lack room:
whose results are, or soon will be, so late that utility falls.  If more arrives than can be done, and some
query lacks room, tuples are dropped: as early as possible, but nowhere that a query with room depends on, and
where a second of work saved costs the least utility.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.errors import PipelineError
from headgate.scheduling.aurora.monitor import Monitor
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Arrived, Event, Timer
from headgate.scheduling.interface import Decision, Policy, SetTimer, Shed
from headgate.scheduling.wrapper import Around

PERIOD = 0.5
LATENCY = 1.0
STRATEGIES = ("random", "semantic")
FILL = 0.95
"""The share of capacity that is given to tuples: a system that is full to the brim never catches up."""
HORIZON = 4
"""Periods in which a backlog that makes queries late is to go."""
AIM = 0.5
"""The share of a query's room that its latency is brought down to."""
PATIENCE = 2
"""Periods that a query must lack room, one after the other, before anything is dropped for it."""
PAUSE, LONGEST_PAUSE = 8, 128
"""Periods with room after which a query may be let off; twice as many each time that was too soon."""
PROBE = 1.1
"""So many times as much is let in now and then, while something is dropped and all have plenty of room: what
gets done then is what comes, and no measure of what could be done."""
MOST = 0.98
"""No more than this share is dropped: of a box that never runs nothing would be known."""
LEAST = 0.01
"""A smaller share is not worth the trouble, nor is a smaller change of one."""
EASE = 0.5
"""A share that can fall keeps at least so much of it for a period, so that it does not flap."""
EQUAL = 0.25
"""Places whose losses differ by less than that share of the smallest are equally good."""
_TIMER = "shedding"


class Shedding(Around):
    """Another policy, and tuples dropped while there are more than it can process in time."""

    more = frozenset({"latency", "arrivals"})

    def __init__(
        self, policy: Policy, strategy: str = "random", period: float = PERIOD, latency: float = LATENCY
    ) -> None:
        if strategy not in STRATEGIES:
            raise PipelineError(f"shedding(strategy={strategy!r}): use 'random' or 'semantic'.")
        if not period > 0 or not latency > 0:
            raise PipelineError(
                f"shedding(period={period:g}, latency={latency:g}): both must be seconds, more than 0."
            )
        super().__init__(policy, "shedding")
        self.strategy = strategy
        self.period = period
        self.latency = latency

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        self.catalog = catalog
        self.monitor = Monitor(catalog, workers, self.latency)
        self.shares: dict[int, float] = {}
        """By box, what is being dropped."""
        self._waits = dict.fromkeys(self.monitor.queries, 0)
        """For how many periods a query has lacked room."""
        self._bearing: set[str] = set()
        """Queries that bear the overload: they have lacked room since it began, and were not let off."""
        self._rested = dict.fromkeys(self.monitor.queries, 0)
        """For how many periods a query has had room."""
        self._pause = dict.fromkeys(self.monitor.queries, PAUSE)
        self._trust = 1.0
        """How many times the measured capacity is believed to be there."""
        self._plenty, self._until_probe = 0, PAUSE
        """For how many periods all have had plenty of room, and after how many more is let in."""
        self._told = {
            query: any(box.importance for box in catalog.boxes if query in box.queries)
            for query in self.monitor.queries
        }
        """Whether there is a place at which a query's tuples can be told apart."""
        return [*self.policy.start(catalog, workers, seed), SetTimer(catalog.since + self.period, _TIMER)]

    def handle(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Timer) and event.name == _TIMER:
            return [*self._reconsider(event.time), SetTimer(event.time + self.period, _TIMER)]
        # The policy inside need not have heard of arrivals.
        inner = isinstance(event, Arrived) and "arrivals" not in self.policy.needs
        decisions = () if inner else self.policy.handle(event)
        self.monitor.note(event, decisions)
        return decisions

    # --- how much -----------------------------------------------------------------------------------

    def _reconsider(self, now: float) -> Sequence[Decision]:
        """A period is over: shed more, or less, or nothing."""
        monitor = self.monitor
        monitor.close(now)
        late = monitor.late(HORIZON * self.period)
        for query in monitor.queries:
            self._waits[query] = self._waits[query] + 1 if query in late else 0
            self._rested[query] = 0 if query in late else self._rested[query] + 1
        self._probe(late)
        flows = monitor.inflows()
        through: dict[int, float] = {}
        excess = sum([f * b.cost for f, b in zip(flows, self.catalog.boxes, strict=True) if not b.removed])
        excess -= FILL * self._trust * monitor.capacity
        overdue = self._overdue(through)
        wanted: dict[int, float] = {}
        if excess + sum(overdue.values()) > 0:
            self._bearing |= {query for query, periods in self._waits.items() if periods >= PATIENCE}
            self._let_off(excess, flows, through)
            wanted = self._place(excess, overdue, flows, through)
        elif not self.shares:
            self._bearing.clear()
            self._pause = dict.fromkeys(monitor.queries, PAUSE)
        return self._set(wanted)

    def _probe(self, late: set[str]) -> None:
        """Let more in if there is plenty of room, and less again if that was too much."""
        room, latency = self.monitor.room, self.monitor.smooth
        if not self.shares:
            self._trust, self._plenty, self._until_probe = 1.0, 0, PAUSE
        elif late:
            if self._trust > 1.0:
                self._trust = max(self._trust / PROBE, 1.0)
                self._until_probe = min(2 * self._until_probe, LONGEST_PAUSE)
            self._plenty = 0
        elif all(latency[query] <= AIM * room[query] for query in self.monitor.queries):
            self._plenty += 1
            if self._plenty >= self._until_probe:
                self._trust, self._plenty = self._trust * PROBE, 0
        else:
            self._plenty = 0

    def _let_off(self, excess: float, flows: Sequence[float], through: dict[int, float]) -> None:
        """Queries that have had room for a while go free, if those in less of a hurry can bear it alone."""
        room = self.monitor.room
        for query in sorted(self._bearing, key=lambda query: (room[query], query)):
            if self._rested[query] < self._pause[query]:
                continue
            others = {other for other in self._bearing if room[other] > room[query]}
            saved = [flows[p] * self.catalog.through(p, through) for p in self._places(others)]
            if others and excess <= MOST * sum(saved):
                self._bearing.discard(query)
                self._pause[query] = min(2 * self._pause[query], LONGEST_PAUSE)

    def _overdue(self, through: dict[int, float]) -> dict[int, float]:
        """By box, the work per second that backlogs take which make queries late, and are to go."""
        overdue = {}
        for place, box in enumerate(self.catalog.boxes):
            share = 0.0 if box.removed else self._too_late(box.queries)
            if share > 0 and (tuples := self.monitor.waiting(place)):
                work = tuples * self.catalog.through(place, through)
                overdue[place] = share * work / (HORIZON * self.period)
        return overdue

    def _too_late(self, queries: Sequence[str]) -> float:
        """The share of a backlog without which the most patient of its queries would have room."""
        latency, room = self.monitor.smooth, self.monitor.room
        shares = [1 - AIM * room[q] / latency[q] if latency[q] > room[q] else 0.0 for q in queries]
        return min(shares, default=0.0)

    # --- where --------------------------------------------------------------------------------------

    def _place(
        self, excess: float, overdue: dict[int, float], flows: Sequence[float], through: dict[int, float]
    ) -> dict[int, float]:
        """The shares that save so much work: places of the least loss first, equal ones alike.

        A backlog is for those places to reduce whose tuples make it.
        """
        places = self._places(self._bearing)
        work = {place: flows[place] * self.catalog.through(place, through) for place in places}
        ranked = sorted(
            [
                (self._loss(p) / self.catalog.through(p, through), p, saved)
                for p, saved in work.items()
                if saved
            ]
        )
        shares: dict[int, float] = {}
        spared, at = max(-excess, 0.0), 0
        while at < len(ranked) and excess > 0:
            limit = ranked[at][0] * (1 + EQUAL)
            group = [entry for entry in ranked[at:] if entry[0] <= limit]
            saved = sum([work for _, _, work in group])
            share = min(excess / saved, MOST)
            shares |= {place: share for _, place, _ in group}
            excess -= share * saved
            at += len(group)
        if overdue:
            # Capacity that arriving work leaves free takes its part of the backlog without any drop.
            left = max(1 - spared / sum(overdue.values()), 0.0)
            for place, more in self._blamed(places, overdue, work).items():
                shares[place] = min(shares.get(place, 0.0) + left * more / work[place], MOST)
        return shares

    def _blamed(
        self, places: Sequence[int], overdue: dict[int, float], work: dict[int, float]
    ) -> dict[int, float]:
        """By place, the overdue work whose tuples pass it; of several on the way, each by what it brings."""
        passed: list[list[int]] = []
        blamed: dict[int, float] = {}
        for box, entry in enumerate(self.catalog.boxes):
            before = {place for up in entry.upstream for place in passed[up]}
            passed.append(sorted(before | ({box} if box in work else set())))
            able = {place: work[place] for place in passed[box] if work[place] > 0}
            total = sum(able.values())
            for place, share in able.items() if box in overdue else ():
                blamed[place] = blamed.get(place, 0.0) + overdue[box] * share / total
        return blamed

    def _places(self, bearing: set[str]) -> list[int]:
        """The earliest boxes that only queries which bear the overload depend on."""
        boxes = self.catalog.boxes
        open_to = [self._may_drop(place, bearing) for place in range(len(boxes))]
        return [
            place
            for place, box in enumerate(boxes)
            if open_to[place] and (box.fed_by or not all(open_to[up] for up in box.upstream))
        ]

    def _may_drop(self, place: int, bearing: set[str]) -> bool:
        box = self.catalog.boxes[place]
        if box.removed or not box.queries or not bearing.issuperset(box.queries):
            return False
        if self.strategy == "random" or box.importance is not False:
            return True
        # Not here; elsewhere, if some query's tuples can be told apart elsewhere.
        return not any(self._told[query] for query in box.queries)

    def _loss(self, place: int) -> float:
        """Utility that a tuple of a box is expected to bring to its queries."""
        goals = self.catalog.goals
        loss = 0.0
        for query in self.catalog.boxes[place].queries:
            worth = goals[query].utility(self.monitor.smooth[query]) if query in goals else 1.0
            loss += worth * self._results(place, query, {})
        return loss

    def _results(self, place: int, query: str, known: dict[int, float]) -> float:
        """Results of a query that a tuple of a box leads to."""
        found = known.get(place)
        if found is None:
            box = self.catalog.boxes[place]
            after = [down for down in box.downstream if query in self.catalog.boxes[down].queries]
            found = sum([self._results(down, query, known) for down in after]) if after else 1.0
            found = known[place] = box.selectivity * found
        return found

    # --- the shares ---------------------------------------------------------------------------------

    def _set(self, wanted: dict[int, float]) -> Sequence[Decision]:
        """Towards these shares: up at once, down step by step."""
        decisions: list[Decision] = []
        for place in sorted({*wanted, *self.shares}):
            before, share = self.shares.get(place, 0.0), wanted.get(place, 0.0)
            share = max(share, EASE * before)
            if share < LEAST:
                share = 0.0
            if share == before or (share and abs(share - before) < LEAST):
                continue
            self.shares[place] = share
            if not share:
                del self.shares[place]
            decisions.append(Shed(place, share, self._reason(place)))
        return decisions

    def _reason(self, place: int) -> str:
        return (
            "semantic" if self.strategy == "semantic" and self.catalog.boxes[place].importance else "random"
        )
