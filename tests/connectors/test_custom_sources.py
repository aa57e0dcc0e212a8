"""A source of the user's own that breaks its promise stops the queries that read it, and says how."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.connectors.source import Chunk, Reader, Source, Wait
from headgate.errors import PipelineError, SourceError

PROMISED = pa.schema([("a", pa.int64()), ("b", pa.string())])


class Given(Source):
    """Gives these things, one at a poll."""

    finite = True

    def __init__(self, schema: pa.Schema, things: list[Any], live: bool) -> None:
        self.schema = schema
        self.things = things
        self.live = live

    def open(self) -> Reader:
        return _GivenReader(self)


class _GivenReader(Reader):
    def __init__(self, source: Given) -> None:
        self._things = iter(source.things)

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        return next(self._things, None)


def chunk(**columns: pa.Array) -> Chunk:
    return Chunk(pa.RecordBatch.from_pydict(columns), 0.0)


GOOD = {"a": pa.array([1, 2]), "b": pa.array(["x", "y"])}
BROKEN = {
    "type": (chunk(a=pa.array(["1"]), b=pa.array(["x"])), ["column 'a'", "int64", "string"]),
    "missing": (chunk(a=pa.array([1])), ["column 'b'", "string"]),
    "extra": (chunk(**GOOD, c=pa.array([1, 2])), ["column 'c'"]),
    "no chunk": ("three rows", ["a str"]),
    "no batch": (Chunk([1, 2], 0.0), ["a list"]),  # type: ignore[arg-type]
    "arrivals": (Chunk(chunk(**GOOD).batch, pa.array([0.0]).to_numpy()), ["1 arrival", "2 rows"]),
}


@pytest.mark.parametrize("live", [False, True], ids=["finite", "live"])
def test_what_does_not_fit_the_schema_stops_only_its_queries(live: bool, engine: hg.Engine) -> None:
    found: list[Any] = []
    app = hg.App("custom")
    for case, (broken, _) in BROKEN.items():
        mine = app.source(f"my {case}", Given(PROMISED, [chunk(**GOOD), broken], live))
        mine.filter("a > 0").to(case, hg.to_list([]))
    other = app.source("other", hg.from_batches(pa.table({"a": [1, 2, 3]})))
    other.filter("a > 1").to("good", hg.to_list(found))
    report = app.run(engine)
    for case, (_, words) in BROKEN.items():
        error = report.queries[case].error
        assert isinstance(error, SourceError), case
        for word in [f"Source 'my {case}'", *words]:
            assert word in str(error)
    assert report.queries["good"].error is None
    assert [row["a"] for row in found] == [2, 3]


def test_columns_in_another_order_and_harmless_types_are_brought_to_the_schema(engine: hg.Engine) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.large_string())])
    other = chunk(b=pa.array(["x", "y"]).dictionary_encode(), a=pa.array([1, 2]))
    found: list[Any] = []
    app = hg.App("custom")
    app.source("mine", Given(schema, [other], False)).filter("b = 'y'").to("q", hg.to_list(found))
    app.run(engine)
    assert found == [{"a": 2, "b": "y"}]


def test_a_source_without_a_schema_or_a_name_is_refused_where_it_is_declared() -> None:
    with pytest.raises(PipelineError, match=r"source 'mine': .* is not a schema"):
        hg.App("custom").source("mine", Given(["a"], [], False))  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="name"):
        hg.App("custom").source("", hg.from_rate(1))
