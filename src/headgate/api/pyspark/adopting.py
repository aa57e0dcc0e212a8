"""``app.adopt(df.writeStream…)``: a whole query of Structured Streaming, with its sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headgate.api.pipeline import Pipeline
from headgate.api.pyspark.catalyst import column, elements, number
from headgate.api.pyspark.sources import _lower, _scala
from headgate.api.pyspark.taking import Taking
from headgate.api.streams import Stream
from headgate.connectors.console import to_console
from headgate.connectors.kafka_sink import to_kafka
from headgate.connectors.parquet import to_parquet
from headgate.connectors.python import to_function
from headgate.connectors.sink import Sink, StepWriter, Writer
from headgate.engines.spark.analyst import analyzed, dataframe_of, unpickled
from headgate.errors import PipelineError


def stream_of(dataframe: Any, pipeline: Pipeline, follow: bool, update: bool) -> Stream:
    """The stream that a streaming DataFrame describes."""
    classic = hasattr(dataframe, "_jdf")
    if not classic and not hasattr(dataframe, "_plan"):
        raise PipelineError(
            f"from_spark: give a streaming DataFrame of PySpark, not a {type(dataframe).__name__}."
        )
    if not dataframe.isStreaming:
        raise PipelineError("from_spark: this DataFrame is no stream; read it with spark.readStream.")
    plan = dataframe._jdf.queryExecution().analyzed() if classic else analyzed(dataframe)
    taken = Taking(pipeline, follow, update).take(plan)
    output = [(number(a), str(a.name())) for a in elements(plan.output())]
    names = [name for _, name in output]
    if taken.stream.schema.names == names:
        return taken.stream
    texts = [f"{column(taken.columns[place])} AS {column(name)}" for place, name in output]
    return taken.stream.select(*texts)


class Written:
    """What a DataStreamWriter was told."""

    dataframe: Any
    format: str
    mode: str
    options: dict[str, str]
    layouts: list[str]
    """What it asks for of ``partitionBy`` and ``clusterBy``."""
    finite: bool

    @staticmethod
    def of(writer: Any) -> Written:
        """What a writer of a classic session, or of Connect, was told."""
        if hasattr(writer, "_jwrite"):
            return _Classic(writer)
        if hasattr(writer, "_write_proto"):
            return _Connect(writer)
        raise PipelineError(f"Give what df.writeStream… is before .start(), not a {type(writer).__name__}.")

    def function(self) -> Callable[[Any, int], Any]:
        """The function of foreachBatch."""
        raise NotImplementedError

    def sink(self) -> Sink:
        for layout in self.layouts:
            raise PipelineError(
                f"adopt: {layout} is not taken over; its rows would all be in one folder. Leave {layout} "
                "out, or adopt one writer for each part with a folder of its own."
            )
        if self.format == "foreachBatch":
            return _EachBatch(self.function(), self.dataframe.sparkSession)
        if self.format == "parquet":
            return to_parquet(self.options["path"].removeprefix("file:"), append=True)
        if self.format == "console":
            return to_console()
        if self.format == "noop":
            return to_function(_nothing)
        if self.format == "kafka" and "topic" in self.options:
            names = self.dataframe.columns
            lost = sorted({"headers", "partition"}.intersection(names))
            if lost:
                raise PipelineError(
                    f"adopt: column '{lost[0]}' of records for Kafka is not taken over; leave it out."
                )
            options = {key: text for key, text in self.options.items() if key.startswith("kafka.")}
            return to_kafka(
                options.pop("kafka.bootstrap.servers"),
                self.options["topic"],
                key="key" if "key" in names else None,
                value="value",
                options=options,
            )
        raise PipelineError(
            f"adopt: format '{self.format}' is not taken over; there are parquet, kafka, console, noop and "
            "foreachBatch."
        )


class _Classic(Written):
    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self.dataframe = writer._df
        self.format = str(self._field("source"))
        self.mode = str(self._field("outputMode").toString())
        self.options = _lower(_scala(self._field("extraOptions")))
        fields = {"partitionBy": "partitioningColumns", "clusterBy": "clusteringColumns"}
        self.layouts = [layout for layout, name in fields.items() if self._field(name).isDefined()]
        trigger = str(self._field("trigger").toString())
        self.finite = "AvailableNow" in trigger or "OneTime" in trigger

    def _field(self, name: str) -> Any:
        given = self._writer._jwrite
        found = given.getClass().getDeclaredField(name)
        found.setAccessible(True)
        return found.get(given)

    def function(self) -> Callable[[Any, int], Any]:
        """The function of foreachBatch.

        Java holds a proxy of it, whose handler knows under which name the gateway keeps the function.
        """
        gateway = self.dataframe.sparkSession._sc._gateway
        handler_of = gateway.jvm.java.lang.reflect.Proxy.getInvocationHandler
        [found] = _declared(self._field("foreachBatchWriter"))
        names = [str(name) for name in _declared(handler_of(found)) if isinstance(name, str)]
        held = [own for name in names if (own := gateway.gateway_property.pool.dict.get(name)) is not None]
        if len(held) != 1:
            raise PipelineError("The function of foreachBatch cannot be found.")
        return held[0].func  # type: ignore[no-any-return]


class _Connect(Written):
    def __init__(self, writer: Any) -> None:
        self._told = told = writer._write_proto
        self.dataframe = dataframe_of(writer)
        self.format = "foreachBatch" if told.HasField("foreach_batch") else str(told.format)
        self.mode = str(told.output_mode or "append").capitalize()
        self.options = _lower(dict(told.options)) | (
            {"queryname": told.query_name} if told.query_name else {}
        )
        asked = {"partitionBy": told.partitioning_column_names, "clusterBy": told.clustering_column_names}
        self.layouts = [layout for layout, columns in asked.items() if columns]
        self.finite = bool(told.available_now or told.once)

    def function(self) -> Callable[[Any, int], Any]:
        """The client has it pickled for the server; here it is the same function again."""
        return unpickled(self._told.foreach_batch.python_function.command)  # type: ignore[no-any-return]


def _declared(of: Any) -> Iterator[Any]:
    """What the fields of an object in Java hold."""
    for field in of.getClass().getDeclaredFields():
        field.setAccessible(True)
        yield field.get(of)


class _EachBatch(Sink):
    """Calls a foreachBatch function with the rows of each step, as a DataFrame, and the step's number.

    Programs skip numbers that they have seen, as PySpark's documentation tells them to.  So a number must
    never come again for other rows: neither after a restart, nor for a second batch of one step.
    """

    def __init__(self, fn: Callable[[Any, int], Any], session: Any) -> None:
        self.fn, self.session = fn, session

    def open(self, query: str, schema: pa.Schema) -> Writer:
        return _EachBatchWriter(self)


class _EachBatchWriter(StepWriter):
    def __init__(self, sink: _EachBatch) -> None:
        self._sink = sink
        self._count = 0
        """Batches where there are no steps, and nothing outlives the run."""

    def write(self, batch: pa.RecordBatch) -> None:
        self.write_step(self._count, [batch])
        self._count += 1

    def write_step(self, number: int, batches: Sequence[pa.RecordBatch]) -> None:
        filled = [batch for batch in batches if batch.num_rows]
        if filled:
            self._sink.fn(self._sink.session.createDataFrame(pa.Table.from_batches(filled)), number)


def _nothing(query: str, batch: pa.RecordBatch) -> None:
    pass
