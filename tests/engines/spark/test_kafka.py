"""Kafka through the Spark engine, against a real broker."""

from __future__ import annotations

import io
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headgate as hg
from apart import Apart, apart
from headgate.connectors.registry import header
from headgate.control.socket import call
from headgate.demo.processes import free_ports
from headgate.errors import RunError
from headgate.runtime.report import Report
from registry_server import RegistryServer
from servers import Broker
from waiting import SOON

pytestmark = pytest.mark.xdist_group("servers")
SCHEMA = pa.schema([("partition", pa.int64()), ("id", pa.int64()), ("user", pa.string())])
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture(scope="module")
def driver() -> Iterator[Apart]:
    """A Spark with the connector, which cannot join one that runs."""
    with apart() as made:
        yield made


def fill(broker: Broker, topic: str, rows: int, partitions: int = 3, first: int = 0) -> None:
    for partition in range(partitions):
        values = [
            json.dumps({"partition": partition, "id": i, "user": f"u{i % 7}"})
            for i in range(first, first + rows)
        ]
        broker.produce(topic, values, partition)


def engine(**options: Any) -> hg.Spark:
    return hg.Spark(master="local[2]", workers=2, options={"spark.ui.enabled": "false"}, **options)


def keyed(stream: hg.Stream) -> hg.Stream:
    return stream.key_by("user").running("sum(id) AS s", "count(*) AS n")


def by_threads(rows: Rows) -> Rows:
    """What the threads engine says of these rows, in this order."""
    app, found = hg.App("threads"), []
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    keyed(app.source("in", hg.from_batches([batch]))).to("sums", hg.to_list(found))
    app.run("threads")
    return found


def ids(rows: Rows) -> dict[int, list[int]]:
    found = defaultdict(list)
    for row in rows:
        found[row["partition"]].append(row["id"])
    return dict(found)


def stop_at(query: str, rows: int) -> Any:
    """A run that has made so many rows is interrupted, as by hand."""

    def progress(report: Report) -> None:
        if report.queries[query].tuples_out >= rows:
            raise KeyboardInterrupt

    return progress


def everything(servers: str, topic: str) -> tuple[Rows, Rows, Rows, Report, float]:
    app = hg.App("kafka")
    source = app.source("in", hg.from_kafka(servers, topic, schema=SCHEMA, ending="latest"))
    raw = app.source("raw", hg.from_kafka(servers, topic, ending="latest"))
    rows: Rows = []
    sums: Rows = []
    records: Rows = []
    source.to("rows", hg.to_list(rows))
    keyed(source).to("sums", hg.to_list(sums))
    raw.filter("offset >= 10").select("partition", "offset", "value").to("records", hg.to_list(records))
    begin = time.monotonic()
    report = app.run(engine())
    return rows, sums, records, report, time.monotonic() - begin


def test_a_topic_is_read_in_order_and_the_answers_are_those_of_threads(broker: Broker, driver: Apart) -> None:
    broker.create_topic("orders", partitions=3)
    fill(broker, "orders", 400)
    rows, sums, records, report, elapsed = driver(everything, broker.servers, "orders")
    assert ids(rows) == {partition: list(range(400)) for partition in range(3)}
    assert sums == by_threads(rows)
    assert len(records) == 3 * 390
    assert {(r["partition"], r["offset"]) for r in records} == {
        (p, o) for p in range(3) for o in range(10, 400)
    }
    assert json.loads(records[0]["value"])["id"] == records[0]["offset"]
    assert report.queries["rows"].tuples_in == 1200
    assert 0 < report.queries["rows"].latency.max <= elapsed, (
        "what was there before arrives when the run begins"
    )


def followed(servers: str, topic: str, folder: str, rows: int) -> int:
    """Follow the topic until so many rows have been written in this run."""
    app = hg.App("kafka")
    source = app.source("in", hg.from_kafka(servers, topic, schema=SCHEMA))
    source.to("rows", hg.to_parquet(f"{folder}/rows"))
    keyed(source).to("sums", hg.to_parquet(f"{folder}/sums"))
    report = app.run(engine(checkpoint=f"{folder}/checkpoint"), until=None, progress=stop_at("sums", rows))
    return report.queries["sums"].tuples_out


def written(folder: Path | str) -> Rows:
    files = sorted(Path(folder).glob("part-*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def test_a_run_that_was_stopped_goes_on_where_it_was(broker: Broker, driver: Apart, tmp_path: Path) -> None:
    broker.create_topic("stopped", partitions=2)
    fill(broker, "stopped", 100, partitions=2)
    assert driver(followed, broker.servers, "stopped", str(tmp_path), 200) == 200
    fill(broker, "stopped", 50, partitions=2, first=100)
    assert driver(followed, broker.servers, "stopped", str(tmp_path), 100) == 100
    rows = written(tmp_path / "rows")
    assert ids(rows) == {partition: list(range(150)) for partition in range(2)}
    assert written(tmp_path / "sums") == by_threads(rows)


def beside(servers: str, topic: str, folder: str, rows: int) -> tuple[str | None, int]:
    """The error of a query over a topic, and what a query beside it has made."""
    app = hg.App("kafka")
    source = app.source("in", hg.from_kafka(servers, topic, schema=SCHEMA))
    source.to("rows", hg.to_parquet(f"{folder}/rows"))
    app.source("ticks", hg.from_rate(500)).to("ticks", hg.to_function(lambda *_: None))
    checkpoint = f"{folder}/checkpoint" if folder else None

    def progress(report: Report) -> None:
        query = report.queries["rows"]
        if (query.error or query.tuples_out >= rows) and report.queries["ticks"].tuples_out:
            raise KeyboardInterrupt

    report = app.run(engine(checkpoint=checkpoint), until=None, progress=progress)
    error = report.queries["rows"].error
    return None if error is None else str(error), report.queries["ticks"].tuples_out


def test_offsets_that_are_gone_stop_the_query_and_nothing_of_it_is_committed(
    broker: Broker, driver: Apart, tmp_path: Path
) -> None:
    broker.create_topic("gone")
    fill(broker, "gone", 20, partitions=1)
    assert driver(beside, broker.servers, "gone", str(tmp_path), 20)[0] is None
    fill(broker, "gone", 20, partitions=1, first=20)
    broker.delete_before("gone", {0: 30})
    error, ticks = driver(beside, broker.servers, "gone", str(tmp_path), 40)
    assert error is not None
    assert "Source 'in': the broker no longer has offsets 20 to 29 of topic 'gone', partition 0" in error
    assert "new checkpoint" in error
    assert ticks
    assert ids(written(tmp_path / "rows")) == {0: list(range(20))}


def lost_on_the_way(servers: str, topic: str) -> str:
    """Offsets that are removed after they were noticed and before they are read."""
    from headgate.engines.spark.kafka import Kafka

    noticed = Kafka._admit

    def admit(self: Kafka, latest: dict[int, int], now: float) -> Any:
        extents = noticed(self, latest, now)
        if extents:
            _delete(servers, topic, extents[0].first + 5)
        return extents

    Kafka._admit = admit  # type: ignore[method-assign]
    try:
        app = hg.App("kafka")
        app.source("in", hg.from_kafka(servers, topic, ending="latest")).to("rows", hg.to_list([]))
        app.run(engine())
    except RunError as error:
        return str(error)
    finally:
        Kafka._admit = noticed  # type: ignore[method-assign]
    return ""


def _delete(servers: str, topic: str, before: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        done.result(60)


def test_offsets_that_go_before_they_are_read_are_named(broker: Broker, driver: Apart) -> None:
    broker.create_topic("going")
    broker.produce("going", ["a"] * 9)
    error = driver(lost_on_the_way, broker.servers, "going")
    assert "Source 'in': the broker no longer has offsets 0 to 4 of topic 'going', partition 0" in error


def without_broker(servers: str) -> tuple[str | None, int]:
    from headgate.connectors.kafka import KafkaSource
    from headgate.connectors.kafka_offsets import KafkaOffsets
    from headgate.engines.spark import kafka

    asked, patience = KafkaSource.offsets, kafka.PATIENCE_AT_START
    KafkaSource.offsets = lambda self: KafkaOffsets(self.servers, self.topic, timeout=1.0)  # type: ignore[method-assign]
    kafka.PATIENCE_AT_START = 2.0
    try:
        return beside(servers, "nowhere", "", 1)
    finally:
        KafkaSource.offsets, kafka.PATIENCE_AT_START = asked, patience  # type: ignore[method-assign]


def test_a_broker_that_never_answers_stops_its_query_alone(driver: Apart) -> None:
    servers = f"localhost:{free_ports(1)[0]}"
    error, ticks = driver(without_broker, servers)
    assert error is not None
    assert f"No Kafka broker answers at '{servers}' (topic 'nowhere')" in error
    assert ticks


def spoilt(servers: str, topic: str, letters: bool) -> tuple[Rows, Rows, Rows, Rows, dict[str, str]]:
    app = hg.App("kafka")
    source = app.source("in", hg.from_kafka(servers, topic, schema=SCHEMA, ending="latest"))
    raw = app.source("raw", hg.from_kafka(servers, topic, ending="latest"))
    plain: Rows = []
    even: Rows = []
    records: Rows = []
    bad: Rows = []
    source.to("plain", hg.to_list(plain))
    source.filter("id % 2 = 0").to("even", hg.to_list(even))
    raw.to("records", hg.to_list(records))
    if letters:
        app.dead_letter(hg.to_list(bad))
    report = app.run(engine())
    return plain, even, records, bad, {n: str(q.error) for n, q in report.queries.items() if q.error}


@pytest.fixture(scope="module")
def spoilt_topic(broker: Broker) -> str:
    broker.create_topic("spoilt")
    fill(broker, "spoilt", 5, partitions=1)
    broker.produce("spoilt", ["{oops"])
    fill(broker, "spoilt", 5, partitions=1, first=5)
    broker.produce("spoilt", ['{"id": "text"}'])
    return "spoilt"


def test_a_value_that_is_no_json_fails_the_queries_that_read_it(
    broker: Broker, driver: Apart, spoilt_topic: str
) -> None:
    plain, even, records, _, errors = driver(spoilt, broker.servers, spoilt_topic, False)
    assert sorted(errors) == ["even", "plain"]
    for error in errors.values():
        assert "Source 'in'" in error
        assert "Kafka topic 'spoilt', partition 0, offset 5: '{oops' is not a JSON object" in error
    assert plain == even == []
    assert len(records) == 12


def test_a_value_that_is_no_json_is_a_dead_letter_where_those_are_wanted(
    broker: Broker, driver: Apart, spoilt_topic: str
) -> None:
    plain, even, records, bad, errors = driver(spoilt, broker.servers, spoilt_topic, True)
    assert errors == {}
    assert [row["id"] for row in plain] == list(range(10))
    assert [row["id"] for row in even] == [0, 2, 4, 6, 8]
    assert len(records) == 12
    assert sorted((b["box"], b["queries"], json.loads(b["row"])["offset"]) for b in bad) == [
        ("in", "even", 5), ("in", "even", 11), ("in", "plain", 5), ("in", "plain", 11),
    ]  # fmt: skip
    assert [b["serial"] for b in bad] == sorted(b["serial"] for b in bad)
    assert all("is not a JSON object of the schema" in b["reason"] for b in bad)
    assert json.loads(bad[0]["row"])["value"] == "{oops"


@pytest.fixture(scope="module")
def poisoned_topic(broker: Broker) -> str:
    """A record that took the Python worker with it, one that is no text, and a tombstone."""
    broker.create_topic("poisoned")
    fill(broker, "poisoned", 5, partitions=1)
    broker.produce("poisoned", [None, '{"id": 1, "more": ' + "[" * 200_000 + "]" * 200_000 + "}"])
    broker.produce("poisoned", [b'{"id": 1, "more": "\xff"}'])
    fill(broker, "poisoned", 5, partitions=1, first=5)
    return "poisoned"


def test_a_poison_record_ends_only_the_queries_that_read_it(
    broker: Broker, driver: Apart, poisoned_topic: str
) -> None:
    _, _, records, _, errors = driver(spoilt, broker.servers, poisoned_topic, False)
    assert sorted(errors) == ["even", "plain"]
    for error in errors.values():
        assert "Source 'in': Kafka topic 'poisoned', partition 0, offset 6: " in error
        assert "levels deep" in error
    assert len(records) == 13


def test_poison_is_a_dead_letter_and_a_tombstone_no_row(
    broker: Broker, driver: Apart, poisoned_topic: str
) -> None:
    plain, even, records, bad, errors = driver(spoilt, broker.servers, poisoned_topic, True)
    assert errors == {}
    assert [row["id"] for row in plain] == list(range(10))
    assert [row["id"] for row in even] == [0, 2, 4, 6, 8]
    assert [record["value"] is None for record in records].index(True) == 5
    assert len(records) == 13
    assert [json.loads(b["row"])["offset"] for b in bad if b["queries"] == "plain"] == [6, 7]


def sent(servers: str, topic: str, rows: Rows, exactly_once: bool) -> None:
    app = hg.App("kafka")
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    sink = hg.to_kafka(servers, topic, key="user", exactly_once=exactly_once)
    keyed(app.source("in", hg.from_batches([batch]))).to("sums", sink)
    app.run(engine())


def records_of(broker: Broker, topic: str, count: int) -> list[Any]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "t", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
    records: list[Any] = []
    while len(records) < count:
        records += consumer.consume(count - len(records), timeout=5)
    consumer.close()
    return records


@pytest.mark.parametrize("exactly_once", [False, True])
def test_results_go_to_a_topic_by_key(broker: Broker, driver: Apart, exactly_once: bool) -> None:
    """Where a step may come again, each record has its query and step."""
    topic = f"results-{exactly_once}"
    broker.create_topic(topic, partitions=2)
    rows = [{"partition": 0, "id": i, "user": f"u{i % 5}"} for i in range(100)]
    driver(sent, broker.servers, topic, rows, exactly_once)
    records = records_of(broker, topic, 100)
    wanted = by_threads(rows)
    for user in {row["user"] for row in rows}:
        own = [record for record in records if record.key() == user.encode()]
        assert len({record.partition() for record in own}) == 1
        assert [json.loads(record.value()) for record in own] == [r for r in wanted if r["user"] == user]
    if exactly_once:
        assert {record.headers() is None for record in records} == {True}
        return
    for record in records:
        headers = dict(record.headers())
        assert headers["headgate-query"] == b"sums"
        assert int(headers["headgate-step"]) > 0
    assert len({dict(record.headers())["headgate-checkpoint"] for record in records}) == 1


def through_a_registry(servers: str, url: str) -> tuple[Rows, Rows, Report]:
    app, rows, bad = hg.App("registry"), [], []
    orders = hg.from_kafka(servers, "avro-in", format="avro", registry=url, ending="latest")
    source = app.source("orders", orders)
    source.to("rows", hg.to_list(rows))
    sink = hg.to_kafka(servers, "avro-out", key="id", format="avro", registry=url)
    source.select("id", "price * 2 AS twice").to("twice", sink)
    app.dead_letter(hg.to_list(bad))
    return rows, bad, app.run(engine())


def test_avro_of_a_registry_is_read_and_written(broker: Broker, driver: Apart) -> None:
    """Two versions of a schema, a value of neither, and results that a client of the registry can read."""
    fields = [{"name": "id", "type": "long"}, {"name": "price", "type": "double", "default": 0.5}]
    schemas = [{"type": "record", "name": "Order", "fields": fields[:n]} for n in (1, 2)]
    for topic in ("avro-in", "avro-out"):
        broker.create_topic(topic)
    with RegistryServer() as registry:
        values = []
        for i in range(20):
            schema = schemas[i % 2]
            out = io.BytesIO()
            fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"id": i, "price": i / 2})
            values.append(header(registry.add("avro-in-value", json.dumps(schema))) + out.getvalue())
        broker.produce("avro-in", [*values[:5], b"\0\0\0\0\x01\x80", *values[5:]])
        rows, bad, report = driver(through_a_registry, broker.servers, registry.url)
        assert rows == [{"id": i, "price": i / 2 if i % 2 else 0.5} for i in range(20)]
        assert {(json.loads(b["row"])["offset"], "it ends too early" in b["reason"]) for b in bad} == {
            (5, True)
        }
        assert all(query.error is None for query in report.queries.values())
        written = json.loads(registry.latest("avro-out-value"))
        records = records_of(broker, "avro-out", 20)
        parsed = fastavro.parse_schema(written)
        found = [fastavro.schemaless_reader(io.BytesIO(one.value()[5:]), parsed) for one in records]
        assert found == [{"id": row["id"], "twice": row["price"] * 2} for row in rows]


def nowhere(servers: str) -> tuple[Report, list[dict[str, Any]]]:
    """Until one query waits and the other has results: the report, and how both were shown at last."""
    app, states = hg.App("nowhere"), []
    app.source("in", hg.from_kafka(servers, "orders", schema=SCHEMA)).to("rows", hg.to_list([]))
    app.source("ticks", hg.from_rate(10)).to("ticks", hg.to_list([]))

    def progress(report: Report) -> None:
        states[:] = call("nowhere", "status")["queries"]
        if "waiting" in {one["state"] for one in states} and report.queries["ticks"].tuples_out:
            raise KeyboardInterrupt

    return app.run(engine(), until=SOON, progress=progress), states


def test_a_query_whose_broker_is_away_says_that_it_waits(driver: Apart) -> None:
    (port,) = free_ports(1)
    report, states = driver(nowhere, f"localhost:{port}")
    rows, ticks = report.queries["rows"], report.queries["ticks"]
    assert rows.error is None
    for part in ("source 'in'", f"localhost:{port}", "since 20"):
        assert part in str(rows.waits_for)
    assert ticks.waits_for is None
    shown = {(one["name"], one["state"]) for one in states}
    assert shown == {("rows", "waiting"), ("ticks", "running")}
    assert all(f"localhost:{port}" in one["waits_for"] for one in states if one["name"] == "rows")
