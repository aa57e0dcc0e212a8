"""Records of a topic by transactions: a step's records and its number become visible together.

The number is an offset that a consumer group of our own commits inside the transaction; so no topic has to be
made for it, and the broker itself says what the last step was.  A new producer of the same transactional id
ends what the one before it has left open, and fences it: only then the number is read.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from headgate.connectors.kafka_offsets import QUIET, client_options
from headgate.connectors.transactions import NOTHING, Transactions, is_taken, plain_name
from headgate.errors import SinkError

SECONDS = 60.0
"""For how long a broker may be away before an attempt fails."""
_ROWS = 10_000
"""Records that are handed to the producer at a time."""
_BYTES = 64 * 1024 * 1024
"""Of records that have not been sent; more wait."""
_PARTITION = 0
"""The step's number is the offset of this partition, which need not be written to."""
_PRODUCER = {
    "compression.type": "compression.type",
    "linger.ms": "linger.ms",
    "batch.size": "batch.size",
    "max.request.size": "message.max.bytes",
    "transaction.timeout.ms": "transaction.timeout.ms",
    "delivery.timeout.ms": "delivery.timeout.ms",
}
_OWN: dict[str, Any] = {
    # The keys of a topic go where Java's producers and Spark's connector send them.
    "partitioner": "murmur2_random",
    # Full queues refuse single records, and the next one may find room: order would be lost.
    "queue.buffering.max.messages": 0,
    "queue.buffering.max.kbytes": 2_097_151,
}


class KafkaTransactions(Transactions):
    """One query's records of ``topic`` at ``servers``.

    ``encode`` makes keys and values of rows.  ``known``: this checkpoint has opened it before.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        options: Mapping[str, str],
        encode: Callable[[pa.RecordBatch], tuple[pa.Array, pa.Array]],
        query: str,
        checkpoint: str,
        known: bool,
    ) -> None:
        self._servers, self._topic, self._options, self._encode = servers, topic, options, encode
        self._what = f"Query '{query}', to_kafka: topic '{topic}' at '{servers}'"
        self._known = known
        self._name = f"headgate-{checkpoint or uuid.uuid4().hex}-{plain_name(query)}"
        self._producer: Any = None
        self._group: Any = None
        self._last: int | None = None
        with self._attempt("cannot be written"):
            self._open()

    def take(self, step: int, batches: Iterable[pa.RecordBatch], repeated: bool) -> None:
        with self._attempt("did not take its records"):
            self._open()
            if step != NOTHING and is_taken(self._last, step, repeated, self._what):
                return
            self._producer.begin_transaction()
            self._send(batches)
            self._commit(step, mark=step != NOTHING)
        if step != NOTHING:
            self._last = step

    def close(self, error: bool) -> None:
        self._drop()

    # --- a transaction ------------------------------------------------------------------------------

    def _send(self, batches: Iterable[pa.RecordBatch]) -> None:
        waiting = 0
        for keys, values in self._records(batches):
            records = [
                {"value": value} if key is None else {"key": key, "value": value}
                for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True)
            ]
            if self._producer.produce_batch(self._topic, records) < len(records):
                refused = next(record["_error"] for record in records if "_error" in record)
                raise SinkError(f"{self._what} does not take a record: {refused}.")
            waiting += keys.nbytes + values.nbytes
            if waiting > _BYTES:
                self._flush()
                waiting = 0

    def _records(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.Array, pa.Array]]:
        for batch in batches:
            for at in range(0, batch.num_rows, _ROWS):
                yield self._encode(batch.slice(at, _ROWS))

    def _flush(self) -> None:
        if self._producer.flush(SECONDS):
            raise SinkError(f"{self._what} has not taken its records within {SECONDS:g} seconds.")

    def _commit(self, step: int, *, mark: bool) -> None:
        from confluent_kafka import TopicPartition

        if mark:
            # An offset cannot be negative, and 0 says that there is no step yet.
            place = TopicPartition(self._topic, _PARTITION, step + 1)
            self._producer.send_offsets_to_transaction([place], self._group, SECONDS)
        self._producer.commit_transaction(SECONDS)

    # --- the connection -----------------------------------------------------------------------------

    def _open(self) -> None:
        from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

        if self._producer is not None:
            return
        client = {"bootstrap.servers": self._servers, **client_options(self._options), **QUIET}
        given = producer_options(self._options)
        producer = Producer({**client, **_OWN, **given, "transactional.id": self._name})
        topic = producer.list_topics(self._topic, SECONDS).topics[self._topic]
        # A topic that has just been made may have no leader yet; the producer waits for one.
        if topic.error is not None and topic.error.code() != KafkaError.LEADER_NOT_AVAILABLE:
            raise SinkError(
                f"{self._what} cannot be written: {topic.error.str()}. Check its name, or create it."
            )
        # Ends the transaction of the run before: after this, the number is what it is.
        producer.init_transactions(SECONDS)
        consumer = Consumer(
            {
                **client,
                "group.id": self._name,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        try:
            [mark] = consumer.committed([TopicPartition(self._topic, _PARTITION)], SECONDS)
            if mark.error is not None:
                raise SinkError(f"{self._what} does not say what it has: {mark.error.str()}.")
            self._group = consumer.consumer_group_metadata()
        finally:
            consumer.close()
        self._producer = producer
        self._last = None if mark.offset < 0 else mark.offset - 1
        if self._last is None and not self._known:
            self._producer.begin_transaction()
            self._commit(NOTHING, mark=True)
            self._last = NOTHING
        self._known = True

    def _drop(self) -> None:
        """Forget the producer; the next one of its name ends what it has begun."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(Exception):
                producer.purge()

    @contextlib.contextmanager
    def _attempt(self, failed: str) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except BaseException as error:
            self._drop()
            if not isinstance(error, KafkaException):
                raise
            why = error.args[0].str() if hasattr(error.args[0], "str") else str(error)
            raise SinkError(f"{self._what} {failed}: {why}.") from error


def producer_options(options: Mapping[str, str]) -> dict[str, str]:
    """A producer's options for those of Spark's connector (``kafka.linger.ms``)."""
    given = {key.removeprefix("kafka."): value for key, value in options.items() if key.startswith("kafka.")}
    return {own: given[name] for name, own in _PRODUCER.items() if name in given}
