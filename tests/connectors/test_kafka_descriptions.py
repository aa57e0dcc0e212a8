"""Kafka and tables as people describe them: what is refused, and how records become rows and rows records."""

from __future__ import annotations

import json
import math
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.connectors.json_decode import decode
from headgate.connectors.json_encode import encode
from headgate.connectors.kafka import RAW
from headgate.connectors.kafka_offsets import BrokerUnreachable, KafkaOffsets, client_options
from headgate.demo.processes import free_ports
from headgate.errors import BadRow, PipelineError, SinkError, SourceError, UnknownColumn

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
RICH = pa.schema(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(12, 2)),
        ("tags", pa.list_(pa.string())),
        ("where", pa.struct([("lat", pa.float64()), ("since", pa.date32())])),
    ]
)


def decoded(*values: bytes | str | None, schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    array = pa.array([v.encode() if isinstance(v, str) else v for v in values], pa.binary())
    rows: list[dict[str, Any]] = decode(array, schema).to_pylist()
    return rows


# ---------------------------------------------------------------- records to rows


def test_absent_null_and_other_fields() -> None:
    assert decoded('{"id":1,"name":"a"}', '{"name":null,"more":{"id":[7]}}', " {\n}\n") == [
        {"id": 1, "name": "a"},
        {"id": None, "name": None},
        {"id": None, "name": None},
    ]


def test_a_record_without_a_value_is_a_row_of_nulls() -> None:
    nothing = {"id": None, "name": None}
    assert decoded(None, '{"id":5}', "null") == [nothing, {"id": 5, "name": None}, nothing]
    assert decoded() == []


def test_every_type_that_json_can_give() -> None:
    value = (
        '{"n":9007199254740993,"x":1,"flag":true,"text":"é\\n","day":"2024-02-29","price":1.5,'
        '"at":"2024-01-02T03:04:05.000006+02:00","tags":["a",null],"where":{"since":"1970-01-01"}}'
    )
    assert decoded(value, schema=RICH) == [
        {
            "n": 9007199254740993,
            "x": 1.0,
            "flag": True,
            "text": "é\n",
            "day": date(2024, 2, 29),
            "at": datetime(2024, 1, 2, 1, 4, 5, 6, tzinfo=UTC),
            "price": Decimal("1.50"),
            "tags": ["a", None],
            "where": {"lat": None, "since": date(1970, 1, 1)},
        }
    ]


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "7",
        '"text"',
        "[]",
        "{",
        '{"id":1}{"id":2}',
        '{}}\n{"v":{}',
        '{"id":"1"}',
        '{"id":1.5}',
        '{"id":9223372036854775808}',
        '{"name":5}',
        '{"id":1,"id":2}',
        b'{"name":"\xff"}',
        "not json",
    ],
)
def test_a_value_that_is_not_an_object_of_the_schema_is_a_bad_row(bad: bytes | str) -> None:
    for before in (0, 1, 100):
        with pytest.raises(BadRow, match=r"'.*' is not a JSON object of the schema: ") as caught:
            decoded(*['{"id":1}'] * before, bad, '{"id":2}', bad)
        assert caught.value.index == before


def test_broken_neighbours_do_not_make_one_whole_object() -> None:
    with pytest.raises(BadRow) as caught:
        decoded('{"id":1}', '{"id":2,', '"name":"x"}', '{"id":3}{"id":4}')
    assert caught.value.index == 1


def test_a_bad_row_far_behind_is_found_and_many_rows_keep_their_order() -> None:
    values: list[str | None] = [f'{{"id":{n}}}' for n in range(70_000)]
    assert [row["id"] for row in decoded(*values)] == list(range(70_000))
    values[69_123] = '{"id":oops}'
    with pytest.raises(BadRow, match="oops") as caught:
        decoded(*values)
    assert caught.value.index == 69_123


def test_decoding_a_slice_of_an_array() -> None:
    array = pa.array([b'{"id":1}', b"rubbish", b'{"id":3}', b'{"id":4}', b"rubbish"])
    assert decode(array.slice(2, 2), SCHEMA).column("id").to_pylist() == [3, 4]


def test_a_source_decodes_by_its_schema_or_gives_the_record() -> None:
    record = (
        pa.array([b"k"]),
        pa.array([b'{"id":1}']),
        pa.array([datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("ms", tz="UTC")),
        pa.array([42], pa.int64()),
        pa.array([3], pa.int32()),
    )
    rows = hg.from_kafka("h:1", "t", schema=SCHEMA).decode(*record)
    assert (rows.schema, rows.to_pylist()) == (SCHEMA, [{"id": 1, "name": None}])
    raw = hg.from_kafka("h:1", "t").decode(*record)
    assert raw.schema == RAW
    assert raw.to_pylist() == [
        {
            "key": b"k",
            "value": b'{"id":1}',
            "timestamp": datetime(2024, 1, 1, tzinfo=UTC),
            "partition": 3,
            "offset": 42,
        }
    ]


# ---------------------------------------------------------------- rows to records

ROWS = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.none() | st.booleans(),
        "text": st.none() | st.text(),
        "day": st.none() | st.dates(date(1, 1, 1)),
        "at": st.none() | st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
        "price": st.none() | st.decimals(-(10**9), 10**9, places=2),
        "tags": st.none() | st.lists(st.none() | st.text()),
        "where": st.none()
        | st.fixed_dictionaries(
            {
                "lat": st.none() | st.floats(allow_nan=False, allow_infinity=False),
                "since": st.none() | st.dates(date(1, 1, 1)),
            }
        ),
    }
)


@given(st.lists(ROWS, max_size=8), st.integers(0, 3))
def test_what_is_written_is_read_back(rows: list[dict[str, Any]], start: int) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=RICH).slice(start)
    texts = encode(batch)
    assert len(texts) == batch.num_rows
    assert decode(texts, RICH).equals(batch)
    for text, row in zip(texts.to_pylist(), rows[start:], strict=True):
        assert list(json.loads(text)) == [name for name in RICH.names if row[name] is not None]


def test_what_json_has_no_numbers_for_is_text_and_maps_are_objects() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([math.nan, math.inf, -math.inf, 1.0, None]),
            pa.array(
                [[('q"', 1), ("z", None)], [], None, [("a", 2)], None], pa.map_(pa.string(), pa.int64())
            ),
        ],
        ["x", 'a"b'],
    )
    assert [json.loads(text) for text in encode(batch).to_pylist()] == [
        {"x": "NaN", 'a"b': {'q"': 1, "z": None}},
        {"x": "Infinity", 'a"b': {}},
        {"x": "-Infinity"},
        {"x": 1.0, 'a"b': {"a": 2}},
        {},
    ]


def test_a_sink_makes_keys_and_values() -> None:
    batch = pa.RecordBatch.from_pylist([{"id": 7, "name": "a"}, {"id": None, "name": None}], schema=SCHEMA)
    assert [a.to_pylist() for a in hg.to_kafka("h:1", "t", key="ID").encode(batch)] == [
        [b"7", None],
        [b'{"id":7,"name":"a"}', b"{}"],
    ]
    keys, values = hg.to_kafka("h:1", "t", value="name").encode(batch)
    assert (keys.to_pylist(), values.to_pylist()) == ([None, None], [b"a", None])
    assert keys.type == values.type == pa.binary()


# ---------------------------------------------------------------- descriptions


def test_a_kafka_source_says_what_it_is_and_pickles() -> None:
    options = {"kafka.security.protocol": "SSL", "minPartitions": 4}
    source = pickle.loads(
        pickle.dumps(hg.from_kafka(["a:1", "b:2"], "clicks", schema=SCHEMA, options=options))
    )
    assert (source.servers, source.topic, source.schema) == ("a:1,b:2", "clicks", SCHEMA)
    assert (source.live, source.finite, source.starting, source.ending) == (True, False, "earliest", None)
    assert source.reader_options() == {
        "kafka.security.protocol": "SSL",
        "minPartitions": "4",
        "kafka.bootstrap.servers": "a:1,b:2",
        "subscribe": "clicks",
    }
    assert hg.from_kafka("a:1", "t", ending="latest").finite


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"servers": "broker"}, "'broker' is not the address of a broker; write host:port"),
        ({"servers": []}, "not the address of a broker"),
        ({"topic": "a b"}, "'a b' is not the name of a topic"),
        ({"options": {"subscribe": "x"}}, "option 'subscribe' is set by Headgate; use the second argument"),
        ({"options": {"startingOffsets": "x"}}, "use starting= instead"),
        ({"options": {"kafka.x": None}}, r"option 'kafka\.x' must be a string"),
        ({"options": "x"}, "options must be a dict"),
        ({"format": "avr"}, "there is no format 'avr'.* 'avro'"),
        ({"format": "avro"}, "give schema=, or registry='http://host:8081'"),
        ({"format": "avro", "schema": "shop.avsc"}, "'shop.avsc' is neither JSON nor a file"),
        ({"format": "avro", "schema": '{"type": "int"}'}, "is of type int; rows need a record"),
        ({"format": "avro", "registry": "localhost:1"}, "is no address; write registry='http://host:8081'"),
        ({"format": "protobuf"}, "give schema=, or registry="),
        ({"format": "avro", "schema": 5}, "a int is no Avro schema; give JSON"),
        ({"registry": "http://h:1"}, "JSON values have no registry"),
        ({"message": "shop.Order"}, "use it with format='protobuf'"),
        ({"starting": "now"}, "starting must be 'earliest' or 'latest'"),
        ({"ending": 5}, "ending must be None"),
        ({"schema": pa.schema([("b", pa.binary())])}, "column 'b' is binary, but JSON has no bytes"),
        ({"schema": pa.schema([])}, "schema= has no columns"),
    ],
)
def test_a_wrong_kafka_source_is_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        hg.from_kafka(**{"servers": "h:1", "topic": "t", **arguments})


def test_a_table_source_follows_a_column_that_has_an_order() -> None:
    source = hg.from_table({"format": "jdbc", "options": {"dbtable": "orders", "n": 1}}, "ID", schema=SCHEMA)
    assert (source.table, source.format, source.options) == (None, "jdbc", {"dbtable": "orders", "n": "1"})
    assert (source.follow_column, source.live, source.finite) == ("id", True, False)
    assert hg.from_table("shop.orders", "id", schema=SCHEMA, follow=False).finite
    with pytest.raises(UnknownColumn, match=r"from_table \(table 'orders'\), follow_column: .* 'idd'"):
        hg.from_table("orders", "idd", schema=SCHEMA)
    with pytest.raises(SourceError, match="follow_column 'x' is double, which has no exact order"):
        hg.from_table("orders", "x", schema=pa.schema([("x", pa.float64())]))
    with pytest.raises(SourceError, match="pass schema="):
        hg.from_table("orders", "id")
    with pytest.raises(SourceError, match="'format' is missing"):
        hg.from_table({"options": {}}, "id", schema=SCHEMA)
    with pytest.raises(SourceError, match="'path' is not known here"):
        hg.from_table({"format": "delta", "path": "x"}, "id", schema=SCHEMA)


def test_wrong_sinks_are_refused() -> None:
    with pytest.raises(SinkError, match=r"to_kafka: option 'topic' is set by Headgate"):
        hg.to_kafka("h:1", "t", options={"topic": "u"})
    with pytest.raises(SinkError, match="to_kafka: '' is not the address"):
        hg.to_kafka("", "t")
    with pytest.raises(SinkError, match="mode='overwrite' is not supported"):
        hg.to_table("x", mode="overwrite")
    with pytest.raises(UnknownColumn, match="Query 'q', to_kafka, key: there is no column 'nam'"):
        hg.to_kafka("h:1", "t", key="nam").check("q", SCHEMA)
    with pytest.raises(SinkError, match="value 'id' is int64; only strings and bytes"):
        hg.to_kafka("h:1", "t", value="id").check("q", SCHEMA)
    with pytest.raises(SinkError, match="column 'b' is binary, but JSON has no bytes"):
        hg.to_kafka("h:1", "t").check("q", pa.schema([("b", pa.binary())]))


@pytest.mark.parametrize("engine", ["threads", "simulated"])
def test_other_engines_say_that_spark_is_needed(engine: str) -> None:
    rows = pa.RecordBatch.from_pylist([{"id": 1, "name": "a"}], schema=SCHEMA)
    for sink in (hg.to_kafka("h:1", "t", exactly_once=False), hg.to_table("shop.x")):
        app = hg.App("sinks")
        app.source("s", hg.from_batches([rows])).to("q", sink)
        with pytest.raises(hg.HeadgateError, match=r"needs the Spark engine: app\.run\(engine='spark'\)"):
            app.run(engine=engine)
    for source in (hg.from_kafka("h:1", "t", schema=SCHEMA), hg.from_table("x", "id", schema=SCHEMA)):
        app = hg.App("sources")
        app.source("s", source).to("q", hg.to_list([]))
        with pytest.raises(hg.HeadgateError, match=r"needs the Spark engine: app\.run\(engine='spark'\)"):
            app.run(engine=engine)


# ---------------------------------------------------------------- the offsets' client


def test_sparks_options_become_the_clients() -> None:
    login = (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="p\\"q; x";'
    )
    assert client_options(
        {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": login,
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": "ca.pem",
            "kafka.ssl.endpoint.identification.algorithm": "",
            "kafka.max.poll.records": "5",
            "minPartitions": "4",
        }
    ) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "a",
        "sasl.password": 'p"q; x',
        "ssl.ca.location": "ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }
    keys = {"kafka.ssl.keystore.type": "PKCS12", "kafka.ssl.keystore.location": "k.p12"}
    assert client_options({**keys, "kafka.ssl.keystore.password": "s"}) == {
        "ssl.keystore.location": "k.p12",
        "ssl.keystore.password": "s",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.ssl.truststore.location": "t.jks"}, r"'t\.jks' .* is a Java key store"),
        ({"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": "x required;"}, "names no username"),
        (
            {"kafka.sasl.mechanism": "MAGIC", "kafka.sasl.jaas.config": "x required;"},
            "'MAGIC' .* not supported",
        ),
    ],
)
def test_security_that_the_client_cannot_use_is_refused_at_once(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        hg.from_kafka("h:1", "t", options=options)


def test_a_broker_that_is_not_there() -> None:
    (port,) = free_ports(1)
    offsets = KafkaOffsets(f"localhost:{port}", "clicks", timeout=1)
    with pytest.raises(BrokerUnreachable, match=rf"at 'localhost:{port}' \(topic 'clicks'\).*Check that"):
        offsets.latest()
    with pytest.raises(SourceError, match="does not take its options"):
        KafkaOffsets("h:1", "t", {"kafka.security.protocol": "NONSENSE"})


def test_schema_mistakes_are_those_of_every_source() -> None:
    with pytest.raises(PipelineError, match="is not a schema"):
        hg.from_kafka("h:1", "t", schema="id BIGINT")
