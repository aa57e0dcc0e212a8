"""What ``headgate bench aurora`` measures with, and what its figures say at a small size, in virtual time."""

from __future__ import annotations

import io
import itertools
from types import SimpleNamespace

import pytest
from rich.console import Console

import headgate as hg
from benchmarks.experiments.aurora import batching, runs, traversals
from benchmarks.experiments.aurora.runs import (
    CALL,
    DECISION,
    Curves,
    Memory,
    Timed,
    busy,
    calls,
    finding,
    mean_latency,
    mean_qos,
    measured,
    simulate,
)
from benchmarks.findings import SIMULATED, Side
from benchmarks.workloads import aurora
from headgate.scheduling.interface import Policy


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def small(**options: object) -> hg.App:
    return aurora.network(queries=2, depth=3, fan_out=2, tuples=160, **options)  # type: ignore[arg-type]


def test_curves_know_their_knee_and_where_they_cross() -> None:
    curves = Curves("t", "load")
    for x, slow, fast in ((1, 1.0, 2.0), (2, 4.0, 2.0), (4, 40.0, 2.5)):
        curves.add("simulated", "slow", x, slow)
        curves.add("simulated", "fast", x, fast)
    assert curves.knee("simulated", "slow", 10) == 2
    assert curves.knee("simulated", "fast", 10) == 4
    crossing = curves.crossing("simulated", "fast", "slow")
    assert crossing is not None
    assert 1 < crossing < 2
    assert curves.crossing("simulated", "slow", "fast") is None
    assert curves.mean("simulated", "slow", most=2) == pytest.approx(2.5)
    assert curves.table().row_count == 3


def test_every_call_and_every_decision_is_charged() -> None:
    report = simulate(small(), "round_robin")
    assert report.overhead.worker == pytest.approx(CALL * calls(report))
    assert report.overhead.scheduler == pytest.approx(DECISION * calls(report)), "a decision for every call"
    superboxes = simulate(small(), "mc")
    assert superboxes.overhead.scheduler < report.overhead.scheduler
    assert busy(superboxes) == pytest.approx(busy(report))


def test_means_weigh_results() -> None:
    report = simulate(small(qos=[aurora.LOOSE]), "mc")
    seen = [(query.latency.mean, query.tuples_out) for query in report.queries.values()]
    assert mean_latency(report) == pytest.approx(sum(m * n for m, n in seen) / 160)
    assert mean_qos(report) == pytest.approx(1.0)


def test_memory_counts_every_tuple_while_it_is_there() -> None:
    """Two boxes, three tuples at once: 3 queued, 3 in the first call, 3 in the second, then 3 results."""
    app = hg.App("two")
    rows = app.source("s", hg.from_rate(1, limit=3, burst=3))
    rows.universal(cost=1, name="a").universal(cost=2, selectivity=1, name="b").to("q", hg.to_list([]))
    watched = Memory("mc")
    app.run(hg.Simulated(workers=1), watched)
    assert max(watched.tuples) == 3
    assert watched.tuples[-1] == 0
    assert max(watched.results) == 3
    assert watched.tuple_seconds(results=False) == pytest.approx(3 * 9.0)
    assert [watched.at(when) for when in (0.5, 3.5, 8.9)] == [3, 3, 3]


@pytest.mark.parametrize("policy", ["mc", "ml", "mm"])
def test_watching_changes_nothing(policy: str) -> None:
    plain, watched = (simulate(small(burst=4), p) for p in (policy, Memory(policy)))
    assert list(watched.trace) == list(plain.trace)


def test_what_deciding_took_is_charged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which every event takes a microsecond, however fast this machine is."""
    looks = itertools.count()
    clock = SimpleNamespace(thread_time=lambda: next(looks) * 1e-6)
    monkeypatch.setattr(runs, "time", clock)
    watched = Timed("qos")
    taken: list[float] = []

    def cost(policy: Policy) -> float:
        taken.append(measured(policy))
        return taken[-1]

    report = simulate(small(), watched, decision=cost)
    assert min(taken) >= 1e-6
    assert sum(taken) <= next(looks) / 2 * 1e-6, "what was charged is not charged again"
    assert report.overhead.scheduler == pytest.approx(sum(taken))


def test_findings_name_the_benchmark_and_the_section() -> None:
    [result] = finding("5", "x", "claim", {SIMULATED: Side(1, 2, True)}, section="5.2").results()
    assert result.name == "aurora, figure 5, x, simulated"
    assert result.source == "Aurora, section 5.2"


def test_curves_are_means_of_runs_with_their_confidence_interval() -> None:
    curves = Curves("figure", "x", 2)
    for value in (1.0, 2.0, 3.0):
        curves.add(SIMULATED, "line", 1, value)
    curves.add(SIMULATED, "line", 2, 5.0)
    assert curves.at(SIMULATED, "line", 1) == 2
    assert curves.mean(SIMULATED, "line") == 3.5
    # Of three values with a standard deviation of 1: Student's 4.30 standard errors.
    assert curves.within(SIMULATED, "line", 1) == "2.00 ± 2.48"
    assert curves.within(SIMULATED, "line", 2) == "5.00"


# --- the figures, simulated -------------------------------------------------------------------------------


@pytest.fixture
def _simulated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would run on threads runs in virtual time: what is measured, not how fast this machine is."""
    monkeypatch.setattr("benchmarks.experiments.aurora.runs.on_threads", simulate)
    monkeypatch.setattr("benchmarks.experiments.aurora.batching.on_threads", simulate)


@pytest.mark.usefixtures("_simulated_only")
def test_superboxes_take_more_load_than_boxes() -> None:
    sizes = batching.Sizes(2, 2, loads=(0.1, 0.9), thread_loads=(0.1,), depth=3, forest=10, runs=1)
    found = {f.name: f.sides[SIMULATED] for f in batching.superboxes(sizes, quiet())}
    assert found["saturation"].holds
    assert found["latency"].holds
    assert found["saturation"].measured > found["saturation"].baseline


@pytest.mark.usefixtures("_simulated_only")
def test_trains_pay_for_bursts() -> None:
    sizes = batching.Sizes(2, 16, shares=(0.2, 1.0), runs=2)
    found = {f.name: f.sides[SIMULATED] for f in batching.trains(sizes, quiet())}
    assert found["no bursts"].holds, "the load is one at which trains change nothing without bursts"
    assert found["bursts"].holds
    assert found["whole queues"].measured < found["whole queues"].baseline


@pytest.mark.usefixtures("_simulated_only")
def test_more_operators_at_the_same_load_have_no_more_to_do() -> None:
    """Exact in virtual time: the load is fixed, so that only the number of boxes can make a difference."""
    sizes = batching.Sizes(1, 1, operators=(10, 50), runs=1)
    found = {f.name: f.sides[SIMULATED] for f in batching.execution_models(sizes, quiet())}
    assert found["state-based"].holds
    assert found["state-based"].measured < 2


@pytest.mark.usefixtures("_simulated_only")
def test_memory_is_measured_with_ordered_unions_and_without() -> None:
    sizes = traversals.Sizes(4, 4, depth=3, waiting=5, runs=2)
    found = {f.name: f.sides[SIMULATED] for f in traversals.memory(sizes, quiet())}
    assert set(found) == {
        f"{policy}, {unions}" for policy in ("MM", "MC") for unions in ("ordered unions", "unions by arrival")
    }
    assert found["MM, unions by arrival"].holds


@pytest.mark.usefixtures("_simulated_only")
def test_min_latency_wins_where_boxes_are_dear_and_loses_where_they_are_cheap() -> None:
    sizes = traversals.Sizes(4, 6, (15e-6, 960e-6), (15e-6, 960e-6), depth=4)
    found = {f.name: f for f in traversals.latency(sizes, quiet())}
    assert found["dear boxes"].holds
    assert found["cheap boxes"].holds
    assert found["crossing"].sides[SIMULATED].measured > 0


@pytest.mark.usefixtures("_simulated_only")
def test_overhead_falls_with_batching() -> None:
    sizes = batching.Sizes(4, 4, depth=3, forest=8)
    found = {f.name: f.sides[SIMULATED] for f in batching.overheads(sizes, quiet())}
    assert found["tuple at a time"].holds
    assert found["superbox, overhead"].measured < found["superbox, overhead"].baseline
