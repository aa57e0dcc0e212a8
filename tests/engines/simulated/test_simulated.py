"""Simulation: exact times, the same run from the same seed, real answers."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate import testing
from headgate.errors import PipelineError
from headgate.runtime.report import BoxCall
from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import Count, Share, Time

Rows = list[dict[str, Any]]


def three() -> Any:
    return testing.from_rows([{"a": 0}, {"a": 1}, {"a": 2}])


def latencies(report: hg.Report, query: str = "q") -> list[float]:
    """All of them, smallest first, found through percentiles."""
    latency = report.queries[query].latency
    return [round(latency.percentile(100 * (i + 1) / latency.count), 9) for i in range(latency.count)]


def one_box(cost: float = 1.0, **options: Any) -> tuple[hg.App, Rows]:
    app, found = hg.App("one"), []
    app.source("s", three()).universal(cost=cost, name="box", **options).to("q", hg.to_list(found))
    return app, found


# --- exact times --------------------------------------------------------------------------------------


def test_the_kth_tuple_of_a_call_leaves_after_k_costs() -> None:
    app, found = one_box()
    report = app.run(hg.Simulated(workers=1), "round_robin")
    assert list(report.trace) == [BoxCall(0, "box", 3, 0.0, 3.0)]
    assert latencies(report) == [1, 2, 3]
    assert report.queries["q"].latency.mean == 2
    assert report.queries["q"].latency.max == 3
    assert (report.seconds, report.throughput) == (3.0, 1.0)
    assert found == [{"a": 0}, {"a": 1}, {"a": 2}]


def test_call_overhead_comes_before_the_first_tuple() -> None:
    app, _ = one_box()
    report = app.run(hg.Simulated(workers=1, call_overhead=0.5), "round_robin")
    assert list(report.trace) == [BoxCall(0, "box", 3, 0.0, 3.5)]
    assert latencies(report) == [1.5, 2.5, 3.5]
    assert report.overhead.worker == 0.5


def test_tuple_at_a_time_pays_the_overhead_for_every_tuple() -> None:
    app, _ = one_box()
    report = app.run(hg.Simulated(workers=1, call_overhead=0.5), "tuple_at_a_time")
    assert list(report.trace) == [BoxCall(0, "box", 1, start, start + 1.5) for start in (0.0, 1.5, 3.0)]
    assert latencies(report) == [1.5, 3.0, 4.5]
    assert report.overhead.worker == 1.5


def test_every_plan_waits_for_its_decision() -> None:
    """A decision for three tuples, or one for each; what it takes can depend on the policy."""
    app, _ = one_box()
    report = app.run(hg.Simulated(workers=1, decision_cost=0.5), "round_robin")
    assert latencies(report) == [1.5, 2.5, 3.5]
    assert (report.overhead.scheduler, report.overhead.worker) == (0.5, 0.0)
    app, _ = one_box()
    costs = {"tuple_at_a_time": 0.25}
    engine = hg.Simulated(workers=1, decision_cost=lambda policy: costs[policy.name])
    report = app.run(engine, "tuple_at_a_time")
    assert latencies(report) == [1.25, 2.5, 3.75]
    assert report.overhead.scheduler == 0.75


def test_two_boxes_in_a_row() -> None:
    """The second begins when the first's call is over: 3 tuples of 1 s, then 3 of 2 s."""
    app, found = hg.App("two"), []
    app.source("s", three()).universal(cost=1, name="A").universal(cost=2, name="B").to(
        "q", hg.to_list(found)
    )
    report = app.run(hg.Simulated(workers=1), "round_robin")
    assert list(report.trace) == [BoxCall(0, "A", 3, 0.0, 3.0), BoxCall(0, "B", 3, 3.0, 9.0)]
    assert latencies(report) == [5, 7, 9]


def test_two_workers_share_a_stateless_box() -> None:
    app, found = hg.App("shared"), []
    app.source("s", testing.from_rows([{"a": i} for i in range(4)])).universal(cost=1, name="box").to(
        "q", hg.to_list(found)
    )
    report = app.run(hg.Simulated(workers=2), "tuple_at_a_time")
    assert list(report.trace) == [
        BoxCall(0, "box", 1, 0.0, 1.0),
        BoxCall(1, "box", 1, 0.0, 1.0),
        BoxCall(0, "box", 1, 1.0, 2.0),
        BoxCall(1, "box", 1, 1.0, 2.0),
    ]
    assert latencies(report) == [1, 1, 2, 2]
    assert [row["a"] for row in found] == [0, 1, 2, 3]


def test_two_workers_cannot_share_a_box_with_state() -> None:
    app, found = hg.App("stateful"), []
    schema = pa.schema([("a", pa.int64())])
    app.source("s", three()).process(lambda row, state: row, schema=schema, name="box").to(
        "q", hg.to_list(found)
    )
    report = app.run(hg.Simulated(workers=2, costs={"box": 1.0}), "tuple_at_a_time")
    assert [(call.start, call.end) for call in report.trace] == [(0, 1), (1, 2), (2, 3)]


def test_a_thread_per_box_is_served_by_a_core_in_quanta() -> None:
    """Two boxes of 3 s each on one core that switches every second and needs 0.1 s for it."""
    app = hg.App("threads")
    stream = app.source("s", three())
    stream.universal(cost=1, name="A").to("a", hg.to_list([]))
    stream.universal(cost=1, name="B").to("b", hg.to_list([]))
    engine = hg.Simulated(workers=1, quantum=1.0, switch_cost=0.1)
    report = app.run(engine, "thread_per_box")
    assert [(call.worker, call.box, round(call.end, 9)) for call in report.trace] == [
        (0, "A", 5.5),
        (1, "B", 6.6),
    ]
    assert latencies(report, "a") == [3.5, 4.5, 5.5]
    assert latencies(report, "b") == [4.6, 5.6, 6.6]
    assert report.overhead.scheduler == pytest.approx(0.6)


def test_a_thread_per_box_on_enough_cores_runs_undisturbed() -> None:
    app = hg.App("threads")
    stream = app.source("s", three())
    stream.universal(cost=1, name="A").to("a", hg.to_list([]))
    stream.universal(cost=1, name="B").to("b", hg.to_list([]))
    report = app.run(hg.Simulated(workers=2, quantum=1.0, switch_cost=0.1), "thread_per_box")
    assert latencies(report, "a") == latencies(report, "b") == [1, 2, 3]
    assert report.overhead.scheduler == 0


def test_latency_counts_from_arrival() -> None:
    """Tuples come at 0 and 10; the second one waits for nobody."""
    app = hg.App("arrivals")
    app.source("s", testing.Timed([(0.0, [{"a": 0}]), (10.0, [{"a": 1}])])).universal(cost=1, name="box").to(
        "q", hg.to_list([])
    )
    report = app.run(hg.Simulated(workers=1), "round_robin")
    assert latencies(report) == [1, 1]
    assert [(call.start, call.end) for call in report.trace] == [(0, 1), (10, 11)]


def test_a_queue_that_builds_up_is_waited_for() -> None:
    """A tuple every second, two seconds of work each: each waits a second longer than the one before."""
    app = hg.App("queue")
    app.source("s", hg.from_rate(1, limit=4)).universal(cost=2, name="box").to("q", hg.to_list([]))
    report = app.run(hg.Simulated(workers=1), "tuple_at_a_time")
    assert latencies(report) == [2, 3, 4, 5]


def test_several_results_of_one_tuple_leave_together() -> None:
    app, _ = one_box(selectivity=2)
    report = app.run(hg.Simulated(workers=1), "round_robin")
    assert latencies(report) == [1, 1, 2, 2, 3, 3]


def test_costs_are_given_by_the_boxes_names() -> None:
    app = hg.App("given")
    app.source("s", three()).filter("a >= 0", name="mine").to("q", hg.to_list([]))
    report = app.run(hg.Simulated(workers=1, costs={"mine": 0.25}), "round_robin")
    assert latencies(report) == [0.25, 0.5, 0.75]
    assert report.boxes["mine"].cost == 0.25
    with pytest.raises(PipelineError, match="no box 'yours'"):
        app.run(hg.Simulated(costs={"yours": 1}))


def test_boxes_without_a_cost_take_no_time() -> None:
    app = hg.App("free")
    app.source("s", three()).filter("a >= 0").to("q", hg.to_list([]))
    report = app.run(hg.Simulated(workers=1))
    assert (report.seconds, latencies(report)) == (0.0, [0, 0, 0])


def test_utility_follows_the_latencies_exactly() -> None:
    app = hg.App("qos")
    app.source("s", three()).universal(cost=1, name="box").to(
        "q", hg.to_list([]), qos=hg.QoS([(0, 1), (2, 1), (4, 0)])
    )
    report = app.run(hg.Simulated(workers=1), "round_robin")
    assert report.queries["q"].qos == pytest.approx((1 + 1 + 0.5) / 3, rel=1e-12)


def test_a_run_stops_at_the_time_given_and_closes_nothing() -> None:
    app, found, closed = hg.App("until"), [], []
    stream = app.source("s", hg.from_rate(1))
    stream.universal(cost=0.1, name="box").to("q", hg.to_list(found))
    stream.window(hg.tumbling("1 hour", on="timestamp")).agg("count(*) AS n").to("w", hg.to_list(closed))
    report = app.run(hg.Simulated(workers=2), until=2.5)
    assert [row["value"] for row in found] == [0, 1, 2]
    assert closed == []
    assert report.seconds == 2.5


def test_results_at_the_end_leave_when_the_end_is_known() -> None:
    """A window that is still open is closed by the final punctuation, after the last tuple."""
    app, found = hg.App("end"), []
    app.source("s", hg.from_rate(1, limit=3)).window(hg.tumbling("1 hour", on="timestamp")).agg(
        "count(*) AS n"
    ).to("q", hg.to_list(found))
    report = app.run(hg.Simulated(workers=1))
    assert [row["n"] for row in found] == [3]
    assert report.seconds == 2.0


# --- the same run from the same seed ------------------------------------------------------------------


class Dice(Pull):
    """Chooses at random, so that only the seed can make two runs equal."""

    name = "dice"

    def choose(self, worker: int, now: float) -> Plan | None:
        if not self.catalog.ready:
            return None
        train = self.random.choice((Count(1), Count(5), Share(0.5), Time(0.01)))
        return (Call(self.random.choice(self.catalog.ready), train),)


def busy_app(cost: float = 0.01) -> tuple[hg.App, Rows]:
    app, found = hg.App("busy"), []
    draw = random.Random(7)
    rows = [{"k": draw.randrange(4), "a": i} for i in range(150)]
    stream = app.source("s", testing.from_rows(rows))
    left = stream.universal(cost=cost, selectivity=0.6, name="left")
    right = stream.filter("a % 3 = 0", name="right")
    left.union(right).key_by("k").running("count(*) AS n", name="count").to("q", hg.to_list(found))
    stream.universal(cost=2 * cost, name="other").to("r", hg.to_list([]))
    return app, found


def whole_run(policy: Any, seed: int, workers: int) -> tuple[Any, ...]:
    recorder = testing.Recorder(policy)
    app, found = busy_app()
    engine = hg.Simulated(workers=workers, packet_rows=4, call_overhead=0.001, costs={"count": 0.003})
    report = app.run(engine, recorder, seed=seed)
    return list(report.trace), recorder.log, found, report.seconds


@pytest.mark.parametrize("policy", [*hg.policies.names(), "dice"])
def test_a_seed_fixes_the_whole_run(policy: str) -> None:
    """Every call, every event, every decision, at the same time."""
    runs = [whole_run(Dice() if policy == "dice" else policy, 3, 3) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0][0]) > 10


def test_another_seed_is_another_run_with_the_same_answers() -> None:
    one, other = whole_run(Dice(), 1, 2), whole_run(Dice(), 2, 2)
    assert one[0] != other[0]
    assert one[2] == other[2]


def test_answers_are_those_of_threads() -> None:
    app, found = busy_app(cost=1e-5)
    app.run(hg.Simulated(workers=3, packet_rows=4))
    simulated = list(found)
    found.clear()
    app.run(hg.Threads(workers=2, packet_rows=4))
    assert found == simulated


# --- passing results on -------------------------------------------------------------------------------


def sending(tuples: int, workers: int, send_cost: float, reorder: str) -> tuple[hg.Report, Rows]:
    app, found = hg.App("sending"), []
    rows = testing.from_rows([{"a": i} for i in range(tuples)])
    app.source("s", rows).universal(cost=1, name="box").to("q", hg.to_list(found))
    engine = hg.Simulated(workers=workers, send_cost=send_cost, reorder=reorder)
    return app.run(engine, "tuple_at_a_time"), found


def test_with_the_lock_a_worker_waits_until_the_other_has_sent() -> None:
    report, found = sending(4, 2, 1.0, "lock")
    assert list(report.trace) == [
        BoxCall(0, "box", 1, 0.0, 2.0),
        BoxCall(1, "box", 1, 0.0, 3.0),  # done at 1, waits until 2, sends until 3
        BoxCall(0, "box", 1, 2.0, 4.0),
        BoxCall(1, "box", 1, 3.0, 5.0),
    ]
    assert [row["a"] for row in found] == [0, 1, 2, 3]
    assert latencies(report) == [2, 3, 4, 5]
    assert report.overhead.storage == 4.0


def test_without_a_lock_a_worker_leaves_its_result_to_the_one_that_sends() -> None:
    report, found = sending(4, 2, 1.0, "nonblocking")
    assert list(report.trace) == [
        BoxCall(1, "box", 1, 0.0, 1.0),
        BoxCall(1, "box", 1, 1.0, 2.0),
        BoxCall(1, "box", 1, 2.0, 3.0),
        BoxCall(0, "box", 1, 0.0, 5.0),  # sends its own and the other's three
    ]
    assert [row["a"] for row in found] == [0, 1, 2, 3]
    assert latencies(report) == [2, 3, 4, 5]
    assert report.overhead.storage == 4.0


@pytest.mark.parametrize("workers", [3, 8, 16])
def test_the_lock_costs_workers_time_that_the_ring_does_not(workers: int) -> None:
    spent = {}
    for reorder in ("nonblocking", "lock"):
        report, found = sending(64, workers, 0.1, reorder)
        assert [row["a"] for row in found] == list(range(64))
        spent[reorder] = sum(call.end - call.start for call in report.trace)
    assert spent["nonblocking"] == pytest.approx(64 * 1.1)
    assert spent["lock"] > spent["nonblocking"]


@pytest.mark.parametrize("reorder", ["nonblocking", "lock"])
def test_results_of_buckets_take_their_time_too(reorder: str) -> None:
    """Eight tuples of eight keys, one worker at a time may send: 8 s at least, whoever does."""
    app, found = hg.App("buckets"), []
    rows = app.source("s", testing.from_rows([{"k": i} for i in range(8)]))
    rows.key_by("k").universal(cost=0.5, name="box").to("q", hg.to_list(found))
    engine = hg.Simulated(workers=2, send_cost=1.0, reorder=reorder, split=True)
    report = app.run(engine, "tuple_at_a_time")
    assert [row["k"] for row in found] == list(range(8))
    assert report.overhead.storage == 8.0
    assert report.seconds >= 8.5


def test_sending_that_takes_no_time_changes_nothing() -> None:
    for reorder in ("nonblocking", "lock"):
        report, _ = sending(4, 2, 0.0, reorder)
        assert [(call.start, call.end) for call in report.trace] == [(0, 1), (0, 1), (1, 2), (1, 2)]
        assert report.overhead.total == 0.0


# --- settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, r"workers=0.*at least 1"),
        ({"call_overhead": -1.0}, r"call_overhead=-1\).*cannot be negative"),
        ({"quantum": 0.0}, r"quantum=0\).*must be positive"),
        ({"switch_cost": -0.1}, r"switch_cost=-0.1\).*cannot be negative"),
        ({"decision_cost": -1e-6}, r"decision_cost=-1e-06.*cannot be negative"),
        ({"send_cost": -1e-6}, r"send_cost=-1e-06.*cannot be negative"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        hg.Simulated(**options)


def test_markers_tell_processing_from_waiting() -> None:
    """The second source's tuple comes at 1 s, waits for the worker until 5 s, and is done at 7 s."""
    app = hg.App("markers")
    app.source("first", testing.Timed([(0, [{"a": 1}])])).universal(cost=5).to("long", hg.to_list([]))
    app.source("second", testing.Timed([(1, [{"a": 2}])])).universal(cost=2).to("short", hg.to_list([]))
    report = app.run(hg.Simulated(workers=1))
    short = report.queries["short"]
    assert (short.end_to_end.mean, short.processing.mean) == (6.0, 2.0)
    assert short.latency.mean == 6.0
