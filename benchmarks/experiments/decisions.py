"""What a decision costs: from the events since the last one to the plan, by the number of boxes.

Two shapes: boxes side by side, where a plan is one call; and applications in a straight line of five boxes
(Aurora, section 6.3), where a plan is a box and all that follows it.  QoS graphs are of several kinds, costs
are measured, and tuples wait at every box: the worst case.  A worker asks, runs the calls of its plan one
after the other, each with the events that an engine sends, and asks again; meanwhile tuples arrive at the
applications in turn.  Time passes as in a busy system, so boxes change their buckets all the while.

Everything that the scheduler does with these events is counted: the catalog taking them in, the policy
handling them, re-bucketing, and the choice.  It is CPU time of the one thread that decides, so most of what
else the machine does is not counted.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from rich.console import Console
from rich.table import Table

from benchmarks.result import Result
from headgate.graph.qos import QoS
from headgate.scheduling import policies
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.events import Event, Finished, Idle, QueueState, Spawned, Started
from headgate.scheduling.interface import Decision, Plan, Run

SHAPES = {"side by side": 1, "lines of five": 5}
"""Boxes of an application."""
GRAPHS = (
    QoS([(0, 1), (0.5, 1), (2, 0)]),
    QoS([(0, 1), (5, 1), (20, 0)]),
    QoS([(0, 1), (0.001, 1), (1, 0)]),
    QoS([(0, 1), (4, 1), (5, 0)]),
    QoS([(0, 1), (0.1, 0.9), (0.5, 0.7), (2, 0.4), (8, 0.1), (30, 0)]),
)
TUPLE_SECONDS = 20e-6
"""About what a tuple costs in a box."""
YOUNGEST, OLDEST = 0.01, 40.0
"""Mean latencies of the queues at the beginning, spread evenly over their orders of magnitude."""
SIZES = (10, 100, 1_000, 10_000)
ROUNDS = 3
"""The least disturbed of so many runs counts."""


@dataclass
class Cost:
    """What a decision cost, on average."""

    seconds: float
    events: float
    """Events from one plan to the next."""


class World:
    """The part of an engine that makes the events: queues, calls and the passing of time."""

    def __init__(self, boxes: int, depth: int, seed: int) -> None:
        self.depth = depth
        self.draw = random.Random(seed)
        self.entries = [self._box(place) for place in range(boxes)]
        goals = {f"q{query}": GRAPHS[query % len(GRAPHS)] for query in range(-(-boxes // self.depth))}
        self.catalog = Catalog(self.entries, goals)
        self.now = OLDEST
        self._arriving = count()

    def _box(self, place: int) -> BoxEntry:
        first, last = place % self.depth == 0, place % self.depth == self.depth - 1
        upstream, downstream = () if first else (place - 1,), () if last else (place + 1,)
        return BoxEntry(
            f"box-{place}",
            1,
            upstream,
            downstream,
            (f"q{place // self.depth}",),
            fed_by=(0,) if first else (),
        )

    def queue(self, age: float) -> QueueState:
        """Tuples whose mean latency is that, the oldest up to twice as old."""
        mean = self.now - age
        return QueueState(self.draw.randint(50, 200), oldest=mean - age * self.draw.random(), mean=mean)

    def beginning(self) -> list[Event]:
        """Every box gets its tuples."""
        ratio = OLDEST / YOUNGEST
        ages = [YOUNGEST * ratio ** self.draw.random() for _ in self.entries]
        return [Spawned(self.now, place, self.queue(age)) for place, age in enumerate(ages)]

    def events(self, plan: Plan) -> list[Event]:
        """The calls of a plan, an application's next arrivals, and a worker that asks again."""
        found: list[Event] = []
        for call in plan:
            before = self.catalog.boxes[call.box].queue
            taken = max(1, min(100, call.train.size(self.entries[call.box])))
            seconds = taken * TUPLE_SECONDS * self.draw.uniform(0.7, 1.3)
            # What is left came later: it is younger than what was taken, and sometimes much.
            left = self.queue((self.now - before.mean) * self.draw.random())
            found.append(Started(self.now, 0, call.box, taken, left))
            self.now += seconds
            downstream = [(place, self._longer(place, before)) for place in self.entries[call.box].downstream]
            found.append(Finished(self.now, 0, call.box, taken, taken, seconds, 5e-6, tuple(downstream)))
        place = next(self._arriving) * self.depth % len(self.entries)
        found.append(Spawned(self.now, place, self._longer(place, QueueState(20, mean=self.now))))
        found.append(Idle(self.now, 0))
        return found

    def _longer(self, place: int, more: QueueState) -> QueueState:
        """A queue to which as many tuples have come as it can hold next to the others."""
        queue = self.catalog.boxes[place].queue
        share = min(0.5, more.tuples / (queue.tuples + more.tuples))
        mean = (1 - share) * queue.mean + share * more.mean
        return QueueState(min(queue.tuples + more.tuples, 200), oldest=min(queue.oldest, mean), mean=mean)


def measure(name: str, boxes: int, depth: int, decisions: int, warm_up: int, seed: int = 0) -> Cost:
    """Let a policy decide so often, after it has run for a while.

    As it decides alike for the same events, these are found first and then played again, in one go.
    """
    world = World(boxes, depth, seed)
    decide = _started(name, world.catalog)
    events = world.beginning()
    for event in events:
        decide(event)
    following: list[Event] = [Idle(world.now, 0)]
    begin = 0
    for decision in range(warm_up + decisions):
        if decision == warm_up:
            begin = len(events)
        for event in following:
            decided = decide(event)
        events += following
        [run] = decided
        assert isinstance(run, Run)
        following = world.events(run.plan)
    seconds = min([_play(name, World(boxes, depth, seed).catalog, events, begin) for _ in range(ROUNDS)])
    return Cost(seconds / decisions, (len(events) - begin) / decisions)


def _started(name: str, catalog: Catalog) -> Callable[[Event], Sequence[Decision]]:
    policy = policies.get(name)
    policy.start(catalog, 1)

    def decide(event: Event) -> Sequence[Decision]:
        catalog.apply(event)
        return policy.handle(event)

    return decide


def _play(name: str, catalog: Catalog, events: Sequence[Event], begin: int) -> float:
    """CPU seconds from that event on."""
    decide = _started(name, catalog)
    for event in events[:begin]:
        decide(event)
    gc.collect()
    gc.disable()
    try:
        start = time.thread_time()
        for event in events[begin:]:
            decide(event)
        return time.thread_time() - start
    finally:
        gc.enable()


def run(quick: bool, console: Console) -> list[Result]:
    """A table for each shape, then the claims."""
    results = []
    for shape, depth in SHAPES.items():
        costs = _costs(depth, quick)
        table = Table(title=f"CPU microseconds per decision, {shape}", title_justify="left")
        for column in ("boxes", "qos", "qos_bucketed", "ratio", "events per decision"):
            table.add_column(column, justify="right")
        for boxes in SIZES:
            exact, bucketed = costs["qos", boxes], costs["qos_bucketed", boxes]
            table.add_row(
                f"{boxes:,}",
                f"{exact.seconds * 1e6:,.1f}",
                f"{bucketed.seconds * 1e6:,.1f}",
                f"{exact.seconds / bucketed.seconds:,.1f}",
                f"{bucketed.events:.1f}",
            )
        console.print(table)
        results += _claims(shape, costs)
    return results


def _costs(depth: int, quick: bool) -> dict[tuple[str, int], Cost]:
    costs = {}
    for boxes in SIZES:
        fast = 2_000 if quick else 20_000
        slow = max(10, min(fast, fast * 5 // boxes))
        # Queues as they are at the beginning soon change; the exact policy's cost does not depend on that.
        for name, decisions, warm_up in (("qos", slow, slow // 4), ("qos_bucketed", fast, max(boxes, 500))):
            costs[name, boxes] = measure(name, boxes, depth, decisions, warm_up)
    return costs


def _claims(shape: str, costs: dict[tuple[str, int], Cost]) -> list[Result]:
    source = "Aurora, section 6.2"
    micros = {key: cost.seconds * 1e6 for key, cost in costs.items()}
    results = []
    for (name, boxes), measured in micros.items():
        claimed = name == "qos_bucketed"
        claim = "µs per decision" + (": at most 20" if claimed else "")
        holds = measured <= 20 if claimed else None
        results.append(
            Result(f"decisions, {shape}, {name}, {boxes:,} boxes", source, claim, measured, None, holds)
        )
    many, few, exact = micros["qos_bucketed", 10_000], micros["qos_bucketed", 100], micros["qos", 10_000]
    name = f"decisions, {shape}, qos_bucketed, 10,000 boxes"
    return [
        *results,
        Result(f"{name} against 100", source, "µs: at most twice", many, few, many <= 2 * few),
        Result(f"{name} against qos", source, "µs: at most a twentieth", many, exact, 20 * many <= exact),
    ]
