"""Scans read what is needed: columns that some box looks at, row groups that can pass a filter, each once."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import RunError
from headgate.graph.needs import needs
from headgate.sql import compile_predicate
from headgate.sql.ranges import Bound, compile_ranges
from serial import serial
from waiting import SOON, eventually

Rows = list[dict[str, Any]]
Query = Callable[[Any], Any]
ROWS = 500


def clicks(folder: Path, rows: int = ROWS, group: int = 50) -> Path:
    """Two files: `n` rises, so that row groups have ranges of it; `user` is null at times."""
    folder.mkdir(exist_ok=True)
    table = pa.table(
        {
            "n": range(rows),
            "user": pa.array([None if i % 11 == 0 else i * 7 % 13 for i in range(rows)], pa.int64()),
            "ts": pa.array([i * 1_000_000 for i in range(rows)], pa.timestamp("us", tz="UTC")),
            "price": [float(i % 17) for i in range(rows)],
            "page": [f"page {i % 5}" for i in range(rows)],
            "spare": [f"spare {i}" for i in range(rows)],
        }
    )
    half = rows // 2 + 7
    pq.write_table(table.slice(0, half), folder / "a.parquet", row_group_size=group)
    pq.write_table(table.slice(half), folder / "b.parquet", row_group_size=group)
    return folder


def late_rows(stream: Any) -> Any:
    """Every fiftieth row comes an hour late."""
    stream = stream.with_columns("CASE WHEN n % 50 = 0 THEN ts - INTERVAL 1 HOUR ELSE ts END AS at")
    windows = stream.key_by("user").window(hg.tumbling("10 seconds", on="at"))
    windows.agg("count(*) AS c")
    return windows.late()


QUERIES: dict[str, Query] = {
    "two columns": lambda s: s.filter("price > 9").select("user", "n * 2 AS twice"),
    "a range": lambda s: s.filter("n BETWEEN 120 AND 260 AND page IN ('page 1', 'page 3')").select("n"),
    "nothing passes": lambda s: s.filter("n > 100000").select("n", "spare"),
    "two filters": lambda s: s.filter("n < 60").select("n").union(s.filter("n >= 460").select("n")),
    "a filter and not": lambda s: s.filter("n < 60").select("n").union(s.select("n")),
    "null counts": lambda s: s.filter("user IS NOT NULL OR n = 3").select("user", "page"),
    "all of it": lambda s: s,
    "new columns": lambda s: s.with_columns("price + 1 AS price", "n AS m").select("m", "price", "page"),
    "windows": lambda s: s.key_by("user").window(hg.tumbling("40 seconds", on="ts")).agg("sum(price) AS s"),
    "filtered windows": lambda s: (
        s.filter("n > 222").key_by("user").window(hg.session("20 seconds", on="ts")).agg("count(*) AS c")
    ),
    "late rows": lambda s: late_rows(s).select("n", "spare"),
    "running": lambda s: s.key_by("page").running("max(price) AS best").select("best", "n"),
    "best": lambda s: s.top(2, by="price DESC", every="1 minute", on="ts").select("n"),
    "a function": lambda s: s.map_packets(lambda b: b.select(["spare"]), schema=[("spare", pa.string())]),
    "a lookup": lambda s: s.lookup(pa.table({"page": ["page 1"], "title": ["one"]}), on="page").select(
        "n", "title"
    ),
    "a join": lambda s: (
        s.filter("n % 2 = 0")
        .key_by("user")
        .join(s.select("user", "ts", "n AS m").key_by("user"), within="9 seconds", on="ts")
        .select("n", "m")
    ),
}


def application(folder: Path, chosen: dict[str, Query]) -> tuple[hg.App, dict[str, Rows]]:
    app, found = hg.App("scan"), {}
    stream = app.source("clicks", hg.from_files(folder))
    for name, query in chosen.items():
        found[name] = []
        query(stream).to(name, hg.to_list(found[name]))
    return app, found


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_that_reads_less_gives_the_answers_of_serial_execution(name: str, tmp_path: Path) -> None:
    chosen = {name: QUERIES[name]}
    for engine in (hg.Threads(workers=2, packet_rows=64), hg.Simulated(workers=2, packet_rows=64)):
        app, found = application(clicks(tmp_path / "clicks"), chosen)
        report = app.run(engine)
        assert found == serial(app.network)
        assert report.queries[name].tuples_in == ROWS


def test_every_engine_gives_the_answers_of_serial_execution(engine: hg.Engine, tmp_path: Path) -> None:
    together = {name: QUERIES[name] for name in ("two columns", "a range", "two filters", "windows")}
    alone = {"a range": QUERIES["a range"]}
    for chosen in (together, alone):
        app, found = application(clicks(tmp_path / "clicks"), chosen)
        report = app.run(engine)
        assert found == serial(app.network)
        assert {query.tuples_in for query in report.queries.values()} == {ROWS}


def test_two_sources_take_turns_whatever_is_read_of_them(tmp_path: Path) -> None:
    app, out = hg.App("turns"), []
    one = app.source("one", hg.from_files(clicks(tmp_path / "one", 5_000, 700)))
    other = app.source("other", hg.from_files(clicks(tmp_path / "other", 3_000, 1_100)))
    one.filter("n > 4000").select("n").union(other.select("n")).to("q", hg.to_list(out))
    app.run(hg.Threads(workers=2, packet_rows=2_048))
    assert out == serial(app.network)["q"]


# --- what is needed -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "columns", "filtered"),
    [
        ("two columns", {"price", "user", "n"}, True),
        ("a range", {"n", "page"}, True),
        ("two filters", {"n"}, True),
        ("a filter and not", {"n"}, False),
        ("all of it", {"n", "user", "ts", "price", "page", "spare"}, False),
        ("new columns", {"price", "n", "page"}, False),
        ("windows", {"user", "ts", "price"}, False),
        ("late rows", {"n", "user", "ts", "spare"}, False),
        ("running", {"page", "price", "n"}, False),
        ("best", {"n", "user", "ts", "price", "page", "spare"}, False),
        ("a function", {"n", "user", "ts", "price", "page", "spare"}, False),
        ("a lookup", {"n", "page"}, False),
    ],
)
def test_what_a_query_needs(name: str, columns: set[str], filtered: bool, tmp_path: Path) -> None:
    app, _ = application(clicks(tmp_path / "clicks"), {name: QUERIES[name]})
    [found] = needs(app.network)
    assert found.columns == columns
    assert bool(found.filters) == filtered


def test_importance_and_dead_letters_count(tmp_path: Path) -> None:
    folder = clicks(tmp_path / "clicks")
    app = hg.App("weighed")
    stream = app.source("clicks", hg.from_files(folder))
    stream.filter("n > 1").select("n").to("q", hg.to_list([]), importance="price")
    assert needs(app.network)[0].columns == {"n", "price"}
    letters: Rows = []
    app.dead_letter(hg.to_list(letters))
    assert needs(app.network)[0].columns == set(app.network.sources[0].schema.names)


def test_only_what_is_needed_is_decoded_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, read = clicks(tmp_path / "clicks"), []
    original = pq.ParquetFile.read_row_group

    def watched(self: Any, group: int, columns: Any = None, **options: Any) -> Any:
        read.append((self.metadata.num_rows, group, tuple(columns)))
        return original(self, group, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    app, found = application(folder, {"a range": QUERIES["a range"]})
    app.run(hg.Threads(workers=2, packet_rows=16))
    assert [row["n"] for row in found["a range"]] == [n for n in range(120, 261) if n % 5 in (1, 3)]
    # Rows 100 to 256 are groups 2 to 5 of the first file, and 257 to 306 group 0 of the second.
    assert Counter(read) == Counter(
        [(257, group, ("n", "page")) for group in (2, 3, 4, 5)] + [(243, 0, ("n", "page"))]
    )


def test_a_file_that_cannot_be_read_fails_its_query_and_is_named(tmp_path: Path) -> None:
    app, _ = application(clicks(tmp_path / "clicks"), {"two columns": QUERIES["two columns"]})
    (tmp_path / "clicks" / "b.parquet").write_bytes(b"PAR1 no more PAR1")
    with pytest.raises(RunError, match=r"b\.parquet"):
        app.run("threads")


# --- a query that joins and needs more ------------------------------------------------------------------


def test_a_query_that_joins_reads_columns_that_were_not_read_before(tmp_path: Path) -> None:
    """The first query's sink waits until the other has joined, so that rows are left for it."""
    folder = clicks(tmp_path / "clicks", 20_000, 900)
    app, joined, late = hg.App("joins"), threading.Event(), []
    stream = app.source("clicks", hg.from_files(folder))
    begun: list[int] = []

    def wait(query: str, batch: pa.RecordBatch) -> None:
        begun.append(batch.num_rows)
        assert joined.wait(SOON)

    stream.filter("n < 1000000").select("n").to("first", hg.to_function(wait))
    with app.start(hg.Threads(workers=2, packet_rows=100), until="drained") as running:
        eventually(lambda: begun, "the first query gives nothing")
        stream.select("n", "spare").to("late", hg.to_list(late), start="now")
        running.add("late")
        joined.set()
        report = running.wait(SOON)
    assert sum(begun) == 20_000
    first = late[0]["n"]
    assert 0 < first < 20_000
    assert late == [{"n": n, "spare": f"spare {n}"} for n in range(first, 20_000)]
    assert report.queries["late"].tuples_in == len(late)


# --- ranges ---------------------------------------------------------------------------------------------

SCHEMA = pa.schema([("i", pa.int32()), ("f", pa.float64()), ("s", pa.string()), ("t", pa.timestamp("us"))])
PARTS = [
    "i > 3", "3 >= i", "i = 4", "i < 2.5", "i IN (1, 9)", "i BETWEEN 2 AND 4", "i IS NOT NULL", "i > -1",
    "f > 2", "f <= 2", "f = 3", "s = 'b'", "s > 'b'", "s IN ('a', 'c')", "s IS NOT NULL",
    "t > '1970-01-01 00:00:03'", "t <= TIMESTAMP_NTZ '1970-01-01 00:00:02'", "t < DATE '1970-01-02'",
]  # fmt: skip
VALUES = {
    "i": st.none() | st.integers(-2, 9),
    "f": st.none() | st.sampled_from([-1.0, -0.0, 2.0, 2.5, 3.0, math.nan]),
    "s": st.none() | st.sampled_from(["", "a", "b", "c"]),
    "t": st.none() | st.integers(0, 5).map(lambda second: second * 1_000_000),
}


@st.composite
def predicates(draw: st.DrawFn) -> str:
    found = draw(st.sampled_from(PARTS))
    for _ in range(draw(st.integers(0, 2))):
        found = f"({found}) {draw(st.sampled_from(['AND', 'OR']))} {draw(st.sampled_from(PARTS))}"
    return found


@given(predicates(), st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=4))
def test_a_block_that_is_passed_over_has_no_row_that_passes(predicate: str, rows: Rows) -> None:
    columns = [pa.array([row[f.name] for row in rows], f.type) for f in SCHEMA]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), sink)
    stated = pq.ParquetFile(sink.getvalue()).metadata.row_group(0)
    bounds = {}
    for place, name in enumerate(SCHEMA.names):
        known = stated.column(place).statistics
        ends = (known.min, known.max) if known.has_min_max else (None, None)
        bounds[name] = Bound(len(rows), known.null_count, *ends)
    ranges = compile_ranges(predicate, SCHEMA)
    assert ranges is not None
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    passes = True in compile_predicate(predicate, SCHEMA).evaluate(batch).to_pylist()
    assert ranges.possible(bounds) or not passes
    nothing = pa.RecordBatch.from_arrays([pa.nulls(1, f.type) for f in SCHEMA], schema=SCHEMA)
    assert True not in compile_predicate(predicate, SCHEMA).evaluate(nothing).to_pylist()


@pytest.mark.parametrize(
    "predicate",
    [
        "i / 0 > 1",
        "s > 3",
        "t > 'no time'",
        "i IS NULL",
        "NOT i > 3",
        "i > 3 AND 1 / i > 0",
        "i > f",
        "i + 1 > 2",
    ],
)
def test_blocks_are_not_told_by_what_may_raise_or_is_true_of_null(predicate: str) -> None:
    assert compile_ranges(predicate, SCHEMA) is None


@pytest.mark.parametrize(
    ("predicate", "bound", "possible"),
    [
        ("i > 5", Bound(9, 0, 1, 5), False),
        ("i > 5", Bound(9, 0, 1, 6), True),
        ("i = 5", Bound(9, 0, 6, 9), False),
        ("i IN (1, 7)", Bound(9, 0, 6, 9), True),
        ("i IS NOT NULL", Bound(9, 9), False),
        ("i > 5", Bound(9, 9), False),
        ("i > 5", Bound(9), True),
    ],
)
def test_what_a_block_can_hold(predicate: str, bound: Bound, possible: bool) -> None:
    ranges = compile_ranges(predicate, SCHEMA)
    assert ranges is not None
    assert ranges.possible({"i": bound}) is possible
    assert ranges.possible({})
