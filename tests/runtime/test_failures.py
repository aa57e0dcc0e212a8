"""A query that fails says which operator, on which tuples and why; the others go on, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate import testing
from headgate.api import Stream
from headgate.errors import BadRow, OperatorError, RunError, SinkError

NUMBERS = pa.schema([("a", pa.int64())])
Row = dict[str, Any]


def parse_page(row: Row) -> Row:
    if row["a"] == 7:
        raise KeyError("page")
    return row


def parse_packet(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 7 in batch.column("a").to_pylist():
        raise KeyError("page")
    return batch


def count(row: Row, state: Row) -> Row:
    return parse_page(row)


def as_text(row: Row) -> Row:
    return {"a": "seven" if row["a"] == 7 else row["a"]}


def with_more(row: Row) -> Row:
    return {"a": 1, "b": 2} if row["a"] == 7 else row


def with_less(row: Row) -> Row:
    return {} if row["a"] == 7 else row


def floats(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"a": batch.column("a").cast(pa.float64())})


def packet_without_column(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"b": batch.column("a")})


def number(row: Row) -> Any:
    return 42 if row["a"] == 7 else row


FAILURES: dict[str, tuple[Callable[[Stream], Stream], tuple[str, ...]]] = {
    "flat_map_rows": (
        lambda s: s.flat_map_rows(parse_page, schema=NUMBERS),
        ("flat_map_rows(parse_page)", "tuple 7", "KeyError", "page"),
    ),
    "map_packets": (
        lambda s: s.map_packets(parse_packet, schema=NUMBERS),
        ("map_packets(parse_packet)", "tuples ", "KeyError", "page"),
    ),
    "process": (
        lambda s: s.process(count, schema=NUMBERS),
        ("process(count)", "tuple 7", "KeyError", "page"),
    ),
    "keyed process": (
        lambda s: s.key_by("a").process(count, schema=NUMBERS),
        ("process(count by a)", "tuple 7", "KeyError", "page"),
    ),
    "a promised type is broken": (
        lambda s: s.flat_map_rows(as_text, schema=NUMBERS),
        ("flat_map_rows(as_text)", "'a'", "promised as int64", "tuple 7", "'seven'"),
    ),
    "a column was not promised": (
        lambda s: s.flat_map_rows(with_more, schema=NUMBERS),
        ("flat_map_rows(with_more)", "tuple 7", "'b'", "does not promise"),
    ),
    "a promised column is missing": (
        lambda s: s.flat_map_rows(with_less, schema=NUMBERS),
        ("flat_map_rows(with_less)", "tuple 7", "'a'", "promised"),
    ),
    "a packet of another type": (
        lambda s: s.map_packets(floats, schema=NUMBERS),
        ("map_packets(floats)", "'a'", "promised as int64", "double", "cast"),
    ),
    "a packet without the column": (
        lambda s: s.map_packets(packet_without_column, schema=NUMBERS),
        ("map_packets(packet_without_column)", "'a' was promised", "'b'"),
    ),
    "a result that is no row": (
        lambda s: s.flat_map_rows(number, schema=NUMBERS),
        ("flat_map_rows(number)", "int", "tuple 7", "dict"),
    ),
    "division by zero": (
        lambda s: s.select("1 / (a - 7) AS b").select("CAST(b AS BIGINT) AS a"),
        ("select(", "tuple 7", "zero"),
    ),
}


def test_operators_that_fail_are_named_with_their_tuples_and_fail_only_their_query(engine: hg.Engine) -> None:
    app, found = hg.App("shop"), list[Row]()
    bad: dict[str, list[Row]] = {failure: [] for failure in FAILURES}
    stream = app.source("numbers", testing.from_rows([{"a": i} for i in range(20)]))
    for failure, (pipeline, _) in FAILURES.items():
        pipeline(stream).to(failure, hg.to_list(bad[failure]))
    stream.filter("a >= 0").to("good", hg.to_list(found))
    report = app.run(engine)
    for failure, (_, parts) in FAILURES.items():
        error = report.queries[failure].error
        assert isinstance(error, OperatorError), failure
        for part in parts:
            assert part in str(error)
        assert len(bad[failure]) < 20, failure
    assert report.queries["good"].error is None
    assert [row["a"] for row in found] == list(range(20))


@pytest.mark.parametrize("kind", ["window", "running", "top"])
def test_a_bad_row_in_an_aggregate_names_operator_and_tuple(kind: str) -> None:
    app = hg.App("shop")
    rows = [{"a": i, "ts": datetime(2024, 1, 1)} for i in range(20)]
    stream = app.source("numbers", testing.from_rows(rows))
    if kind == "window":
        result = stream.window(hg.tumbling("1 hour", on="ts")).agg("sum(1 / (a - 7)) AS s")
    elif kind == "running":
        result = stream.key_by("ts").running("sum(1 / (a - 7)) AS s")
    else:
        result = stream.top(3, by="1 / (a - 7)", every="1 hour", on="ts")
    result.to("bad", hg.to_list([]))
    stream.to("good", hg.to_list([]))
    error = app.run("simulated").queries["bad"].error
    assert isinstance(error, BadRow)
    assert "tuple 7" in str(error)
    assert {"window": "tumbling window", "running": "running", "top": "top"}[kind] in str(error)


def test_a_sink_that_fails_fails_its_query_only(engine: hg.Engine) -> None:
    def save(query: str, batch: pa.RecordBatch) -> None:
        raise ConnectionError("database gone")

    app, found = hg.App("shop"), []
    stream = app.source("numbers", testing.from_rows([{"a": i} for i in range(20)]))
    stream.filter("a >= 0").to("bad", hg.to_function(save))
    stream.to("good", hg.to_list(found))
    report = app.run(engine)
    error = report.queries["bad"].error
    assert isinstance(error, SinkError)
    for part in ("'bad'", "'save'", "ConnectionError", "database gone"):
        assert part in str(error)
    assert isinstance(error.__cause__, ConnectionError)
    assert [row["a"] for row in found] == list(range(20))


def test_a_shared_box_that_fails_fails_all_its_queries_and_no_others(engine: hg.Engine) -> None:
    app, found = hg.App("shop"), []
    stream = app.source("numbers", testing.from_rows([{"a": i} for i in range(20)]))
    shared = stream.flat_map_rows(parse_page, schema=NUMBERS, name="shared")
    shared.filter("a > 1").to("one", hg.to_list([]))
    shared.union(stream).to("two", hg.to_list([]))
    stream.to("three", hg.to_list(found))
    report = app.run(engine)
    assert [name for name, q in report.queries.items() if q.error is not None] == ["one", "two"]
    assert len(found) == 20


def test_what_was_handed_over_before_a_failure_stays(engine: hg.Engine) -> None:
    """It is a beginning of what would have come."""
    app, found = hg.App("shop"), []
    stream = app.source("numbers", testing.from_rows([{"a": i} for i in range(20)]))
    stream.flat_map_rows(parse_page, schema=NUMBERS).to("bad", hg.to_list(found))
    stream.to("good", hg.to_list([]))
    app.run(engine, "tuple_at_a_time")
    assert [row["a"] for row in found] == list(range(len(found)))
    assert len(found) <= 7


def test_if_every_query_fails_the_run_raises_with_the_first_error(engine: hg.Engine) -> None:
    app = hg.App("shop")
    stream = app.source("numbers", testing.from_rows([{"a": i} for i in range(20)]))
    stream.flat_map_rows(parse_page, schema=NUMBERS).to("one", hg.to_list([]))
    stream.flat_map_rows(parse_page, schema=NUMBERS).to("two", hg.to_list([]))
    with pytest.raises(RunError) as caught:
        app.run(engine)
    for part in ("'one', 'two'", "parse_page", "tuple 7"):
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, OperatorError)


def test_an_app_can_run_again_after_a_failure(engine: hg.Engine, tmp_path: Path) -> None:
    repaired = tmp_path / "repaired"

    def fails_at_first(row: Row) -> Row:
        if not repaired.exists():
            raise ValueError("not yet")
        return row

    app, found = hg.App("shop"), []
    stream = app.source("numbers", testing.from_rows([{"a": i} for i in range(5)]))
    stream.flat_map_rows(fails_at_first, schema=NUMBERS).to("q", hg.to_list(found))
    with pytest.raises(RunError):
        app.run(engine)
    found.clear()
    repaired.touch()
    app.run(engine)
    assert [row["a"] for row in found] == [0, 1, 2, 3, 4]
