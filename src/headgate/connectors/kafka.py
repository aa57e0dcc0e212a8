"""``hg.from_kafka(servers, topic, schema=...)``: a topic's records, one row each, read by the Spark engine.

Order: within a partition, that of the broker.  Between partitions there is none, so the engine merges them
as it reads them and logs how.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headgate.connectors.kafka_offsets import KafkaOffsets, client_options
from headgate.connectors.source import Reader, Source
from headgate.connectors.values import FORMATS, Values, reading
from headgate.errors import HeadgateError, PipelineError, SourceError, nearest

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
_FORMATS = f"There are {', '.join(FORMATS)}; leave schema= out to get the bytes as they are."
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
        values: Values | None,
        options: Mapping[str, str],
        starting: str,
        ending: str | None,
    ) -> None:
        self.servers = servers
        self.topic = topic
        self.values = values
        self.raw = values is None
        """The rows are the records themselves, not what is in their values."""
        self.schema = RAW if values is None else values.schema
        self.options = dict(options)
        self.starting = starting
        self.ending = ending
        self.finite = ending is not None
        self.refuses = values is not None

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
        if self.values is not None:
            return self.values.decode(values)
        columns = [keys, values, timestamps, partitions, offsets]
        arrays = [column.cast(field.type) for column, field in zip(columns, RAW, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=RAW)


def from_kafka(
    servers: str | Sequence[str],
    topic: str,
    *,
    schema: Any = None,
    format: str = "json",
    registry: str | None = None,
    message: str | None = None,
    options: Mapping[str, str] | None = None,
    starting: str = "earliest",
    ending: str | None = None,
) -> KafkaSource:
    """A source of the records of ``topic`` at ``servers`` ("host:port,..."), on the Spark engine.

    With ``schema``, each value is a JSON object whose fields are the columns: absent or null fields are null,
    others are ignored, and a value that does not fit is a bad row: a dead letter with partition and offset,
    or the end of the queries that read the topic.  Records without a value (tombstones) are left out, since
    they say that a key is gone.  Without ``schema``, the rows are
    ``key BINARY, value BINARY, timestamp TIMESTAMP, partition INT, offset BIGINT``, tombstones among them.

    With ``format="avro"``, ``schema`` is an Avro schema (JSON, a dict or the path of a file).  With
    ``format="protobuf"`` it is a class that protoc generated, or the path of a file that
    ``protoc --include_imports --descriptor_set_out`` wrote, and ``message`` the name of a message in it.
    ``registry`` is the address of a schema registry (http://user:password@host:8081): each value then says
    which schema wrote it.  Columns are those of ``schema``, or else of the newest schema of the subject
    TOPIC-value when the source is made; other schemas are read by the names of their fields.

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
    check_format(format, schema, registry, message, "from_kafka", SourceError)
    if starting not in ("earliest", "latest"):
        raise SourceError(f"from_kafka: starting must be 'earliest' or 'latest', not {starting!r}.")
    if ending not in (None, "latest"):
        raise SourceError(f"from_kafka: ending must be None (never) or 'latest', not {ending!r}.")
    values = None
    if schema is not None or format != "json":
        try:
            values = reading(format, schema, message, registry, topic)
        except (SourceError, PipelineError):
            raise
        except HeadgateError as error:
            raise SourceError(f"from_kafka (topic '{topic}'): {error}") from error
    return KafkaSource(where, topic, values, given, starting, ending)


def check_format(
    format: Any, schema: Any, registry: Any, message: Any, what: str, error: type[Exception]
) -> None:
    """Raise ``error`` if values are not to be had by these."""
    if format not in FORMATS:
        raise error(f"{what}: there is no format {format!r}.{nearest(str(format), FORMATS)} {_FORMATS}")
    if format == "json" and registry is not None:
        raise error(f"{what}: JSON values have no registry; use format='avro' or format='protobuf'.")
    if message is not None and format != "protobuf":
        raise error(f"{what}: message= names a Protobuf message; use it with format='protobuf'.")
    if registry is not None and not isinstance(registry, str):
        raise error(f"{what}: registry must be an address such as 'http://host:8081', not {registry!r}.")


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
