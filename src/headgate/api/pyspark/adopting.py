"""``app.adopt(df.writeStream…)``: a whole query of Structured Streaming, with its sink."""

from __future__ import annotations

from collections.abc import Callable
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
from headgate.connectors.sink import Sink
from headgate.errors import PipelineError


def stream_of(dataframe: Any, pipeline: Pipeline, follow: bool, update: bool) -> Stream:
    """The stream that a streaming DataFrame describes."""
    if not hasattr(dataframe, "_jdf"):
        raise PipelineError(
            "from_spark: give a streaming DataFrame of a classic session; those of Connect are not read."
        )
    if not dataframe.isStreaming:
        raise PipelineError("from_spark: this DataFrame is no stream; read it with spark.readStream.")
    plan = dataframe._jdf.queryExecution().analyzed()
    taken = Taking(pipeline, follow, update).take(plan)
    output = [(number(a), str(a.name())) for a in elements(plan.output())]
    names = [name for _, name in output]
    if taken.stream.schema.names == names:
        return taken.stream
    texts = [f"{column(taken.columns[place])} AS {column(name)}" for place, name in output]
    return taken.stream.select(*texts)


class Written:
    """What a DataStreamWriter was told."""

    def __init__(self, writer: Any) -> None:
        if not hasattr(writer, "_jwrite"):
            raise PipelineError(
                "adopt: give what df.writeStream…, of a classic session, is before .start(), "
                f"not a {type(writer).__name__}."
            )
        self._writer = writer
        self.dataframe = writer._df
        self.format = str(self._field("source"))
        self.mode = str(self._field("outputMode").toString())
        self.options = _lower(_scala(self._field("extraOptions")))
        self.finite = "AvailableNow" in str(self._field("trigger").toString()) or "OneTime" in str(
            self._field("trigger").toString()
        )

    def _field(self, name: str) -> Any:
        given = self._writer._jwrite
        found = given.getClass().getDeclaredField(name)
        found.setAccessible(True)
        return found.get(given)

    def sink(self) -> Sink:
        if self.format == "foreachBatch":
            return to_function(_EachBatch(self._function(), self.dataframe.sparkSession))
        if self.format == "parquet":
            return to_parquet(self.options["path"].removeprefix("file:"), append=True)
        if self.format == "console":
            return to_console()
        if self.format == "noop":
            return to_function(_nothing)
        if self.format == "kafka" and "topic" in self.options:
            names = self.dataframe.columns
            return to_kafka(
                self.options["kafka.bootstrap.servers"],
                self.options["topic"],
                key="key" if "key" in names else None,
                value="value",
            )
        raise PipelineError(
            f"adopt: format '{self.format}' is not taken over; there are parquet, kafka, console, noop and "
            "foreachBatch."
        )

    def _function(self) -> Callable[[Any, int], Any]:
        """The function of foreachBatch: the JVM holds a proxy, and the gateway what it stands for."""
        pool = self.dataframe.sparkSession._sc._gateway.gateway_property.pool
        holder = self._field("foreachBatchWriter")
        for found in holder.getClass().getDeclaredFields():
            found.setAccessible(True)
            proxy = found.get(holder)
            for name, held in pool.dict.items():
                if held is proxy or getattr(proxy, "_target_id", None) == name:
                    return held.func  # type: ignore[no-any-return]
        functions = [held for held in pool.dict.values() if hasattr(held, "func")]
        if not functions:
            raise PipelineError("adopt: the function of foreachBatch cannot be found.")
        return functions[-1].func  # type: ignore[no-any-return]


class _EachBatch:
    """Calls a foreachBatch function with what has come, as a DataFrame."""

    def __init__(self, fn: Callable[[Any, int], Any], session: Any) -> None:
        self._fn, self._session, self._count = fn, session, 0

    def __call__(self, query: str, batch: pa.RecordBatch) -> None:
        frame = self._session.createDataFrame(pa.Table.from_batches([batch]))
        self._fn(frame, self._count)
        self._count += 1


def _nothing(query: str, batch: pa.RecordBatch) -> None:
    pass
