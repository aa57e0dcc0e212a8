"""What a decision costs: from the events since the last one to the plan, by the number of boxes.

Applications in a straight line of five boxes (Aurora, section 6.3), with QoS graphs of several kinds, measured
costs, and tuples waiting at every box: the worst case.  A worker asks, runs the calls of its plan one after the
other, each with the events that an engine sends, and asks again; meanwhile tuples arrive at the applications in
turn.  Time passes as in a system that is busy, so boxes change their buckets all the while.

Everything that the scheduler does with these events is counted: the catalog taking them in, the policy handling
them, re-bucketing, and the choice.  It is CPU time of the one thread that decides, so whatever else the machine
does is not counted.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from rich.console import Console
from rich.table import Table

from headgate.bench.result import Result
from headgate.graph.qos import QoS
from headgate.scheduling import policies
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.interface import Event, Finished, Idle, Plan, Policy, QueueState, Run, Spawned, Started

DEPTH = 5
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

    def __init__(self, boxes: int, seed: int) -> None:
        self.draw = random.Random(seed)
        self.entries = [self._box(place) for place in range(boxes)]
        goals = {f"q{query}": GRAPHS[query % len(GRAPHS)] for query in range(-(-boxes // DEPTH))}
        self.catalog = Catalog(self.entries, goals)
        self.now = OLDEST
        self._arriving = count()

    def _box(self, place: int) -> BoxEntry:
        first, last = place % DEPTH == 0, place % DEPTH == DEPTH - 1
        upstream, downstream = () if first else (place - 1,), () if last else (place + 1,)
        return BoxEntry(f"box-{place}", 1, upstream, downstream, (f"q{place // DEPTH}",), sources=int(first))

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
        place = next(self._arriving) * DEPTH % len(self.entries)
        found.append(Spawned(self.now, place, self._longer(place, QueueState(20, mean=self.now))))
        found.append(Idle(self.now, 0))
        return found

    def _longer(self, place: int, more: QueueState) -> QueueState:
        """A queue to which as many tuples have come as it can hold beside the others."""
        queue = self.catalog.boxes[place].queue
        share = min(0.5, more.tuples / (queue.tuples + more.tuples))
        mean = (1 - share) * queue.mean + share * more.mean
        return QueueState(min(queue.tuples + more.tuples, 200), oldest=min(queue.oldest, mean), mean=mean)


def measure(policy: Policy, boxes: int, decisions: int, warm_up: int, seed: int = 0) -> Cost:
    """Let a policy decide so often, after it has run for a while."""
    world = World(boxes, seed)
    catalog = world.catalog
    policy.start(catalog, 1)
    for event in world.beginning():
        catalog.apply(event)
        policy.handle(event)
    events: Sequence[Event] = [Idle(world.now, 0)]
    seconds, handled = 0.0, 0
    gc.collect()
    gc.disable()
    try:
        for decision in range(warm_up + decisions):
            begin = time.thread_time()
            for event in events:
                catalog.apply(event)
                decided = policy.handle(event)
            spent = time.thread_time() - begin
            if decision >= warm_up:
                seconds += spent
                handled += len(events)
            [run] = decided
            assert isinstance(run, Run)
            events = world.events(run.plan)
    finally:
        gc.enable()
    return Cost(seconds / decisions, handled / decisions)


def run(quick: bool, console: Console) -> list[Result]:
    """The table by number of boxes, then the claims."""
    table = Table(title="CPU microseconds per decision", title_justify="left")
    for column in ("boxes", "qos", "qos_bucketed", "ratio", "events per decision"):
        table.add_column(column, justify="right")
    costs: dict[tuple[str, int], Cost] = {}
    for boxes in (10, 100, 1_000, 10_000):
        slow = max(20, (20_000 if quick else 200_000) // boxes)
        fast = 2_000 if quick else 20_000
        for name, decisions in (("qos", min(slow, fast)), ("qos_bucketed", fast)):
            runs = [measure(policies.get(name), boxes, decisions, decisions // 4) for _ in range(ROUNDS)]
            costs[name, boxes] = min(runs, key=lambda cost: cost.seconds)
        exact, bucketed = costs["qos", boxes], costs["qos_bucketed", boxes]
        table.add_row(
            f"{boxes:,}",
            f"{exact.seconds * 1e6:,.1f}",
            f"{bucketed.seconds * 1e6:,.1f}",
            f"{exact.seconds / bucketed.seconds:,.1f}",
            f"{bucketed.events:.1f}",
        )
    console.print(table)
    return _claims(costs)


def _claims(costs: dict[tuple[str, int], Cost]) -> list[Result]:
    source = "Aurora, section 6.2"
    results = []
    for (name, boxes), cost in costs.items():
        claimed = name == "qos_bucketed"
        claim = "µs per decision" + (": at most 20" if claimed else "")
        micros = cost.seconds * 1e6
        results.append(
            Result(
                f"decisions, {name}, {boxes:,} boxes", source, claim, micros, None, micros <= 20 if claimed else None
            )
        )
    few, many, exact = (
        costs[key].seconds * 1e6 for key in (("qos_bucketed", 100), ("qos_bucketed", 10_000), ("qos", 10_000))
    )
    name = "decisions, qos_bucketed, 10,000 boxes"
    return [
        *results,
        Result(f"{name} against 100", source, "µs: at most twice", many, few, many <= 2 * few),
        Result(f"{name} against qos", source, "µs: at most a twentieth", many, exact, 20 * many <= exact),
    ]
