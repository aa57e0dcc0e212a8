"""The demo's shop: its questions, and live rows that give its queries something to find."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.demo import live
from headgate.demo.examples import load_example
from headgate.demo.small_queries import QUESTIONS
from headgate.demo.tpcx_bb import tables


def test_there_are_forty_of_every_kind_and_both_classes() -> None:
    assert len(QUESTIONS) == len({question.name for question in QUESTIONS}) == 40
    assert {question.window for question in QUESTIONS} == {None, "tumbling", "sliding", "session"}
    assert {bool(question.aggregates) for question in QUESTIONS} == {True, False}
    assert 10 <= sum(question.tight for question in QUESTIONS) <= 30


@pytest.mark.parametrize("make", [live.LiveClicks, live.LiveSales])
def test_a_live_row_depends_on_its_number_alone(make: Any) -> None:
    batch = hg.from_rate(100).batch(0, 5_000)
    whole, causes = make(15_000)(batch)
    parts = [make(15_000)(batch.slice(start, 777))[0] for start in range(0, 5_000, 777)]
    assert pa.Table.from_batches(parts).combine_chunks().to_batches() == [whole]
    assert len(causes) == whole.num_rows > 0


def test_live_clicks_and_sales_share_the_numbers() -> None:
    batch = hg.from_rate(100).batch(0, 5_000)
    clicks, by_click = live.LiveClicks(15_000)(batch)
    sales, by_sale = live.LiveSales(15_000)(batch)
    assert clicks.schema == tables.WEB_CLICKSTREAMS
    assert sales.schema == tables.STORE_SALES
    assert sorted([*by_click, *by_sale]) == list(range(5_000))


def test_a_ticket_has_an_item_once_and_one_time() -> None:
    sales, _ = live.LiveSales(15_000)(hg.from_rate(100).batch(0, 20_000))
    rows = (
        pa.Table.from_batches([sales])
        .group_by("ss_ticket_number")
        .aggregate([("ss_item_sk", "count_distinct"), ("ss_item_sk", "count"), ("ss_ts", "count_distinct")])
    )
    assert rows["ss_item_sk_count_distinct"] == rows["ss_item_sk_count"]
    assert set(rows["ss_ts_count_distinct"].to_pylist()) == {1}


def test_the_live_shop_gives_the_five_queries_something_to_find() -> None:
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
