"""Reports: latencies, utilities, counts, and the trace."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from benchmarks.workloads import aurora
from headgate import testing
from headgate.engines.threads.run import ThreadsRun
from headgate.graph.packet import Marker
from headgate.runtime import report as reports
from headgate.runtime.report import BoxCall, Latency, QueryReport, Trace


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=60), st.sampled_from([1, 25, 50, 90, 99, 100]))
def test_a_percentile_is_the_smallest_latency_that_so_many_do_not_exceed(
    values: list[float], percent: int
) -> None:
    latency = Latency()
    latency.add(np.array(values), len(values))
    found = latency.percentile(percent)
    assert found in values
    needed = len(values) * percent / 100
    assert sum(v <= found for v in values) >= needed - 1e-9
    assert sum(v < found for v in values) < needed + 1e-9
    assert latency.max == max(values)
    assert latency.mean == pytest.approx(sum(values) / len(values))


def test_results_that_share_a_latency_count_each() -> None:
    latency = Latency()
    latency.add(1.0, 99)
    latency.add(5.0, 1)
    assert (latency.count, latency.p50, latency.p99, latency.max) == (100, 1.0, 1.0, 5.0)
    assert latency.percentile(99.5) == 5.0
    assert latency.mean == pytest.approx(1.04)


def test_no_results_have_no_latency() -> None:
    latency = Latency()
    latency.add(1.0, 0)
    assert math.isnan(latency.mean)
    assert math.isnan(latency.p99)
    assert repr(latency) == "Latency(no results)"


def test_beyond_a_million_samples_percentiles_are_within_half_a_percent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reports, "EXACT_SAMPLES", 500)
    latency, exact = Latency(), []
    draw = np.random.default_rng(0)
    for _ in range(20):
        some = draw.lognormal(-5, 2, 100)
        exact.append(some)
        latency.add(some, 100)
        latency.add(0.01, 1)
        exact.append(np.array([0.01]))
    every = np.sort(np.concatenate(exact))
    for percent in (10, 50, 99):
        true = every[math.ceil(len(every) * percent / 100) - 1]
        assert latency.percentile(percent) == pytest.approx(true, rel=0.0051)
    assert latency.max == every[-1]
    assert latency.mean == pytest.approx(every.mean())


def test_utility_is_the_mean_over_results() -> None:
    query, graph = QueryReport("q", has_qos=True), hg.QoS([(0, 1), (10, 0)])
    assert query.qos is None, "there is nothing to have a mean of"
    query.delivered(5.0, 3, graph)
    query.delivered(np.array([0.0, 10.0]), 2, graph)
    assert query.qos == pytest.approx((3 * 0.5 + 1 + 0) / 5)
    assert QueryReport("without").qos is None


def test_markers_of_the_middle_of_the_run_are_measured() -> None:
    """The first and the last fifth are warming up and running out."""
    query = QueryReport("q")
    markers = [Marker(i, entry=0.0, begin=1.0, exits={"q": float(i)}) for i in range(10, 20)]
    query.measure([*reversed(markers), Marker(99, 0.0)])
    assert query.end_to_end.count == 6
    assert (query.end_to_end.mean, query.processing.mean) == (14.5, 13.5)
    query.measure(markers)
    assert query.end_to_end.count == 6, "measuring again starts afresh"


def test_the_trace_keeps_the_newest_calls() -> None:
    trace = Trace(limit=3)
    for i in range(5):
        trace.add(BoxCall(0, f"box-{i}", 1, float(i), float(i)))
    assert len(trace) == 3
    assert [call.box for call in trace] == ["box-2", "box-3", "box-4"]
    assert trace[-1].box == "box-4"
    assert [call.box for call in trace[:2]] == ["box-2", "box-3"]


def test_a_report_counts_what_went_through(engine: hg.Engine) -> None:
    app = hg.App("counts")
    numbers = app.source("numbers", testing.from_rows([{"a": i} for i in range(100)]))
    more = app.source("more", testing.from_rows([{"a": i} for i in range(10)]))
    numbers.filter("a < 30", name="small").to("small", hg.to_list([]))
    numbers.union(more).to("both", hg.to_list([]), qos=hg.QoS([(0, 1), (1000, 1)]))
    report = app.run(engine)
    small, both = report.queries["small"], report.queries["both"]
    assert (small.tuples_in, small.tuples_out, small.shed, small.late) == (100, 30, 0, 0)
    assert (both.tuples_in, both.tuples_out) == (110, 110)
    assert (small.qos, both.qos) == (None, 1.0)
    assert small.latency.count == 30
    assert report.tuples == 110
    box = report.boxes["small"]
    assert (box.tuples_in, box.tuples_out) == (100, 30)
    assert sum(call.tuples for call in report.trace if call.box == "small") == 100
    assert box.calls == sum(call.box == "small" for call in report.trace)
    assert small.error is both.error is None
    assert small.end_to_end.count == 1, "a marker goes with the first tuple"
    assert all(0 <= call.start <= call.end <= report.seconds for call in report.trace)


def test_late_rows_are_counted(engine: hg.Engine) -> None:
    from datetime import datetime

    rows = [{"ts": datetime(2024, 1, 1, 0, minute)} for minute in (0, 10, 1, 20, 2)]
    app, late = hg.App("late"), []
    windows = app.source("rows", testing.from_rows(rows)).window(hg.tumbling("5 minutes", on="ts"))
    windows.agg("count(*) AS n").to("windows", hg.to_list([]))
    windows.late().to("late", hg.to_list(late))
    report = app.run(engine)
    assert report.queries["windows"].late == 2
    assert [row["ts"].minute for row in late] == [1, 2]


@pytest.mark.parametrize("policy", ["tuple_at_a_time", "round_robin", "mc", "ct", "thread_per_box"])
def test_the_workers_time_is_accounted_for(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators, three kinds of overhead and idling make up the workers' seconds (Aurora, section 5.5).

    All of it until the run is told to stop, and nothing twice.  How long workers take to go is the machine's.
    """
    stopped: list[float] = []
    stop = ThreadsRun.stop

    def stops(run: ThreadsRun) -> None:
        stopped.append(run.clock.now())
        stop(run)

    monkeypatch.setattr(ThreadsRun, "stop", stops)
    app = aurora.network(queries=2, depth=2, fan_out=2, cost=(2e-4, 4e-4), load=0.7, workers=2, tuples=600)
    report = app.run(hg.Threads(2), policy)
    over = report.overhead
    assert min(over.worker, over.storage, over.scheduler, over.idle) >= 0.0
    spent = (report.busy + over.total + over.idle) / report.workers
    assert 0.999 * stopped[0] <= spent <= 1.001 * report.seconds


@pytest.mark.parametrize("load", [0.3, 3.0])
def test_delivered_utility_is_reported_beside_what_could_be_had_at_most(load: float) -> None:
    """Two boxes of half a second each leave a result 0.75 by its graph, if it waits nowhere."""
    app = hg.App("slow")
    boxed = app.source("s", hg.from_rate(load, limit=20)).universal(cost=0.5).universal(cost=0.5)
    boxed.to("q", hg.to_list([]), qos=hg.QoS([(0, 1), (4, 0)]))
    query = app.run(hg.Simulated(workers=1), "lp").queries["q"]
    assert query.attainable == pytest.approx(0.75)
    assert query.qos is not None
    assert query.qos == pytest.approx(0.75) if load < 1 else query.qos < 0.5


def test_a_report_prints_as_a_table_of_its_queries() -> None:
    app = hg.App("shop")
    rows = app.source("rows", testing.from_rows([{"x": 1}, {"x": 2}, {"x": 0}]))
    rows.filter("x > 1").to("big", hg.to_list([]))
    rows.select("1 / x AS y").to("ratios", hg.to_list([]))
    head, names, big, ratios = repr(app.run(hg.Simulated(workers=1))).splitlines()
    assert "simulated" in head
    assert "3 tuples" in head
    assert names.split() == ["query", "results", "p50", "p99", "late", "shed"]
    assert big.split() == ["big", "1", "0.0", "ms", "0.0", "ms", "0", "0"]
    assert ratios.split()[:5] == ["ratios", "0", "-", "-", "0"]
    assert "failed: " in ratios


def test_a_run_says_how_it_goes_in_a_shell_and_in_a_notebook() -> None:
    app = hg.App("shown")
    app.source("rows", hg.from_rate(500, limit=50)).to("all <b>", hg.to_list([]))
    with app.start("threads", until="drained") as running:
        running.wait(30)
        told, html = repr(running), running._repr_html_()
    assert told.startswith("Ended(threads, lp, ")
    assert "all <b>  " in told
    assert html.startswith("<table><caption>Ended(threads, lp, ")
    assert "<th>query</th>" in html
    assert "<td>all &lt;b&gt;</td><td>50</td>" in html


def test_a_run_that_failed_says_why() -> None:
    app = hg.App("failed")
    rows = app.source("rows", hg.from_rate(500, limit=5))
    rows.filter("1 / (value - 1) < 2").to("all", hg.to_list([]))
    with app.start("threads", until="drained") as running:
        with pytest.raises(hg.HeadgateError):
            running.wait(30)
        assert repr(running).startswith("Failed(Every query failed ('all').")
