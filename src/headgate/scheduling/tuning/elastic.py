"""The best number of workers, found while running (what ordered processing leaves open: section 7.1).

Hill climbing on measured throughput: one worker more or fewer for some periods, and the change stays if it
pays.  More workers must gain by a margin, fewer must not lose by it.  The median of the periods counts, so
one in which another program had the machine decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from headgate.errors import PipelineError
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Event, Finished, Idle, Timer
from headgate.scheduling.interface import Decision, Policy, Run, SetTimer, Wake
from headgate.scheduling.tuning.climbing import Climber, check_climb
from headgate.scheduling.wrapper import Around

PERIOD = 0.5
MARGIN = 0.05
PERIODS = 3
"""So many periods give one rate."""
_TIMER = "elastic"


class Elastic(Around):
    """Another policy with as many of the workers as serve it best; the others sleep."""

    def __init__(self, policy: Policy, period: float = PERIOD, margin: float = MARGIN) -> None:
        check_climb("elastic", period, margin)
        if policy.assigns:
            raise PipelineError(
                f"elastic('{policy.name}'): that policy gives boxes to workers itself, so none may sleep; "
                "use one that does not, or fewer workers."
            )
        super().__init__(policy, "elastic")
        self.period = period
        self.margin = margin

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        start = max(1, workers // 2)
        self._climber = Climber(1, workers, start, up=1 + self.margin, down=1 - self.margin)
        self.active = start
        """Workers that work."""
        self._first = catalog.first()
        self._parked: set[int] = set()
        self._off: set[int] = set()
        """Workers that asked and are to sleep."""
        self._tuples = 0
        self._rates: list[float] = []
        self._since = catalog.since
        return [*self.policy.start(catalog, workers, seed), SetTimer(catalog.since + self.period, _TIMER)]

    def handle(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Timer) and event.name == _TIMER:
            return [*self._reconsider(event.time), SetTimer(event.time + self.period, _TIMER)]
        if isinstance(event, Finished) and event.box in self._first:
            self._tuples += event.tuples_in
        if isinstance(event, Idle) and event.worker >= self.active:
            self._off.add(event.worker)
            return ()
        decisions = [self._for_active(decision) for decision in self.policy.handle(event)]
        if isinstance(event, Idle):
            given = any(isinstance(d, Run) and d.worker == event.worker for d in decisions)
            (self._parked.discard if given else self._parked.add)(event.worker)
        return decisions

    def _for_active(self, decision: Decision) -> Decision:
        """Wake active workers only: each inactive one is replaced by an active one that is parked."""
        if not isinstance(decision, Wake):
            return decision
        woken = [worker for worker in decision.workers if worker < self.active]
        self._off.update([worker for worker in decision.workers if worker >= self.active])
        others = sorted(self._parked.difference(woken))
        woken += [worker for worker in others if worker < self.active][: len(decision.workers) - len(woken)]
        self._parked.difference_update(woken)
        return Wake(tuple(woken))

    def _reconsider(self, now: float) -> Sequence[Decision]:
        rate = self._tuples / (now - self._since) if now > self._since else 0.0
        self._tuples, self._since = 0, now
        self._rates.append(rate)
        if len(self._rates) < PERIODS:
            return ()
        rates, self._rates = self._rates, []
        return self._set(self._climber.reconsider(median(rates)))

    def _set(self, active: int) -> Sequence[Decision]:
        before, self.active = self.active, active
        woken = tuple(worker for worker in range(before, active) if worker in self._off)
        self._off.difference_update(woken)
        return (Wake(woken),) if woken else ()
