"""Mistakes in a pipeline: each is refused where it is made, in words that name it and say what to do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headgate as hg
from headgate import testing
from headgate.errors import (
    CycleError,
    HeadgateError,
    PipelineError,
    SourceError,
    TypeMismatch,
    UnknownColumn,
    UnsupportedFunction,
)
from headgate.graph.network import Arrow, Box, Network, Output, Source
from headgate.graph.operators.filter import Filter

CLICKS = pa.schema(
    [
        ("user_id", pa.int64()),
        ("item_id", pa.int64()),
        ("page", pa.string()),
        ("ts", pa.timestamp("us")),
        ("price", pa.float64()),
    ]
)


def clicks(name: str = "clicks", app: hg.App | None = None) -> hg.Stream:
    return (app or hg.App("shop")).source(name, testing.from_rows([], CLICKS))


def says(caught: pytest.ExceptionInfo[BaseException], *parts: str) -> None:
    message = str(caught.value)
    for part in parts:
        assert part in message
    assert "0x" not in message, "an address in memory helps nobody"


Mistake = Callable[[hg.Stream], object]

MISTAKES: dict[str, tuple[Mistake, type[HeadgateError], tuple[str, ...]]] = {
    "unknown column in filter": (
        lambda s: s.filter("user = 1"),
        UnknownColumn,
        ("'user'", "'user_id'"),
    ),
    "unknown column in select": (
        lambda s: s.select("item_idd"),
        UnknownColumn,
        ("'item_idd'", "Did you mean 'item_id'?"),
    ),
    "unknown column in an aggregate": (
        lambda s: s.key_by("user_id").running("sum(prize) AS p"),
        UnknownColumn,
        ("'prize'", "'price'"),
    ),
    "unknown key": (lambda s: s.key_by("userid"), UnknownColumn, ("key_by", "'userid'", "'user_id'")),
    "no key": (lambda s: s.key_by(), PipelineError, ("key_by", "at least one column")),
    "unknown time column": (
        lambda s: s.window(hg.tumbling("1 minute", on="time")),
        UnknownColumn,
        ("tumbling window", "'time'", "'ts'"),
    ),
    "time column that is no time": (
        lambda s: s.window(hg.tumbling("1 minute", on="user_id")).agg("count(*) AS n"),
        TypeMismatch,
        ("'user_id'", "int64", "timestamp_seconds(user_id)"),
    ),
    "string as a number": (
        lambda s: s.filter("upper(page) + ts > 1"),
        TypeMismatch,
        ("+",),
    ),
    "filter that is no condition": (lambda s: s.filter("price * 2"), TypeMismatch, ("price * 2",)),
    "function that is not supported": (
        lambda s: s.select("substrng(page, 1, 2) AS p"),
        UnsupportedFunction,
        ("substrng", "substring"),
    ),
    "aggregate that is not supported": (
        lambda s: s.key_by("user_id").running("summ(price) AS p"),
        UnsupportedFunction,
        ("summ", "sum"),
    ),
    "expression that does not parse": (lambda s: s.filter("price >"), PipelineError, ("price >",)),
    "aggregate outside agg": (lambda s: s.select("sum(price) AS p"), PipelineError, ("sum",)),
    "no expression": (lambda s: s.select(), PipelineError, ("select", "at least one expression")),
    "two columns of one name": (
        lambda s: s.select("user_id", "item_id AS user_id"),
        PipelineError,
        ("'user_id'", "AS"),
    ),
    "two boxes of one name": (
        lambda s: s.filter("price > 1", name="cheap").filter("price > 2", name="cheap"),
        PipelineError,
        ("already a box called 'cheap'",),
    ),
    "two queries of one name": (
        lambda s: s.to("out", hg.to_list([])).to("out", hg.to_list([])),
        PipelineError,
        ("already a query called 'out'",),
    ),
    "query without a name": (lambda s: s.to("", hg.to_list([])), PipelineError, ("give the query a name",)),
    "sink that is none": (lambda s: s.to("out", []), PipelineError, ("query 'out'", "not a sink", "hg.to_")),  # type: ignore[arg-type]
    "qos that is none": (
        lambda s: s.to("out", hg.to_list([]), qos=[(0, 1)]),  # type: ignore[arg-type]
        PipelineError,
        ("query 'out'", "hg.QoS("),
    ),
    "malformed qos": (
        lambda s: s.to("out", hg.to_list([]), qos=hg.QoS([(0, 0), (1, 1)])),
        PipelineError,
        ("QoS graph", "utility rises"),
    ),
    "keep for no time": (
        lambda s: s.to("out", hg.to_list([]), keep="0 days"),
        PipelineError,
        ("query 'out'", "keep=", "more than zero"),
    ),
    "a start that is none": (
        lambda s: s.to("out", hg.to_list([]), start="later"),
        PipelineError,
        ("query 'out'", "start='later'", "'earliest', 'now'"),
    ),
    "union of different schemas": (
        lambda s: s.union(s.select("user_id")),
        PipelineError,
        ("union", "user_id", "item_id", "select"),
    ),
    "union with something else": (lambda s: s.union("clicks"), PipelineError, ("union", "same app")),  # type: ignore[arg-type]
    "union of two apps": (
        lambda s: s.union(clicks(app=hg.App("other"))),
        PipelineError,
        ("union", "same app"),
    ),
    "join of two apps": (
        lambda s: s.key_by("user_id").join(
            clicks(app=hg.App("other")).key_by("user_id"), within="1 minute", on="ts"
        ),
        PipelineError,
        ("join", "same app"),
    ),
    "join with a stream that has no key": (
        lambda s: s.key_by("user_id").join(s, within="1 minute", on="ts"),  # type: ignore[arg-type]
        PipelineError,
        ("join", "key_by"),
    ),
    "join on a missing time": (
        lambda s: s.key_by("user_id").join(s.key_by("user_id"), within="1 minute", on="when"),
        UnknownColumn,
        ("join", "'when'"),
    ),
    "join of keys of different types": (
        lambda s: s.key_by("user_id").join(s.key_by("page"), within="1 minute", on="ts"),
        PipelineError,
        ("join", "user_id", "page"),
    ),
    "late before agg": (
        lambda s: s.window(hg.tumbling("1 minute", on="ts")).late(),
        PipelineError,
        ("late()", "agg"),
    ),
    "agg without aggregates": (
        lambda s: s.window(hg.tumbling("1 minute", on="ts")).agg(),
        PipelineError,
        ("count(*)",),
    ),
    "window that is none": (lambda s: s.window("1 minute"), PipelineError, ("hg.tumbling",)),  # type: ignore[arg-type]
    "unit of time that is none": (
        lambda s: s.window(hg.tumbling("1 minutez", on="ts")),
        PipelineError,
        ("'minutez'", "Did you mean 'minute'?"),
    ),
    "window of no length": (
        lambda s: s.window(hg.tumbling(0, on="ts")),
        PipelineError,
        ("tumbling window", "more than zero"),
    ),
    "sliding that leaves gaps": (
        lambda s: s.window(hg.sliding("1 minute", every="2 minutes", on="ts")),
        PipelineError,
        ("sliding window", "'2 minutes'", "'1 minute'"),
    ),
    "negative lateness": (
        lambda s: s.window(hg.tumbling("1 minute", on="ts", lateness=-5)),
        PipelineError,
        ("lateness", "negative"),
    ),
    "expire without a time": (
        lambda s: s.key_by("user_id").running("count(*) AS n", expire="1 hour"),
        PipelineError,
        ("expire=", "on="),
    ),
    "function that is none": (
        lambda s: s.map_packets("upper", schema=CLICKS),  # type: ignore[arg-type]
        PipelineError,
        ("map_packets", "not a function"),
    ),
    "schema that is none": (
        lambda s: s.flat_map_rows(lambda row: row, schema="user_id"),  # type: ignore[arg-type]
        PipelineError,
        ("'user_id'", "schema"),
    ),
    "state that cannot change": (
        lambda s: s.process(lambda row, state: None, schema=CLICKS, state=0),
        PipelineError,
        ("state", "in place"),
    ),
    "negative cost": (
        lambda s: s.universal(cost=-1, name="busy"),
        PipelineError,
        ("'busy'", "cost", "-1"),
    ),
    "top of nothing": (
        lambda s: s.top(0, by="price", every="1 hour", on="ts"),
        PipelineError,
        ("top", "0"),
    ),
    "lookup in a file that is not there": (
        lambda s: s.lookup("no/such.parquet", on="item_id"),
        SourceError,
        ("lookup", "no/such.parquet"),
    ),
}


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_a_mistake_is_refused_where_it_is_made(mistake: str) -> None:
    make, kind, parts = MISTAKES[mistake]
    with pytest.raises(kind) as caught:
        make(clicks())
    says(caught, *parts)


# --- the app --------------------------------------------------------------------------------------------


def test_an_app_needs_a_name() -> None:
    with pytest.raises(PipelineError) as caught:
        hg.App("")
    says(caught, "hg.App('shop')")


def test_two_sources_cannot_share_a_name() -> None:
    app = hg.App("shop")
    clicks(app=app)
    with pytest.raises(PipelineError) as caught:
        clicks(app=app)
    says(caught, "already a source called 'clicks'")


def test_a_source_must_be_one() -> None:
    with pytest.raises(PipelineError) as caught:
        hg.App("shop").source("clicks", [{"a": 1}])  # type: ignore[arg-type]
    says(caught, "source 'clicks'", "not a source", "hg.from_")


def with_query() -> hg.App:
    app = hg.App("shop")
    clicks(app=app).to("q", hg.to_list([]))
    return app


def test_an_app_without_queries_cannot_run() -> None:
    app = hg.App("shop")
    clicks(app=app).filter("price > 1")
    with pytest.raises(PipelineError) as caught:
        app.run("threads")
    says(caught, "App 'shop' has no queries", "stream.to(name, sink)")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"engine": "thread"}, ("no engine 'thread'", "Did you mean 'threads'?", "simulated")),
        ({"policy": "round-robin"}, ("no policy 'round-robin'", "Did you mean 'round_robin'?")),
        ({"workers": 0}, ("workers=0", "at least 1")),
        ({"workers": 1.5}, ("workers=1.5", "whole number")),
        ({"workers": -2}, ("workers=-2", "at least 1")),
        ({"until": "done"}, ("until='done'", "'drained'")),
        ({"until": 0}, ("until=0", "seconds")),
        ({"until": -1.0}, ("until=-1.0", "seconds")),
        ({"until": True}, ("until=True", "seconds")),
    ],
    ids=str,
)
def test_a_bad_setting_of_run(options: dict[str, Any], parts: tuple[str, ...]) -> None:
    engine = options.get("engine", "threads")
    with pytest.raises(PipelineError) as caught:
        with_query().run(**{"engine": engine, **options})
    says(caught, *parts)


@pytest.mark.parametrize("options", [{"workers": 0}, {"packet_rows": 0}, {"workers": -1}])
def test_a_bad_setting_of_threads(options: dict[str, int]) -> None:
    with pytest.raises(PipelineError) as caught:
        hg.Threads(**options)
    [(name, value)] = options.items()
    says(caught, f"Threads({name}={value})", "at least 1")


# --- cycles ---------------------------------------------------------------------------------------------


def box(name: str) -> Box:
    return Box(name, Filter(CLICKS, "price > 0"))


def test_boxes_that_feed_each_other_are_named() -> None:
    """Streams cannot be made into a circle; a network put together by hand can."""
    a, b, c = box("a"), box("b"), box("c")
    source = Source("clicks", CLICKS)
    a.ports = ((Arrow(source), Arrow(c)),)
    b.ports = ((Arrow(a),),)
    c.ports = ((Arrow(b),),)
    output = Output("q", (Arrow(c),))
    for build in (lambda: Network.of("shop", [output]), lambda: Network([source], [c, b, a], [output])):
        with pytest.raises(CycleError) as caught:
            build()
        says(caught, "feed each other in a circle", "cut one of these arrows")
        named = str(caught.value).split(": ")[1].split(".")[0].split(" -> ")
        assert set(named) == {"a", "b", "c"}
        assert named[0] == named[-1]
        follows = {"a": "b", "b": "c", "c": "a"}
        assert all(follows[one] == other for one, other in pairwise(named))


def test_a_box_that_feeds_itself() -> None:
    a = box("narcissus")
    a.ports = ((Arrow(Source("clicks", CLICKS)), Arrow(a)),)
    with pytest.raises(CycleError, match="narcissus -> narcissus"):
        Network.of("shop", [Output("q", (Arrow(a),))])


@pytest.mark.parametrize("target", ["data", "data/out", "."])
def test_a_query_that_writes_where_its_source_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "data" / "one.parquet")
    app = hg.App("shop")
    stream = app.source("clicks", hg.from_files("data"))
    with pytest.raises(CycleError) as caught:
        stream.to("again", hg.to_parquet(target))
    says(caught, "'again'", "'clicks'", "another folder")
    stream.to("elsewhere", hg.to_parquet("results"))


def test_duplicate_names_in_a_network_put_together_by_hand() -> None:
    source = Source("clicks", CLICKS)
    one, other = box("same"), box("same")
    one.ports = other.ports = ((Arrow(source),),)
    with pytest.raises(PipelineError, match="Two boxes are called 'same'"):
        Network([source], [one, other], [Output("q", (Arrow(one),))])
    with pytest.raises(PipelineError, match="Two queries are called 'q'"):
        Network([source], [one], [Output("q", (Arrow(one),)), Output("q", (Arrow(source),))])
    with pytest.raises(PipelineError, match="Two sources are called 'clicks'"):
        Network([source, Source("clicks", CLICKS)], [], [])


# --- files ----------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        hg.from_files(str(tmp_path / "nothing.parquet"))
    says(caught, "nothing.parquet")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 this is no parquet")
    with pytest.raises(SourceError) as caught:
        hg.from_files(str(tmp_path / "broken.parquet"))
    says(caught, "broken.parquet")


def test_a_file_without_a_promised_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "part-0.parquet")
    pq.write_table(pa.table({"b": [3]}), tmp_path / "part-1.parquet")
    with pytest.raises(SourceError) as caught:
        hg.from_files(str(tmp_path), schema=pa.schema([("a", pa.int64())]))
    says(caught, "part-1.parquet", "no column 'a'", "'b'")


def test_a_file_that_loses_a_column_before_the_run(tmp_path: Path, engine: hg.Engine) -> None:
    """Found when the file is read: the query fails and names file and column; others go on."""
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "part-0.parquet")
    pq.write_table(pa.table({"a": [3]}), tmp_path / "part-1.parquet")
    app, found = hg.App("shop"), []
    app.source("files", hg.from_files(str(tmp_path))).to("bad", hg.to_list([]))
    app.source("rows", testing.from_rows([{"x": 1}])).to("good", hg.to_list(found))
    pq.write_table(pa.table({"b": [3]}), tmp_path / "part-1.parquet")
    report = app.run(engine)
    message = str(report.queries["bad"].error)
    assert isinstance(report.queries["bad"].error, SourceError)
    assert "part-1.parquet" in message
    assert "'a'" in message
    assert found == [{"x": 1}]


def test_a_file_that_goes_away_before_the_run(tmp_path: Path, engine: hg.Engine) -> None:
    path = tmp_path / "gone.parquet"
    pq.write_table(pa.table({"a": [1, 2]}), path)
    app, found = hg.App("shop"), []
    app.source("files", hg.from_files(str(path))).to("bad", hg.to_list([]))
    app.source("rows", testing.from_rows([{"x": 1}])).to("good", hg.to_list(found))
    path.unlink()
    report = app.run(engine)
    assert "gone.parquet" in str(report.queries["bad"].error)
    assert isinstance(report.queries["bad"].error, SourceError)
    assert found == [{"x": 1}]
