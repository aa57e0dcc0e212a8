"""``to_kafka``: whoever reads committed records sees each once, whatever call the driver dies at."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

import headgate as hg
from headgate.engines.spark.sinks import Outlet
from headgate.engines.spark.transaction_sinks import Transacted
from headgate.errors import SinkError
from outside import DISK, Fault, Log, Points, Steps, drive, every_point, output, staged
from servers import Broker
from waiting import eventually

pytestmark = pytest.mark.xdist_group("servers")
SCHEMA = pa.schema([("id", pa.int64()), ("user", pa.string())])
PARTITIONS = 2


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


class Reader:
    """Reads committed records of a topic, from where it was last told to begin."""

    def __init__(self, broker: Broker, topic: str) -> None:
        settings = {"group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True}
        self._consumer = Consumer({**broker.client(), **settings, "isolation.level": "read_committed"})
        self._places = [TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
        self._consumer.assign(self._places)

    def rows(self) -> list[Any]:
        """What has come since, by partition."""
        self._consumer.assign(self._places)
        found: list[Any] = []
        ended: set[int] = set()
        while len(ended) < PARTITIONS:
            for record in self._consumer.consume(1000, 1.0):
                if record.error() is None:
                    found.append((record.partition(), record.key(), json.loads(record.value())))
                elif record.error().code() == KafkaError._PARTITION_EOF:
                    ended.add(record.partition())
        return sorted(found, key=lambda one: one[0])

    def skip(self) -> None:
        for place in self._places:
            _, place.offset = eventually(lambda at=place: self._ends(at))

    def _ends(self, place: TopicPartition) -> Any:
        try:
            return self._consumer.get_watermark_offsets(place)
        except KafkaException as error:  # a topic that has just been made has no leader yet
            if not error.args[0].retriable() and error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            return None

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def reader(broker: Broker) -> Iterator[Reader]:
    topic = f"results-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, partitions=PARTITIONS)
    made = Reader(broker, topic)
    yield made
    made.close()


def topic_of(reader: Reader) -> str:
    return str(reader._places[0].topic)


def steps_of(folder: Path) -> Steps:
    def batch(first: int, rows: int) -> pa.RecordBatch:
        data = [{"id": i, "user": f"u{i % 5}"} for i in range(first, first + rows)]
        return pa.RecordBatch.from_pylist(data, schema=SCHEMA)

    return staged(folder, {1: [batch(0, 5), batch(5, 3)], 4: [batch(8, 6)]})


def outlet(broker: Broker, topic: str, identity: str, query: str = "sums") -> Transacted:
    sink = hg.to_kafka(broker.servers, topic, key="user")
    return Transacted(output(query, sink, SCHEMA), "", DISK, 1, identity)


def watched(points: Points) -> type:
    """A producer each call of which is a point."""

    class Watched(Producer):  # type: ignore[misc]
        pass

    calls = ("init_transactions", "begin_transaction", "produce_batch", "commit_transaction")
    for name in (*calls, "send_offsets_to_transaction"):

        def call(self: Any, *given: Any, _name: str = name) -> Any:
            return points.call(_name, getattr(super(Watched, self), _name), *given)

        setattr(Watched, name, call)
    return Watched


@pytest.mark.parametrize(
    ("fails", "only"),
    [
        (None, ["commit_transaction"]),
        pytest.param(None, [], marks=pytest.mark.faults),
        pytest.param(Fault, [], marks=pytest.mark.faults),
    ],
)
def test_each_record_is_committed_once_wherever_the_driver_dies(
    tmp_path: Path,
    broker: Broker,
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
    fails: Callable[[], BaseException] | None,
    only: list[str],
) -> None:
    steps, identity = steps_of(tmp_path), ""

    def fresh() -> None:
        nonlocal identity
        reader.skip()
        identity = uuid.uuid4().hex

    def attempt(points: Points) -> Callable[[], Outlet]:
        monkeypatch.setattr(confluent_kafka, "Producer", watched(points))
        return lambda: outlet(broker, topic_of(reader), identity)

    options: dict[str, Any] = {} if fails is None else {"error": fails}
    faults = every_point("Kafka", fresh, attempt, steps, reader.rows, only=only, **options)
    assert {"before commit_transaction", "after commit_transaction"} <= set(faults)
    found = reader.rows()
    for user in range(5):
        own = [(partition, row["id"]) for partition, key, row in found if key == f"u{user}".encode()]
        assert [number for _, number in own] == list(range(user, 14, 5))
        assert len({partition for partition, _ in own}) == 1


def test_a_driver_that_wakes_up_writes_nothing_twice(tmp_path: Path, broker: Broker, reader: Reader) -> None:
    """It announced a step and was paused; another took over, repeated the step, and went on."""
    steps, identity, topic = steps_of(tmp_path), uuid.uuid4().hex, topic_of(reader)
    paused = outlet(broker, topic, identity)
    log = Log(claim=paused.open({}), announced=[1])
    drive(lambda: outlet(broker, topic, identity), log, {1: steps[1]}, Points())
    paused.hand_over(steps[1], 1, False)
    assert len(reader.rows()) == 8
    drive(lambda: outlet(broker, topic, identity), log, steps, Points())
    paused.hand_over(steps[4], 4, False)
    assert len(reader.rows()) == 14
    with pytest.raises(SinkError, match="has step 4 of this checkpoint already"):
        paused.hand_over(steps[1], 1, True)
    assert len(reader.rows()) == 14


def test_a_number_that_the_broker_has_forgotten_is_missed(
    tmp_path: Path, broker: Broker, reader: Reader
) -> None:
    """Kafka forgets a group that has been idle for long (offsets.retention.minutes)."""
    steps, identity, topic = steps_of(tmp_path), uuid.uuid4().hex, topic_of(reader)
    claim = outlet(broker, topic, "f" * 32).open({})
    again = outlet(broker, topic, identity)
    again.open(claim)
    with pytest.raises(SinkError, match="no longer knows the last step"):
        again.hand_over(steps[4], 4, True)
    again.hand_over(steps[4], 4, False)
    assert len(reader.rows()) == 6


def test_queries_and_checkpoints_do_not_meet(tmp_path: Path, broker: Broker, reader: Reader) -> None:
    steps, topic = steps_of(tmp_path), topic_of(reader)
    for query, identity in (("a", "1" * 32), ("b", "1" * 32), ("a", "2" * 32)):
        drive(lambda q=query, i=identity: outlet(broker, topic, i, q), Log(), steps, Points())
    assert len(reader.rows()) == 3 * 14


def test_records_of_threads_are_committed(broker: Broker, reader: Reader) -> None:
    app = hg.App("threads")
    rows = app.source("in", hg.from_batches(pa.table({"id": range(100), "user": ["u"] * 100})))
    rows.to("out", hg.to_kafka(broker.servers, topic_of(reader), key="user"))
    assert app.run("threads").queries["out"].error is None
    assert [row["id"] for _, _, row in reader.rows()] == list(range(100))


def test_a_topic_that_is_not_there_and_a_record_that_is_too_large_are_named(
    tmp_path: Path, broker: Broker, reader: Reader
) -> None:
    with pytest.raises(SinkError, match=r"topic 'nowhere' at .* cannot be written"):
        outlet(broker, "nowhere", "1" * 32).open({})
    small = hg.to_kafka(broker.servers, topic_of(reader), options={"kafka.max.request.size": 2000})
    made = Transacted(output("large", small, SCHEMA), "", DISK, 0, "3" * 32)
    made.open({})
    row = {"id": 1, "user": "x" * 4000}
    steps = staged(tmp_path, {1: [pa.RecordBatch.from_pylist([row], schema=SCHEMA)]})
    with pytest.raises(SinkError, match=r"does not take a record: .*too large"):
        made.hand_over(steps[1], 1, False)
    assert reader.rows() == []
