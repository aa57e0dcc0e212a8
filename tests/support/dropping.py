"""A policy that drops a given share of the tuples of given boxes from the start on."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.graph.drops import RANDOM
from headgate.scheduling import policies
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Event
from headgate.scheduling.interface import Decision, Policy, Shed


class Dropping(Policy):
    """Another policy, and these drops from the start on."""

    def __init__(self, inner: str | Policy, shares: dict[str, float], reason: str = RANDOM) -> None:
        self.inner = policies.get(inner)
        self.name, self.needs = self.inner.name, self.inner.needs
        self.shares, self.reason = shares, reason

    def workers(self, boxes: int, requested: int) -> int:
        return self.inner.workers(boxes, requested)

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        places = {box.name: place for place, box in enumerate(catalog.boxes)}
        sheds = [Shed(places[name], share, self.reason) for name, share in self.shares.items()]
        return [*self.inner.start(catalog, workers, seed), *sheds]

    def handle(self, event: Event) -> Sequence[Decision]:
        return self.inner.handle(event)
