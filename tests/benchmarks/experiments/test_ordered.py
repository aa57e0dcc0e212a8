"""What ``headgate bench ordered`` measures with: its source, its keys, its claims, and bytewax's Q4."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from benchmarks.experiments.ordered.boxes import KEYS, Stamps, simulated_latency, skewed
from benchmarks.experiments.ordered.paced import Paced, paced
from benchmarks.findings import Costs, Finding, Side, Sweep, mean_ratio, seconds_per_tuple
from benchmarks.peers import bytewax
from benchmarks.workloads.tpcx_bb.queries import QUERIES, Shop
from headgate.connectors.source import Chunk, Wait
from headgate.demo.examples import load_example


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop(20_000)


def test_rows_arrive_by_the_clock_and_none_is_lost() -> None:
    batches = pa.table({"a": list(range(25))}).to_batches(max_chunksize=7)
    reader = Paced(batches, rate=2_000).open()  # ten rows every 5 ms
    first = reader.poll(0.0, 6)
    assert isinstance(first, Chunk)
    assert np.asarray(first.arrivals).tolist() == [0.0] * 6
    rest = reader.poll(0.0, 100)
    assert isinstance(rest, Chunk)
    assert rest.batch.num_rows == 4
    assert reader.poll(0.001, 100) == Wait(0.005)
    late = reader.poll(1.0, 100)
    assert isinstance(late, Chunk)
    assert np.asarray(late.arrivals).tolist() == [0.005] * 10 + [0.01] * 5
    assert reader.poll(1.0, 100) is None
    seen = [c.batch.column(0).to_pylist() for c in (first, rest, late)]
    assert [value for values in seen for value in values] == list(range(25))


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_the_same_at_once_and_at_a_rate(shop: Shop, query: str) -> None:
    reports = [
        app.run(hg.Simulated(workers=2), "lp")
        for app in (shop.at_once(query, 20_000), paced(shop, query, 20_000, 1e6))
    ]
    assert [report.queries[query].error for report in reports] == [None, None]
    assert [report.tuples for report in reports] == [20_000, 20_000]
    assert reports[0].queries[query].tuples_out == reports[1].queries[query].tuples_out


def test_keys_fill_the_key_space_and_crowd_together_as_sigma_falls() -> None:
    spread = []
    for sigma in (0.1, 0.5, 4.0):
        keys = skewed(sigma, 5_000).column(0).to_numpy()
        assert len(keys) == 5_000
        assert 0 <= keys.min() <= keys.max() < KEYS
        spread.append(np.std(keys))
    assert spread == sorted(spread)


def test_the_latency_of_the_hybrid_scheme_is_the_tuples_cost_and_that_of_the_other_is_not() -> None:
    found = {
        scheme: simulated_latency(
            200, Costs({"box": 1e-3}, 0.0, 0.0).engine(4, 1, partitioning=scheme, split=True)
        )
        for scheme in ("hybrid", "partitioned")
    }
    assert 1e-3 <= found["hybrid"] <= 1.5e-3
    assert found["partitioned"] > 1.5 * found["hybrid"]


def test_stamps_are_taken_when_work_on_a_tuple_begins() -> None:
    stamps = Stamps()
    report = stamps.app(20, 1e-3).run(hg.Threads(1, 1), "tuple_at_a_time")
    assert len(stamps.seen) == report.tuples == 20
    assert min(stamps.seen) >= 1e-3


def test_a_simulation_with_the_costs_of_a_run_takes_as_long() -> None:
    """Costs of a simulated run with an overhead, so that the machine has no say."""

    def app() -> hg.App:
        made = hg.App("costs")
        rows = made.source("s", hg.from_batches(pa.table({"a": list(range(1_000))})))
        rows.filter("a % 2 = 0", name="even").filter("a % 3 = 0", name="third").to("q", hg.to_list([]))
        return made

    given: dict[str, Any] = {"costs": {"even": 1e-3, "third": 2e-3}, "call_overhead": 1e-2, "send_cost": 1e-4}
    first = app().run(hg.Simulated(workers=1, packet_rows=100, **given), "round_robin")
    costs = Costs.of(first)
    assert costs.boxes == pytest.approx(given["costs"])
    assert (costs.call, costs.send) == pytest.approx((1e-2, 1e-4))
    again = app().run(costs.engine(1, 100), "round_robin")
    assert again.seconds == pytest.approx(first.seconds)
    assert seconds_per_tuple(first, "even") > 1e-3


def test_a_sweep_knows_the_best_the_mean_and_the_most_workers() -> None:
    sweep = Sweep("t", ("query",))
    for workers, value in ((1, 2.0), (2, 8.0)):
        sweep.add(("q",), "threads", workers, value)
    assert (sweep.best(("q",), "threads"), sweep.mean(("q",), "threads")) == pytest.approx((8.0, 4.0))
    assert sweep.most(("q",), "threads") == 8.0
    assert mean_ratio([(1.0, 2.0), (8.0, 1.0)]) == pytest.approx(2.0)
    assert sweep.table().row_count == 1


def test_a_finding_holds_if_it_does_on_both_engines() -> None:
    finding = Finding("9", "x", "claim", {"threads": Side(1, 2, True), "simulated": Side(2, 2, False)})
    assert not finding.holds
    results = finding.results()
    assert [(r.measured, r.baseline, r.holds) for r in results] == [(1, 2, True), (2, 2, False)]
    assert len({result.name for result in results}) == 2


@pytest.mark.skipif(importlib.util.find_spec("bytewax") is None, reason="make compare installs it")
def test_bytewax_gives_the_answers_of_q4(shop: Shop) -> None:
    found: list[dict[str, Any]] = []
    app = hg.App("q4")
    clicks = app.source("clicks", hg.from_batches(shop.batches("q4", 3_000)))
    load_example("tpcx_bb/q4").q4(clicks, shop.web_page).to("q4", hg.to_list(found))
    app.run(hg.Threads(1))
    _, answers = bytewax.q4(bytewax.q4_rows(shop.batches("q4", 3_000), shop.web_page))
    assert answers
    assert answers == {row["window_start"]: (row["sessions"], row["average_pages"]) for row in found}
