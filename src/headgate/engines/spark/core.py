"""The running application on Spark: cursors, the policy's events, and steps made of its plans.

The counterpart of ``runtime.core``: there queues hold packets, here a queue is a range of serials that
nobody has processed.  It owns no thread and starts no job; the engine calls one method at a time.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from typing import Any

from headgate.checkpoint.graph import Node, Nodes
from headgate.checkpoint.position import Position
from headgate.checkpoint.state_store import covers
from headgate.checkpoint.storage import Storage
from headgate.engines.spark.cursors import Cursors, LiveNode, Step
from headgate.engines.spark.messages import BoxCost, Member, TaskResult, longest_tasks
from headgate.engines.spark.planner import Planner
from headgate.engines.spark.sharing import ALONE, Shape
from headgate.engines.spark.shedding import as_data, of_data
from headgate.engines.spark.stimuli import (
    Announced,
    Noticed,
    QueryRestarted,
    QueryStopped,
    RunStep,
    StepAbandoned,
    StepCommitted,
    Suspected,
)
from headgate.graph.drops import RANDOM
from headgate.graph.network import Network
from headgate.graph.schema import row_bytes
from headgate.runtime.instructions import Instruction, Park
from headgate.runtime.network import box_entry
from headgate.runtime.observers import Observers
from headgate.runtime.policy_driver import PolicyDriver
from headgate.runtime.report import BoxCall, QueryReport, Report, StateReport
from headgate.runtime.shedding import report_shed
from headgate.runtime.stimuli import Asked, Free, Rescheduled, Stimulus, TakeOver, TimerDue
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.events import Arrived, Changed, Finished, QueueState, Spawned, Started
from headgate.scheduling.interface import Call, Policy, Shed
from headgate.scheduling.trains import WHOLE_QUEUE


class SparkCore:
    """An application in motion."""

    def __init__(
        self,
        nodes: Nodes,
        position: Position,
        policy: Policy,
        *,
        start: float,
        workers: int,
        cores: int,
        drain: bool,
        seed: int,
        storage: Storage,
        pipeline: str,
        framed: frozenset[int],
        buckets: int,
        timer: Callable[[], float],
        exchange: str = "",
        secret: bytes = b"",
        before: SparkCore | None = None,
    ) -> None:
        self.nodes, self.position, self._start = nodes, position, start
        self.cursors = Cursors(nodes, position, drain, start)
        self.live = self.cursors.live
        self.catalog = Catalog([_entry(nodes, node, workers) for node in nodes.boxes], nodes.network.goals)
        self.planner = Planner(
            self.cursors,
            self.catalog,
            cores=cores,
            storage=storage,
            pipeline=pipeline,
            framed=framed,
            buckets=buckets,
            exchange=exchange,
            secret=secret,
        )
        self._out: list[Instruction] = []
        self.observers = Observers()
        self.driver = PolicyDriver(policy, self.catalog, self, self._out, timer, seed)
        self.driver.workers = self.driver.requested = workers
        for live in self.live[len(nodes.boxes) :]:
            output = live.node.output
            assert output is not None
            live.report = QueryReport(output.name, has_qos=output.qos is not None)
        self.expected = 0
        """Requests that are planned and have not come yet."""
        self.requests: Sized = ()
        """Requests that run beside the application."""
        self.under_way: dict[int, Step] = {}
        self.steps_done = 0
        self.step_seconds: dict[str, float] = {}
        self.state = StateReport()
        self.chosen = ""
        """The sizes that the engine chose, for the report."""
        self._tells_arrivals = False
        self._arrived = [own.rows for own in position.offsets.sources]
        self._left: dict[str, QueryReport] = {}
        """Of queries that were removed."""
        self._handlers: dict[type, Callable[..., None]] = {
            Free: self._free,
            Noticed: lambda s, now: self.refresh(now),
            Announced: self._announced,
            Suspected: self._suspected,
            StepCommitted: lambda s, now: self._finish(s.step, s.results, s.refused, now),
            StepAbandoned: lambda s, now: self._abandon(s.step, now),
            QueryStopped: lambda s, now: self._stop_query(s.query, s.error, now),
            QueryRestarted: lambda s, now: self._restart_query(s.query, now),
            TimerDue: self._timer_due,
            Rescheduled: lambda s, now: self.driver.rescheduled(now),
            Asked: lambda s, now: self.driver.change(s.change, s.fit, now),
            TakeOver: lambda s, now: self.driver.take_over(s.policy, s.requested, now),
        }
        for query in position.failed:
            self._mark(query)
        if before is not None:
            self._go_on(before)

    @property
    def network(self) -> Network:
        network: Network = self.nodes.network
        return network

    def start(self) -> list[Instruction]:
        """Let the policy begin."""
        self.driver.start(self.driver.workers, self.driver.requested)
        return self._taken()

    def handle(self, stimulus: Stimulus, now: float) -> list[Instruction]:
        """Take in what happened; what there is to do about it, in order."""
        self._handlers[type(stimulus)](stimulus, now)
        taken = self._taken()
        if self.observers:
            self.observers.tell(stimulus, taken, now, self.driver.problems)
        return taken

    def _taken(self) -> list[Instruction]:
        taken = self._out[:]
        self._out.clear()
        return taken

    def _free(self, stimulus: Free, now: float) -> None:
        """A worker asks: a step of its plan, or of what outlets have to hand over, or it parks."""
        worker, plans = stimulus.worker, self.driver.plans
        self.refresh(now)
        plans.pop(worker, None)
        self.driver.idle(worker, now, stimulus.overhead)
        plan = plans.pop(worker, None)
        if plan is not None:
            step = self._reserve(worker, self.planner.taken_by(plan), now)
        else:  # outlets may have something to hand over while no box has anything to do
            step = self._reserve(worker, {}, now) if self.cursors.outlets_wait else None
        self._out.append(Park(worker, plan is not None) if step is None else RunStep(worker, step))

    def _go_on(self, before: SparkCore) -> None:
        """What an earlier run with other queries has measured is this one's."""
        self.catalog.since = time.time() - self._start
        self.catalog.plan_overhead = before.catalog.plan_overhead
        driver, self.steps_done = before.driver, before.steps_done
        self.driver.overhead, self.driver.trace = driver.overhead, driver.trace
        self.step_seconds, self.driver.problems = before.step_seconds, driver.problems
        self.state, self.planner.sharing = before.state, before.planner.sharing
        places = {node.key: node.place for node in self.nodes.all}
        for was in before.live:
            place = places.get(was.node.key)
            if place is None:
                if was.report is not None:
                    was.report.removed = True
                    self._left[was.node.name] = was.report
                continue
            live = self.live[place]
            live.report, live.markers, live.restarts = was.report, was.markers, was.restarts
            live.held = was.held
            if place < len(self.nodes.boxes):
                self.catalog.boxes[place].learn_from(before.catalog.boxes[was.node.place])
        for (reason, place), tuples in before.cursors.shedding.dropped.items():
            now = places.get(before.nodes.all[place].key)
            if now is not None:
                self.cursors.shedding.dropped[reason, now] = tuples
        self._left |= before._left

    def measure_for(self, needs: frozenset[str]) -> None:
        self.cursors.latency = "latency" in needs or "head" in needs
        self._tells_arrivals = "arrivals" in needs

    # --- another policy, more or fewer workers ------------------------------------------------------

    def measure_all(self) -> list[QueueState]:
        self.cursors.latency = True
        return [self.cursors.measure(node) for node in self.nodes.boxes]

    def make_lanes(self, workers: int) -> None:
        for node, entry in zip(self.nodes.boxes, self.catalog.boxes, strict=True):
            entry.lanes = workers if self.nodes.overlaps[node.place] else 1

    def open_gates(self) -> None:
        for place in range(len(self.nodes.boxes)):
            self.shed(Shed(place, 0.0))

    def tasks(self, now: float) -> Iterator[Spawned]:
        for place, entry in enumerate(self.catalog.boxes):
            if entry.queue.tuples:
                yield Spawned(now, place, entry.queue)

    def set_packet_rows(self, rows: int) -> None:
        """Tasks cut their own packets."""

    # --- events -------------------------------------------------------------------------------------

    def refresh(self, now: float, worker: int | None = None) -> None:
        """Tell of queues that have changed: tuples were admitted, or a worker's step has left some."""
        if self._tells_arrivals:
            self._tell_arrivals(now)
        for place in self.cursors.stale_boxes():
            entry = self.catalog.boxes[place]
            before, queue = entry.queue, self.cursors.measure(self.nodes.all[place])
            if queue.tuples == before.tuples and queue.full == before.full:
                continue
            if queue.tuples and not before.tuples:
                sent = worker is not None and not entry.fed_by
                self.driver.tell(Spawned(now, place, queue, sent, worker, entry.request))
            else:
                self.driver.tell(Changed(now, place, queue))

    def _timer_due(self, stimulus: TimerDue, now: float) -> None:
        """A policy that counts arrivals hears of them also while all workers are busy with long steps."""
        if self._tells_arrivals:
            self.refresh(now)
        self.driver.timer(stimulus.key, now)

    def _tell_arrivals(self, now: float) -> None:
        """Nothing holds a source back here: what has come is admitted, so it is as new as the time."""
        for place, own in enumerate(self.position.offsets.sources):
            came, self._arrived[place] = own.rows - self._arrived[place], own.rows
            if came:
                self.driver.tell(Arrived(now, place, came, now))

    def shed(self, decision: Shed) -> None:
        self.cursors.shedding.set(decision)
        self.cursors.stale.add(decision.box)

    # --- steps --------------------------------------------------------------------------------------

    def _suspected(self, stimulus: Suspected, now: float) -> None:
        only = stimulus.queries
        places = {live.node.place for query in only for live in self.cursors.of_query[query]}
        boxes = [place for place in sorted(places) if place < len(self.nodes.boxes)]
        plan = tuple(Call(box, WHOLE_QUEUE) for box in boxes)
        step = self._reserve(stimulus.worker, self.planner.taken_by(plan), now, only=only)
        if step is not None:
            self._out.append(RunStep(stimulus.worker, step))

    def _announced(self, stimulus: Announced, now: float) -> None:
        """Exactly the announced ranges, under the announced number.

        Outside the step may have been seen, and is known by that number.  What is committed of it, or belongs
        to a query that is stopped, is left out.
        """
        intent, only = stimulus.intent, stimulus.queries
        members = {}
        for key, (low, high, end) in intent["nodes"].items():
            node = self.nodes.by_key.get(key)
            if node is None or (only is not None and not only.intersection(node.queries)):
                continue
            live = self.live[node.place]
            if live.taken == low and not live.stopped:
                members[node.place] = Member(low, high, end=end)
        step = None
        if members:
            step = self._reserve(0, members, now, outlets=False, number=intent["step"])
        if step is not None:
            known = self.nodes.by_key
            drops = {known[k].place: d for k, d in intent.get("drops", {}).items() if k in known}
            step.order.drops = {place: of_data(drop) for place, drop in drops.items()}
            step.order.weighed = frozenset(p for p, d in step.order.drops.items() if d.reason != RANDOM)
            self._out.append(RunStep(0, step))

    def _reserve(
        self,
        worker: int,
        members: dict[int, Member],
        now: float,
        *,
        outlets: bool = True,
        only: frozenset[str] | None = None,
        number: int | None = None,
    ) -> Step | None:
        boxes = len(self.nodes.boxes)
        if outlets:
            fed = {place for box in members for place in self.cursors.followers[box] if place >= boxes}
            for place in sorted(fed.union(self.cursors.outlets_behind())):
                outlet = self.nodes.all[place]
                if only is not None and outlet.name not in only:
                    continue
                member = self.planner.member(outlet, members, None)
                if member is not None:
                    members[place] = member
        if not members:
            return None
        tuples = {
            place: self.cursors.shedding.left(
                place, self.cursors.count(self.nodes.all[place], member.low, member.high)
            )
            for place, member in members.items()
        }
        order, shape = self.planner.order(members, number)
        step = Step(order, worker, now, members, tuples, shape, self.planner.work)
        self.planner.work = 0.0
        for place, member in members.items():
            live = self.live[place]
            live.taken = member.high
            live.steps.append(step)
        self.under_way[step.number] = step
        self.cursors.stale.update(
            [place for place in members if place >= boxes]
        )  # of boxes the policy is told now
        for place in sorted(members):
            if place < len(self.nodes.boxes):
                self.driver.tell(
                    Started(now, worker, place, tuples[place], self.cursors.measure(self.nodes.all[place]))
                )
        return step

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
                own["out"] = own.get("out", 0) + cost.tuples_out
                own["late"] = own.get("late", 0) + cost.late
            for place, parts in result.states.items():
                own = nodes[self.nodes.all[place].key]
                own.setdefault("state", []).extend(_data(part) for part in parts)
            for (place, arrow), file in result.queued.items():
                own = nodes.setdefault(self.nodes.all[place].key, {})
                own.setdefault("queued", {}).setdefault(str(arrow), []).append(_data(file))
            for place, reasons in result.shed.items():
                own = nodes[self.nodes.all[place].key].setdefault("shed", {})
                for reason, tuples in reasons.items():
                    own[reason] = own.get(reason, 0) + tuples
        return {"kind": "step", "step": step.number, "nodes": nodes}

    def intent(self, step: Step) -> dict[str, Any]:
        """What the log says of a step whose results will be seen before it is committed."""
        keys = {place: self.nodes.all[place].key for place in step.members}
        return {
            "kind": "intent",
            "step": step.number,
            "nodes": {keys[p]: [m.low, m.high, m.end] for p, m in step.members.items()},
            "drops": {keys[place]: as_data(drop) for place, drop in step.order.drops.items()},
        }

    def _finish(
        self, step: Step, results: Sequence[TaskResult], refused: Collection[int], now: float
    ) -> None:
        """A step has been committed and the position knows it: tell the policy.

        Rows that a sink refused wait before it, so steps that took the rows behind them are void.
        """
        places = self._void_after(step, refused)
        self._release(step)
        self._give_back(places)
        self.cursors.moved(step.members)
        self.cursors.touch(places)
        self.steps_done += 1
        self._learn(step, results, now)
        self.cursors.shedding.learn(results)
        costs: dict[int, BoxCost] = {}
        for result in results:
            self._note_states(result)
            for place, cost in result.costs.items():
                total = costs.setdefault(place, BoxCost())
                total.tuples_in += cost.tuples_in
                total.tuples_out += cost.tuples_out
                total.seconds += cost.seconds
        start, scale = step.start, self._scale(step.shape, costs)
        for place in sorted(step.members):
            if place >= len(self.nodes.boxes):
                continue
            cost = costs.get(place, BoxCost())
            end = start + cost.seconds
            name = self.nodes.all[place].name
            self.driver.trace.add(BoxCall(step.worker, name, cost.tuples_in, start, end))
            start = end
            self.driver.tell(
                Finished(now, step.worker, place, cost.tuples_in, cost.tuples_out, cost.seconds * scale, 0.0)
            )
        self.cursors.settle()
        self.refresh(now, step.worker)

    def _scale(self, shape: Shape, costs: Mapping[int, BoxCost]) -> float:
        """What makes the seconds of tasks beside each other those of one task, as far as that is known."""
        known = [(self.catalog.boxes[p], c) for p, c in costs.items() if p < len(self.nodes.boxes)]
        seconds = sum(cost.seconds for _, cost in known)
        if shape == ALONE or not self.planner.sharing.has_measure or seconds <= 0.0:
            return 1.0
        return sum(cost.tuples_in * entry.cost + entry.fixed for entry, cost in known) / seconds

    def _learn(self, step: Step, results: Sequence[TaskResult], now: float) -> None:
        """What a step of this shape took."""
        boxes = sum(cost.seconds for result in results for cost in result.costs.values())
        tasks = sum(seconds.get("all", boxes) for seconds in longest_tasks(results))
        self.planner.sharing.learn(step.shape, step.work, tasks, now - step.start)

    def _note_states(self, result: TaskResult) -> None:
        """Remember which worker has which state, and what states cost."""
        self.state.found += result.states_found
        self.state.loaded += result.states_loaded
        for place, parts in result.states.items():
            for part in parts:
                self.state.bytes += part.length
                self.state.snapshots += part.full
                if result.holder is not None:
                    self.live[place].held[covers(part)] = result.holder

    def _abandon(self, step: Step, now: float) -> None:
        """A step did not work: everything it took waits again, and steps that built on it are void."""
        places = set() if step.void else self._void_after(step, step.members)
        self._release(step)
        self._give_back(places)
        self.cursors.touch(places.union(step.members))
        for place in sorted(step.members):
            if place < len(self.nodes.boxes):
                self.driver.tell(Finished(now, step.worker, place, 0, 0, 0.0, 0.0))
        self.cursors.settle()
        self.refresh(now)

    def _void_after(self, step: Step, members: Collection[int]) -> set[int]:
        """Make void what builds on these members of a step, and on that; all nodes that have to give back.

        A step that is void for one of its nodes has taken what waits before the others in vain, too.
        """
        places: set[int] = set()
        todo: list[tuple[Step, Collection[int]]] = [(step, members)]
        while todo:
            first, members = todo.pop()
            for place in members:
                places.add(place)
                steps = list(self.live[place].steps)
                for later in steps[steps.index(first) + 1 :]:
                    if not later.void:
                        later.void = True
                        todo.append((later, later.members))
        return places

    def _give_back(self, places: Collection[int]) -> None:
        """What void steps took waits again."""
        for place in places:
            live = self.live[place]
            good = [step.members[place].high for step in live.steps if not step.void]
            live.taken = max(good, default=self.position.nodes[live.node.key].cursor)

    def _release(self, step: Step) -> None:
        for place in step.members:
            self.live[place].steps.remove(step)
        self.under_way.pop(step.number, None)

    @property
    def done(self) -> bool:
        """Nothing is left to do.  If it has no queries and is not to be drained, it is there for requests."""
        if self.expected or self.requests:
            return False
        if not self.cursors.alive:
            return bool(self.live) or self.cursors.drain
        if not (self.position.offsets.ended and self.cursors.drain) or self.under_way:
            return False
        self.cursors.notice()
        return not self.cursors.open

    # --- queries that fail --------------------------------------------------------------------------

    def _stop_query(self, query: str, error: BaseException, now: float) -> None:
        """Stop a query with its error; boxes that no other query needs stand still with it."""
        report = self.outlet(query).report
        assert report is not None
        report.error = error
        self._mark(query)
        for live in self.cursors.of_query[query]:
            if live.stopped and live.node.place < len(self.nodes.boxes):
                self.driver.tell(Changed(now, live.node.place, QueueState(0)))
        self.cursors.settle()  # whoever waited for its boxes waits no longer

    def _mark(self, query: str) -> None:
        self.position.failed.setdefault(query, "")
        self.cursors.mark_stopped(query)

    def _restart_query(self, query: str, now: float) -> None:
        """Let a stopped query go on from its last commit."""
        self.position.failed.pop(query, None)
        live = self.outlet(query)
        assert live.report is not None
        live.report.error = None
        live.restarts += 1
        self.cursors.mark_stopped(query)
        for each in self.cursors.of_query[query]:
            if not each.steps:
                each.taken = self.position.nodes[each.node.key].cursor
        self.refresh(now)

    def outlet(self, query: str) -> LiveNode:
        return self.cursors.outlet_of[query]

    # --- report -------------------------------------------------------------------------------------

    def report(self, seconds: float, tuples: Sequence[int], given: Mapping[str, Mapping[str, int]]) -> Report:
        """``tuples`` came from each source; ``given``: by query, what each of its sources gave it."""
        network = self.nodes.network
        least = self.catalog.least_latencies()
        for live in self.live[len(self.nodes.boxes) :]:
            report, output = live.report, live.node.output
            assert report is not None
            assert output is not None
            report.tuples_in = sum(given.get(output.name, {}).values())
            boxes = network.queries.get(output.name, ())
            report.late = sum(self.position.nodes[self.nodes.all[b].key].late for b in boxes)
            report.measure(list(live.markers))
            if output.qos is not None:
                report.attainable = output.qos.utility(least.get(output.name, 0.0))
        dropped = {
            (reason, self.nodes.all[place].name): tuples
            for (reason, place), tuples in self.cursors.shedding.dropped.items()
        }
        queries = {o.name for o in network.outputs}
        report_shed(
            network,
            self.catalog.boxes,
            {live.node.name: live.report for live in self.live if live.report and live.node.name in queries},
            dropped,
            {node.name: self.planner.held(node) for node in self.nodes.boxes},
            {outlet.name: self.planner.held(outlet) for outlet in self.nodes.outlets},
        )
        return Report(
            engine="spark",
            policy=self.driver.policy.name,
            workers=self.driver.workers,
            seconds=seconds,
            tuples=sum(tuples),
            queries=self._left
            | {live.node.name: live.report for live in self.live if live.report is not None},
            boxes=self.driver.box_reports(),
            overhead=copy.copy(self.driver.overhead),
            trace=self.driver.trace,
            steps=self.steps_done,
            step_seconds=dict(self.step_seconds),
            state=copy.copy(self.state),
            chosen=self.chosen,
            problems=[*self.driver.problems, *self.driver.policy.problems],
        )


def _entry(nodes: Nodes, node: Node, workers: int) -> BoxEntry:
    """What a policy knows of a box.  Tasks do not weigh tuples, so their schema tells how large they are."""
    entry = box_entry(nodes.network, node.place, workers if nodes.overlaps[node.place] else 1)
    entry.tuple_bytes = row_bytes(nodes.network.boxes[node.place].operator.inputs[0])
    stated = nodes.importance[node.place]
    entry.importance = None if stated is None else bool(stated)
    return entry


def _data(part: Any) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__slots__}
