"""Policies that answer one question: what should this idle worker do?

``Pull`` turns that question into the event interface: it parks workers that find nothing and wakes as
many as there are boxes that could run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Event, Idle
from headgate.scheduling.interface import Decision, Run, Wake
from headgate.scheduling.steps import Chooser
from headgate.scheduling.trains import Train


class Pull(Chooser):
    """Base of policies that choose when a worker asks."""

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
