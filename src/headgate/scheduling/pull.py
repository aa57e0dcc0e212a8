"""Policies that answer one question: what should this idle worker do?

``Chooser`` asks it.  ``Pull`` turns it into the event interface: it parks workers that find nothing and
wakes as many as there are boxes that could run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Event, Idle
from headgate.scheduling.interface import Decision, Plan, Policy, Run, Wake
from headgate.scheduling.trains import Train


class Chooser(Policy):
    """Base of policies that make a plan when a worker asks for one."""

    catalog: Catalog

    def choose(self, worker: int, now: float) -> Plan | None:
        """The plan for an idle worker; None leaves it parked until something changes."""
        raise NotImplementedError

    def step(self, worker: int, now: float) -> Plan | None:
        """The same where starting a plan costs something by itself (``steps``).

        Short trains do not pay there, and the engine bounds long ones.
        """
        return self.choose(worker, now)

    def next_plan(self, worker: int, now: float) -> Plan | None:
        """The plan for an idle worker on any engine."""
        return self.step(worker, now) if self.catalog.plan_overhead else self.choose(worker, now)


class Pull(Chooser):
    """Base of policies that park workers for which they have no plan, and wake as many as boxes can run."""

    random: random.Random

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        self.catalog = catalog
        self.random = random.Random(seed)
        self._parked: dict[int, None] = {}
        self.begin(workers)
        return ()

    def begin(self, workers: int) -> None:
        """Set up what the policy remembers."""

    def set(self, name: str, value: float | Train, now: float) -> Sequence[Decision]:
        """The batch is the train of policies that have one to set."""
        assert name == "batch"
        assert isinstance(value, Train)
        self.train = value
        return ()

    def handle(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Idle):
            self._parked.pop(event.worker, None)
            plan = self.next_plan(event.worker, event.time)
            if plan is None:
                self._parked[event.worker] = None
                return ()
            return (Run(event.worker, plan),)
        if self._parked and self.catalog.ready:
            return self.wake()
        return ()

    def wake(self) -> Sequence[Decision]:
        """Wake as many parked workers as there are boxes that could run, longest parked first."""
        woken = tuple(list(self._parked)[: len(self.catalog.ready)])
        for worker in woken:
            del self._parked[worker]
        return (Wake(woken),)
