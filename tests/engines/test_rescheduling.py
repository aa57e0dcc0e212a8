"""Scheduling tasks in real engines: features are measured, problems reported, and nobody waits for a call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate import testing
from headgate.scheduling.haren.assignments import Workers
from headgate.scheduling.haren.feature_table import BoxView
from waiting import SOON, Held

NUMBERS = pa.schema([("a", pa.int64())])
Ends = Callable[[Callable[[], hg.Report]], hg.Report]


def numbers(count: int) -> list[dict[str, int]]:
    return [{"a": i} for i in range(count)]


def two_queries(source: Any = 400) -> tuple[hg.App, list[dict[str, Any]], list[dict[str, Any]]]:
    """Of so many numbers, or of those that a source gives."""
    app, odd, even = hg.App("two"), [], []
    if isinstance(source, int):
        stream = app.source("numbers", testing.from_rows(numbers(source)))
    else:
        stream = app.source("numbers", source).select("value AS a", name="a")
    stream = stream.universal(cost=2e-5, name="work")
    stream.filter("a % 2 = 1", name="odd").select("a", name="out").to("odd", hg.to_list(odd))
    stream.filter("a % 2 = 0", name="even").to("even", hg.to_list(even), query_class=3)
    return app, odd, even


def test_features_reach_the_functions_on_every_engine(engine: hg.Engine) -> None:
    """Whatever is asked for is measured, from the task after the first question on."""
    seen: dict[str, list[tuple[Any, ...]]] = {}

    def priority(box: BoxView) -> float:
        seen.setdefault(box.name, []).append(
            (box.queue_length, box.queued_bytes, box.head_latency, box.mean_latency, box.query_class)
        )
        return box.downstream_selectivity + box.output_rate

    app, odd, even = two_queries()
    report = app.run(engine, hg.policies.haren(prioritize=priority, period=0.002, batch=20))
    assert report.problems == []
    assert [row["a"] for row in odd] == list(range(1, 400, 2))
    assert [row["a"] for row in even] == list(range(0, 400, 2))
    assert {calls[0][4] for calls in (seen["odd"], seen["even"])} == {0, 3}
    for calls in seen.values():
        for length, queued, head, mean, _ in calls:
            assert (queued > 0) == (length > 0)
            assert head + 1e-5 >= mean >= 0
    for call in report.trace:
        assert engine.name == "spark" or call.tuples <= 20


def test_bytes_are_those_of_the_packets_that_wait() -> None:
    sizes = set()

    def priority(box: BoxView) -> float:
        if box.queue_length:
            sizes.add(box.queued_bytes / box.queue_length)
        return box.tuple_bytes

    app = hg.App("bytes")
    stream = app.source("numbers", testing.from_rows([{"a": i, "b": float(i)} for i in range(300)]))
    stream.universal(cost=0.001).select("a").universal(cost=0.001).to("q", hg.to_list([]))
    app.run(hg.Simulated(workers=1), hg.policies.haren(prioritize=priority, period=0.01, batch=5))
    assert {16.0, 8.0} <= sizes <= {1.0, 16.0, 8.0}, "1 is what is taken for a tuple until one was queued"


def test_a_problem_is_reported_once_and_the_run_goes_on(engine: hg.Engine) -> None:
    raised: list[str] = []

    def shaky(box: BoxView) -> float:
        if box.entry.calls:
            raised.append(box.name)
            raise ValueError("no idea")
        return 1.0

    app, odd, even = two_queries(Held(1e5, 400, 20, lambda: raised))
    report = app.run(engine, hg.policies.haren(prioritize=shaky, period=0.001, batch=10))
    assert len(odd) == len(even) == 200
    [problem] = report.problems
    assert "prioritize= (shaky) failed on box" in problem
    assert "ValueError: no idea" in problem


def test_a_worker_in_a_long_call_is_not_waited_for(ends: Ends) -> None:
    """Worker 0 has both boxes and is inside the first until the second has run, which another must do."""
    ran = threading.Event()

    def wait(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert ran.wait(SOON), "the other box was never run"
        return batch

    def run(batch: pa.RecordBatch) -> pa.RecordBatch:
        ran.set()
        return batch

    def assign(box: BoxView, workers: Workers) -> int:
        return 1 if box.name == "second" and box.upstream == [] and box.now > 0 else 0

    app, found = hg.App("long"), []
    stream = app.source("numbers", testing.from_rows(numbers(10)))
    stream.map_packets(wait, schema=NUMBERS, name="first").to("a", hg.to_list(found))
    stream.map_packets(run, schema=NUMBERS, name="second").to("b", hg.to_list([]))
    policy = hg.policies.haren(assign, lambda box: box.name == "first", period=0.01)
    report = ends(lambda: app.run(hg.Threads(workers=2), policy))
    assert {call.box: call.worker for call in report.trace} == {"first": 0, "second": 1}
    assert len(found) == 10
    assert 0 < report.overhead.rescheduling <= report.overhead.scheduler


def charged(workers: int) -> hg.Report:
    """Two boxes of a second per tuple, two tuples each; 10 ms per box and phase of a task."""
    app = hg.App("charged")
    stream = app.source("numbers", testing.from_rows(numbers(2)))
    for number in range(2):
        stream.universal(cost=1.0, name=f"box-{number}").to(f"q{number}", hg.to_list([]))

    def assign(box: BoxView, workers: Workers) -> int:
        return box.number % len(workers)

    policy = hg.policies.haren(assign, lambda box: 1.0, period=0.5, batch=1)
    return app.run(hg.Simulated(workers=workers, reschedule_cost=0.01), policy)


def test_simulation_charges_for_scheduling_tasks() -> None:
    """One worker: own features, assignment and priorities of two boxes after each call, when one is due."""
    report = charged(1)
    assert [(call.box, call.start, call.end) for call in report.trace] == [
        ("box-0", 0.0, 1.0),
        ("box-1", pytest.approx(1.06), pytest.approx(2.06)),
        ("box-0", pytest.approx(2.12), pytest.approx(3.12)),
        ("box-1", pytest.approx(3.18), pytest.approx(4.18)),
    ]
    assert report.overhead.rescheduling == report.overhead.scheduler == pytest.approx(0.18)


def test_in_simulation_workers_that_meet_share_what_can_be_shared() -> None:
    """Two workers: features and priorities of a box each, the assignment of two by one."""
    report = charged(2)
    assert sorted((call.worker, call.start, call.end) for call in report.trace) == [
        (0, 0.0, 1.0),
        (0, pytest.approx(1.04), pytest.approx(2.04)),
        (1, 0.0, 1.0),
        (1, pytest.approx(1.04), pytest.approx(2.04)),
    ]
    assert report.overhead.rescheduling == pytest.approx(2 * 0.04)


def test_the_command_line_tells_problems(capsys: pytest.CaptureFixture[str]) -> None:
    from headgate.cli.main import _run

    app, _, _ = two_queries(20)

    def wrong(box: BoxView) -> float:
        return float("nan")

    _run(app, hg.Simulated(workers=1), hg.policies.haren(prioritize=wrong), None, "drained")
    assert "prioritize= (wrong) gave box" in " ".join(capsys.readouterr().err.split())
