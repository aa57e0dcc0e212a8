"""Which way each kind of source comes in and each kind of sink goes out on Spark."""

from __future__ import annotations

from typing import Any

from headgate.checkpoint.names import safe_name
from headgate.checkpoint.storage import Storage
from headgate.connectors.files import FileSource
from headgate.connectors.formats import Parquet
from headgate.connectors.kafka import KafkaSource
from headgate.connectors.kafka_sink import KafkaSink
from headgate.connectors.maven import jars
from headgate.connectors.parquet import ParquetSink
from headgate.connectors.rate import RateSource
from headgate.connectors.table import TableSource
from headgate.connectors.table_sink import TableSink
from headgate.connectors.transactions import TransactionalSink
from headgate.engines.spark import connector_sinks as staged
from headgate.engines.spark import kafka, sinks, sources, spooling, tables, transaction_sinks
from headgate.graph.network import Network, Output, Source


def way_in(source: Source, storage: Storage, session: Any, letters: bool) -> sources.OffsetSource:
    """How the driver follows a source; ``letters``: there are dead letters for rows that it refuses."""
    origin = source.origin
    if isinstance(origin, FileSource) and isinstance(origin.format, Parquet):
        return sources.Files(source)
    if isinstance(origin, RateSource):
        return sources.Rate(source)
    if isinstance(origin, KafkaSource):
        return kafka.Kafka(source, session)
    if isinstance(origin, TableSource):
        return tables.Table(source, session)
    kind = spooling.FileSpool if isinstance(origin, FileSource) else spooling.Spool
    return kind(source, storage, letters)


def way_out(
    output: Output, storage: Storage, session: Any, retries: int, app: str, identity: str
) -> sinks.Outlet:
    """How a query's results leave."""
    history = (
        storage.folder(f"history/{safe_name(output.name)}", f"Query '{output.name}' (keep=)")
        if output.keep
        else ""
    )
    if isinstance(output.sink, ParquetSink):
        return sinks.Files(output, history, identity, storage.durable)
    if isinstance(output.sink, TableSink) or _by_spark(output):
        return staged.Staged(output, history, storage, session, retries, app, identity)
    if isinstance(output.sink, TransactionalSink):
        own = identity if storage.durable else ""
        return transaction_sinks.Transacted(output, history, storage, retries, own)
    return sinks.Inline(output, history, retries)


def _by_spark(output: Output) -> bool:
    """Whether a job of Spark's writes its records."""
    return isinstance(output.sink, KafkaSink) and not output.sink.exactly_once


def connectors(network: Network) -> list[str]:
    """Jars of the connectors that an application needs and Spark does not bring along."""
    outputs = [*network.outputs, *([network.dead_letter] if network.dead_letter is not None else [])]
    kafka = any(isinstance(source.origin, KafkaSource) for source in network.sources)
    kafka |= any(map(_by_spark, outputs))
    return jars("spark-kafka") if kafka else []
