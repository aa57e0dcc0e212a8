"""Values with a registry's number before them, Avro and Protobuf, and the registry itself."""

from __future__ import annotations

import base64
import io
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

import headgate as hg
from headgate.connectors.registry import RegistryError, at, header
from headgate.errors import BadRow, SinkError, SourceError
from registry_server import RegistryServer

V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
OTHER = {"type": "record", "name": "Order", "fields": [{"name": "key", "type": "string"}]}


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with RegistryServer() as made:
        yield made


def avro(schema: Any, row: Any, number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return header(number) + out.getvalue()


def decode(source: Any, values: list[bytes]) -> list[dict[str, Any]]:
    return source.values.decode(pa.array(values, pa.binary())).to_pylist()  # type: ignore[no-any-return]


def test_values_of_several_schemas_are_rows_of_the_newest_one(registry: RegistryServer) -> None:
    first = registry.add("orders-value", json.dumps(V1))
    second = registry.add("orders-value", json.dumps(V2))
    source = hg.from_kafka("h:1", "orders", format="avro", registry=registry.url)
    assert source.schema.names == ["id", "note"]
    values = [avro(V2, {"id": 1, "note": "a"}, second), avro(V1, {"id": 2}, first)] * 2
    rows = [{"id": 1, "note": "a"}, {"id": 2, "note": None}] * 2
    assert decode(pickle.loads(pickle.dumps(source)), values) == rows
    asked = len(registry.asked)
    assert decode(pickle.loads(pickle.dumps(source)), values) == rows
    assert len(registry.asked) == asked, "what the registry told once is not asked again"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "does not begin with a zero"),
        (b"\0\0\0\0", "does not begin with a zero"),
        (b"{}   ", "does not begin with a zero"),
        (header(77) + b"\x02", "the registry has no schema 77"),
        (header(2) + b"\x02a", "schema 2 of the registry does not fit: there is no field 'id' there"),
        (header(3), "schema 3 of the registry does not fit: it is JSON, not AVRO"),
        (header(1), "it ends too early"),
    ],
)
def test_a_value_that_is_bad_is_told_by_its_place(
    registry: RegistryServer, value: bytes, reason: str
) -> None:
    registry.add("other", json.dumps(V1))
    registry.add("other", json.dumps(OTHER))
    registry.add("other", "{}", "JSON")
    source = hg.from_kafka("h:1", "orders", format="avro", schema=V1, registry=registry.url)
    good = avro(V1, {"id": 1}, 1)
    with pytest.raises(BadRow, match=reason) as caught:
        decode(source, [good, value, b"", good])
    assert caught.value.index == 1


def test_types_of_other_subjects_are_found(registry: RegistryServer) -> None:
    point = {"type": "record", "name": "shop.Point", "fields": [{"name": "x", "type": "int"}]}
    registry.add("point", json.dumps(point))
    row = {"type": "record", "name": "shop.Row", "fields": [{"name": "at", "type": "shop.Point"}]}
    references = [{"name": "shop.Point", "subject": "point", "version": 1}]
    number = registry.add("rows-value", json.dumps(row), references=references)
    source = hg.from_kafka("h:1", "rows", format="avro", registry=registry.url)
    assert decode(source, [header(number) + b"\x04"]) == [{"at": {"x": 2}}]


def test_a_registry_that_does_not_help_is_named(registry: RegistryServer) -> None:
    with pytest.raises(
        SourceError, match=r"topic 'orders'.*registry at http://127.* no subject 'orders-value'"
    ):
        hg.from_kafka("h:1", "orders", format="avro", registry=registry.url)
    registry.add("orders-value", "syntax", "PROTOBUF")
    with pytest.raises(SourceError, match="it is PROTOBUF, not AVRO; use format='protobuf'"):
        hg.from_kafka("h:1", "orders", format="avro", registry=registry.url)
    with pytest.raises(RegistryError, match="cannot be reached"):
        at("http://127.0.0.1:1").schema(1)


def test_a_login_is_sent_and_not_shown() -> None:
    login = "Basic " + base64.b64encode(b"ann:p@ss").decode()
    with RegistryServer(login) as registry:
        registry.add("orders-value", json.dumps(V1))
        url = registry.url.replace("http://", "http://ann:p%40ss@")
        assert hg.from_kafka("h:1", "orders", format="avro", registry=url).schema.names == ["id"]
        with pytest.raises(SourceError, match="refuses the login") as caught:
            hg.from_kafka("h:1", "orders", format="avro", registry=registry.url)
        with pytest.raises(SourceError) as missing:
            hg.from_kafka("h:1", "none", format="avro", registry=url)
        assert "ss" not in str(missing.value).partition("http")[2].partition(" ")[0]
        assert "user:password" in str(caught.value)


def test_rows_are_written_with_the_number_of_their_schema(registry: RegistryServer) -> None:
    batch = pa.RecordBatch.from_pylist([{"id": 1, "note": "a"}, {"id": 2, "note": None}])
    sink = hg.to_kafka("h:1", "orders", key="id", format="avro", registry=registry.url)
    sink.check("q", batch.schema)
    keys, values = pickle.loads(pickle.dumps(sink)).encode(batch)
    assert keys.to_pylist() == [b"1", b"2"]
    source = hg.from_kafka("h:1", "orders", format="avro", registry=registry.url)
    assert decode(source, values.to_pylist()) == batch.to_pylist()
    given = hg.to_kafka("h:1", "plain", format="avro", schema=V2)
    given.check("q", batch.schema)
    plain = hg.from_kafka("h:1", "plain", format="avro", schema=json.dumps(V2))
    assert decode(plain, given.encode(batch)[1].to_pylist()) == batch.to_pylist()
    with pytest.raises(
        SinkError, match=r"Query 'q', to_kafka \(topic 'plain'\): the Avro schema has no field 'x'"
    ):
        given.check("q", pa.schema([("id", pa.int64()), ("x", pa.string())]))
    with pytest.raises(SinkError, match="schema= is for format='avro'"):
        hg.to_kafka("h:1", "t", schema=V2)
    with pytest.raises(SinkError, match="value='v' is written as it is"):
        hg.to_kafka("h:1", "t", value="v", format="avro")


def proto_file() -> FileDescriptorProto:
    """What protoc makes of a file with messages Order (with Order.Line inside) and Refund."""
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(["NEW", "PAID"]):
        kind.value.add(name=name, number=number)
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=FieldDescriptorProto.TYPE_STRING, label=1)
    order.field.add(name="id", number=1, type=FieldDescriptorProto.TYPE_INT64, label=1)
    order.field.add(
        name="kind", number=2, type=FieldDescriptorProto.TYPE_ENUM, type_name=".shop.Kind", label=1
    )
    order.field.add(
        name="lines", number=3, type=FieldDescriptorProto.TYPE_MESSAGE, type_name=".shop.Order.Line", label=3
    )
    order.field.add(name="big", number=4, type=FieldDescriptorProto.TYPE_UINT64, label=1)
    refund = file.message_type.add(name="Refund")
    refund.field.add(name="id", number=1, type=FieldDescriptorProto.TYPE_INT64, label=1)
    return file


def classes() -> tuple[Any, Any]:
    pool = DescriptorPool()
    pool.Add(proto_file())
    return tuple(GetMessageClass(pool.FindMessageTypeByName(name)) for name in ("shop.Order", "shop.Refund"))


ORDER, REFUND = classes()
ORDERS = [ORDER(id=1, kind=1, lines=[{"sku": "a"}, {"sku": "b"}]), ORDER(id=2, big=2**64 - 1)]
ROWS = [
    {"id": 1, "kind": "PAID", "lines": [{"sku": "a"}, {"sku": "b"}], "big": 0},
    {"id": 2, "kind": "NEW", "lines": [], "big": 2**64 - 1},
]


def test_messages_are_rows_by_a_class_or_a_file(tmp_path: Path) -> None:
    values = [order.SerializeToString() for order in ORDERS]
    by_class = hg.from_kafka("h:1", "t", format="protobuf", schema=ORDER)
    assert decode(pickle.loads(pickle.dumps(by_class)), values) == ROWS
    path = tmp_path / "shop.desc"
    path.write_bytes(FileDescriptorSet(file=[proto_file()]).SerializeToString())
    by_file = hg.from_kafka("h:1", "t", format="protobuf", schema=path, message="shop.Order")
    assert decode(by_file, values) == ROWS
    with pytest.raises(
        SourceError, match=r"describes shop.Order, shop.Refund; say which with message='shop.Order'"
    ):
        hg.from_kafka("h:1", "t", format="protobuf", schema=path)
    with pytest.raises(SourceError, match=r"no message 'shop.Ordr'.*'shop.Order'"):
        hg.from_kafka("h:1", "t", format="protobuf", schema=path, message="shop.Ordr")
    with pytest.raises(SourceError, match=r"protoc --include_imports --descriptor_set_out"):
        hg.from_kafka("h:1", "t", format="protobuf", schema=tmp_path / "none")


def test_a_value_that_is_no_message_is_told_by_its_place() -> None:
    source = hg.from_kafka("h:1", "t", format="protobuf", schema=ORDER)
    good = ORDERS[0].SerializeToString()
    with pytest.raises(BadRow, match=r"it is no message 'shop.Order'") as caught:
        decode(source, [good, good, b"\x0a\xff", good, b"\xff"])
    assert caught.value.index == 2


def test_messages_with_a_number_before_them(registry: RegistryServer) -> None:
    text = base64.b64encode(proto_file().SerializeToString()).decode()
    number = registry.add("orders-value", text, "PROTOBUF")
    source = hg.from_kafka("h:1", "orders", format="protobuf", registry=registry.url, message="shop.Order")
    head = header(number)
    values = [head + b"\0" + order.SerializeToString() for order in ORDERS]
    assert decode(source, values) == ROWS
    spelled = head + b"\x02\x00" + ORDERS[0].SerializeToString()
    assert decode(source, [spelled, values[1]]) == ROWS
    refund = head + b"\x02\x02" + REFUND(id=3).SerializeToString()
    for bad, reason in [
        (refund, r"it is a message 'shop.Refund', not 'shop.Order'"),
        (head + b"\x04\x00\x00", r"it is a message 'shop.Order.Line'"),
        (head + b"\x02\x08", r"has no message \[4\]"),
        (head + b"\x02", "does not say which message"),
        (header(9) + b"\0", "no schema 9"),
    ]:
        with pytest.raises(BadRow, match=reason) as caught:
            decode(source, [values[0], bad, values[1]])
        assert caught.value.index == 1


def test_rows_are_written_as_messages(registry: RegistryServer) -> None:
    plain = hg.to_kafka("h:1", "t", format="protobuf", schema=ORDER)
    source = hg.from_kafka("h:1", "t", format="protobuf", schema=ORDER)
    batch = source.values.decode(pa.array([order.SerializeToString() for order in ORDERS], pa.binary()))
    plain.check("q", batch.schema)
    _, values = pickle.loads(pickle.dumps(plain)).encode(batch)
    assert [ORDER.FromString(value) for value in values.to_pylist()] == ORDERS
    text = base64.b64encode(proto_file().SerializeToString()).decode()
    number = registry.add("orders-value", text, "PROTOBUF")
    known = hg.to_kafka("h:1", "orders", format="protobuf", registry=registry.url, message="shop.Order")
    known.check("q", batch.schema)
    assert known.encode(batch)[1][0].as_py() == header(number) + b"\0" + ORDERS[0].SerializeToString()
    with pytest.raises(
        SinkError, match=r"message 'shop.Order' has a field 'big' of .*, but there is no such column"
    ):
        plain.check("q", batch.schema.remove(3))
