"""Sinks that Spark's own connectors write: Kafka, and tables of any format.

The step's task stages a query's rows as a file, and a job of its own writes them before the commit.  A crash
in between writes them again, so both are at least once.  The step keeps its number then: Kafka's records
carry checkpoint, query and step in headers, by which a reader can drop what it has seen, and Delta does so
itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.checkpoint.storage import Storage
from headgate.connectors.kafka_sink import CHECKPOINT_HEADER, QUERY_HEADER, STEP_HEADER, KafkaSink
from headgate.connectors.table_sink import TableSink
from headgate.engines.spark.kafka import require_kafka
from headgate.engines.spark.messages import Delivery, OutputPart
from headgate.engines.spark.session import first_line
from headgate.engines.spark.sinks import Claim, Outlet
from headgate.engines.spark.tables import quoted
from headgate.engines.spark.transaction_sinks import StagedFile, staged_files, staged_rows
from headgate.errors import SinkError
from headgate.graph.network import Output
from headgate.sql.types import spark_name


class Staged(Outlet):
    """A query whose results a job of Spark's writes: what its task staged goes to Kafka or a table."""

    visible = True

    def __init__(
        self,
        output: Output,
        history: str,
        storage: Storage,
        session: Any,
        retries: int,
        app: str,
        identity: str,
    ) -> None:
        super().__init__(output, history)
        self._storage = storage
        self._session, self._retries, self._app, self._identity = session, retries, app, identity
        sink = output.sink
        # Two jobs that append to one folder at the same time remove each other's temporary files.
        self.target = f"topic {sink.topic}" if isinstance(sink, KafkaSink) else sink.path or sink.named

    def open(self, claim: Claim) -> Claim:
        super().open(claim)
        sink = self.output.sink
        if isinstance(sink, KafkaSink):
            sink.check(self.output.name, self.output.schema)
            require_kafka(self._session, f"Query '{self.output.name}'", SinkError)
        return {}

    def delivery(self) -> Delivery:
        return Delivery("staged", keep=self.history)

    def hand_over(self, parts: Sequence[OutputPart], step: int, repeated: bool) -> None:
        files = staged_files(parts)
        for left in range(self._retries, -1, -1):
            try:
                self._write(files, step)
                return
            except Exception as error:
                if not left:
                    where = f"topic '{s.topic}'" if isinstance(s := self.output.sink, KafkaSink) else s.named
                    raise SinkError(
                        f"Query '{self.output.name}': its results cannot be written to {where}: "
                        f"{first_line(error)}"
                    ) from error

    def _write(self, files: Sequence[StagedFile], step: int) -> None:
        sink = self.output.sink
        tasks = self._session.range(0, 1, 1, 1)
        if isinstance(sink, KafkaSink):
            columns = "key binary, value binary, headers array<struct<key: string, value: binary>>"
            rows = tasks.mapInArrow(
                _Records(self._storage, files, sink, self.output.name, step, self._identity), columns
            )
            rows.write.format("kafka").options(**sink.writer_options()).save()
            return
        assert isinstance(sink, TableSink)
        fields = ", ".join(f"{quoted(f.name)} {spark_name(f.type)}" for f in self.output.schema)
        writer = tasks.mapInArrow(_Rows(self._storage, files), fields).write.mode(sink.mode)
        if sink.table is not None or sink.format == "delta":
            # Delta writes a transaction of this application and version once, however often it is asked to.
            # The checkpoint is in the name: another one counts its steps from 1 as well.
            name = f"{self._identity}/{self._app}/{self.output.name}"
            writer = writer.option("txnAppId", name)
            writer = writer.option("txnVersion", str(step))
        if sink.table is not None:
            writer.saveAsTable(sink.table)
        else:
            writer.format(sink.format).options(**sink.options).save()


class _Rows:
    """Staged rows, in order."""

    def __init__(self, storage: Storage, files: Sequence[StagedFile]) -> None:
        self.storage, self.files = storage, list(files)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from staged_rows(self.storage, self.files)


class _Records:
    """Staged rows as Kafka's records."""

    def __init__(
        self,
        storage: Storage,
        files: Sequence[StagedFile],
        sink: KafkaSink,
        query: str,
        step: int,
        checkpoint: str,
    ) -> None:
        self.storage, self.files, self.sink = storage, list(files), sink
        self.headers = [
            {"key": QUERY_HEADER, "value": query.encode()},
            {"key": STEP_HEADER, "value": str(step).encode()},
            {"key": CHECKPOINT_HEADER, "value": checkpoint.encode()},
        ]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        for batch in _Rows(self.storage, self.files)(batches):
            keys, values = self.sink.encode(batch)
            one = pa.array([self.headers], kind)
            headers = one.take(pa.array(np.zeros(batch.num_rows, dtype=np.int64)))
            yield pa.RecordBatch.from_arrays([keys, values, headers], names=["key", "value", "headers"])
