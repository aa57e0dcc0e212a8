"""The driver looks only at what has changed, and sees what it would see if it looked at everything.

The Spark engine's core, without Spark: random histories of rows that arrive, steps that are made, committed
or abandoned, queries that stop and go on, drops, and the sources' end.  After each event, what the core has
kept up to date is compared with what a look at every node finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from depth import examples
from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.offsets import Extent
from headgate.checkpoint.position import Position, QueueFile
from headgate.engines.spark.core import SparkCore
from headgate.engines.spark.cursors import LiveNode, Step
from headgate.engines.spark.messages import BoxCost, TaskResult
from headgate.engines.spark.stimuli import (
    Noticed,
    QueryRestarted,
    QueryStopped,
    RunStep,
    StepAbandoned,
    StepCommitted,
    Suspected,
)
from headgate.errors import RunError
from headgate.runtime.stimuli import Free, Stimulus
from headgate.scheduling.interface import Shed

WORKERS = 3


@cache
def application(dead_letters: bool) -> Nodes:
    """Shared boxes, chains, a union, state with and without something to close, a query of a bare source."""
    app = hg.App("changes")
    a, b = [app.source(name, hg.from_rate(10, limit=10**9)) for name in "ab"]
    shared = a.filter("value > 1", name="shared")
    shared.filter("value > 2", name="narrow").to("narrow", hg.to_list([]))
    shared.with_columns("value * 2 AS twice", name="twice").to("twice", hg.to_list([]))
    shared.union(b.filter("value > 3", name="other")).filter("value > 4", name="both").to(
        "both", hg.to_list([])
    )
    b.key_by("value").running("count(*) AS n", name="count").to("count", hg.to_list([]))
    window = hg.tumbling("1 minute", on="timestamp")
    b.key_by("value").window(window).agg("count(*) AS n", name="window").to("window", hg.to_list([]))
    a.to("bare", hg.to_list([]))
    if dead_letters:
        app.dead_letter(hg.to_list([]))
    return Nodes(app.network)


class Driven:
    """A core, and a test that says what happens."""

    def __init__(self, policy: str, drain: bool, dead_letters: bool) -> None:
        self.nodes = application(dead_letters)
        self.position = Position(self.nodes)
        self.core = SparkCore(
            self.nodes, self.position, hg.policies.get(policy), start=0.0, workers=WORKERS, cores=WORKERS,
            drain=drain, seed=0, storage=Folder(""), pipeline="", framed=frozenset(), buckets=8,
            timer=lambda: 0.0,
        )  # fmt: skip
        self.core.start()
        self.steps: list[Step] = []
        self.now = 0.0

    def tell(self, stimulus: Stimulus) -> None:
        self.now += 1.0
        for one in self.core.handle(stimulus, self.now):
            if isinstance(one, RunStep):
                self.steps.append(one.step)

    # --- what can happen ----------------------------------------------------------------------------------

    def arrive(self, source: int, rows: int) -> None:
        if not self.position.offsets.ended:
            self.position.offsets.admit(source, Extent("rate:", 0, rows, self.now))

    def ask(self, worker: int) -> None:
        if all(step.worker != worker for step in self.steps):
            self.tell(Free(worker, 0.1))

    def suspect(self, queries: Sequence[int]) -> None:
        names = frozenset(self.nodes.outlets[q % len(self.nodes.outlets)].name for q in queries)
        if all(step.worker for step in self.steps):
            self.tell(Suspected(0, names))

    def commit(self, number: int) -> None:
        if not self.steps:
            return
        step = self.steps[number % len(self.steps)]
        if step.void:
            self.abandon(number)
        elif self.core.turn(step):
            self.steps.remove(step)
            result = self._result(step)
            ended = self.position.offsets.ended
            self.position.apply({**self.core.record(step, [result]), "admitted": (), "all_ended": ended})
            self.tell(StepCommitted(step, [result]))

    def refuse(self, number: int) -> None:
        """A step is committed, but the sink of one query took nothing of it."""
        if not self.steps:
            return
        step = self.steps[number % len(self.steps)]
        outlets = [place for place in step.members if place >= len(self.nodes.boxes)]
        if step.void or not outlets or not self.core.turn(step):
            return
        self.steps.remove(step)
        result = self._result(step)
        record = self.core.record(step, [result])
        node, member = self.nodes.all[outlets[0]], step.members[outlets[0]]
        record["nodes"][node.key] = held = {"cursor": member.low}
        if not all(feed.source for feed in node.feeds):
            name = f"queues/{step.number:09d}-held.arrow"
            rows = member.high - member.low
            file = QueueFile(name, rows, member.low, member.high - 1, [(member.low, 0)])
            held |= {"queued": {"0": [asdict(file)]}}
        self.position.apply({**record, "admitted": (), "all_ended": self.position.offsets.ended})
        self.tell(StepCommitted(step, [result], {node.place}))
        self.tell(QueryStopped(node.name, RunError("its sink failed")))

    def abandon(self, number: int) -> None:
        if self.steps:
            step = self.steps.pop(number % len(self.steps))
            self.tell(StepAbandoned(step))

    def stop(self, number: int) -> None:
        query = self.nodes.outlets[number % len(self.nodes.outlets)].name
        if query not in self.position.failed:
            self.tell(QueryStopped(query, RunError("stopped")))

    def restart(self, number: int) -> None:
        stopped = sorted(self.position.failed)
        if stopped:
            self.tell(QueryRestarted(stopped[number % len(stopped)]))

    def drop(self, box: int, share: float) -> None:
        self.core.shed(Shed(box % len(self.nodes.boxes), share))

    def end(self) -> None:
        self.position.offsets.ended = True
        self.core.cursors.settle()

    def _result(self, step: Step) -> TaskResult:
        """In every third step boxes let nothing through; else all, and what is not taken waits in a file."""
        result = TaskResult(0, step.order.attempt)
        for place, member in step.members.items():
            node = self.nodes.all[place]
            rows = member.high - member.low
            if node.operator is not None:
                result.costs[place] = BoxCost(rows, rows, 1e-4 * rows, 1)
            for feed in node.outputs[: max(1, len(node.outputs) - 1)]:
                for target, arrow in self.nodes.targets.get(feed, ()):
                    if target.place not in step.members and rows and step.number % 3:
                        name = f"queues/{step.number:09d}-{target.place}-{arrow}.arrow"
                        file = QueueFile(name, rows, member.low, member.high - 1, [(member.low, 0)])
                        result.queued[target.place, arrow] = file
        return result

    # --- what a look at everything finds ------------------------------------------------------------------

    def compare(self) -> None:
        core = self.core
        self.tell(Noticed())
        for node in self.nodes.boxes:
            kept, found = core.catalog.boxes[node.place].queue, core.cursors.measure(node)
            assert (kept.tuples, kept.full) == (found.tuples, found.full), node.name
        behind = [o for o in self._outlets() if not o.stopped and o.taken < core.cursors.frontier(o.node, {})]
        assert core.cursors.outlets_behind() == [live.node.place for live in behind]
        waits = [o for o in behind if not o.steps and self._rows(o)]
        assert core.cursors.outlets_wait == bool(waits)
        assert core.done == self._done()
        if self.position.offsets.ended and core.cursors.drain:
            core.cursors.settle()
            assert [live.node.name for live in core.live if self._can_pass(live)] == []
        for live in core.live:
            assert live.stopped == all(q in self.position.failed for q in live.node.queries)

    def compare_places(self) -> None:
        """Every step under way begins where the node is committed or the step before it ends: no row is
        passed over, whatever was refused, abandoned or stopped before."""
        for live in self.core.live:
            at = self.position.nodes[live.node.key].cursor
            for step in live.steps:
                if not step.void:
                    member = step.members[live.node.place]
                    left = self.core.cursors.count(live.node, at, member.low)
                    assert not left, f"step {step.number} passes over {left} rows of {live.node.name}"
                    at = member.high

    def _outlets(self) -> list[LiveNode]:
        return self.core.live[len(self.nodes.boxes) :]

    def _rows(self, live: LiveNode) -> int:
        return self.core.cursors.count(live.node, live.taken, self.core.cursors.frontier(live.node, {}))

    def _done(self) -> bool:
        alive = [live for live in self.core.live if not live.stopped]
        if not alive:
            return True
        end = self.position.offsets.next_serial
        over = self.position.offsets.ended and self.core.cursors.drain and not self.core.under_way
        return over and all(self.position.nodes[live.node.key].cursor > end for live in alive)

    def _can_pass(self, live: LiveNode) -> bool:
        core, own = self.core, self.position.nodes[live.node.key]
        end = self.position.offsets.next_serial
        if live.stopped or live.steps or own.cursor != live.taken or own.cursor > end:
            return False
        if core.cursors.has_finish[live.node.place] or core.cursors.frontier(live.node, {}) <= end:
            return False
        return core.cursors.count(live.node, live.taken, end + 1) == 0


NUMBER = st.integers(0, 20)
EVENTS = st.one_of(
    st.tuples(st.just("arrive"), st.integers(0, 1), st.sampled_from([1, 5, 100_000])),
    st.tuples(st.just("ask"), st.integers(0, WORKERS - 1)),
    st.tuples(st.just("ask"), st.integers(0, WORKERS - 1)),
    st.tuples(st.just("commit"), NUMBER),
    st.tuples(st.just("commit"), NUMBER),
    st.tuples(st.just("abandon"), NUMBER),
    st.tuples(st.just("stop"), NUMBER),
    st.tuples(st.just("restart"), NUMBER),
    st.tuples(st.just("suspect"), st.lists(NUMBER, min_size=1, max_size=3)),
    st.tuples(st.just("drop"), NUMBER, st.sampled_from([0.0, 0.3, 0.9])),
    st.tuples(st.just("end")),
)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(EVENTS, max_size=60),
    st.sampled_from(["lp", "round_robin", "qos"]),
    st.booleans(),
    st.booleans(),
)
def test_what_changed_is_all_that_changed(
    events: list[Any], policy: str, drain: bool, dead_letters: bool
) -> None:
    driven = Driven(policy, drain, dead_letters)
    for what, *details in events:
        getattr(driven, what)(*details)
        driven.compare()


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.one_of(EVENTS, st.tuples(st.just("refuse"), NUMBER)), max_size=60),
    st.sampled_from(["lp", "round_robin"]),
)
def test_no_step_passes_over_rows_that_a_sink_refused(events: list[Any], policy: str) -> None:
    driven = Driven(policy, True, False)
    two_under_way: list[Any] = [("arrive", 0, 5), ("ask", 0), ("arrive", 0, 5), ("ask", 1)]
    for what, *details in [*two_under_way, *events]:
        getattr(driven, what)(*details)
        driven.compare_places()


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(EVENTS, max_size=40), st.sampled_from(["lp", "round_robin", "qos"]), st.booleans())
def test_a_run_that_is_drained_comes_to_its_end(events: list[Any], policy: str, dead_letters: bool) -> None:
    """No node is forgotten: whatever happened before, asking and committing leads to the end."""
    driven = Driven(policy, True, dead_letters)
    for what, *details in events:
        getattr(driven, what)(*details)
    driven.end()
    for _ in range(200):
        while driven.steps:
            before = len(driven.steps)
            for number in range(before):
                driven.commit(number)
                if len(driven.steps) < before:
                    break
            assert len(driven.steps) < before, "no step can be committed"
        if driven.core.done:
            break
        driven.ask(0)
    assert driven.core.done
