"""The servers that other tests rest on: each proves itself with a real round trip."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import headgate as hg
from headgate.connectors.kafka import KafkaSource
from headgate.connectors.kafka_offsets import BrokerUnreachable
from headgate.connectors.maven import PackageError, jars
from headgate.demo.processes import Server, ServerError
from headgate.errors import SourceError
from servers import Broker, Cluster, ConnectServer, drive
from waiting import PATIENCE, SOON

pytestmark = [pytest.mark.xdist_group("servers"), pytest.mark.faults]
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROUND_TRIP = """
    import json, sys
    from pyspark.sql import SparkSession

    servers, topic, jars, options, rows = sys.argv[1:]
    options = json.loads(options)
    session = (
        SparkSession.builder.master("local[2]").config("spark.jars", jars)
        .config("spark.ui.enabled", "false").getOrCreate()
    )
    out = session.range(0, int(rows), 1, 2).selectExpr(
        "CAST(id AS STRING) AS key",
        "to_json(struct(id, concat('n', id) AS name)) AS value",
        "array(struct('headgate-step' AS key, CAST('7' AS BINARY) AS value)) AS headers",
    )
    to = {**options, "kafka.bootstrap.servers": servers}
    out.write.format("kafka").options(**to, topic=topic, includeHeaders="true").save()
    read = session.read.format("kafka").options(**to, subscribe=topic, includeHeaders="true").load()
    print(json.dumps({
        "rows": read.count(),
        "steps": [row[0] for row in read.selectExpr("CAST(headers[0].value AS STRING)").distinct().collect()],
    }))
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


def round_trip(broker: Broker, topic: str, rows: int) -> dict[str, object]:
    given = [broker.servers, topic, ",".join(jars("spark-kafka")), json.dumps(broker.options), str(rows)]
    found: dict[str, object] = json.loads(drive(ROUND_TRIP, *given).splitlines()[-1])
    return found


def read(broker: Broker, source: KafkaSource) -> pa.Table:
    """The topic's rows as the source decodes them, records fetched by the broker's own client."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": broker.servers, "group.id": "test", "enable.auto.commit": False}
    )
    offsets = source.offsets()
    first, last = offsets.earliest(), offsets.latest()
    offsets.close()
    consumer.assign([TopicPartition(source.topic, partition, first[partition]) for partition in first])
    records = []
    while len(records) < sum(last.values()) - sum(first.values()):
        records += consumer.consume(1000, timeout=1)
    consumer.close()
    batch = source.decode(
        pa.array([record.key() for record in records], pa.binary()),
        pa.array([record.value() for record in records], pa.binary()),
        pa.array([record.timestamp()[1] for record in records], pa.timestamp("ms", tz="UTC")),
        pa.array([record.offset() for record in records], pa.int64()),
        pa.array([record.partition() for record in records], pa.int32()),
    )
    return pa.Table.from_batches([batch])


def test_a_topic_written_and_read_through_sparks_connector(broker: Broker) -> None:
    broker.create_topic("pairs", partitions=3)
    assert round_trip(broker, "pairs", 500) == {"rows": 500, "steps": ["7"]}
    source = hg.from_kafka(broker.servers, "pairs", schema=SCHEMA)
    rows = read(broker, source).sort_by("id").to_pylist()
    assert rows == [{"id": n, "name": f"n{n}"} for n in range(500)]


def test_offsets_follow_what_is_produced_and_deleted(broker: Broker) -> None:
    broker.create_topic("moving", partitions=2)
    offsets = hg.from_kafka(broker.servers, "moving").offsets()
    assert offsets.partitions() == [0, 1]
    assert offsets.latest() == offsets.earliest() == {0: 0, 1: 0}
    broker.produce("moving", ["a", "b", None], partition=1)
    assert offsets.latest() == {0: 0, 1: 3}
    broker.delete_before("moving", {1: 2})
    assert offsets.earliest() == {0: 0, 1: 2}
    offsets.close()
    with pytest.raises(SourceError, match="after close"):
        offsets.latest()


def test_raw_records_keep_key_time_partition_and_offset(broker: Broker) -> None:
    broker.create_topic("raw", partitions=2)
    broker.produce("raw", [b"\x00\xff", None], partition=1)
    table = read(broker, hg.from_kafka(broker.servers, "raw"))
    assert table.column("value").to_pylist() == [b"\x00\xff", None]
    assert table.column("partition").to_pylist() == [1, 1]
    assert table.column("offset").to_pylist() == [0, 1]
    assert table.column("timestamp").null_count == 0


def test_an_unknown_topic_is_named_and_not_made(broker: Broker) -> None:
    with pytest.raises(SourceError, match=f"'{broker.servers}' has no topic 'nobody'"):
        hg.from_kafka(broker.servers, "nobody").offsets().latest()
    assert "nobody" not in broker.admin.list_topics().topics


def test_a_broker_that_stops_and_comes_back_has_its_records_and_keeps_its_clients() -> None:
    with Broker() as broker:
        broker.create_topic("kept")
        broker.produce("kept", ["before"])
        offsets = hg.from_kafka(broker.servers, "kept").offsets()
        assert offsets.latest() == {0: 1}
        broker.kill()
        with pytest.raises(BrokerUnreachable, match=r"No Kafka broker answers at .* \(topic 'kept'\)"):
            offsets.latest()
        broker.start()
        broker.produce("kept", ["after"])
        assert offsets.latest() == {0: 2}
        broker.restart()
        assert offsets.latest() == {0: 2}


def test_the_login_that_spark_is_given_is_also_the_offsets() -> None:
    with Broker(users={"ann": 'se"c\\ret'}) as broker:
        broker.create_topic("private")
        assert round_trip(broker, "private", 20) == {"rows": 20, "steps": ["7"]}
        options = broker.options
        assert hg.from_kafka(broker.servers, "private", options=options).offsets().latest() == {0: 20}
        wrong = options["kafka.sasl.jaas.config"].replace("ann", "bob")
        stranger = hg.from_kafka(
            broker.servers, "private", options={**options, "kafka.sasl.jaas.config": wrong}
        )
        with pytest.raises(SourceError, match="refuses the login for topic 'private'"):
            stranger.offsets().latest()


CLUSTER_JOB = """
    import os, signal, sys
    import pyarrow as pa
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m").config("spark.executor.cores", "1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0").getOrCreate()
    )

    def where(batches):
        for batch in batches:
            yield pa.RecordBatch.from_pydict(
                {"id": batch.column(0), "python": [sys.executable] * batch.num_rows,
                 "executor": [os.getcwd()] * batch.num_rows}
            )

    def run():
        numbers = session.range(0, 1000, 1, 4)
        rows = numbers.mapInArrow(where, "id long, python string, executor string").collect()
        print(sum(row.id for row in rows), len({row.executor for row in rows}), *{row.python for row in rows})

    run()
    os.killpg(int(sys.argv[2]), signal.SIGKILL)
    run()
"""


def test_a_job_on_the_cluster_runs_in_our_python_and_goes_on_when_a_worker_is_killed() -> None:
    total = str(sum(range(1000)))
    with Cluster() as cluster:
        first, second = drive(CLUSTER_JOB, cluster.master, str(cluster.servers[0].pid)).splitlines()
        assert first.split() == [total, "2", sys.executable]
        assert second.split() == [total, "1", sys.executable]
        cluster.wait_for_workers(1)
        cluster.start_worker()
        cluster.wait_for_workers(2)
        cluster.kill_worker(1)
        cluster.wait_for_workers(1)


CONNECT_JOB = """
    import sys
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(sys.argv[1]).getOrCreate()

    def double(batches):
        for batch in batches:
            yield pa.RecordBatch.from_arrays([pc.multiply(batch.column(0), 2)], ["id"])

    table = session.range(1000).mapInArrow(double, "id long").toArrow()
    print(type(session).__module__, pc.sum(table.column("id")).as_py())
"""


def test_map_in_arrow_over_connect() -> None:
    with ConnectServer() as server:
        module, total = drive(CONNECT_JOB, server.url).split()
    assert module.startswith("pyspark.sql.connect")
    assert int(total) == 2 * sum(range(1000))


def test_a_server_that_dies_at_the_start_says_its_last_words(tmp_path: Path) -> None:
    server = Server("The mill", ["sh", "-c", "echo no water; exit 3"], tmp_path / "log")

    def never() -> None:
        raise OSError("nobody listens")

    with pytest.raises(ServerError, match="The mill ended while it was starting: no water"):
        server.wait_for(never, SOON)
    server.kill()


def test_servers_go_with_the_process_that_started_them_even_if_it_is_killed(tmp_path: Path) -> None:
    code = f"""
import pathlib, signal, os
from headgate.demo.processes import Server
command = ["sh", "-c", "sleep 600 & echo $$ $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pids; wait"]
server = Server("A sleeper", command, pathlib.Path("{tmp_path}/log"))
server.wait_for(lambda: open("{tmp_path}/pids").close(), 60)
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL
    group = int(done.stdout)
    # The guard kills the group as soon as it sees the pipe closed; its last process is gone with the group.
    watcher = Server("A watcher", ["sleep", "600"], tmp_path / "watcher")
    watcher.wait_for(lambda: gone(group), SOON)
    watcher.kill()


def gone(group: int) -> None:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return
    states = subprocess.run(
        ["ps", "-o", "stat=", "-g", str(group)], capture_output=True, text=True
    ).stdout.split()
    if any(not state.startswith("Z") for state in states):
        raise ServerError("processes of the group are still there")


def test_a_package_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PackageError, match="'kafka' is no package that Headgate knows"):
        jars("kafka")
    monkeypatch.setenv("HEADGATE_CACHE", str(tmp_path))
    with pytest.raises(PackageError, match=r"org\.apache\.kafka:no-such-thing:0\.0\.0"):
        jars("org.apache.kafka:no-such-thing:0.0.0")
    assert list((tmp_path / "jars").iterdir()) == []


def test_what_was_fetched_needs_no_network_and_no_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_CACHE", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(PackageError, match="There is no Java"):
        jars("org.example:thing:1.0")
    folder = tmp_path / "jars" / "thing-1.0"
    folder.mkdir()
    (folder / "thing-1.0.jar").touch()
    assert jars("org.example:thing:1.0") == [str(folder / "thing-1.0.jar")]
