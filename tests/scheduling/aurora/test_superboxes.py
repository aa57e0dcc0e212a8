"""Dynamic superboxes and the choice of a traversal."""

from __future__ import annotations

import pyarrow as pa
import pytest

import headgate as hg
from headgate.errors import PipelineError
from headgate.graph.qos import QoS
from headgate.scheduling.aurora.application import AutoTraversal
from headgate.scheduling.aurora.traversals import mean_latency, min_cost, min_latency
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.events import Idle, QueueState, Spawned
from headgate.scheduling.interface import Run
from headgate.testing import play

TIGHT, LOOSE = QoS([(0, 1), (1, 1), (2, 0)]), QoS([(0, 1), (50, 1), (60, 0)])


def two_queries() -> list[BoxEntry]:
    """Boxes 0 and 1 feed 2, the output of tight; 3 feeds 4, the output of loose."""
    tight, loose = ("tight",), ("loose",)
    return [
        BoxEntry("t0", 1, (), (2,), tight, 0.01),
        BoxEntry("t1", 1, (), (2,), tight, 0.01),
        BoxEntry("t2", 1, (0, 1), (), tight, 0.01),
        BoxEntry("l3", 1, (), (4,), loose, 0.01),
        BoxEntry("l4", 1, (3,), (), loose, 0.01),
    ]


def plans(policy: object, queues: dict[int, float], asks: int = 1) -> list[list[int]]:
    """What is planned at time 10 for boxes whose queues have these mean arrivals."""
    events = [Spawned(10.0, box, QueueState(5, oldest=t, mean=t)) for box, t in queues.items()]
    goals = {"tight": TIGHT, "loose": LOOSE}
    found = play(policy, two_queries(), [*events, *[Idle(10.0, 0)] * asks], goals=goals)  # type: ignore[arg-type]
    return [[call.box for call in d.plan] for d in found if isinstance(d, Run)]


def test_the_superbox_spans_the_k_most_urgent_boxes_of_the_most_urgent_query() -> None:
    queues = {0: 9.5, 1: 9.0, 2: 9.9, 3: 9.0}  # box 1 is nearest to the tight graph's fall
    assert plans(hg.policies.get("top_k", k=1), queues) == [[1, 2]]
    assert plans(hg.policies.get("top_k", k=2), queues) == [[0, 1, 2]]


def test_the_loose_query_s_turn_comes_by_the_eighth_decision() -> None:
    found = plans("top_k", {0: 8.5, 3: 9.9}, asks=8)
    assert found[:7] == [[0, 2]] * 7
    assert found[7] == [3, 4]


def test_k_must_be_one_at_least() -> None:
    with pytest.raises(PipelineError, match="k=0"):
        hg.policies.get("top_k", k=0)


def chain(tuples: int, cost: float, overhead: float) -> list[BoxEntry]:
    """Three boxes in a row, all with tuples waiting."""
    boxes = []
    for place in range(3):
        up, down = ((place - 1,) if place else ()), ((place + 1,) if place < 2 else ())
        box = BoxEntry(f"b{place}", 1, up, down, ("q",), cost, queue=QueueState(tuples))
        box._overhead, box.calls = overhead, 1
        boxes.append(box)
    return boxes


@pytest.mark.parametrize(("tuples", "cost", "overhead"), [(1, 1.0, 0.125), (10, 0.5, 0.0), (4, 0.25, 2.0)])
def test_expected_latencies_are_those_of_the_run(tuples: int, cost: float, overhead: float) -> None:
    boxes = chain(tuples, cost, overhead)
    for name, traversal in (("mc", min_cost), ("ml", min_latency)):
        app = hg.App("chain")
        batch = pa.record_batch({"n": pa.array(range(tuples))})
        # The last box's own tuples come first, so that they need not wait for those behind them.
        own = [app.source(f"s{place}", hg.from_batches([batch])) for place in (2, 1, 0)][::-1]
        stream = own[0].universal(cost=cost, name="b0")
        stream = own[1].union(stream).universal(cost=cost, name="b1")
        own[2].union(stream).universal(cost=cost, name="b2").to("q", hg.to_list([]))
        report = app.run(hg.Simulated(workers=1, call_overhead=overhead), name)
        expected = mean_latency(boxes, range(3), traversal(boxes, range(3)))
        assert report.queries["q"].latency.mean == pytest.approx(expected)


def test_dear_calls_want_few_and_dear_tuples_early_results() -> None:
    chosen = {}
    for overhead in (0.001, 10.0):
        policy = AutoTraversal()
        boxes = chain(20, 0.1, overhead)
        events = [Spawned(0.0, place, QueueState(20)) for place in range(3)]
        play(policy, boxes, [*events, Idle(0.0, 0)])
        chosen[overhead] = policy.chosen["q"]
    assert chosen == {0.001: "ml", 10.0: "mc"}


def test_the_choice_follows_costs_that_drift() -> None:
    policy = AutoTraversal()
    boxes = chain(20, 0.1, 0.001)
    events = [Spawned(0.0, place, QueueState(20)) for place in range(3)]
    play(policy, boxes, [*events, Idle(0.0, 0)])
    assert policy.chosen["q"] == "ml"
    for box in boxes:
        box._overhead = 100.0
    for _ in range(32):
        policy.handle(Idle(1.0, 0))
    assert policy.chosen["q"] == "mc"
