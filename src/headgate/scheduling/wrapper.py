"""Policies around another one, which decides everything that they do not."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Event
from headgate.scheduling.interface import Decision, Policy
from headgate.scheduling.trains import Train


class Around(Policy):
    """Passes everything on to ``policy``; subclasses take part."""

    more: frozenset[str] = frozenset()
    """Measurements that it needs itself."""

    def __init__(self, policy: Policy, name: str | None = None) -> None:
        self.policy = policy
        self.name = policy.name if name is None else f"{name}({policy.name})"
        self.pins = policy.pins
        self.assigns = policy.assigns
        self.one_lane = policy.one_lane
        self.one_semaphore = policy.one_semaphore

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return self.policy.needs | self.more

    @property
    def problems(self) -> Sequence[str]:  # type: ignore[override]
        return self.policy.problems

    @property
    def settings(self) -> frozenset[str]:  # type: ignore[override]
        return self.policy.settings

    def set(self, name: str, value: float | Train, now: float) -> Sequence[Decision]:
        return self.policy.set(name, value, now)

    def workers(self, boxes: int, requested: int) -> int:
        return self.policy.workers(boxes, requested)

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        return self.policy.start(catalog, workers, seed)

    def handle(self, event: Event) -> Sequence[Decision]:
        return self.policy.handle(event)
