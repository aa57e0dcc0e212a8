"""The public surface: names that people rely on, and what the pieces do together, on every engine."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import headgate as hg
from headgate import testing
from waiting import Held

START = datetime(2024, 1, 1)


def at(second: int, **columns: Any) -> dict[str, Any]:
    return {"ts": START + timedelta(seconds=second), **columns}


CLICKS = [
    at(0, user_id=1, item_id=10),
    at(5, user_id=2, item_id=10),
    at(7, user_id=1, item_id=11),
    at(9, user_id=None, item_id=12),
    at(100, user_id=2, item_id=11),
    at(103, user_id=1, item_id=10),
]


def test_the_names_that_people_rely_on() -> None:
    things = ["App", "QoS", "Threads", "Simulated", "Report", "HeadgateError", "policies"]
    sources = ["from_batches", "from_files", "from_rate"]
    sinks = ["to_list", "to_function", "to_parquet", "to_console"]
    for name in [*things, *sources, *sinks, "tumbling", "sliding", "session"]:
        assert hasattr(hg, name), name
        assert name in hg.__all__
    assert set(hg.__all__) <= set(dir(hg))


def test_a_pipeline_as_the_readme_writes_it(engine: hg.Engine) -> None:
    app, found = hg.App("shop"), []
    clicks = app.source("clicks", testing.from_rows(CLICKS))
    views = clicks.filter("user_id IS NOT NULL").select("user_id", "item_id", "ts")
    visits = views.key_by("user_id").window(hg.session("60 seconds", on="ts")).agg("count(*) AS pages")
    visits.to("visits", hg.to_list(found), qos=hg.QoS([(0, 1), (0.5, 1), (5, 0)]))
    report = app.run(engine)
    assert [(row["user_id"], row["pages"]) for row in found] == [(2, 1), (1, 2), (2, 1), (1, 1)]
    query = report.queries["visits"]
    assert (query.tuples_in, query.tuples_out, query.error) == (6, 4, None)
    assert query.qos is not None
    assert query.latency.p50 <= query.latency.p99 <= query.latency.max
    assert report.engine == engine.name


def test_one_stream_used_twice_runs_once(engine: hg.Engine) -> None:
    """Sharing: one box, whoever needs it, sees every tuple once."""
    app, one, two = hg.App("shared"), [], []
    clicks = app.source("clicks", testing.from_rows(CLICKS))
    looked = clicks.map_packets(lambda batch: batch, schema=clicks.schema, name="look")
    looked.to("one", hg.to_list(one))
    looked.filter("item_id = 10").to("two", hg.to_list(two))
    report = app.run(engine)
    assert report.boxes["look"].tuples_in == len(CLICKS)
    assert (len(one), len(two)) == (6, 3)


def test_running_keeps_the_rows_and_adds_the_aggregates(engine: hg.Engine) -> None:
    app, found = hg.App("running"), []
    clicks = app.source("clicks", testing.from_rows(CLICKS))
    clicks.key_by("item_id").running("count(*) AS n").to("q", hg.to_list(found))
    app.run(engine)
    assert [(row["item_id"], row["n"]) for row in found] == [
        (10, 1),
        (10, 2),
        (11, 1),
        (12, 1),
        (11, 2),
        (10, 3),
    ]
    assert list(found[0]) == ["ts", "user_id", "item_id", "n"]


def test_boxes_are_named_by_what_they_do() -> None:
    app = hg.App("names")
    clicks = app.source("clicks", testing.from_rows(CLICKS))
    stream = clicks.filter("item_id > 1").filter("item_id > 2").select("item_id", name="mine")
    stream.to("q", hg.to_list([]))
    assert [box["name"] for box in app.to_data()["boxes"]] == ["filter-1", "filter-2", "mine"]


def test_a_network_is_data_and_a_picture() -> None:
    app = hg.App("shop")
    clicks = app.source("clicks", testing.from_rows(CLICKS, None))
    windows = clicks.key_by("user_id").window(hg.tumbling("1 minute", on="ts"))
    windows.agg("count(*) AS n", name="pages").to("q", hg.to_list([]), qos=hg.QoS([(0, 1), (9, 0)]))
    windows.late().to("late", hg.to_list([]))
    data = app.to_data()
    assert data["name"] == "shop"
    assert data["sources"][0]["name"] == "clicks"
    assert data["boxes"] == [
        {
            "name": "pages",
            "does": data["boxes"][0]["does"],
            "kind": "keyed",
            "inputs": [["clicks"]],
            "schema": data["boxes"][0]["schema"],
        }
    ]
    assert list(data["boxes"][0]["schema"]) == ["user_id", "window_start", "window_end", "n"]
    assert data["queries"] == [
        {"name": "q", "input": ["pages"], "qos": [(0.0, 1.0), (9.0, 0.0)]},
        {"name": "late", "input": ["pages:1"], "qos": None},
    ]
    picture = app.to_mermaid()
    assert picture.startswith("flowchart LR")
    for part in ("clicks", "pages", "late", "-->|output 1|"):
        assert part in picture


def test_boxes_that_no_query_needs_are_left_out() -> None:
    app = hg.App("shop")
    clicks = app.source("clicks", testing.from_rows(CLICKS))
    app.source("unused", testing.from_rows(CLICKS)).filter("item_id > 1")
    clicks.filter("item_id > 3", name="unused box")
    clicks.to("q", hg.to_list([]))
    assert [source.name for source in app.network.sources] == ["clicks"]
    assert list(app.network.boxes) == []


def test_sources_keep_the_order_of_their_declaration() -> None:
    """Whoever is used first: the order of admission must not change when a query is added."""
    app = hg.App("shop")
    first = app.source("first", testing.from_rows(CLICKS))
    second = app.source("second", testing.from_rows(CLICKS))
    second.to("q", hg.to_list([]))
    first.to("r", hg.to_list([]))
    assert [source.name for source in app.network.sources] == ["first", "second"]


def test_a_policy_object_works_too(engine: hg.Engine) -> None:
    from headgate.scheduling.aurora.round_robin import RoundRobin
    from headgate.scheduling.trains import Count

    app, found = hg.App("object"), []
    app.source("clicks", testing.from_rows(CLICKS)).filter("item_id > 0", name="f").to("q", hg.to_list(found))
    report = app.run(engine, RoundRobin(Count(2)))
    assert len(found) == 6
    assert max(call.tuples for call in report.trace) == 2


def test_workers_of_run_win_over_those_of_the_engine() -> None:
    app = hg.App("workers")
    app.source("clicks", testing.from_rows(CLICKS)).filter("item_id > 0").to("q", hg.to_list([]))
    assert app.run(hg.Simulated(workers=2), workers=5).workers == 5
    assert app.run(hg.Simulated(workers=2)).workers == 2
    assert app.run("threads", workers=3).workers == 3


def test_an_app_can_run_again_and_gives_the_same(engine: hg.Engine) -> None:
    """States are made afresh for every run."""
    app, found = hg.App("again"), []
    clicks = app.source("clicks", testing.from_rows(CLICKS))
    clicks.key_by("item_id").running("count(*) AS n").to("q", hg.to_list(found))
    app.run(engine)
    first = list(found)
    found.clear()
    app.run(engine)
    assert found == first


def test_an_empty_source_gives_what_an_empty_stream_gives(engine: hg.Engine) -> None:
    app, found, windows = hg.App("empty"), [], []
    nothing = app.source("nothing", testing.from_rows([], testing.batch(CLICKS).schema))
    nothing.filter("item_id > 0").to("q", hg.to_list(found))
    nothing.window(hg.tumbling("1 minute", on="ts")).agg("count(*) AS n").to("w", hg.to_list(windows))
    report = app.run(engine)
    assert found == windows == []
    assert (report.tuples, report.queries["q"].tuples_out) == (0, 0)


def test_a_source_straight_to_a_sink(engine: hg.Engine) -> None:
    app, found = hg.App("straight"), []
    app.source("clicks", testing.from_rows(CLICKS)).to("q", hg.to_list(found))
    app.run(engine)
    assert found == [dict(row) for row in testing.batch(CLICKS).to_pylist()]


def test_to_function_gets_the_query_and_batches_in_order(engine: hg.Engine) -> None:
    app, seen = hg.App("function"), []
    numbers = app.source("numbers", testing.from_rows([{"a": i} for i in range(50)]))
    numbers.filter("a % 5 = 0").to("fives", hg.to_function(lambda query, batch: seen.append((query, batch))))
    app.run(engine)
    assert {query for query, _ in seen} == {"fives"}
    assert all(batch.num_rows for _, batch in seen), "an empty batch is not worth a call"
    assert [v for _, batch in seen for v in batch.column("a").to_pylist()] == list(range(0, 50, 5))


def test_progress_is_shown_while_a_run_goes_on() -> None:
    app, reports = hg.App("progress"), []
    app.source("rate", Held(1000, 900, 1, lambda: reports)).filter("value >= 0").to("q", hg.to_list([]))
    app.run("threads", progress=reports.append)
    assert reports
    assert all(report.queries["q"].error is None for report in reports)


def test_streams_say_what_they_are() -> None:
    app = hg.App("repr")
    clicks = app.source("clicks", testing.from_rows([{"a": 1}]))
    assert repr(clicks) == "Stream(a int64)"
    assert repr(clicks.key_by("a")) == "KeyedStream(by a: a int64)"
