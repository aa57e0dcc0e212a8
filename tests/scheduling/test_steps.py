"""What policies make of queries that compete where a plan costs something to start: steps, in virtual time.

A small model of Spark: a queue is a range of a stream that never ends, a step takes its overhead and the
seconds of its boxes, nothing interrupts it, and a query is in one step at a time.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

import headgate as hg
from brain import Brain
from headgate.scheduling import policies
from headgate.scheduling.aurora.priority import OLDEST_EVERY
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.events import Changed, Finished, Idle, QueueState, Spawned, Started
from headgate.scheduling.interface import Run

TIGHT = hg.QoS([(0, 1), (0.5, 1), (2, 0)])
LOOSE = hg.QoS([(0, 1), (5, 1), (20, 0)])
QUERIES = 60
COST = 0.001
"""Seconds of a tuple in a query; without overhead, a load of 1 is what the workers can do."""
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
    overhead: float = OVERHEAD
    sizes: list[list[int]] = field(default_factory=list)
    """Of every step, its queries."""
    trains: dict[int, list[int]] = field(default_factory=dict)
    worth: dict[int, float] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)

    def run(self) -> Steps:
        self.rate = self.load * self.workers / (self.queries * COST)
        self.goals = {f"q{n}": LOOSE if n % 3 else TIGHT for n in range(self.queries)}
        entries = [BoxEntry(f"b{n}", 1, (), (), (f"q{n}",), fed_by=(0,)) for n in range(self.queries)]
        self.brain = Brain(policies.get(self.policy), entries, self.workers, goals=self.goals)
        self.catalog = self.brain.catalog
        self.catalog.plan_limit = LONGEST
        self.taken = [0] * self.queries
        self.worth = dict.fromkeys(range(self.queries), 0.0)
        self.answered = dict.fromkeys(range(self.queries), 0)
        self.trains = {n: [] for n in range(self.queries)}
        happens: list[tuple[float, int, int, list[tuple[int, int, int]]]] = [
            (0.01 * worker, worker, worker, []) for worker in range(self.workers)
        ]
        number = self.workers
        while happens and happens[0][0] < self.seconds:
            now, _, worker, done = heapq.heappop(happens)
            for box, low, high in done:
                self._delivered(box, low, high, now)
                rows = high - low
                self.brain.tell(Finished(now, worker, box, rows, rows, rows * COST, 0.0))
            self._refresh(now)
            decided = self.brain.tell(Idle(now, worker, self.overhead if done else 0.0))
            step = self._begin(worker, now, [run for run in decided if isinstance(run, Run)])
            number += 1
            busy = self.overhead + COST * sum(high - low for _, low, high in step) if step else BURST
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
                self.brain.tell(Changed(now, box, queue) if before else Spawned(now, box, queue))

    def _begin(self, worker: int, now: float, runs: list[Run]) -> list[tuple[int, int, int]]:
        if not runs:
            return []
        [run] = runs
        rows = {call.box: call.train.size(self.catalog.boxes[call.box]) for call in run.plan}
        share = min(1.0, LONGEST / (COST * sum(rows.values())))
        step = []
        for box, count in rows.items():
            low = self.taken[box]
            high = self.taken[box] = low + max(1, int(count * share))
            step.append((box, low, high))
            self.trains[box].append(high - low)
            left = QueueState(self._arrived(now) - high, oldest=high / self.rate, mean=high / self.rate)
            self.brain.tell(Started(now, worker, box, high - low, left))
        self.sizes.append([box for box, _, _ in step])
        return step

    def _delivered(self, box: int, low: int, high: int, now: float) -> None:
        goal = self.goals[f"q{box}"]
        self.answered[box] += high - low
        self.worth[box] += sum(goal.utility(now - tuple_ / self.rate) for tuple_ in range(low, high))

    def utility(self, tight: bool) -> float:
        """Mean over the queries; what arrived and was not answered by the end is worth nothing."""
        arrived = self._arrived(self.seconds - 1.0)
        own = [min(w / arrived, 1.0) for n, w in self.worth.items() if (n % 3 == 0) == tight]
        return sum(own) / len(own)

    def calls(self, tight: bool) -> float:
        """Steps that a query is in, on average."""
        own = [len(trains) for n, trains in self.trains.items() if (n % 3 == 0) == tight]
        return sum(own) / len(own)

    def train(self, tight: bool) -> float:
        """Tuples of a train, on average."""
        own = [rows for n, trains in self.trains.items() if (n % 3 == 0) == tight for rows in trains]
        return sum(own) / len(own)


def test_tight_queries_keep_their_utility_where_application_at_a_time_loses_it() -> None:
    """Steps half full of overhead can do a load of 0.55 or so; beyond that, something has to wait."""
    for load, loose in ((0.45, 0.99), (0.66, 0.8)):
        by_worth, by_turns = Steps("qos", load, 20.0).run(), Steps("mc", load, 20.0).run()
        assert by_worth.utility(tight=True) > 0.98
        assert by_worth.utility(tight=False) > loose
    assert by_turns.utility(tight=True) < 0.5
    assert by_worth.calls(tight=True) > 4 * by_worth.calls(tight=False)
    assert by_worth.train(tight=False) > 4 * by_worth.train(tight=True)
    assert by_turns.calls(tight=True) == pytest.approx(by_turns.calls(tight=False), rel=0.2)


def test_where_starting_a_step_takes_long_tight_trains_are_not_cut_with_the_loose_ones() -> None:
    """Nobody can be in time then, but waiting loose queries must not make it worse for the tight ones."""
    steps = Steps("qos", 0.5, 20.0, overhead=0.4).run()
    assert steps.utility(tight=True) > 0.55
    assert steps.train(tight=False) > 2 * steps.train(tight=True)


@pytest.mark.parametrize("load", [0.7, 3.0])
@pytest.mark.parametrize("workers", [1, 2])
def test_no_query_waits_longer_than_the_bound(load: float, workers: int) -> None:
    """At 3 the tight ones alone are more than the workers can do, and always have something to lose."""
    steps = Steps("qos", load, 60.0, workers=workers, queries=12).run()
    bound = OLDEST_EVERY * steps.queries
    assert len(steps.sizes) > 2 * bound
    for query in range(steps.queries):
        turns = [0, *(n for n, step in enumerate(steps.sizes, 1) if query in step), len(steps.sizes)]
        assert max(later - turn for turn, later in pairwise(turns)) <= bound


def pairs() -> Brain:
    """Two queries of two boxes each, the first of which two workers may run at a time; all have tuples."""
    boxes = []
    for query in range(2):
        first = 2 * query
        boxes.append(BoxEntry(f"first-{query}", 2, (), (first + 1,), (f"q{query}",), fed_by=(0,)))
        boxes.append(BoxEntry(f"second-{query}", 1, (first,), (), (f"q{query}",)))
    brain = Brain(policies.get("qos"), boxes, 2, goals={"q0": TIGHT, "q1": LOOSE})
    brain.catalog.plan_overhead = OVERHEAD
    for box in range(4):
        brain.queue(box, 10)
    return brain


def asked(brain: Brain, times: int = 1) -> list[set[int]]:
    """The boxes of the steps that a worker is given, one after the other, if nothing else happens."""
    found = []
    for _ in range(times):
        decisions = brain.tell(Idle(1.0, 1, OVERHEAD))
        found.append({call.box for run in decisions if isinstance(run, Run) for call in run.plan})
    return found


def test_a_query_that_a_step_is_at_waits_for_it() -> None:
    """Its first box could run beside that step, but then its results would wait for two commits."""
    brain = pairs()
    brain.tell(Started(1.0, 0, 0, 5, QueueState(5, mean=0.5)))
    assert asked(brain) == [{2, 3}]


def test_with_nothing_else_to_do_only_what_can_go_all_the_way_runs_beside_a_step() -> None:
    brain = pairs()
    for box in (2, 3):
        brain.tell(Changed(1.0, box, QueueState(0)))
    brain.tell(Started(1.0, 0, 0, 5, QueueState(5, mean=0.5)))
    assert asked(brain) == [{0, 1}]
    brain.tell(Started(1.0, 0, 1, 5, QueueState(5, mean=0.5)))
    assert asked(brain) == [set()]


def test_fair_steps_take_queries_that_other_steps_are_at() -> None:
    """Else somebody whose box others keep busy could wait for ever."""
    brain = pairs()
    brain.tell(Started(1.0, 0, 0, 5, QueueState(5, mean=0.5)))
    steps = asked(brain, OLDEST_EVERY)
    assert all(step == {2, 3} for step in steps[:-1])
    assert 0 in steps[-1]


GATHERING = ["lp", "mc", "ml", "mm", "auto_traversal", "top_k", "fcfs", "chain", "bobox", "las", "nls"]


@pytest.mark.parametrize("name", GATHERING)
def test_a_step_has_as_many_boxes_as_its_start_is_worth(name: str) -> None:
    """Ten boxes with 0.1 s of work each; a plan that costs nothing to start has one."""
    for overhead, expected in ((0.0, 1), (0.25, 3), (5.0, 10)):
        entries = [BoxEntry(f"b{n}", 1, (), (), (f"q{n}",), 0.01, fed_by=(0,), request=n) for n in range(10)]
        catalog = Catalog(entries, {})
        catalog.plan_overhead = overhead
        policy = policies.get(name)
        policy.start(catalog, 1)
        for box in range(10):
            event = Spawned(0.0, box, QueueState(10, mean=0.0))
            catalog.apply(event)
            policy.handle(event)
        plan = next(d.plan for d in policy.handle(Idle(0.0, 0)) if isinstance(d, Run))
        assert len({call.box for call in plan}) == expected
        if overhead:
            assert {call.train.size(entries[call.box]) for call in plan} == {10}
