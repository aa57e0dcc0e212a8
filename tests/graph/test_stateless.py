"""Filter, select, with_columns, map_packets and flat_map_rows: results, order keys and messages."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from headgate.errors import BadRow, ExpressionError, OperatorError, PipelineError, UnknownColumn
from headgate.graph.operator import Kind, Operator
from headgate.graph.operators.filter import Filter
from headgate.graph.operators.flat_map_rows import FlatMapRows
from headgate.graph.operators.map_packets import MapPackets
from headgate.graph.operators.select import Select, WithColumns
from headgate.graph.packet import Order, Packet
from headgate.graph.schema import normalise, require_columns

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("s", pa.string())])
OUT = pa.schema([("x", pa.int64()), ("t", pa.string())])


def packet(a: list[Any], b: list[Any] | None = None, first: int = 100) -> Packet:
    b = b or [1] * len(a)
    batch = pa.record_batch([a, b, [str(v) for v in a]], schema=SCHEMA)
    return Packet(batch, Order(first, 0.0, len(a)))


def run(operator: Operator, given: Packet) -> tuple[list[dict[str, Any]], list[int]]:
    """Rows and their serials; the operator goes through both pickles first."""
    travelled = pickle.loads(cloudpickle.dumps(operator))
    [out] = travelled.process([given], travelled.open())
    assert out.batch.schema == operator.outputs[0]
    return out.batch.to_pylist(), out.order.serials.tolist()


# -- expressions ----------------------------------------------------------------------------------


def test_filter_keeps_what_is_true_and_the_serials() -> None:
    operator = Filter(SCHEMA, "a > 1")
    rows, serials = run(operator, packet([1, 2, None, 3]))
    assert ([r["a"] for r in rows], serials) == ([2, 3], [101, 103])
    assert operator.kind is Kind.STATELESS
    assert pickle.loads(pickle.dumps(operator)).label == "filter(a > 1)"


def test_select_and_with_columns() -> None:
    rows, serials = run(Select(SCHEMA, ["a + b AS c", "s"]), packet([1, 2]))
    assert (rows, serials) == ([{"c": 2, "s": "1"}, {"c": 3, "s": "2"}], [100, 101])
    rows, _ = run(WithColumns(SCHEMA, ["a * 10 AS B", "a AS d"]), packet([1]))
    assert list(rows[0].items()) == [("a", 1), ("B", 10), ("s", "1"), ("d", 1)]


def test_names_given_twice_are_refused() -> None:
    for make in (Select, WithColumns):
        with pytest.raises(PipelineError, match="'x'"):
            make(SCHEMA, ["a AS x", "b AS x"])
        with pytest.raises(PipelineError, match="at least one"):
            make(SCHEMA, [])


def test_bad_expressions_are_refused_where_they_are_written() -> None:
    with pytest.raises(UnknownColumn, match="aa"):
        Filter(SCHEMA, "aa > 1")
    with pytest.raises(ExpressionError):
        Select(SCHEMA, ["a +"])


@pytest.mark.parametrize(
    ("operator", "label"),
    [
        (Filter(SCHEMA, "a / b > 1"), "filter(a / b > 1)"),
        (Select(SCHEMA, ["a / b AS q"]), "select(a / b AS q)"),
        (WithColumns(SCHEMA, ["a / b AS q"]), "with_columns(a / b AS q)"),
    ],
)
def test_a_bad_row_names_operator_tuple_and_reason(operator: Operator, label: str) -> None:
    given = packet([1, 2, 3], [1, 1, 0]).filter(pa.array([False, True, True]))
    with pytest.raises(BadRow) as error:
        operator.process([given], None)
    assert str(error.value).startswith(f"{label}: tuple 102: ")
    assert "zero" in str(error.value).lower()
    assert error.value.index == 1


# -- map_packets ----------------------------------------------------------------------------------


def mapped(result: Callable[[pa.RecordBatch], Any]) -> MapPackets:
    return MapPackets(SCHEMA, result, OUT)


def out(*x: int) -> pa.RecordBatch:
    return pa.record_batch([list(x), [str(v) for v in x]], schema=OUT)


def test_results_as_many_as_rows_keep_the_rows_places() -> None:
    rows, serials = run(mapped(lambda b: out(*b.column("a").to_pylist())), packet([7, 8]))
    assert ([r["x"] for r in rows], serials) == ([7, 8], [100, 101])


def test_indices_say_which_row_caused_what_and_otherwise_it_is_the_last() -> None:
    _, serials = run(mapped(lambda b: (out(1, 2, 3), [0, 0, 2])), packet([7, 8, 9]))
    assert serials == [100, 100, 102]
    _, serials = run(mapped(lambda b: (out(1, 2, 3), np.array([0, 1, 1]))), packet([7, 8, 9]))
    assert serials == [100, 101, 101]
    _, serials = run(mapped(lambda b: out(1, 2)), packet([7, 8, 9]))
    assert serials == [102, 102]
    rows, serials = run(mapped(lambda b: out()), packet([7, 8, 9]))
    assert (rows, serials) == ([], [])


def test_an_empty_packet_does_not_reach_the_function() -> None:
    rows, _ = run(mapped(lambda b: 1 / 0), packet([1]).slice(0, 0))
    assert rows == []


def test_tables_other_orders_and_harmless_types_fit() -> None:
    def fn(batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"t": pa.chunked_array([["u"], ["v"]], pa.large_string()), "x": [1, 2]})

    rows, _ = run(mapped(fn), packet([7, 8]))
    assert rows == [{"x": 1, "t": "u"}, {"x": 2, "t": "v"}]
    schema = pa.schema([("t", pa.timestamp("s"))])
    operator = MapPackets(SCHEMA, lambda b: pa.record_batch({"t": pa.array([1], pa.timestamp("ns"))}), schema)
    assert operator.outputs[0].field("t").type == pa.timestamp("us")
    with pytest.raises(OperatorError, match=r"'t' was promised as .*us.*lose"):
        operator.process([packet([1])], None)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (pa.record_batch({"x": [1]}), ["'t' was promised", "only 'x'"]),
        (
            pa.record_batch({"x": [1], "t": ["a"], "tt": ["a"]}),
            ["'tt'", "does not promise", "Did you mean 't'?"],
        ),
        (pa.record_batch({"x": [1.5], "t": ["a"]}), ["'x' was promised as int64", "came as double"]),
        (pa.record_batch({"x": pa.array([1], pa.int32()), "t": ["a"]}), ["int64", "int32"]),
        ([1, 2], ["returned a list", "RecordBatch"]),
        ((out(1, 2), [0]), ["indices", "1 of them for 2 rows"]),
        ((out(1, 2), [1, 0]), ["indices", "decrease"]),
        ((out(1, 2), [0, 2]), ["indices", "between 0 and 1"]),
        ((out(1, 2), [0.0, 1.0]), ["indices", "float64"]),
    ],
)
def test_results_that_break_the_promise_are_explained(result: Any, words: list[str]) -> None:
    with pytest.raises(OperatorError) as error:
        mapped(lambda batch: result).process([packet([1, 2], first=40)], None)
    for word in ["map_packets(lambda)", "tuples 40 to 41", *words]:
        assert word in str(error.value)


def test_a_function_that_raises_is_named_with_its_tuples() -> None:
    def enrich(extra: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        raise KeyError("colour")

    with pytest.raises(
        OperatorError, match=r"map_packets\(enrich\): failed on tuples 5 to 6: KeyError: 'colour'"
    ) as e:
        mapped(functools.partial(enrich, 1)).process([packet([1, 2], first=5)], None)
    assert isinstance(e.value.__cause__, KeyError)


def test_what_is_not_a_function_or_schema_is_refused() -> None:
    with pytest.raises(PipelineError, match="not a function"):
        mapped("fn")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="not a schema"):
        MapPackets(SCHEMA, lambda b: b, 5)
    assert (
        MapPackets(SCHEMA, lambda b: b, [("a", pa.large_string())]).outputs[0].field("a").type == pa.string()
    )


# -- flat_map_rows --------------------------------------------------------------------------------


def flat(fn: Callable[[dict[str, Any]], Any]) -> FlatMapRows:
    return FlatMapRows(SCHEMA, fn, OUT)


def test_a_row_gives_none_one_or_several() -> None:
    def split(row: dict[str, Any]) -> Any:
        if row["a"] == 0:
            return None
        if row["a"] == 1:
            return {"t": "one", "x": None}
        return ({"x": i, "t": row["s"]} for i in range(row["a"]))

    operator = flat(split)
    assert operator.slow
    assert operator.label == "flat_map_rows(split)"
    rows, serials = run(operator, packet([2, 0, 1, 2]))
    assert serials == [100, 100, 102, 103, 103]
    assert rows[2] == {"x": None, "t": "one"}
    assert [r["x"] for r in rows] == [0, 1, None, 0, 1]


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda r: {"x": 1}, ["'t' was promised", "tuple 100"]),
        (lambda r: {"x": 1, "t": "", "y": 1}, ["'y'", "tuple 100"]),
        (
            lambda r: {"x": "no" if r["a"] == 8 else 1, "t": ""},
            ["'x' was promised as int64", "tuple 101", "'no' (str)"],
        ),
        (lambda r: {"x": 1.5 if r["a"] == 8 else 1, "t": ""}, ["'x'", "int64", "tuple 101", "1.5 (float)"]),
        (lambda r: {"x": 2**70, "t": ""}, ["'x'", "int64", "tuple 100"]),
        (lambda r: 5, ["returned a int", "tuple 100"]),
        (lambda r: [5], ["gave a int", "tuple 100"]),
        (lambda r: "text", ["returned a str", "tuple 100"]),
        (lambda r: r["zz"], ["failed on tuple 100", "KeyError: 'zz'"]),
    ],
)
def test_what_is_wrong_with_a_row_function_names_the_tuple(fn: Any, words: list[str]) -> None:
    with pytest.raises(OperatorError) as error:
        flat(fn).process([packet([7, 8])], None)
    for word in ["flat_map_rows(lambda)", *words]:
        assert word in str(error.value)


def test_an_error_inside_a_generator_is_the_tuples_error() -> None:
    def late(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"x": 1, "t": ""}
        raise ValueError("half-way")

    with pytest.raises(
        OperatorError, match=r"flat_map_rows\(late\): failed on tuple 100: ValueError: half-way"
    ):
        flat(late).process([packet([7])], None)


# -- schemas --------------------------------------------------------------------------------------


def test_columns_are_found_as_spark_finds_them() -> None:
    assert require_columns(SCHEMA, ["A", "s"], "key_by") == ["a", "s"]
    with pytest.raises(
        UnknownColumn, match=r"key_by: there is no column 'userid'\. Did you mean 'user_id'\? Available"
    ):
        require_columns(pa.schema([("user_id", pa.int64())]), ["userid"], "key_by")
    both = pa.schema([("Ab", pa.int64()), ("aB", pa.int64())])
    assert require_columns(both, ["aB"], "x") == ["aB"]
    with pytest.raises(UnknownColumn, match="'Ab', 'aB'"):
        require_columns(both, ["ab"], "x")
    with pytest.raises(PipelineError, match="not a column name"):
        require_columns(SCHEMA, [3], "x")  # type: ignore[list-item]


def test_normalising_is_idempotent_and_deep() -> None:
    nested = pa.struct([("k", pa.map_(pa.large_string(), pa.list_(pa.uint16())))])
    schema = normalise({"n": nested, "z": pa.null(), "e": pa.decimal256(30, 2)})
    assert schema.field("n").type == pa.struct([("k", pa.map_(pa.string(), pa.list_(pa.int32())))])
    assert schema.field("e").type == pa.decimal128(30, 2)
    assert normalise(schema) == schema
    with pytest.raises(PipelineError, match=r"'n\.k'.*time64"):
        normalise({"n": pa.struct([("k", pa.time64("us"))])})


def test_a_filter_is_lazy_about_order_keys() -> None:
    [kept] = Filter(SCHEMA, "a >= 0").process([packet(list(range(10)))], None)
    assert kept.order._selections != ()
    assert pc.sum(kept.batch.column("a")).as_py() == 45
