"""A lookup adds a table's columns by key, and reads the table again when tuples' arrivals say so."""

from __future__ import annotations

import pickle
import threading
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from depth import examples
from headgate.errors import HeadgateError, OperatorError, PipelineError
from headgate.graph.operators.lookup import Lookup
from headgate.graph.packet import Order, Packet

SCHEMA = pa.schema([("item", pa.int64()), ("shop", pa.string())])
ITEMS = pa.table({"item": [1, 2, None], "name": ["one", "two", "none"], "price": [1.5, None, 9.0]})


def packet(items: list[int | None], shops: list[str | None] | None = None, arrivals: Any = 0.0) -> Packet:
    batch = pa.record_batch([items, shops or ["s"] * len(items)], schema=SCHEMA)
    return Packet(batch, Order(0, arrivals, len(items)))


def names(operator: Lookup, given: Packet) -> list[str | None]:
    [out] = operator.process([given], None)
    assert out.batch.schema == operator.outputs[0]
    assert out.order is given.order
    return out.batch.column("name").to_pylist()  # type: ignore[no-any-return]


def test_a_left_join_on_one_column() -> None:
    operator = pickle.loads(pickle.dumps(Lookup(SCHEMA, ITEMS, "item")))
    assert operator.label == "lookup(item)"
    [out] = operator.process([packet([2, 3, None, 1])], None)
    assert out.batch.to_pylist() == [
        {"item": 2, "shop": "s", "name": "two", "price": None},
        {"item": 3, "shop": "s", "name": None, "price": None},
        {"item": None, "shop": "s", "name": None, "price": None},
        {"item": 1, "shop": "s", "name": "one", "price": 1.5},
    ]
    assert names(operator, packet([])) == []


KEYS = st.tuples(st.none() | st.integers(0, 3), st.none() | st.sampled_from("xyz"))


@settings(derandomize=True, deadline=None, max_examples=examples(80))
@given(st.lists(KEYS, unique=True, max_size=10), st.lists(KEYS, max_size=12))
def test_several_columns_match_as_a_whole(table: list[tuple[Any, Any]], rows: list[tuple[Any, Any]]) -> None:
    known = {key: f"{key}" for key in table if None not in key}
    dimension = pa.table(
        {
            "shop": pa.array([k[1] for k in table], pa.large_string()).dictionary_encode(),
            "item": pa.array([k[0] for k in table], pa.int64()),
            "name": pa.array([f"{k}" for k in table], pa.string()),
        }
    )
    operator = Lookup(SCHEMA, dimension, ["item", "shop"])
    given = packet([r[0] for r in rows], [r[1] for r in rows] or None)
    assert names(operator, given) == [known.get(r) for r in rows]


class Versions:
    """A table that is another one each time it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> pa.Table:
        self.reads += 1
        return pa.table({"item": [1], "name": [f"v{self.reads}"]})


def test_without_refresh_a_function_is_called_once() -> None:
    load = Versions()
    operator = Lookup(SCHEMA, load, "item")
    assert names(operator, packet([1], arrivals=0.0)) == ["v1"]
    assert names(pickle.loads(pickle.dumps(operator)), packet([1], arrivals=1e9)) == ["v1"]
    assert load.reads == 1


@pytest.mark.parametrize("cut", [1, 2, 3, 7])
def test_refresh_goes_by_the_tuples_arrival_whatever_the_cut(cut: int) -> None:
    arrivals = np.array([5.0, 14.9, 15.0, 15.0, 24.0, 26.0, 100.0])
    operator = Lookup(SCHEMA, Versions(), "item", refresh="10 seconds")
    got = []
    for begin in range(0, 7, cut):
        part = arrivals[begin : begin + cut]
        got += names(operator, packet([1] * len(part), arrivals=part))
    assert got == ["v1", "v1", "v2", "v2", "v2", "v3", "v4"]


def test_a_refreshing_lookup_travels_without_its_table() -> None:
    operator = Lookup(SCHEMA, Versions(), "item", refresh=10)
    travelled = pickle.loads(cloudpickle.dumps(operator))
    assert names(travelled, packet([1], arrivals=3.0)) == ["v2"]


def test_a_table_that_changes_its_columns_or_vanishes_is_an_error() -> None:
    tables: list[Any] = [pa.table({"item": [1], "name": ["x"]}), pa.table({"item": [1], "nom": ["x"]}), None]
    operator = Lookup(SCHEMA, lambda: tables.pop(0), "item", refresh=1)
    names(operator, packet([1], arrivals=0.0))
    with pytest.raises(OperatorError, match=r"lookup\(item\).*name string at first.*nom string"):
        names(operator, packet([1], arrivals=1.0))
    with pytest.raises(OperatorError, match="gave a NoneType"):
        names(operator, packet([1], arrivals=1.0))
    with pytest.raises(OperatorError, match="could not be read: IndexError"):
        names(operator, packet([1], arrivals=1.0))


@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        (ITEMS, {"on": "itm"}, ["'itm'", "Did you mean 'item'"]),
        (ITEMS, {"on": "shop"}, ["the table's key", "'shop'"]),
        (ITEMS, {"on": []}, ["no column"]),
        (
            pa.table({"item": ["1"], "x": [1]}),
            {},
            ["'item' is int64 in the stream", "string in the table", "CAST"],
        ),
        (pa.table({"item": [1], "shop": ["x"]}), {}, ["'shop'", "both"]),
        (pa.table({"item": [1, 2, 1], "x": [1, 2, 3]}), {}, ["more than one row", "item = 1"]),
        (
            pa.table({"item": [1, 1], "shop": ["a", "a"], "x": [1, 2]}),
            {"on": ["item", "shop"]},
            ["item = 1, shop = 'a'"],
        ),
        ("items.parquet", {}, ["str is not a table"]),
        (ITEMS, {"refresh": 5}, ["refresh="]),
        (lambda: ITEMS, {"refresh": 0}, ["refresh=", "zero"]),
    ],
)
def test_a_lookup_that_cannot_work_is_refused(table: Any, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(HeadgateError) as error:
        Lookup(SCHEMA, table, **{"on": "item", **options})
    assert isinstance(error.value, PipelineError)
    for word in words:
        assert word in str(error.value)


class Gated:
    """A table whose reads end when the test says so; a later read finds a later version."""

    def __init__(self, reads: int) -> None:
        self._begun = 0
        self.began = [threading.Event() for _ in range(reads)]
        self.may_end = [threading.Event() for _ in range(reads)]

    def __call__(self) -> pa.Table:
        number, self._begun = self._begun, self._begun + 1
        if number:  # the first is read where the pipeline is built
            self.began[number].set()
            assert self.may_end[number].wait(60)
        return pa.table({"item": [1], "name": [f"v{number}"]})


@pytest.mark.parametrize("ends", list(permutations((1, 2, 3))))
def test_of_reads_under_way_at_once_the_newest_stays(ends: tuple[int, ...]) -> None:
    """Three workers find the table too old and read it again; they end in every order."""
    load = Gated(4)
    operator = Lookup(SCHEMA, load, "item", refresh=10)
    assert names(operator, packet([1], arrivals=0.0)) == ["v0"]
    met: dict[int, list[str | None]] = {}

    def work(number: int) -> None:
        met[number] = names(operator, packet([1], arrivals=10.0 + number))

    workers = {number: threading.Thread(target=work, args=(number,), daemon=True) for number in (1, 2, 3)}
    for number, worker in workers.items():
        worker.start()
        assert load.began[number].wait(60)
    newest = 0
    for number in ends:
        load.may_end[number].set()
        workers[number].join(60)
        newest = max(newest, number)
        assert met[number] == [f"v{newest}"], "never an older table than one that is there"
        assert names(operator, packet([1], arrivals=10.0)) == [f"v{newest}"]
