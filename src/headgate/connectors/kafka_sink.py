"""``hg.to_kafka(servers, topic, key="user_id")``: results as records of a topic.

Exactly once, for readers of committed records: a step is one transaction (``kafka_transactions``), with a
producer of the driver's.

At least once with ``exactly_once=False``: a job of Spark's connector writes the step, and after a crash the
records of the last step may be there twice.  Each then names its query, its step and the checkpoint in
headers (``headgate-query``, ``headgate-step``, ``headgate-checkpoint``); a repeated step has the same ones,
so a reader can drop what it has seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headgate.connectors import json_encode
from headgate.connectors.kafka import check_format, check_options, check_servers, check_topic
from headgate.connectors.kafka_offsets import client_options
from headgate.connectors.kafka_transactions import KafkaTransactions
from headgate.connectors.transactions import TransactionalSink, Transactions
from headgate.connectors.values import Writing
from headgate.errors import HeadgateError, SinkError, SourceError
from headgate.graph.schema import require_columns

QUERY_HEADER = "headgate-query"
STEP_HEADER = "headgate-step"
CHECKPOINT_HEADER = "headgate-checkpoint"


class KafkaSink(TransactionalSink):
    """One topic.  ``options`` are those of Spark's connector."""

    def __init__(
        self,
        servers: str,
        topic: str,
        key: str | None,
        value: str | None,
        options: Mapping[str, str],
        writing: Writing | None = None,
        exactly_once: bool = True,
    ) -> None:
        self.servers = servers
        self.topic = topic
        self.key = key
        self.value = value
        self.writing = writing
        """How rows are written, where not as JSON."""
        self.options = dict(options)
        self.exactly_once = exactly_once
        self.target = f"topic {topic} at {servers}"

    def transactions(self, query: str, schema: pa.Schema, checkpoint: str, known: bool) -> Transactions:
        self.check(query, schema)
        if not self.exactly_once:
            raise SinkError(
                f"Query '{query}': to_kafka (topic '{self.topic}') with exactly_once=False needs the Spark "
                "engine: app.run(engine='spark')."
            )
        at = (self.servers, self.topic, self.options)
        return KafkaTransactions(*at, self.encode, query, checkpoint, known)

    def check(self, query: str, schema: pa.Schema) -> None:
        """Raise an error if rows of ``schema`` cannot be written."""
        what = f"Query '{query}', to_kafka"
        if self.key is not None:
            (key,) = require_columns(schema, [self.key], f"{what}, key")
            if pt.is_nested(schema.field(key).type):
                raise SinkError(
                    f"{what}: key '{key}' is {schema.field(key).type}; use a column of simple values."
                )
        if self.writing is not None:
            try:
                self.writing.prepare(schema)
            except HeadgateError as error:
                raise SinkError(f"{what} (topic '{self.topic}'): {error}") from error
            return
        if self.value is None:
            json_encode.check_types(schema, what)
            return
        (value,) = require_columns(schema, [self.value], f"{what}, value")
        type_ = schema.field(value).type
        if not (pt.is_string(type_) or pt.is_binary(type_)):
            raise SinkError(
                f"{what}: value '{value}' is {type_}; only strings and bytes are written as they are. "
                "Leave value= out to write whole rows as JSON."
            )

    def writer_options(self) -> dict[str, str]:
        """Options of Spark's ``write.format("kafka")`` for columns ``key``, ``value`` and ``headers``."""
        own = {"kafka.bootstrap.servers": self.servers, "topic": self.topic, "includeHeaders": "true"}
        return {**self.options, **own}

    def encode(self, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
        """(keys, values) of the rows' records, both binary: the key column as text, the row by the format.

        No Python per row.
        """
        schema = batch.schema
        if self.writing is not None:
            values = self.writing.encode(batch)
        elif self.value is None:
            values = json_encode.encode(batch).cast(pa.binary())
        else:
            values = batch.column(require_columns(schema, [self.value], "to_kafka, value")[0]).cast(
                pa.binary()
            )
        if self.key is None:
            return pa.nulls(batch.num_rows, pa.binary()), values
        keys = batch.column(require_columns(schema, [self.key], "to_kafka, key")[0])
        if pt.is_timestamp(keys.type):
            keys = pc.strftime(keys, "%Y-%m-%dT%H:%M:%SZ" if keys.type.tz else "%Y-%m-%dT%H:%M:%S")
        text = keys if pt.is_binary(keys.type) else keys.cast(pa.string())
        return text.cast(pa.binary()), values


def to_kafka(
    servers: str | Sequence[str],
    topic: str,
    *,
    key: str | None = None,
    value: str | None = None,
    format: str = "json",
    schema: Any = None,
    registry: str | None = None,
    message: str | None = None,
    options: Mapping[str, str] | None = None,
    exactly_once: bool = True,
) -> KafkaSink:
    """A sink that writes each row to ``topic`` at ``servers`` ("host:port,...").

    The value is the row as a JSON object, without its null fields, or with ``value=`` the bytes of that
    column.  ``key`` is the column whose text is the record's key: rows of one key go to one partition, in
    order.  ``options`` are those of Spark's Kafka connector, such as "kafka.security.protocol".

    With ``format="avro"`` the value is the row as ``schema`` says, an Avro schema (JSON, a dict or the path
    of a file), or else with every column nullable.  With ``registry`` (http://user:password@host:8081) the
    schema is registered under the subject TOPIC-value, and its number stands before each value.  With
    ``format="protobuf"`` ``schema`` and ``message`` are as in ``from_kafka``; a registry must know the
    message already.

    Each step is a transaction: who reads committed records (``isolation.level=read_committed``) sees each row
    once.  With ``exactly_once=False`` Spark's connector writes instead, on the Spark engine; a crash may then
    repeat a step, which the records' headers tell.
    """
    where = check_servers(servers, "to_kafka", SinkError)
    check_topic(topic, "to_kafka", SinkError)
    for name, column in (("key", key), ("value", value)):
        if column is not None and not isinstance(column, str):
            raise SinkError(f"to_kafka: {name} must be a column's name, not {column!r}.")
    given = check_options(options, "to_kafka", SinkError)
    if exactly_once:
        try:
            client_options(given)
        except SourceError as error:
            raise SinkError(str(error).replace("from_kafka", "to_kafka")) from None
    check_format(format, schema, registry, message, "to_kafka", SinkError)
    if format == "json":
        if schema is not None:
            raise SinkError(
                "to_kafka: JSON has the query's own columns; schema= is for format='avro' or 'protobuf'."
            )
        return KafkaSink(where, topic, key, value, given, None, exactly_once)
    if value is not None:
        raise SinkError(
            f"to_kafka: value='{value}' is written as it is, so it has no format; leave one of them out."
        )
    try:
        writing = Writing(format, schema, message, registry, topic)
    except HeadgateError as error:
        raise SinkError(f"to_kafka (topic '{topic}'): {error}") from error
    return KafkaSink(where, topic, key, None, given, writing, exactly_once)
