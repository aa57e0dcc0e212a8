"""The running application on Spark: cursors, the policy's events, and steps made of its plans.

The counterpart of ``engines.runtime``: there queues hold packets, here a queue is a range of serials that
nobody has processed.  It owns no thread and starts no job; the engine calls one method at a time.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np

from headgate.engines.report import BoxCall, BoxReport, Overhead, QueryReport, Report, Trace
from headgate.engines.runtime import Host
from headgate.engines.spark.nodes import Node, Nodes
from headgate.engines.spark.placement import ranges, share_out
from headgate.engines.spark.position import Position
from headgate.engines.spark.states import covers
from headgate.engines.spark.work import BoxCost, Lanes, Member, TaskResult, WorkOrder
from headgate.graph.network import DEAD_LETTER
from headgate.graph.operator import Operator
from headgate.graph.packet import Marker
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.interface import (
    Call,
    Changed,
    Event,
    Finished,
    Idle,
    Plan,
    Policy,
    QueueState,
    Run,
    Spawned,
    Started,
    Timer,
    Wake,
)

BUDGET = 0.25
"""Seconds that a step is predicted to take at most: jobs are not preempted."""
SLICE = 0.06
"""Seconds of work for which another task pays."""
SHUFFLE = 0.15
"""Seconds that it takes to bring packets to other tasks, beside starting the job."""
FIRST_ROWS = 65_536
"""Rows of a box's first call, whose cost is not known."""
QUEUE_ROWS = 1 << 20
"""Rows that may wait in files before a box; whoever feeds it then waits too."""
LONGEST_CHAIN = 24
"""Changes of a state before it is written as a whole again."""


@dataclass(eq=False)
class LiveNode:
    """A node while it runs."""

    node: Node
    taken: int = 0
    """Up to here steps under way have taken what waits."""
    steps: deque[Step] = field(default_factory=deque)
    """Steps under way, in the order in which they must commit."""
    stopped: bool = False
    shards: int = 1
    """How many shards its state is kept in."""
    report: QueryReport | None = None
    markers: list[Marker] = field(default_factory=list)
    restarts: int = 0


@dataclass(eq=False)
class Step:
    """A plan under way."""

    order: WorkOrder
    worker: int
    start: float
    members: dict[int, Member]
    predicted: float
    tuples: dict[int, int] = field(default_factory=dict)
    repeats: list[int] = field(default_factory=list)
    """The step that an earlier run announced under another number."""
    void: bool = False
    """A step before it failed, so what this one was given never was."""

    @property
    def number(self) -> int:
        return self.order.step


class SparkRuntime:
    """An application in motion."""

    def __init__(
        self,
        nodes: Nodes,
        position: Position,
        policy: Policy,
        host: Host,
        *,
        workers: int,
        cores: int,
        drain: bool,
        seed: int,
        root: str,
        durable: bool,
        pipeline: str,
        framed: frozenset[int],
        buckets: int,
        timer: Callable[[], float],
    ) -> None:
        self.nodes, self.position, self.policy, self.host = nodes, position, policy, host
        self.workers, self.cores, self.drain = workers, cores, drain
        self.overhead, self.trace = Overhead(), Trace()
        self.live = [LiveNode(node, position.nodes[node.key].cursor) for node in nodes.all]
        for live in self.live[len(nodes.boxes) :]:
            output = live.node.output
            assert output is not None
            live.report = QueryReport(output.name, has_qos=output.qos is not None)
        self._root, self._durable, self._pipeline, self._timer = root, durable, pipeline, timer
        self._framed = framed
        self._buckets = buckets
        for live in self.live:
            live.shards = max(1, len({covers(part) for part in position.nodes[live.node.key].state}))
        self.idle_sources: set[int] = set()
        self.under_way: dict[int, Step] = {}
        self.steps_done = 0
        self._predicted = 0.0
        self.step_seconds: dict[str, float] = {}
        self._has_finish = [
            node.operator is not None and type(node.operator).finish is not Operator.finish
            for node in nodes.all
        ]
        self.catalog = Catalog([self._entry(node) for node in nodes.boxes])
        for query in position.failed:
            self._mark(query)
        for decision in policy.start(self.catalog, workers, seed):
            self._carry_out(decision)

    def _entry(self, node: Node) -> BoxEntry:
        network = self.nodes.network
        return BoxEntry(
            node.name,
            self.workers if self.nodes.overlaps[node.place] else 1,
            tuple(network.upstream[node.place]),
            tuple(network.downstream[node.place]),
            node.queries,
            node.operator.cost if node.operator is not None else None,
        )

    # --- events -------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        begin = self._timer()
        self.catalog.apply(event)
        for decision in self.policy.handle(event):
            self._carry_out(decision)
        self.overhead.scheduler += self._timer() - begin

    def _carry_out(self, decision: Any) -> None:
        if isinstance(decision, Run):
            self.host.assign(decision.worker, decision.plan)
        elif isinstance(decision, Wake):
            for worker in decision.workers:
                self.host.wake(worker)
        else:
            self.host.set_timer(decision.at, decision.name)

    def idle(self, worker: int, now: float, overhead: float) -> None:
        self.tell(Idle(now, worker, overhead))

    def timer(self, name: str, now: float) -> None:
        self.tell(Timer(now, name))

    @property
    def outlets_wait(self) -> bool:
        """Whether an outlet has something to hand over that no box call will bring along."""
        return any(
            not live.stopped
            and not live.steps
            and live.taken < (frontier := self._frontier(live.node, {}))
            and self._count(live.node, live.taken, frontier) > 0
            for live in self.live[len(self.nodes.boxes) :]
        )

    def refresh(self, now: float, places: Iterable[int] | None = None) -> None:
        """Tell of queues that have changed: tuples were admitted, or a step has left some."""
        for node in self.nodes.boxes if places is None else [self.nodes.boxes[p] for p in places]:
            before = self.catalog.boxes[node.place].queue
            queue = self.measure(node)
            if queue.tuples == before.tuples and queue.full == before.full:
                continue
            if queue.tuples and not before.tuples:
                self.tell(Spawned(now, node.place, queue))
            else:
                self.tell(Changed(now, node.place, queue))

    def measure(self, node: Node) -> QueueState:
        live = self.live[node.place]
        if live.stopped:
            return QueueState(0)
        frontier = self._frontier(node, {})
        if frontier <= live.taken:
            return QueueState(0, self._full(node))
        rows = self._count(node, live.taken, frontier)
        if frontier == self._end + 1 and (rows or self._has_finish[node.place]):
            rows = max(rows, 1)
        oldest = mean = 0.0
        if "latency" in self.policy.needs and rows:
            oldest, mean = self._ages(node, live.taken, frontier)
        return QueueState(rows, self._full(node), oldest, mean)

    def _full(self, node: Node) -> frozenset[int]:
        own = self.position.nodes[node.key]
        return frozenset(
            feed.place
            for feed, queue in zip(node.feeds, own.queues, strict=True)
            if not feed.source and sum(file.rows for file in queue) >= QUEUE_ROWS
        )

    def _ages(self, node: Node, low: int, high: int) -> tuple[float, float]:
        """Oldest and mean arrival of what waits, in seconds of the run."""
        found = []
        own = self.position.nodes[node.key]
        for arrow, feed in enumerate(node.feeds):
            if feed.source:
                ages = self.position.offsets.sources[feed.place].arrivals(low, high)
                found += [ages] if ages else []
            else:
                found += [(f.arrival, f.arrival) for f in own.queues[arrow]]
        if not found:
            return 0.0, 0.0
        clock = self.position.clock
        return min(f[0] for f in found) - clock, sum(f[1] for f in found) / len(found) - clock

    # --- how far ------------------------------------------------------------------------------------

    @property
    def _end(self) -> int:
        """The serial of the final punctuation, should it come now."""
        return self.position.offsets.next_serial

    @property
    def _horizon(self) -> int:
        """Sources have brought everything below this; past the punctuation once they have ended."""
        offsets = self.position.offsets
        return offsets.next_serial + 1 if offsets.ended and self.drain else offsets.next_serial

    def _frontier(self, node: Node, members: dict[int, Member]) -> int:
        """The serial below which everything for a node is there, with what this step brings."""
        bound = self._horizon
        for feed in node.feeds:
            if feed.source or self.live[feed.place].stopped:
                continue  # a box that stands still brings nothing, and holds nobody back but its own query
            cursor = self.position.nodes[self.nodes.all[feed.place].key].cursor
            member = members.get(feed.place)
            if member is not None and max(self.live[node.place].taken, cursor) >= member.low:
                cursor = member.high
            bound = min(bound, cursor)
        return bound

    def _count(self, node: Node, low: int, high: int) -> int:
        """Rows between two serials that are known to wait: in sources, and in committed files."""
        rows = 0
        own = self.position.nodes[node.key]
        for arrow, feed in enumerate(node.feeds):
            if feed.source:
                admitted = self.position.offsets.sources[feed.place]
                rows += admitted.below(high) - admitted.below(low)
            else:
                rows += sum(file.below(high) - file.below(low) for file in own.queues[arrow])
        return rows

    def _cut(self, node: Node, low: int, high: int, rows: int) -> int:
        """The highest serial up to which a node finds at most ``rows``, but one tuple at least."""
        if self._count(node, low, high) <= rows:
            return high
        below, above = low, high  # rows up to ``below`` fit, up to ``above`` do not
        while above - below > 1:
            middle = (below + above) // 2
            if self._count(node, low, middle) <= rows:
                below = middle
            else:
                above = middle
        return below if self._count(node, low, below) else above

    # --- steps --------------------------------------------------------------------------------------

    def begin(self, worker: int, plan: Plan, now: float, only: frozenset[str] | None = None) -> Step | None:
        """Make a step of a plan: what each box takes, and who passes on to whom; None if there is nothing.

        ``only``: leave out the outlets of other queries.
        """
        calls: dict[int, Call] = {}
        for call in plan:
            known = calls.get(call.box)
            entry = self.catalog.boxes[call.box]
            if known is None or call.train.size(entry) > known.train.size(entry):
                calls[call.box] = call
        rows = self._bounded({place: self._wanted(call) for place, call in calls.items()})
        members: dict[int, Member] = {}
        for place in sorted(calls):
            member = self._member(self.nodes.all[place], members, rows[place])
            if member is not None:
                members[place] = member
        return self._reserve(worker, members, now, only=only)

    def drain_outlets(self, worker: int, now: float) -> Step | None:
        """A step for outlets that have something to hand over while no box has anything to do."""
        return self._reserve(worker, {}, now)

    def repeat(self, intent: dict[str, Any], now: float) -> Step | None:
        """The step that an earlier run announced and did not commit: exactly its ranges."""
        members = {}
        for key, (low, high, end) in intent["nodes"].items():
            node = self.nodes.by_key.get(key)
            if node is not None and self.live[node.place].taken == low:
                members[node.place] = Member(low, high, end=end)
        step = self._reserve(0, members, now, outlets=False) if members else None
        if step is not None:
            step.repeats = [intent["step"]]
        return step

    def _wanted(self, call: Call) -> int:
        entry = self.catalog.boxes[call.box]
        return max(1, call.train.size(entry))

    def _bounded(self, wanted: dict[int, int]) -> dict[int, int]:
        """Fewer rows where all of them would take too long."""
        known: dict[int, float] = {}
        total = fixed = 0.0
        bounded = {}
        for place, rows in wanted.items():
            entry = self.catalog.boxes[place]
            rows = min(rows, max(entry.queue.tuples, 1))
            if not entry.calls:
                rows = min(rows, FIRST_ROWS)
            bounded[place] = rows
            alone = not any(down in wanted for down in entry.downstream)
            total += rows * (entry.cost if alone else self.catalog.through(place, known))
            fixed += entry.fixed
        budget = BUDGET * (self.cores if all(self.nodes.all[p].slices for p in wanted) else 1)
        # What calls take whatever they are given cannot be saved by giving them less.
        budget = max(budget - fixed, fixed, budget / 4)
        self._predicted = min(total, budget) + fixed
        if total <= budget:
            return bounded
        return {place: max(1, int(rows * budget / total)) for place, rows in bounded.items()}

    def _member(self, node: Node, members: dict[int, Member], rows: int | None) -> Member | None:
        live = self.live[node.place]
        if live.stopped or (live.steps and not self.nodes.overlaps[node.place]):
            return None
        low, high = live.taken, self._frontier(node, members)
        if high <= low:
            return None
        if rows is not None and not self.catalog.has_room(node.place):
            return None
        if not any(not f.source and f.place in members for f in node.feeds):
            high = self._cut(node, low, high, FIRST_ROWS if rows is None else rows)
        return Member(low, high, end=self.drain and high == self._end + 1)

    def _reserve(
        self,
        worker: int,
        members: dict[int, Member],
        now: float,
        *,
        outlets: bool = True,
        only: frozenset[str] | None = None,
    ) -> Step | None:
        if outlets:
            for outlet in self.nodes.outlets:
                if only is not None and outlet.name not in only:
                    continue
                member = self._member(outlet, members, None)
                if member is not None:
                    members[outlet.place] = member
        if not members:
            return None
        count, lanes = self._lanes(members)
        tuples = {}
        for place, member in members.items():
            node = self.nodes.all[place]
            tuples[place] = self._count(node, member.low, member.high)
            self._fill(node, member)
        low = min(m.low for m in members.values())
        high = max(m.high for m in members.values())
        slices = self._slices(members, low, high, count)
        order = WorkOrder(
            self.position.step + 1,
            uuid.uuid4().hex[:8],
            self._root,
            self._durable,
            self._pipeline,
            self.position.clock,
            members,
            slices,
            [self._pieces(members, *part) for part in slices],
            framed=self._framed,
            lanes=lanes if len(slices) > 1 else None,
            letters=self.nodes.network.dead_letter is not None and DEAD_LETTER not in self.position.failed,
        )
        self.position.step += 1
        step = Step(order, worker, now, members, self._predicted if outlets else BUDGET, tuples)
        for place, member in members.items():
            live = self.live[place]
            live.taken = member.high
            live.steps.append(step)
        self.under_way[step.number] = step
        for place in sorted(members):
            if place < len(self.nodes.boxes):
                self.tell(Started(now, worker, place, tuples[place], self.measure(self.nodes.all[place])))
        return step

    def _fill(self, node: Node, member: Member) -> None:
        """What a node's task needs to know beside its range."""
        own = self.position.nodes[node.key]
        for arrow, queue in enumerate(own.queues):
            names = [f.name for f in queue if f.last >= member.low and f.first < member.high]
            if names:
                member.queues[arrow] = names
        if not node.stateful:
            return
        member.state, member.buckets = list(own.state), self._buckets
        member.shards = ranges(self.live[node.place].shards, self._buckets)
        wanted = {(*shard, self._buckets) for shard in member.shards}
        changes = [part.length for part in own.state if not part.full]
        base = sum(part.length for part in own.state if part.full)
        member.full = {covers(part) for part in own.state} != wanted
        member.full |= len(changes) >= LONGEST_CHAIN * len(member.shards) or sum(changes) > 4 * base + 65_536
        if len(node.ports) > 1:
            self._time_holders(node, member)

    def _time_holders(self, node: Node, member: Member) -> None:
        """Inputs of a join whose sources have ended or fallen idle do not hold its time back."""
        for port in range(len(node.ports)):
            places = self._sources_of(node, port)
            ends = [self.position.offsets.sources[p].ended_at for p in places]
            known = [end for end in ends if end is not None]
            if len(known) == len(ends):
                member.ended[port] = max(known, default=0)
            elif all(
                end is not None or place in self.idle_sources for end, place in zip(ends, places, strict=True)
            ):
                member.idle.append(port)

    def _sources_of(self, node: Node, port: int) -> list[int]:
        network = self.nodes.network
        sources = network.sources_of(network.boxes[node.place].ports[port])
        return [place for place, source in enumerate(network.sources) if source in sources]

    def _slices(self, members: dict[int, Member], low: int, high: int, count: int) -> list[tuple[int, int]]:
        cuts = np.linspace(low, high, min(count, high - low) + 1).astype(np.int64).tolist()
        return list(pairwise(cuts))

    def _lanes(self, members: dict[int, Member]) -> tuple[int, Lanes | None]:
        """How many slices a step is cut into, and how it is shared out behind them."""
        nodes = [self.nodes.all[place] for place in members]
        framed = any(f.source and f.place in self._framed for node in nodes for f in node.feeds)
        count = 1 if framed else max(1, min(self.cores, ceil(self._predicted / SLICE)))
        if count == 1 or all(node.slices for node in nodes):
            return count, None
        if self._predicted * (1 - 1 / count) < SHUFFLE:
            return 1, None
        weights = {n.place: self._weight(n.place) for n in nodes if n.operator is not None}
        lanes = share_out(self.nodes, sorted(members), weights, count)
        for place in lanes.split:
            self.live[place].shards = count
        return count, lanes

    def _weight(self, place: int) -> float:
        entry = self.catalog.boxes[place]
        return entry.busy / max(entry.calls, 1)

    def _pieces(self, members: dict[int, Member], low: int, high: int) -> dict[int, Any]:
        ranges: dict[int, tuple[int, int]] = {}
        for place, member in members.items():
            for feed in self.nodes.all[place].feeds:
                if feed.source:
                    start, end = ranges.get(feed.place, (1 << 62, 0))
                    ranges[feed.place] = (min(start, member.low), max(end, member.high))
        sources = self.position.offsets.sources
        return {
            place: sources[place].pieces(max(start, low), min(end, high))
            for place, (start, end) in ranges.items()
            if max(start, low) < min(end, high)
        }

    def spent(self, what: str, seconds: float) -> None:
        """Lock held: say where a step's time went."""
        self.step_seconds[what] = self.step_seconds.get(what, 0.0) + seconds

    def turn(self, step: Step) -> bool:
        """Whether every step that must be committed before this one has been."""
        return all(self.live[place].steps[0] is step for place in step.members)

    # --- the end of a step --------------------------------------------------------------------------

    def record(self, step: Step, results: Sequence[TaskResult]) -> dict[str, Any]:
        """What the log says of a step that worked."""
        nodes: dict[str, Any] = {}
        for place, member in step.members.items():
            nodes[self.nodes.all[place].key] = {"cursor": member.high}
        for result in results:
            for place, cost in result.costs.items():
                own = nodes[self.nodes.all[place].key]
                own["in"] = own.get("in", 0) + cost.tuples_in
                own["out"] = own.get("out", 0) + cost.tuples_out
                own["late"] = own.get("late", 0) + cost.late
            for place, (version, parts) in result.states.items():
                own = nodes[self.nodes.all[place].key]
                own["version"] = version
                own.setdefault("state", []).extend(_data(part) for part in parts)
            for (place, arrow), file in result.queued.items():
                own = nodes.setdefault(self.nodes.all[place].key, {})
                own.setdefault("queued", {}).setdefault(str(arrow), []).append(_data(file))
        return {"kind": "step", "step": step.number, "repeats": step.repeats, "nodes": nodes}

    def finish(self, step: Step, results: Sequence[TaskResult], now: float) -> None:
        """A step has been committed and the position knows it: tell the policy."""
        self._release(step)
        self.steps_done += 1
        costs: dict[int, BoxCost] = {}
        for result in results:
            for place, cost in result.costs.items():
                total = costs.setdefault(place, BoxCost())
                total.tuples_in += cost.tuples_in
                total.tuples_out += cost.tuples_out
                total.seconds += cost.seconds
        start = step.start
        for place in sorted(step.members):
            if place >= len(self.nodes.boxes):
                continue
            cost = costs.get(place, BoxCost())
            end = start + cost.seconds
            name = self.nodes.all[place].name
            self.trace.add(BoxCall(step.worker, name, cost.tuples_in, start, end))
            start = end
            self.tell(Finished(now, step.worker, place, cost.tuples_in, cost.tuples_out, cost.seconds, 0.0))
        self.settle()
        self.refresh(now)

    def abandon(self, step: Step, now: float) -> None:
        """A step did not work: everything it took waits again, and steps that built on it are void."""
        for place in () if step.void else step.members:
            steps = list(self.live[place].steps)
            for later in steps[steps.index(step) + 1 :]:
                later.void = True
        self._release(step)
        for place in () if step.void else step.members:
            live = self.live[place]
            good = [s.members[place].high for s in live.steps if not s.void]
            live.taken = max(good, default=self.position.nodes[live.node.key].cursor)
        for place in sorted(step.members):
            if place < len(self.nodes.boxes):
                self.tell(Finished(now, step.worker, place, 0, 0, 0.0, 0.0))
        self.refresh(now)

    def _release(self, step: Step) -> None:
        for place in step.members:
            self.live[place].steps.remove(step)
        self.under_way.pop(step.number, None)

    def settle(self) -> dict[str, Any]:
        """Let the punctuation pass nodes that have nothing to close; returns what the log should say."""
        passed: dict[str, Any] = {}
        if not (self.position.offsets.ended and self.drain):
            return passed
        for live in self.live:
            own = self.position.nodes[live.node.key]
            if live.stopped or live.steps or own.cursor != live.taken or own.cursor > self._end:
                continue
            if self._has_finish[live.node.place] or self._frontier(live.node, {}) <= self._end:
                continue
            if self._count(live.node, live.taken, self._end + 1) == 0:
                own.cursor = live.taken = self._end + 1
                passed[live.node.key] = {"cursor": own.cursor}
        return passed

    @property
    def done(self) -> bool:
        """Nothing is left to do."""
        alive = [live for live in self.live if not live.stopped]
        if not alive:
            return True
        if not (self.position.offsets.ended and self.drain) or self.under_way:
            return False
        return all(self.position.nodes[live.node.key].cursor > self._end for live in alive)

    # --- queries that fail --------------------------------------------------------------------------

    def stop_query(self, query: str, error: BaseException, now: float) -> None:
        """Stop a query with its error; boxes that no other query needs stand still with it."""
        report = self.outlet(query).report
        assert report is not None
        report.error = error
        self._mark(query)
        for node in self.nodes.boxes:
            if self.live[node.place].stopped:
                self.tell(Changed(now, node.place, QueueState(0)))

    def _mark(self, query: str) -> None:
        self.position.failed.setdefault(query, "")
        for live in self.live:
            live.stopped = all(q in self.position.failed for q in live.node.queries)

    def restart_query(self, query: str, now: float) -> None:
        """Let a stopped query go on from its last commit."""
        self.position.failed.pop(query, None)
        live = self.outlet(query)
        assert live.report is not None
        live.report.error = None
        live.restarts += 1
        for each in self.live:
            each.stopped = all(q in self.position.failed for q in each.node.queries)
            if not each.steps:
                each.taken = self.position.nodes[each.node.key].cursor
        self.refresh(now)

    def outlet(self, query: str) -> LiveNode:
        return next(o for o in self.live[len(self.nodes.boxes) :] if o.node.name == query)

    def backlog(self, outlet: Node) -> int:
        """Tuples that wait anywhere for a query."""
        boxes = [node for node in self.nodes.boxes if outlet.name in node.queries]
        return sum(self._count(n, self.live[n.place].taken, self._end) for n in (*boxes, outlet))

    # --- report -------------------------------------------------------------------------------------

    def report(self, seconds: float, tuples: Sequence[int]) -> Report:
        network = self.nodes.network
        rows = {s.name: n for s, n in zip(network.sources, tuples, strict=True)}
        for live in self.live[len(self.nodes.boxes) :]:
            report, output = live.report, live.node.output
            assert report is not None
            assert output is not None
            report.tuples_in = sum(rows[s.name] for s in network.sources_of(output.port))
            boxes = network.queries.get(output.name, ())
            report.late = sum(self.position.nodes[self.nodes.all[b].key].late for b in boxes)
            report.measure(live.markers)
        return Report(
            engine="spark",
            policy=self.policy.name,
            workers=self.workers,
            seconds=seconds,
            tuples=sum(rows.values()),
            queries={live.node.name: live.report for live in self.live if live.report is not None},
            boxes={
                e.name: BoxReport(
                    e.name, e.calls, e.tuples_in, e.tuples_out, e.cost, e.selectivity, e.call_overhead, e.busy
                )
                for e in self.catalog.boxes
            },
            overhead=Overhead(self.overhead.worker, self.overhead.storage, self.overhead.scheduler),
            trace=self.trace,
            steps=self.steps_done,
            step_seconds=dict(self.step_seconds),
        )


def _data(part: Any) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__slots__}
