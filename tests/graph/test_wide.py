"""Thousands of columns: what building and running costs grows with their number, not with its square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.graph.operators.select import WithColumns
from headgate.graph.packet import Order, Packet

FEW, MANY = 150, 600


def schema(columns: int) -> pa.Schema:
    fixed = [("k", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
    return pa.schema([*fixed, *((f"C{i}", pa.int64()) for i in range(columns))])


def rows(columns: int) -> hg.Stream:
    batch = pa.RecordBatch.from_pylist([], schema=schema(columns))
    return hg.App("wide").source("rows", hg.from_batches([batch]))


BUILDS: dict[str, Callable[[hg.Stream, int], Any]] = {
    "source": lambda s, n: s.schema,
    "filter": lambda s, n: s.filter(" + ".join(f"c{i}" for i in range(8)) + " > 0"),
    "select *": lambda s, n: s.select("*"),
    "select": lambda s, n: s.select(*[f"c{i}" for i in range(n)]),
    "expressions": lambda s, n: s.select(*[f"c{i} + 1 AS c{i}" for i in range(n)]),
    "with_columns": lambda s, n: s.with_columns(*[f"c{i} + 1 AS d{i}" for i in range(n)]),
    "replaced": lambda s, n: s.with_columns(*[f"c{i} + 1 AS c{i}" for i in range(n)]),
    "key_by": lambda s, n: s.key_by(*[f"c{i}" for i in range(n)]).running("count(*) AS n"),
    "window": lambda s, n: (
        s.key_by("k").window(hg.tumbling("1 minute", on="ts")).agg(*[f"sum(c{i}) AS s{i}" for i in range(n)])
    ),
    "running": lambda s, n: s.key_by("k").running(*[f"sum(c{i}) AS s{i}" for i in range(n)]),
    "network": lambda s, n: s.select("*").to("q", hg.to_list([]))._pipeline.network(),
}


def calls(work: Callable[[], Any]) -> int:
    """How many functions were called, Python's and C's: a measure that no machine changes."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("what", BUILDS)
def test_building_grows_with_the_number_of_columns(what: str) -> None:
    build = BUILDS[what]
    build(rows(10), 10)  # what is made once is made
    few, many = (calls(lambda n=n: build(rows(n), n)) for n in (FEW, MANY))  # type: ignore[misc]
    assert many < 1.5 * MANY / FEW * few, f"{few} calls for {FEW} columns, {many} for {MANY}"


class Counted:
    """A record batch that counts the columns which its copies have copied."""

    def __init__(self, batch: pa.RecordBatch, copied: list[int]) -> None:
        self.batch, self.copied = batch, copied

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batch, name)

    def append_column(self, field: pa.Field, column: pa.Array) -> Counted:
        self.copied.append(self.batch.num_columns)
        return Counted(self.batch.append_column(field, column), self.copied)


@pytest.mark.parametrize("added", [1, 20, 400])
def test_many_columns_are_added_without_copying_all_for_each(added: int) -> None:
    wide = schema(400)
    batch = pa.RecordBatch.from_pylist([{"k": 1, **{f"C{i}": i for i in range(400)}}], schema=wide)
    copied: list[int] = []
    packet = Packet(batch, Order(0, 0.0, 1))
    packet.batch = Counted(batch, copied)  # type: ignore[assignment]
    operator = WithColumns(wide, [f"c{i} + 1 AS d{i}" for i in range(added)])
    [result] = operator.process([packet], None)
    assert result.batch.schema.equals(operator.outputs[0])
    assert [result.batch.column(f"d{i}")[0].as_py() for i in range(added)] == [i + 1 for i in range(added)]
    assert sum(copied) <= 16 * (len(wide) + 16)
