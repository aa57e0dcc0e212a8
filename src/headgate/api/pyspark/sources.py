"""The relations that a streaming plan begins with, as sources.

Queries of one application that read the same files, topic or rate share one source, and so one scan.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from headgate.api.pipeline import Pipeline
from headgate.api.pyspark.catalyst import refused
from headgate.connectors.files import from_files
from headgate.connectors.kafka import from_kafka
from headgate.connectors.rate import from_rate
from headgate.connectors.source import Source
from headgate.connectors.table import from_table
from headgate.graph.network import Arrow, Port
from headgate.graph.schema import normalise

_FILES = ("json", "csv", "parquet", "text")
_HARMLESS = {"path", "header", "maxfilespertrigger", "maxbytespertrigger", "latestfirst", "multiline"}
_KAFKA = {"subscribe", "kafka.bootstrap.servers", "startingoffsets", "failondataloss", "maxoffsetspertrigger"}


def arrow_schema(spark_schema: Any) -> pa.Schema:
    """The Arrow schema of a Spark schema that lives in the JVM."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    found = StructType.fromJson(json.loads(spark_schema.json()))
    return normalise(to_arrow_schema(found, timezone="UTC"))


def relation(node: Any, pipeline: Pipeline, follow: bool) -> Port:
    """The port of the source that a relation stands for."""
    if hasattr(node, "dataSource") and node.getClass().getSimpleName() == "StreamingRelation":
        data = node.dataSource()
        name, options = str(data.className()), _lower(_scala(data.options()))
        source, title = _files(node, name, options, follow)
    else:
        name, options = str(node.sourceName()), _lower(dict(node.extraOptions()))
        source, title = _other(node, name, options, follow)
    told = json.dumps([name, sorted(options.items()), str(source.schema), follow])
    known = pipeline.adopted
    if told not in known:
        names = {each.name for each in pipeline.sources}
        place = 2
        wanted = title
        while wanted in names:
            wanted, place = f"{title}-{place}", place + 1
        known[told] = pipeline.add_source(wanted, source, None)
    return (Arrow(known[told]),)


def _files(node: Any, name: str, options: dict[str, str], follow: bool) -> tuple[Source, str]:
    format = name.rsplit(".", 1)[-1].lower().removesuffix("fileformat")
    if format not in _FILES:
        raise refused(node, f"files of format {name} cannot be read; use {', '.join(_FILES)}.")
    if format == "csv" and options.get("header", "false").lower() != "true":
        raise refused(node, "CSV files need a header line and .option('header', True).")
    strange = sorted(key for key in set(options) - _HARMLESS if options[key].lower() != "false")
    if strange:
        raise refused(node, f"option '{strange[0]}' of its files is not understood.")
    path = options["path"].removeprefix("file:")
    source = from_files(path, format=format, schema=arrow_schema(node.schema()), follow=follow)
    return source, path.rstrip("/").rsplit("/", 1)[-1]


def _other(node: Any, name: str, options: dict[str, str], follow: bool) -> tuple[Source, str]:
    if name.startswith("rate"):
        return from_rate(float(options.get("rowspersecond", "1"))), "rate"
    if name == "kafka":
        if "subscribe" not in options or "," in options["subscribe"]:
            raise refused(node, "give one topic with .option('subscribe', topic).")
        more = {key: value for key, value in options.items() if key not in _KAFKA}
        return (
            from_kafka(
                options["kafka.bootstrap.servers"],
                options["subscribe"],
                options=more,
                starting=options.get("startingoffsets", "latest"),
                ending=None if follow else "latest",
            ),
            options["subscribe"],
        )
    identifier = node.identifier()
    if not identifier.isEmpty() and "follow_column" in options:
        return from_table(str(identifier.get()), options["follow_column"]), str(identifier.get())
    raise refused(node, f"source '{name}' cannot be read; there are files, rate and Kafka.")


def _scala(options: Any) -> dict[str, str]:
    """A Scala map of strings as a dict."""
    found, entries = {}, options.iterator()
    while entries.hasNext():
        entry = entries.next()
        found[str(entry._1())] = str(entry._2())
    return found


def _lower(options: dict[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in options.items()}
