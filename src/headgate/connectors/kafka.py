"""``hg.from_kafka(servers, topic, schema=...)``: a topic's records, one row each, read by the Spark engine.

Order: within a partition, that of the broker.  Between partitions there is none, so the engine merges them
as it reads them and logs how.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headgate.connectors import json_decode
from headgate.connectors.kafka_offsets import KafkaOffsets, client_options
from headgate.connectors.source import Reader, Source
from headgate.errors import SourceError
from headgate.graph.schema import normalise

RAW = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
    ]
)
"""What a record is when no schema is given."""
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OURS = {
    "kafka.bootstrap.servers": "the first argument",
    "subscribe": "the second argument",
    "subscribepattern": "one source per topic",
    "assign": "one source per topic",
    "startingoffsets": "starting=",
    "endingoffsets": "ending=",
    "startingtimestamp": "starting=",
    "endingtimestamp": "ending=",
    "topic": "the second argument",
}


class KafkaSource(Source):
    """One topic.  ``options`` go to Spark's connector as they are and, translated, to the offsets' client."""

    live = True

    def __init__(
        self,
        servers: str,
        topic: str,
        schema: pa.Schema | None,
        options: Mapping[str, str],
        starting: str,
        ending: str | None,
    ) -> None:
        self.servers = servers
        self.topic = topic
        self.raw = schema is None
        """The rows are the records themselves, not what is in their values."""
        self.schema = RAW if schema is None else schema
        self.options = dict(options)
        self.starting = starting
        self.ending = ending
        self.finite = ending is not None
        self.refuses = schema is not None

    def open(self) -> Reader:
        raise SourceError(
            f"from_kafka (topic '{self.topic}') needs the Spark engine: app.run(engine='spark')."
        )

    def offsets(self) -> KafkaOffsets:
        """A connection that tells where the topic begins and ends now."""
        return KafkaOffsets(self.servers, self.topic, self.options)

    def reader_options(self) -> dict[str, str]:
        """Options of Spark's ``read.format("kafka")``; the caller adds where to start and to end."""
        return {**self.options, "kafka.bootstrap.servers": self.servers, "subscribe": self.topic}

    def decode(
        self, keys: pa.Array, values: pa.Array, timestamps: pa.Array, offsets: pa.Array, partitions: pa.Array
    ) -> pa.RecordBatch:
        """The rows of these records, one each; BadRow for a value that is not of the schema.

        No Python per row.
        """
        if not self.raw:
            return json_decode.decode(values, self.schema)
        columns = [keys, values, timestamps, partitions, offsets]
        arrays = [column.cast(field.type) for column, field in zip(columns, RAW, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=RAW)


def from_kafka(
    servers: str | Sequence[str],
    topic: str,
    *,
    schema: Any = None,
    options: Mapping[str, str] | None = None,
    value: str = "json",
    starting: str = "earliest",
    ending: str | None = None,
) -> KafkaSource:
    """A source of the records of ``topic`` at ``servers`` ("host:port,..."), on the Spark engine.

    With ``schema``, each value is a JSON object (``value="json"``) whose fields are the columns: absent or
    null fields are null, others are ignored, and a value that does not fit is a bad row: a dead letter with
    partition and offset, or the end of the queries that read the topic.  Records without a value (tombstones)
    are left out, since they say that a key is gone.  Without ``schema``, the rows are
    ``key BINARY, value BINARY, timestamp TIMESTAMP, partition INT, offset BIGINT``, tombstones among them.

    ``options`` are those of Spark's Kafka connector, such as "kafka.security.protocol".  A new query starts
    at the "earliest" or the "latest" record there is; ``ending="latest"`` ends at the last record there is
    when the run starts, None never.

    >>> from_kafka("localhost:9092", "clicks").schema.names
    ['key', 'value', 'timestamp', 'partition', 'offset']
    """
    where = check_servers(servers, "from_kafka", SourceError)
    check_topic(topic, "from_kafka", SourceError)
    given = check_options(options, "from_kafka", SourceError)
    client_options(given)
    if value != "json":
        raise SourceError(
            f"from_kafka: value={value!r} is not supported; use value='json' with schema=, or schema=None "
            "for the bytes as they are."
        )
    if starting not in ("earliest", "latest"):
        raise SourceError(f"from_kafka: starting must be 'earliest' or 'latest', not {starting!r}.")
    if ending not in (None, "latest"):
        raise SourceError(f"from_kafka: ending must be None (never) or 'latest', not {ending!r}.")
    columns = None if schema is None else normalise(schema)
    if columns is not None:
        if not columns.names:
            raise SourceError(
                "from_kafka: schema= has no columns; leave it out to get the records as they are."
            )
        json_decode.check_types(columns, "from_kafka")
    return KafkaSource(where, topic, columns, given, starting, ending)


def check_servers(servers: Any, what: str, error: type[Exception]) -> str:
    """The addresses as one string; ``error`` if they are none."""
    listed = servers.split(",") if isinstance(servers, str) else servers
    if not isinstance(listed, Sequence) or not all(isinstance(one, str) for one in listed):
        raise error(f"{what}: servers must be 'host:port' or a list of those, not {servers!r}.")
    stripped = [one.strip() for one in listed]
    for one in stripped or [""]:
        if not re.fullmatch(r"(?:[A-Za-z_]+://)?(?:\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):\d{1,5}", one):
            raise error(f"{what}: '{one}' is not the address of a broker; write host:port.")
    return ",".join(stripped)


def check_topic(topic: Any, what: str, error: type[Exception]) -> None:
    """Raise ``error`` if this cannot be a topic's name."""
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise error(
            f"{what}: {topic!r} is not the name of a topic: letters, digits, '.', '_' and '-', at most 249."
        )


def check_options(options: Any, what: str, error: type[Exception]) -> dict[str, str]:
    """The options as strings; ``error`` for those that Headgate sets itself."""
    if options is not None and not isinstance(options, Mapping):
        raise error(
            f"{what}: options must be a dict such as {{'kafka.security.protocol': 'SSL'}}, not {options!r}."
        )
    found = {}
    for key, value in (options or {}).items():
        if not isinstance(key, str):
            raise error(f"{what}: option {key!r} is not a string.")
        if key.lower() in _OURS:
            raise error(f"{what}: option '{key}' is set by Headgate; use {_OURS[key.lower()]} instead.")
        if isinstance(value, bool):
            value = str(value).lower()
        elif not isinstance(value, (str, int, float)):
            raise error(f"{what}: option '{key}' must be a string, not {value!r}.")
        found[key] = str(value)
    return found
