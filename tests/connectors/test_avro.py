"""Avro values: fastavro says the same, broken values are told apart, schemas are resolved by names."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import io
import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from depth import examples
from headgate.connectors import avro_encode
from headgate.connectors.avro_decode import decode
from headgate.connectors.avro_schema import Avro, AvroError, describing, parse
from headgate.errors import BadRow

UTC = dt.UTC
WHOLE = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}
TEXT = st.text(max_size=6)


def values_of(schema: Any) -> st.SearchStrategy[Any]:
    """What fastavro writes for a type."""
    if isinstance(schema, list):
        return st.one_of([values_of(branch) for branch in schema])
    kind = schema["type"] if isinstance(schema, dict) else schema
    logical = schema.get("logicalType", "") if isinstance(schema, dict) else ""
    if logical == "date":
        return st.dates()
    if logical.startswith("timestamp"):
        times = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(UTC))
        return times.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))
    if logical == "decimal":
        return st.decimals(-9999999, 9999999, places=2, allow_nan=False, allow_infinity=False)
    if kind in WHOLE:
        return st.integers(*WHOLE[kind])
    if kind == "record":
        return st.fixed_dictionaries({f["name"]: values_of(f["type"]) for f in schema["fields"]})
    if kind == "array":
        return st.lists(values_of(schema["items"]), max_size=4)
    if kind == "map":
        return st.dictionaries(TEXT, values_of(schema["values"]), max_size=3)
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "bytes": st.binary(max_size=6),
        "string": TEXT,
        "fixed": st.binary(min_size=3, max_size=3),
        "enum": st.sampled_from(["NEW", "PAID"]),
    }[kind]


PLAIN = st.sampled_from(
    [
        *("boolean", "int", "long", "float", "double", "bytes", "string"),
        {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    ]
)


@st.composite
def types(draw: st.DrawFn, depth: int = 2) -> Any:
    kind = draw(
        st.sampled_from(["plain", "plain", "null", "enum", "fixed", "array", "map", "record", "union"])
    )
    name = "named"  # apart, in the end
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["NEW", "PAID"]}
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": 3}
    if not depth or kind == "plain":
        return draw(PLAIN)
    if kind == "null":
        return draw(
            st.permutations(["null", draw(types(depth - 1).filter(lambda t: not isinstance(t, list)))])
        )
    if kind == "union":
        return ["null", "string", "long", "boolean"]
    if kind in ("array", "map"):
        return {"type": kind, "items" if kind == "array" else "values": draw(types(depth - 1))}
    return draw(records(depth - 1, name))


@st.composite
def records(draw: st.DrawFn, depth: int = 2, name: str = "Row") -> Any:
    parts = draw(st.lists(types(depth), min_size=1, max_size=4))
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(parts)],
    }


def named_apart(schema: Any, numbers: Iterator[int] | None = None) -> Any:
    numbers = itertools.count() if numbers is None else numbers
    if isinstance(schema, list):
        return [named_apart(one, numbers) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: named_apart(one, numbers) for key, one in schema.items()}
    return {**found, "name": f"N{next(numbers)}"} if found.get("name") == "named" else found


def written(schema: Any, rows: list[Any]) -> pa.Array:
    parsed = fastavro.parse_schema(schema)
    found = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        found.append(out.getvalue())
    return pa.array(found, pa.binary())


def read(schema: Any, values: pa.Array) -> list[Any]:
    parsed = fastavro.parse_schema(schema)
    return [fastavro.schemaless_reader(io.BytesIO(value), parsed) for value in values.to_pylist()]


def as_arrow(value: Any, type_: Avro) -> Any:
    """fastavro's value as Arrow shows it."""
    if type_.kind == "union" and len(type_.values) > 1:
        if value is None:
            return None
        member = {str: 0, int: 1, bool: 2}[type(value)]
        return {f"member{at}": value if at == member else None for at in range(3)}
    if type_.kind == "union":
        return None if value is None else as_arrow(value, type_.parts[type_.values[0]])
    if type_.kind == "record":
        return {n: as_arrow(value[n], p) for n, p in zip(type_.names, type_.parts, strict=True)}
    if type_.kind == "array":
        return [as_arrow(one, type_.parts[0]) for one in value]
    if type_.kind == "map":
        return [(key, as_arrow(one, type_.parts[0])) for key, one in value.items()]
    return value


SCHEMAS = records().map(named_apart)


@st.composite
def topics(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    schema = draw(SCHEMAS)
    return schema, draw(st.lists(values_of(schema), min_size=1, max_size=5))


@settings(max_examples=examples(180), deadline=None)
@given(topics(), st.integers(0, 3))
def test_fastavro_reads_and_writes_the_same(topic: tuple[Any, list[Any]], cut: int) -> None:
    schema, rows = topic
    type_ = parse(json.dumps(schema))
    values = written(schema, rows)
    batch = decode(values, type_, type_)
    assert batch.to_pylist() == [as_arrow(row, type_) for row in rows]
    part = min(cut, len(rows))
    assert decode(values.slice(part), type_, type_).equals(batch.slice(part))
    if "member0" not in str(batch.schema):
        avro_encode.check(batch.schema, type_)
        assert read(schema, avro_encode.encode(batch.slice(part), type_)) == rows[part:]


@settings(max_examples=examples(180), deadline=None)
@given(topics(), st.data())
def test_a_value_that_is_cut_or_too_long_is_the_bad_one(
    topic: tuple[Any, list[Any]], data: st.DataObject
) -> None:
    schema, rows = topic
    type_ = parse(schema)
    values = written(schema, rows).to_pylist()
    at = data.draw(st.integers(0, len(values) - 1))
    assume(values[at])
    whole = values[at]
    values[at] = data.draw(
        st.sampled_from([whole[: data.draw(st.integers(0, len(whole) - 1))], whole + b"\0"])
    )
    with pytest.raises(BadRow, match="no Avro value of the schema") as caught:
        decode(pa.array(values, pa.binary()), type_, type_)
    assert caught.value.index == at


@settings(max_examples=examples(300), deadline=None)
@given(SCHEMAS, st.lists(st.binary(max_size=20), min_size=1, max_size=4))
def test_any_bytes_are_rows_or_a_bad_row(schema: Any, values: list[bytes]) -> None:
    type_ = parse(schema)
    found = len(values)
    with contextlib.suppress(BadRow):
        found = decode(pa.array(values, pa.binary()), type_, type_).num_rows
    assert found == len(values)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("boolean", b"\x02", "neither 0 nor 1"),
        ("int", b"\x80\x80\x80\x80\x80\x01", "more than 32 bits"),
        ("long", b"\xff" * 10, "more than 64 bits"),
        ("string", b"\x04\xff\xfe", "not UTF-8"),
        ("string", b"\x01", "ends too early"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "ends too early"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "no such symbol"),
        (["null", "int"], b"\x04", "no such branch"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "ends too early"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            b"\xfe" + b"\xff" * 8 + b"\x01",
            "out of range",
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x04\x7f\xff", "more than 2 digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x22" + b"\0" * 17, "16 bytes"),
    ],
)
def test_what_is_wrong_with_a_value_is_said(kind: Any, value: bytes, reason: str) -> None:
    type_ = parse({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]})
    with pytest.raises(BadRow, match=reason) as caught:
        decode(pa.array([value], pa.binary()), type_, type_)
    assert caught.value.index == 0


def test_blocks_with_their_size_are_read() -> None:
    type_ = parse(
        {"type": "record", "name": "R", "fields": [{"name": "f", "type": {"type": "array", "items": "int"}}]}
    )
    values = pa.array([b"\x03\x04\x02\x04\x02\x06\x00", b"\x00"], pa.binary())
    assert decode(values, type_, type_).to_pylist() == [{"f": [1, 2, 3]}, {"f": []}]


OLD = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "gone", "type": "string"},
        {"name": "id", "type": "int"},
        {
            "name": "at",
            "type": ["null", {"type": "record", "name": "At", "fields": [{"name": "x", "type": "int"}]}],
        },
    ],
}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "double", "default": 1.5},
        {"name": "note", "type": ["null", "string"], "default": None},
        {
            "name": "at",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "At",
                    "fields": [{"name": "x", "type": "double"}, {"name": "y", "type": "int", "default": 7}],
                },
            ],
        },
    ],
}


def test_another_writers_values_are_read_by_the_names_of_fields() -> None:
    rows = [{"gone": "x", "id": 1, "at": {"x": 2}}, {"gone": "y", "id": -5, "at": None}]
    values = written(OLD, rows)
    found = decode(values, parse(OLD), parse(NEW)).to_pylist()
    assert found == [
        {"id": 1, "price": 1.5, "note": None, "at": {"x": 2.0, "y": 7}},
        {"id": -5, "price": 1.5, "note": None, "at": None},
    ]
    old, new = fastavro.parse_schema(OLD), fastavro.parse_schema(NEW)
    assert found == [fastavro.schemaless_reader(io.BytesIO(value), old, new) for value in values.to_pylist()]


def test_schemas_that_do_not_fit_are_named() -> None:
    with pytest.raises(AvroError, match="no field 'gone' there"):
        decode(written(NEW, []), parse(NEW), parse(OLD))
    narrow = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    wide = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    with pytest.raises(AvroError, match="field 'id' is int64 there, and int32"):
        decode(written(wide, [{"id": 1}]), parse(wide), parse(narrow))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "is not JSON"),
        ('"string"', "of type string; rows need a record"),
        ({"type": "record", "name": "R", "fields": []}, "'R' has no fields"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]},
            "'R' contains itself",
        ),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": "X"}]}, "names type 'X'"),
    ],
)
def test_a_schema_that_cannot_be_read_is_explained(schema: Any, message: str) -> None:
    with pytest.raises(AvroError, match=message):
        parse(schema)


def test_names_have_namespaces() -> None:
    point = {"type": "record", "name": "shop.Point", "fields": [{"name": "x", "type": "int"}]}
    fields = [
        {"name": "a", "type": point},
        {"name": "b", "type": "Point"},
        {"name": "c", "type": "shop.Point"},
    ]
    schema = {"type": "record", "name": "Row", "namespace": "shop", "fields": fields}
    rows = [{"a": {"x": 1}, "b": {"x": 2}, "c": {"x": 3}}]
    assert decode(written(schema, rows), parse(schema), parse(schema)).to_pylist() == rows


COLUMNS = pa.schema(
    [
        ("tiny", pa.int8()),
        ("id", pa.int64()),
        ("price", pa.decimal128(10, 2)),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("place", pa.struct([("x", pa.float64()), ("raw", pa.binary())])),
    ]
)


def test_rows_have_an_avro_schema_of_their_own() -> None:
    schema = describing(COLUMNS, "orders")
    type_ = parse(schema)
    avro_encode.check(COLUMNS, type_)
    full = {
        "tiny": 3,
        "id": -(2**63),
        "price": decimal.Decimal("-12.50"),
        "ts": dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC),
        "local": dt.datetime(1969, 1, 1),
        "day": dt.date(2024, 2, 29),
        "tags": ["a", None],
        "counts": [("k", 1), ("m", None)],
        "place": {"x": math.pi, "raw": b"\xff"},
    }
    rows = [full, dict.fromkeys(COLUMNS.names)]
    batch = pa.RecordBatch.from_pylist(rows, schema=COLUMNS)
    values = avro_encode.encode(batch, type_)
    assert read(schema, values) == [{**full, "counts": {"k": 1, "m": None}}, rows[1]]
    assert decode(values, type_, type_).to_pylist() == rows


def test_rows_that_do_not_fit_the_schema_are_refused() -> None:
    wanted = parse({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
    with pytest.raises(AvroError, match="no field 'name'; it has id"):
        avro_encode.check(pa.schema([("id", pa.int64()), ("name", pa.string())]), wanted)
    with pytest.raises(AvroError, match="field 'id', but there is no such column"):
        avro_encode.check(pa.schema([]), wanted)
    with pytest.raises(AvroError, match="column 'id' is string, but the Avro schema has int64"):
        avro_encode.check(pa.schema([("id", pa.string())]), wanted)
    with pytest.raises(AvroError, match="column 'id' has a null"):
        avro_encode.encode(pa.RecordBatch.from_pylist([{"id": None}], schema=wanted.schema), wanted)
    with pytest.raises(AvroError, match="column 'a b' cannot be a field of an Avro record"):
        describing(pa.schema([("a b", pa.int64())]), "r")
