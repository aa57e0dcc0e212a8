"""The small questions: Headgate and Spark give the same answers to the same text over the same numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate.bench.latencies import Recorder, percentiles
from headgate.workloads import shop_live, small_queries, tpcx_bb
from headgate.workloads.small_queries import QUESTIONS, Question

RATE = 2_000
SECONDS = 30
START = datetime(2024, 1, 4, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ASKED = [*QUESTIONS, *small_queries.many(3, keyed=False), *small_queries.many(3, keyed=True)]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from headgate.bench import structured

    session = structured.session().newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.ansi.enabled", "true")
    return session


@pytest.fixture(scope="module")
def answers() -> dict[str, list[dict[str, Any]]]:
    """Headgate's, all in one application."""
    app = hg.App("small")
    source = hg.from_rate(RATE, limit=RATE * SECONDS, burst=RATE, start_time=START)
    clicks = small_queries.clicks(app.source("clicks", source))
    rows: dict[str, list[dict[str, Any]]] = {question.name: [] for question in ASKED}
    for question in ASKED:
        small_queries.ask(question, clicks).to(
            question.name, hg.to_list(rows[question.name]), qos=question.qos
        )
    report = app.run(hg.Simulated(workers=2), policy="round_robin", until="drained")
    for name, query in report.queries.items():
        assert query.error is None, (name, query.error)
        assert query.late == 0, name
    return rows


@pytest.fixture(scope="module")
def numbers(spark: Any) -> Any:
    """The same numbers and times as a table of Spark's."""
    values = spark.range(RATE * SECONDS).withColumnRenamed("id", "value")
    start = round(START.timestamp()) * 1_000_000
    return values.selectExpr("value", f"timestamp_micros({start} + value DIV {RATE} * 1000000) AS timestamp")


def plain(value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (moment - EPOCH) // timedelta(microseconds=1)
    return value


def in_order(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows as tuples by column name, sorted; floats last, so that rounding does not change the order."""
    if not rows:
        return []
    names = sorted(rows[0], key=lambda name: (isinstance(rows[0][name], float), name))
    return sorted(tuple(plain(row[name]) for name in names) for row in rows)


def latest(question: Question, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ran last per key: the only thing that a table can be asked."""
    if not question.aggregates or question.window is not None:
        return rows
    return list({tuple(row[key] for key in question.key): row for row in rows}.values())


@pytest.mark.parametrize("question", ASKED, ids=lambda question: question.name)
def test_headgate_and_spark_answer_alike(
    question: Question, answers: dict[str, list[dict[str, Any]]], numbers: Any
) -> None:
    from headgate.bench import structured

    frame = structured.best(question, structured.frame(question, structured.as_clicks(numbers)))
    expected = in_order(frame.toArrow().to_pylist())
    found = in_order(latest(question, answers[question.name]))
    assert expected, "a question without answers proves nothing"
    assert len(found) == len(expected)
    for row, right in zip(found, expected, strict=True):
        for value, other in zip(row, right, strict=True):
            assert value == other or math.isclose(value, other, rel_tol=1e-9), (row, right)


def test_there_are_forty_of_every_kind_and_both_classes() -> None:
    assert len(QUESTIONS) == len({question.name for question in QUESTIONS}) == 40
    assert {question.window for question in QUESTIONS} == {None, "tumbling", "sliding", "session"}
    assert {bool(question.aggregates) for question in QUESTIONS} == {True, False}
    assert 10 <= sum(question.tight for question in QUESTIONS) <= 30


@pytest.mark.parametrize("keyed", [False, True])
def test_generated_questions_all_differ(keyed: bool) -> None:
    made = small_queries.many(500, keyed=keyed)
    assert len({question.where for question in made}) == len({question.name for question in made}) == 500


@pytest.mark.parametrize("make", [shop_live.LiveClicks, shop_live.LiveSales])
def test_a_live_row_depends_on_its_number_alone(make: Any) -> None:
    batch = hg.from_rate(100).batch(0, 5_000)
    whole, causes = make(15_000)(batch)
    parts = [make(15_000)(batch.slice(start, 777))[0] for start in range(0, 5_000, 777)]
    assert pa.Table.from_batches(parts).combine_chunks().to_batches() == [whole]
    assert len(causes) == whole.num_rows > 0


def test_live_clicks_and_sales_share_the_numbers() -> None:
    batch = hg.from_rate(100).batch(0, 5_000)
    clicks, by_click = shop_live.LiveClicks(15_000)(batch)
    sales, by_sale = shop_live.LiveSales(15_000)(batch)
    assert clicks.schema == tpcx_bb.SCHEMAS["web_clickstreams"]
    assert sales.schema == tpcx_bb.SCHEMAS["store_sales"]
    assert sorted([*by_click, *by_sale]) == list(range(5_000))


def test_a_ticket_has_an_item_once_and_one_time() -> None:
    sales, _ = shop_live.LiveSales(15_000)(hg.from_rate(100).batch(0, 20_000))
    rows = (
        pa.Table.from_batches([sales])
        .group_by("ss_ticket_number")
        .aggregate([("ss_item_sk", "count_distinct"), ("ss_item_sk", "count"), ("ss_ts", "count_distinct")])
    )
    assert rows["ss_item_sk_count_distinct"] == rows["ss_item_sk_count"]
    assert set(rows["ss_ts_count_distinct"].to_pylist()) == {1}


def test_the_live_shop_gives_the_five_queries_something_to_find() -> None:
    from headgate.workloads.examples import load_example

    app = hg.App("five")
    numbers = app.source("numbers", hg.from_rate(5_000, limit=120_000, burst=5_000))
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, (stream, qos) in load_example("shop/app").five(numbers, 10_000).items():
        stream.to(name, hg.to_list(rows.setdefault(name, [])), qos=qos)
    report = app.run("simulated", policy="round_robin", until="drained")
    assert all(query.error is None and query.late == 0 for query in report.queries.values())
    assert max(row["sold"] for row in rows["q1"]) > 1
    assert max(row["sessions"] for row in rows["q2"]) > 5
    assert max(row["views"] for row in rows["q3"]) > 5
    assert max(row["sessions"] for row in rows["q4"]) > 1
    assert 0 < len(rows["q15"]) < 10 * len({row["window_start"] for row in rows["q15"]})


# --- the ruler --------------------------------------------------------------------------------------------


def micros(*seconds: float) -> pa.Array:
    return pa.array([round(each * 1e6) for each in seconds]).cast(pa.timestamp("us", tz="UTC"))


def test_a_windows_result_is_caused_by_the_first_arrival_after_its_end() -> None:
    """Arrivals come every second at .25: the window that ends at 10 closes with the one at 10.25."""
    recorder = Recorder(["q"], period=1.0)
    recorder("q", pa.record_batch({"ts": micros(8.25, 9.25), "window_end": micros(10, 10)}))
    recorder("q", pa.record_batch({"ts": micros(10.25)}))
    first, second, third = recorder.between(-math.inf, math.inf)["q"]
    assert first == second
    # Two calls, microseconds to milliseconds apart, of results that the same arrival caused.
    assert 0 <= third - first < 1.0


def test_each_query_weighs_the_same() -> None:
    values = [np.full(1_000, 1.0), np.array([5.0]), np.array([7.0])]
    weights = [np.full(len(each), 1 / len(each)) for each in values]
    assert percentiles(values, weights, (30, 50, 99)) == [1.0, 5.0, 7.0]
