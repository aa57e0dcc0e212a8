"""Bad rows go to the dead-letter output with tuple and reason, and all the others go on, on every engine."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from depth import examples
from headgate import testing
from headgate.api import Stream
from headgate.errors import BadRow, OperatorError, PipelineError, RunError, SinkError
from headgate.graph.operator import Operator
from headgate.graph.operators.filter import Filter
from headgate.graph.operators.process import KeyedProcess
from headgate.graph.operators.running import Running
from headgate.graph.operators.select import Select
from headgate.graph.operators.top import Top
from headgate.graph.operators.window import WindowAggregate
from headgate.graph.packet import Marker, Order, Packet
from headgate.graph.partition import buckets
from headgate.graph.time import ticks_of
from headgate.runtime import dead_letters as letters

Row = dict[str, Any]
Pipeline = Callable[[Stream], Stream]
NUMBERS = pa.schema([("a", pa.int64())])
START = datetime(2024, 1, 1)
BAD = (7, 8, 15)
ROWS = [{"a": i, "k": i % 3, "ts": START + timedelta(minutes=i)} for i in range(20)]
GOOD = [row["a"] for row in ROWS if row["a"] not in BAD]


def parse(row: Row) -> Row:
    if row["a"] in BAD:
        raise KeyError("page")
    return {"a": row["a"]}


def remember(row: Row, state: Row) -> Row:
    found = parse(row)
    state["n"] = state.get("n", 0) + 1
    return {"a": found["a"], "n": state["n"]}


def lazily(row: Row) -> Any:
    yield {"a": row["a"]}
    parse(row)


def as_text(row: Row) -> Row:
    return {"a": "many" if row["a"] in BAD else row["a"]}


def with_more(row: Row) -> Row:
    return {"a": 1, "b": 2} if row["a"] in BAD else {"a": row["a"]}


def with_less(row: Row) -> Row:
    return {} if row["a"] in BAD else {"a": row["a"]}


def one_of_two(row: Row) -> list[Row]:
    return [{"a": row["a"]}, {"a": 1.5}] if row["a"] in BAD else [{"a": row["a"]}]


def number(row: Row) -> Any:
    return 42 if row["a"] in BAD else {"a": row["a"]}


BY_THREE = "1 / ((a - 7) * (a - 8) * (a - 15))"
COUNTED = pa.schema([("a", pa.int64()), ("n", pa.int64())])

PIPELINES: dict[str, tuple[Pipeline, str]] = {
    "filter": (lambda s: s.filter(f"{BY_THREE} IS NOT NULL"), "zero"),
    "select": (lambda s: s.select("a", f"{BY_THREE} AS b"), "zero"),
    "with_columns": (lambda s: s.with_columns(f"{BY_THREE} AS b"), "zero"),
    "flat_map_rows": (lambda s: s.flat_map_rows(parse, schema=NUMBERS), "KeyError: 'page'"),
    "a generator": (lambda s: s.flat_map_rows(lazily, schema=NUMBERS), "KeyError: 'page'"),
    "a broken type": (lambda s: s.flat_map_rows(as_text, schema=NUMBERS), "promised as int64"),
    "one of two results": (lambda s: s.flat_map_rows(one_of_two, schema=NUMBERS), "gave 1.5"),
    "an unpromised column": (lambda s: s.flat_map_rows(with_more, schema=NUMBERS), "'b'"),
    "a missing column": (lambda s: s.flat_map_rows(with_less, schema=NUMBERS), "'a' was promised"),
    "no row": (lambda s: s.flat_map_rows(number, schema=NUMBERS), "returned a int"),
    "process": (lambda s: s.process(remember, schema=COUNTED), "KeyError: 'page'"),
    "keyed process": (lambda s: s.key_by("k").process(remember, schema=COUNTED), "KeyError: 'page'"),
    "running": (lambda s: s.key_by("k").running(f"sum({BY_THREE}) AS b"), "zero"),
    "top": (lambda s: s.top(100, by=f"{BY_THREE} * 0 + a", every="1 day", on="ts"), "zero"),
}


def run(engine: hg.Engine, pipeline: Pipeline, rows: list[Row] = ROWS) -> tuple[list[Row], list[Row], Any]:
    app, out, dead = hg.App("shop"), [], []
    app.dead_letter(hg.to_list(dead))
    pipeline(app.source("numbers", testing.from_rows(rows))).to("q", hg.to_list(out))
    return out, dead, app.run(engine)


def test_bad_rows_are_taken_out_and_the_others_go_on(engine: hg.Engine) -> None:
    app, dead = hg.App("shop"), list[Row]()
    out: dict[str, list[Row]] = {name: [] for name in PIPELINES}
    app.dead_letter(hg.to_list(dead))
    numbers = app.source("numbers", testing.from_rows(ROWS))
    for name, (pipeline, _) in PIPELINES.items():
        pipeline(numbers).to(name, hg.to_list(out[name]))
    report = app.run(engine)
    for name, (_, reason) in PIPELINES.items():
        assert report.queries[name].error is None
        assert [row["a"] for row in out[name]] == GOOD, name
        own = [letter for letter in dead if letter["queries"] == name]
        assert [letter["serial"] for letter in own] == list(BAD), name
        assert all(reason in letter["reason"] for letter in own), name
    for letter in dead:
        row = ROWS[letter["serial"]]
        assert json.loads(letter["row"]) == {**row, "ts": row["ts"].isoformat()}
    assert report.queries["dead_letter"].tuples_out == 3 * len(PIPELINES)
    assert report.queries["dead_letter"].latency.count == 3 * len(PIPELINES)


def test_the_reason_does_not_repeat_box_and_tuple() -> None:
    _, dead, _ = run(hg.Simulated(), PIPELINES["select"][0])
    assert all("select" not in letter["reason"] and "tuple" not in letter["reason"] for letter in dead)
    assert {letter["box"] for letter in dead} == {"select-1"}


def test_a_function_with_a_memory_sees_every_row_once(engine: hg.Engine) -> None:
    out, _, _ = run(engine, PIPELINES["process"][0])
    assert [row["n"] for row in out] == list(range(1, len(GOOD) + 1))
    out, _, _ = run(engine, PIPELINES["keyed process"][0])
    for key in range(3):
        mine = [row["n"] for row in out if row["a"] % 3 == key]
        assert mine == list(range(1, len(mine) + 1))


def test_without_a_dead_letter_a_bad_row_fails_its_query(engine: hg.Engine) -> None:
    app = hg.App("shop")
    stream = app.source("numbers", testing.from_rows(ROWS))
    PIPELINES["select"][0](stream).to("bad", hg.to_list([]))
    stream.to("good", hg.to_list([]))
    report = app.run(engine)
    assert isinstance(report.queries["bad"].error, BadRow)
    assert "dead_letter" not in report.queries


def test_a_function_of_packets_that_raises_fails_its_query(engine: hg.Engine) -> None:
    def raising(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise KeyError("page")

    def raising_too(batch: pa.RecordBatch, state: Row) -> pa.RecordBatch:
        raise KeyError("page")

    app, out, dead = hg.App("shop"), [], []
    app.dead_letter(hg.to_list(dead))
    stream = app.source("numbers", testing.from_rows(ROWS))
    stream.map_packets(raising, schema=NUMBERS).to("one", hg.to_list([]))
    stream.process(raising_too, schema=NUMBERS, packets=True).to("two", hg.to_list([]))
    stream.to("three", hg.to_list(out))
    report = app.run(engine)
    assert isinstance(report.queries["one"].error, OperatorError)
    assert isinstance(report.queries["two"].error, OperatorError)
    assert len(out) == 20
    assert dead == []


def test_letters_of_all_boxes_leave_by_serial(engine: hg.Engine) -> None:
    app, dead = hg.App("shop"), []
    app.dead_letter(hg.to_list(dead))
    stream = app.source("numbers", testing.from_rows([{"a": i} for i in range(60)]))
    shared = stream.filter("1 / (a % 5) > 0", name="fives")
    shared.select("1 / (a % 7) AS b", name="sevens").to("one", hg.to_list([]))
    shared.key_by("a").running("sum(1 / (a % 3)) AS b", name="threes").to("two", hg.to_list([]))
    app.run(engine)
    serials = [letter["serial"] for letter in dead]
    assert serials == sorted(serials)
    for box, queries, by in (("fives", "one,two", 5), ("sevens", "one", 7), ("threes", "two", 3)):
        mine = [letter for letter in dead if letter["box"] == box]
        left = [a for a in range(60) if a % by == 0 and (by == 5 or a % 5)]
        assert [letter["serial"] for letter in mine] == left
        assert {letter["queries"] for letter in mine} == {queries}


def test_letters_of_a_source_without_boxes_are_none(engine: hg.Engine) -> None:
    out, dead, report = run(engine, lambda s: s)
    assert len(out) == 20
    assert dead == []
    assert report.queries["dead_letter"].tuples_out == 0


def test_a_refused_row_still_moves_time(engine: hg.Engine) -> None:
    """What windows close, and when, is as if the aggregate had left the row out by itself."""
    rows = [{"a": i, "k": i % 2, "ts": START + timedelta(minutes=(i * 37) % 90 + 2 * i)} for i in range(120)]
    window = hg.tumbling("10 minutes", on="ts", lateness="5 minutes")

    def pipeline(aggregate: str) -> Pipeline:
        return lambda s: s.key_by("k").window(window).agg(f"{aggregate} AS s", "max(ts) AS last")

    kept = run(engine, pipeline("sum(1 / (a % 9)) FILTER (WHERE a % 9 <> 0)"), rows)
    out, dead, report = run(engine, pipeline("sum(1 / (a % 9))"), rows)
    assert dead
    assert [letter["serial"] for letter in dead] == sorted(letter["serial"] for letter in dead)
    ends = [(row["k"], row["window_end"], row["s"]) for row in kept[0] if row["s"] is not None]
    assert [(row["k"], row["window_end"], row["s"]) for row in out] == ends
    assert report.queries["q"].late == kept[2].queries["q"].late > 0


def test_a_running_sum_goes_on_without_the_row_that_overflows(engine: hg.Engine) -> None:
    most = 2**63 - 1
    rows = [{"k": 0, "a": a} for a in (most - 5, 3, 9, 2, 1, -10, 9)]
    out, dead, _ = run(engine, lambda s: s.key_by("k").running("sum(a) AS s"), rows)
    assert [row["s"] for row in out] == [most - 5, most - 2, most, most - 10, most - 1]
    assert [letter["serial"] for letter in dead] == [2, 4]


# --- failures -------------------------------------------------------------------------------------------


def broken(query: str, batch: pa.RecordBatch) -> None:
    raise ConnectionError("database gone")


def test_if_letters_cannot_be_written_no_row_is_lost_unseen(engine: hg.Engine) -> None:
    app, out = hg.App("shop"), []
    app.dead_letter(hg.to_function(broken))
    stream = app.source("numbers", testing.from_rows(ROWS))
    PIPELINES["select"][0](stream).to("bad", hg.to_list([]))
    stream.filter("a >= 0").to("good", hg.to_list(out))
    report = app.run(engine)
    assert isinstance(report.queries["dead_letter"].error, SinkError)
    assert report.queries["good"].error is None
    assert len(out) == 20


def test_a_bad_row_after_letters_have_failed_fails_its_query() -> None:
    app = hg.App("shop")
    app.dead_letter(hg.to_function(broken))
    stream = app.source("numbers", testing.from_rows(ROWS))
    PIPELINES["select"][0](stream).to("bad", hg.to_list([]))
    stream.to("good", hg.to_list([]))
    report = app.run(hg.Simulated(workers=1, packet_rows=1), "tuple_at_a_time")
    assert isinstance(report.queries["bad"].error, BadRow)
    assert "tuple 8" in str(report.queries["bad"].error)


def test_letters_do_not_wait_for_the_boxes_of_a_query_that_failed(engine: hg.Engine) -> None:
    app, dead = hg.App("shop"), []
    app.dead_letter(hg.to_list(dead))
    stream = app.source("numbers", testing.from_rows(ROWS))
    PIPELINES["select"][0](stream).to("good", hg.to_list([]))
    slow = stream.filter("a >= 0").window(hg.tumbling("1 day", on="ts")).agg("count(*) AS n")
    slow.to("bad", hg.to_function(broken))
    report = app.run(engine)
    assert isinstance(report.queries["bad"].error, SinkError)
    assert [letter["serial"] for letter in dead] == list(BAD)


def test_a_run_in_which_every_query_fails_raises_whatever_the_letters_did(engine: hg.Engine) -> None:
    app = hg.App("shop")
    app.dead_letter(hg.to_list([]))
    app.source("numbers", testing.from_rows(ROWS)).to("q", hg.to_function(broken))
    with pytest.raises(RunError, match="'q'"):
        app.run(engine)


def test_mistakes_with_dead_letters_are_named() -> None:
    app = hg.App("shop")
    with pytest.raises(PipelineError, match="is not a sink"):
        app.dead_letter([])  # type: ignore[arg-type]
    stream = app.source("numbers", testing.from_rows(ROWS))
    app.dead_letter(hg.to_list([]))
    with pytest.raises(PipelineError, match="already a sink"):
        app.dead_letter(hg.to_list([]))
    with pytest.raises(PipelineError, match="dead-letter output's name"):
        stream.to("dead_letter", hg.to_list([]))
    other = hg.App("other")
    other.source("numbers", testing.from_rows(ROWS)).to("dead_letter", hg.to_list([]))
    with pytest.raises(PipelineError, match="give that another name"):
        other.dead_letter(hg.to_list([]))


# --- the function that every engine calls ---------------------------------------------------------------

SCHEMA = pa.schema([("a", pa.int64()), ("k", pa.int64()), ("ts", pa.timestamp("us"))])


def packet(rows: list[Row], first: int = 0) -> Packet:
    return Packet(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), Order(first, 0.0, len(rows)))


OPERATORS: dict[str, Callable[[], Operator]] = {
    "filter": lambda: Filter(SCHEMA, "1 / a > 0"),
    "select": lambda: Select(SCHEMA, ["1 / (a - 1) AS x", "1 / a AS y"]),
    "running": lambda: Running(SCHEMA, ["k"], ["sum(1 / a) AS s", "count(DISTINCT a) AS d"]),
    "expiring": lambda: Running(SCHEMA, ["k"], ["sum(1 / a) AS s"], expire="3 minutes", on="ts"),
    "window": lambda: WindowAggregate(
        SCHEMA, ["k"], hg.tumbling("3 minutes", on="ts"), ["sum(1 / a) AS s", "first(a) AS f"]
    ),
    "early": lambda: WindowAggregate(
        SCHEMA, ["k"], hg.tumbling("5 minutes", on="ts"), ["sum(1 / a) AS s"], early="2 minutes"
    ),
    "session": lambda: WindowAggregate(SCHEMA, ["k"], hg.session("2 minutes", on="ts"), ["sum(1 / a) AS s"]),
    "top": lambda: Top(SCHEMA, 2, "1 / a DESC", "4 minutes", "ts"),
}


def drive(operator: Operator, packets: list[Packet]) -> tuple[list[list[tuple[int, Row]]], list[Any], Any]:
    """All results with their serials by output, all letters, and what is left open."""
    state = operator.open()
    out: list[list[tuple[int, Row]]] = [[] for _ in operator.outputs]
    dead: list[Any] = []
    for one in packets:
        results, taken = letters.process(operator, [one], state)
        dead += taken
        for place, result in enumerate(results):
            out[place] += zip(result.order.serials.tolist(), result.batch.to_pylist(), strict=True)
    return out, dead, state


def slices(whole: Packet, cuts: list[int]) -> list[Packet]:
    bounds = [0, *sorted({cut % (len(whole) + 1) for cut in cuts}), len(whole)]
    return [whole.slice(a, b - a) for a, b in itertools.pairwise(bounds) if b > a]


rows_of_numbers = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 20)), min_size=1, max_size=40
)


@pytest.mark.parametrize("name", list(OPERATORS))
@settings(max_examples=examples(40))  # for each operator
@given(numbers=rows_of_numbers, cuts=st.lists(st.integers(0, 40), max_size=5))
def test_answers_do_not_depend_on_how_the_stream_was_cut(
    name: str, numbers: list[tuple[int, int, int]], cuts: list[int]
) -> None:
    """Row by row, a row that raises is refused and nothing else: any other cut says the same."""
    rows = [{"a": a, "k": k, "ts": START + timedelta(minutes=m)} for a, k, m in numbers]
    whole = packet(rows)
    expected = drive(OPERATORS[name](), [whole.slice(i, 1) for i in range(len(rows))])
    found = drive(OPERATORS[name](), slices(whole, cuts))
    assert found[0] == expected[0]
    assert found[1] == expected[1]


@pytest.mark.parametrize("name", ["running", "expiring", "window", "session"])
@settings(max_examples=examples(40))
@given(numbers=rows_of_numbers, cuts=st.lists(st.integers(0, 40), max_size=3))
def test_buckets_say_what_the_whole_says(
    name: str, numbers: list[tuple[int, int, int]], cuts: list[int]
) -> None:
    """A bad row is met by one bucket only, and time is the same in all of them."""
    rows = [{"a": a, "k": k, "ts": START + timedelta(minutes=m)} for a, k, m in numbers]
    whole = packet(rows)
    expected, dead, _ = drive(OPERATORS[name](), [whole])
    parts: list[list[Packet]] = [[], [], []]
    for piece in slices(whole, cuts):
        which = buckets(piece.batch, ["k"], 3)
        for bucket in range(3):
            mine = np.flatnonzero(which == bucket)
            parts[bucket].append(
                Packet(piece.batch.take(pa.array(mine)), piece.order.take(mine), ticks=ticks_of(piece, 2))
            )
    found = [drive(OPERATORS[name](), part) for part in parts]

    def flat(results: list[tuple[int, Row]]) -> list[str]:
        return sorted(map(repr, results))

    for place, results in enumerate(expected):
        assert flat([r for out, _, _ in found for r in out[place]]) == flat(results)
    assert sorted(letter for _, taken, _ in found for letter in taken) == dead


class Counting(Filter):
    """Counts the rows and calls that it is asked for."""

    rows = calls = 0

    def process(self, packets: Any, state: Any) -> list[Packet]:
        self.calls += 1
        self.rows += len(packets[0])
        return super().process(packets, state)


@pytest.mark.parametrize("every", [1, 2, 100, 4096])
def test_many_bad_rows_cost_no_square_of_their_number(every: int) -> None:
    size = 4096
    rows = [{"a": i % every, "k": 0, "ts": START} for i in range(size)]
    operator = Counting(SCHEMA, "1 / a > 0")
    results, dead = letters.process(operator, [packet(rows)], None)
    assert len(dead) == math.ceil(size / every)
    assert len(results[0]) == size - len(dead)
    assert operator.calls <= 3 * len(dead) * max(1, math.log2(every)) + 1
    assert operator.rows <= size * (math.log2(size) + 1)


def test_a_packet_of_nothing_but_bad_rows_is_empty_and_keeps_its_markers() -> None:
    marker = Marker(1, 0.0)
    given = packet([{"a": 0, "k": 0, "ts": START}] * 3).with_markers((marker,))
    for operator in (Filter(SCHEMA, "1 / a > 0"), OPERATORS["window"]()):
        results, dead = letters.process(operator, [given], operator.open())
        assert [len(result) for result in results] == [0] * len(operator.outputs)
        assert results[0].markers == (marker,)
        assert len(dead) == 3


def test_good_packets_go_through_untouched() -> None:
    operator = Counting(SCHEMA, "1 / a > 0")
    results, dead = letters.process(operator, [packet([{"a": 1, "k": 0, "ts": START}] * 5)], None)
    assert (operator.calls, len(results[0]), dead) == (1, 5, [])


def test_keys_expire_as_they_do_without_letters() -> None:
    """The function is called once per row, so that time passes once."""

    def count(row: Row, state: Row) -> Row:
        state["n"] = state.get("n", 0) + 1
        return {"n": "many" if row["a"] == 0 else state["n"]}

    schema = pa.schema([("n", pa.int64())])
    rows = [{"a": a, "k": 0, "ts": START + timedelta(minutes=m)} for a, m in ((1, 0), (0, 1), (1, 9), (1, 9))]
    operator = KeyedProcess(SCHEMA, ["k"], count, schema, expire="3 minutes", on="ts")
    out, dead, _ = drive(operator, [packet(rows), packet(rows[:1], first=4)])
    assert out[0] == [(0, {"n": 1}), (2, {"n": 1}), (3, {"n": 2}), (4, {"n": 3})]
    assert [letter.serial for letter in dead] == [1]


def test_any_row_can_be_told_as_json() -> None:
    schema = pa.schema(
        [
            ("a", pa.int64()),
            ("f", pa.float64()),
            ("d", pa.decimal128(5, 2)),
            ("b", pa.binary()),
            ("l", pa.list_(pa.struct([("t", pa.timestamp("us", tz="UTC"))]))),
            ("n", pa.string()),
            ("u", pa.duration("us")),
        ]
    )
    row = {
        "a": 0,
        "f": math.inf,
        "d": Decimal("1.50"),
        "b": b"\xff",
        "l": [{"t": START}],
        "n": None,
        "u": timedelta(seconds=3),
    }
    batch = pa.RecordBatch.from_pylist([row], schema=schema)
    _, [letter] = letters.process(Filter(schema, "1 / a > 0"), [Packet(batch, Order(5, 2.5, 1))], None)
    assert (letter.serial, letter.arrival) == (5, 2.5)
    said = json.loads(letter.row)
    assert said["l"] == [{"t": "2024-01-01T00:00:00+00:00"}]
    assert {n: said[n] for n in "afdbnu"} == {"a": 0, "f": "inf", "d": "1.50", "b": "ff", "n": None, "u": 3.0}


def test_a_time_beyond_the_calendar_is_told_too() -> None:
    far = pa.array([2**62], pa.int64()).cast(pa.timestamp("us"))
    batch = pa.record_batch([pa.array([0]), far], names=["a", "ts"])
    _, [letter] = letters.process(Filter(batch.schema, "1 / a > 0"), [Packet(batch, Order(0, 0.0, 1))], None)
    said = json.loads(letter.row)
    assert said["a"] == 0
    assert said["ts"]
