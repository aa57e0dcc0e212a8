"""What policies make of queries that compete where a plan costs something to start: steps, in virtual time.

A small model of Spark: a queue is a range of a stream that never ends, a step takes its overhead and the
seconds of its boxes, nothing interrupts it, and a query is in one step at a time.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import pytest

import headgate as hg
from headgate.scheduling import policies
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.interface import (
    Changed,
    Decision,
    Event,
    Finished,
    Idle,
    QueueState,
    Run,
    Spawned,
    Started,
    Wake,
)
from headgate.scheduling.policies.priority import OLDEST_EVERY

TIGHT = hg.QoS([(0, 1), (0.5, 1), (2, 0)])
LOOSE = hg.QoS([(0, 1), (5, 1), (20, 0)])
QUERIES = 60
COST = 0.001
"""Seconds of a tuple in a query: two workers keep up with 2 / (60 * COST) tuples a second, but for overhead."""
OVERHEAD = 0.1
BURST = 0.05
LONGEST = 0.25
"""Seconds of boxes in a step, whatever the policy says."""


@dataclass
class Steps:
    """Runs a policy over queries of one box each, all of the same cost, every third tight."""

    policy: str
    load: float
    seconds: float
    workers: int = 2
    queries: int = QUERIES
    sizes: list[list[int]] = field(default_factory=list)
    """Of every step, its queries."""
    trains: dict[int, list[int]] = field(default_factory=dict)
    worth: dict[int, float] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)

    def run(self) -> Steps:
        self.rate = self.load * self.workers / (self.queries * COST)
        self.goals = {f"q{n}": LOOSE if n % 3 else TIGHT for n in range(self.queries)}
        entries = [BoxEntry(f"b{n}", 1, (), (), (f"q{n}",), sources=1) for n in range(self.queries)]
        self.catalog = Catalog(entries, self.goals)
        self.chosen = policies.get(self.policy)
        self.taken = [0] * self.queries
        self.worth = dict.fromkeys(range(self.queries), 0.0)
        self.answered = dict.fromkeys(range(self.queries), 0)
        self.trains = {n: [] for n in range(self.queries)}
        self.parked: set[int] = set()
        self.plans: dict[int, Run] = {}
        self._carry_out(self.chosen.start(self.catalog, self.workers))
        happens: list[tuple[float, int, int, list[tuple[int, int, int]]]] = [
            (0.01 * worker, worker, worker, []) for worker in range(self.workers)
        ]
        number = self.workers
        while happens and happens[0][0] < self.seconds:
            now, _, worker, done = heapq.heappop(happens)
            for box, low, high in done:
                self._delivered(box, low, high, now)
                rows = high - low
                self._tell(Finished(now, worker, box, rows, rows, rows * COST, 0.0))
            self._refresh(now)
            self.plans.pop(worker, None)
            self._tell(Idle(now, worker, OVERHEAD if done else 0.0))
            step = self._begin(worker, now)
            number += 1
            busy = OVERHEAD + COST * sum(high - low for _, low, high in step) if step else BURST
            heapq.heappush(happens, (now + busy, number, worker, step))
        return self

    def _arrived(self, now: float) -> int:
        return int(int(now / BURST + 1e-9) * BURST * self.rate)

    def _refresh(self, now: float) -> None:
        for box in range(self.queries):
            low, high = self.taken[box], self._arrived(now)
            queue = QueueState(high - low, oldest=low / self.rate, mean=(low + high) / 2 / self.rate)
            before = self.catalog.boxes[box].queue.tuples
            if queue.tuples != before:
                self._tell(Changed(now, box, queue) if before else Spawned(now, box, queue))

    def _begin(self, worker: int, now: float) -> list[tuple[int, int, int]]:
        run = self.plans.pop(worker, None)
        if run is None:
            return []
        rows = {call.box: call.train.size(self.catalog.boxes[call.box]) for call in run.plan}
        share = min(1.0, LONGEST / (COST * sum(rows.values())))
        step = []
        for box, count in rows.items():
            low = self.taken[box]
            high = self.taken[box] = low + max(1, int(count * share))
            step.append((box, low, high))
            self.trains[box].append(high - low)
            left = QueueState(self._arrived(now) - high, oldest=high / self.rate, mean=high / self.rate)
            self._tell(Started(now, worker, box, high - low, left))
        self.sizes.append([box for box, _, _ in step])
        return step

    def _delivered(self, box: int, low: int, high: int, now: float) -> None:
        goal = self.goals[f"q{box}"]
        self.answered[box] += high - low
        self.worth[box] += sum(goal.utility(now - tuple_ / self.rate) for tuple_ in range(low, high))

    def _tell(self, event: Event) -> None:
        self.catalog.apply(event)
        self._carry_out(self.chosen.handle(event))

    def _carry_out(self, decisions: object) -> None:
        for decision in decisions:  # type: ignore[attr-defined]
            if isinstance(decision, Run):
                self.plans[decision.worker] = decision

    def utility(self, tight: bool) -> float:
        """Mean over the queries; what arrived and was not answered by the end is worth nothing."""
        arrived = self._arrived(self.seconds - 1.0)
        own = [min(w / arrived, 1.0) for n, w in self.worth.items() if (n % 3 == 0) == tight]
        return sum(own) / len(own)
