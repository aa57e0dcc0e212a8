"""Sources and sinks that are reached through Spark's own connectors: Kafka, and tables of any format.

What a connector reads is packed at once: a row of Spark's is a packet of ours, with its serials, so that the
step's task gets it as it gets a file's.  What a query writes through one is staged by the task and written by
a job of its own, before the commit; a crash in between writes it again (Kafka's records carry the step).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.engines.sinks.kafka import QUERY_HEADER, STEP_HEADER, KafkaSink
from headgate.engines.sinks.table import TableSink
from headgate.engines.sources.kafka import KafkaSource
from headgate.engines.sources.kafka_offsets import BrokerUnreachable
from headgate.engines.sources.table import TableSource
from headgate.engines.spark.offsets import Extent, Piece
from headgate.engines.spark.sinks import Outlet
from headgate.engines.spark.sources import OffsetSource
from headgate.engines.spark.task import SCHEMA, row
from headgate.engines.spark.work import Delivery, OutputPart, Packed
from headgate.errors import SinkError, SourceError
from headgate.graph.network import Output, Source
from headgate.graph.packet import Order, Packet
from headgate.graph.schema import normalise_batch

EXTENT = 1 << 20
"""Offsets that are admitted at a time from a partition with a backlog."""
PATIENCE = 60.0
"""Seconds for which a broker may be away before the source fails."""
TABLE_POLL = 1.0


class Kafka(OffsetSource):
    """A topic: an extent is a range of one partition's offsets, in the order in which they were noticed."""

    frames = True

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.origin: KafkaSource = source.origin
        self._client = self.origin.offsets()
        self._next: dict[int, int] | None = None
        self._end: dict[int, int] | None = None
        self._away: float | None = None

    def resume(self, memory: Any, rows: int) -> None:
        if memory is None:
            return
        self._next = {int(p): offset for p, offset in memory["next"].items()}
        if memory["end"] is not None:
            self._end = {int(p): offset for p, offset in memory["end"].items()}
        for partition, earliest in self._client.earliest().items():
            wanted = self._next.get(partition, 0)
            if earliest > wanted:
                raise SourceError(
                    f"Source '{self.source.name}': the broker no longer has offsets {wanted} to "
                    f"{earliest - 1} of topic '{self.origin.topic}', partition {partition}: they were "
                    "removed before they were read. Nothing can bring them back; start with a new "
                    "checkpoint to go on without them, and keep records for longer (retention.ms)."
                )

    @property
    def memory(self) -> Any:
        return {"next": self._next or {}, "end": self._end}

    def poll(self, now: float, clock: float) -> list[Extent]:
        try:
            latest = self._client.latest()
            if self._next is None:
                self._begin(latest)
        except BrokerUnreachable:
            # It may be restarting; what was read stays read.
            self._away = self._away or time.monotonic()
            if time.monotonic() - self._away > PATIENCE:
                raise
            return []
        self._away = None
        assert self._next is not None
        if self.origin.ending is not None and self._end is None:
            self._end = latest
        extents = []
        for partition, end in sorted((self._end or latest).items()):
            first = self._next.get(partition, 0)
            rows = min(end - first, EXTENT)
            if rows > 0:
                extents.append(Extent(f"kafka:{partition}", first, rows, now))
                self._next[partition] = first + rows
        if self._end is not None:
            self.ended = all(self._next.get(p, 0) >= end for p, end in self._end.items())
        return extents

    def _begin(self, latest: dict[int, int]) -> None:
        self._next = self._client.earliest() if self.origin.starting == "earliest" else dict(latest)

    def next_poll(self, now: float, clock: float) -> float:
        return now + 0.05

    def frame(self, session: Any, pieces: Sequence[Piece]) -> Any:
        ranges: dict[int, tuple[int, int]] = {}
        for piece in pieces:
            partition = int(piece.unit.partition(":")[2])
            low, high = ranges.get(partition, (piece.first, piece.first))
            ranges[partition] = (min(low, piece.first), max(high, piece.first + piece.rows))
        topic = self.origin.topic
        options = self.origin.reader_options()
        del options["subscribe"]
        reader = session.read.format("kafka").options(**options)
        reader = reader.option("assign", json.dumps({topic: sorted(ranges)}))
        for which, place in (("startingOffsets", 0), ("endingOffsets", 1)):
            offsets = {str(partition): bounds[place] for partition, bounds in ranges.items()}
            reader = reader.option(which, json.dumps({topic: offsets}))
        columns = ("key", "value", "timestamp", "offset", "partition")
        return reader.load().select(*columns).mapInArrow(_PackKafka(self.place, self.origin, pieces), SCHEMA)

    def close(self) -> None:
        self._client.close()


class Table(OffsetSource):
    """A table that grows: an extent is a range of the followed column's values."""

    frames = True

    def __init__(self, source: Source, session: Any) -> None:
        super().__init__(source)
        self.origin: TableSource = source.origin
        self._session = session
        self._last: Any = None

    def resume(self, memory: Any, rows: int) -> None:
        self._last = memory

    @property
    def memory(self) -> Any:
        return self._last

    def _rows(self) -> Any:
        origin = self.origin
        if origin.table is not None:
            return self._session.table(origin.table)
        return self._session.read.format(origin.format).options(**origin.options).load()

    def poll(self, now: float, clock: float) -> list[Extent]:
        from pyspark.sql import functions as f

        column = f.col(f"`{self.origin.follow_column}`")
        rows = self._rows().where(column.isNotNull())
        if self._last is not None:
            rows = rows.where(column > self._literal(self._last))
        try:
            found = rows.agg(f.max(column).alias("high"), f.count(column).alias("rows")).collect()[0]
        except Exception as error:
            first = str(error).strip().splitlines()[0]
            raise SourceError(
                f"Source '{self.source.name}': {self.origin.named} cannot be read: {first}"
            ) from error
        self.ended = self.origin.finite
        if not found["rows"]:
            return []
        low, self._last = self._last, _plain(found["high"])
        return [Extent(f"table:{json.dumps([low, self._last])}", 0, found["rows"], now)]

    def _literal(self, value: Any) -> Any:
        from pyspark.sql import functions as f
        from pyspark.sql.pandas.types import from_arrow_type

        kind = self.origin.schema.field(self.origin.follow_column).type
        return f.lit(value).cast(from_arrow_type(kind))

    def next_poll(self, now: float, clock: float) -> float:
        return now + TABLE_POLL

    def frame(self, session: Any, pieces: Sequence[Piece]) -> Any:
        from pyspark.sql import functions as f

        column = f.col(f"`{self.origin.follow_column}`")
        frames = None
        for piece in pieces:
            low, high = json.loads(piece.unit.partition(":")[2])
            rows = self._rows().where(column <= self._literal(high))
            if low is not None:
                rows = rows.where(column > self._literal(low))
            names = [f.col(f"`{name}`") for name in self.origin.schema.names]
            # Rows of one value have no order of their own; all columns give them one that repeats.
            rows = rows.select(*names).orderBy(column, *(n for n in names)).coalesce(1)
            packed = rows.mapInArrow(_PackTable(self.place, self.origin, piece), SCHEMA)
            frames = packed if frames is None else frames.union(packed)
        return frames


class _PackKafka:
    """Records of some offsets as packets."""

    def __init__(self, place: int, origin: KafkaSource, pieces: Sequence[Piece]) -> None:
        self.place, self.origin = place, origin
        self.pieces = [(int(p.unit.partition(":")[2]), p) for p in pieces]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            partitions = batch.column("partition").to_numpy()
            offsets = batch.column("offset").to_numpy()
            for partition, piece in self.pieces:
                mine = (partitions == partition) & (offsets >= piece.first)
                rows = np.flatnonzero(mine & (offsets < piece.first + piece.rows))
                if len(rows):
                    yield row(self._packet(batch.take(pa.array(rows)), piece))

    def _packet(self, batch: pa.RecordBatch, piece: Piece) -> Packed:
        columns = [batch.column(n) for n in ("key", "value", "timestamp", "offset", "partition")]
        stamps = columns[2].cast(pa.timestamp("us", tz="UTC"))
        rows = self.origin.decode(columns[0], columns[1], stamps, columns[3], columns[4])
        # A topic may lack offsets (compacted, or marks of transactions): serials follow the offsets.
        serials = piece.serial + (columns[3].to_numpy() - piece.first)
        arrivals = stamps.cast(pa.int64()).to_numpy() / 1e6
        return Packed(0, self.place, Packet(rows, Order(serials, arrivals, rows.num_rows)))


class _PackTable:
    """Rows of a range of values, in order, as packets; of them those that the piece asks for."""

    def __init__(self, place: int, origin: TableSource, piece: Piece) -> None:
        self.place, self.schema, self.piece = place, origin.schema, piece

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        piece, seen = self.piece, 0
        serials = piece.serials()
        for batch in batches:
            low, high = max(piece.first, seen), min(piece.first + piece.rows, seen + batch.num_rows)
            if low < high:
                rows = normalise_batch(batch.slice(low - seen, high - low), self.schema)
                done = low - piece.first
                own = serials + done if isinstance(serials, int) else serials[done : done + high - low]
                order = Order(own, float(piece.arrival or 0.0), rows.num_rows)
                yield row(Packed(0, self.place, Packet(rows, order)))
            seen += batch.num_rows


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime, date, Decimal)):
        return str(value)
    return value


class Staged(Outlet):
    """A query whose results a job of Spark's writes: what its task staged goes to Kafka or a table."""

    visible = True

    def __init__(self, output: Output, history: str, session: Any, retries: int, app: str) -> None:
        super().__init__(output, history)
        self._session, self._retries, self._app = session, retries, app

    def open(self, resumed: bool) -> None:
        super().open(resumed)
        if isinstance(self.output.sink, KafkaSink):
            self.output.sink.check(self.output.name, self.output.schema)

    def delivery(self) -> Delivery:
        return Delivery("staged", keep=self.history)

    def hand_over(self, parts: Sequence[OutputPart], step: int) -> None:
        files = [part.file for part in parts]
        for left in range(self._retries, -1, -1):
            try:
                self._write(files, step)
                return
            except Exception as error:
                if not left:
                    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                    raise SinkError(
                        f"Query '{self.output.name}': its results cannot be written: {first}"
                    ) from error

    def _write(self, files: list[str], step: int) -> None:
        sink = self.output.sink
        tasks = self._session.range(0, 1, 1, 1)
        if isinstance(sink, KafkaSink):
            columns = "key binary, value binary, headers array<struct<key: string, value: binary>>"
            rows = tasks.mapInArrow(_Records(files, sink, self.output.name, step), columns)
            rows.write.format("kafka").options(**sink.writer_options()).save()
            return
        assert isinstance(sink, TableSink)
        from pyspark.sql.pandas.types import from_arrow_schema

        rows = tasks.mapInArrow(_Rows(files, self.output.schema), from_arrow_schema(self.output.schema))
        writer = rows.write.mode(sink.mode)
        # Delta writes a transaction of this application and version once, however often it is asked to.
        writer = writer.option("txnAppId", f"{self._app}/{self.output.name}").option("txnVersion", str(step))
        if sink.table is not None:
            writer.saveAsTable(sink.table)
        else:
            writer.format(sink.format).options(**sink.options).save()


class _Rows:
    """Staged rows, in order."""

    def __init__(self, files: Sequence[str], schema: pa.Schema) -> None:
        self.files, self.schema = list(files), schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            for name in self.files:
                with pa.memory_map(name) as file:
                    yield from pa.ipc.open_stream(file)


class _Records:
    """Staged rows as Kafka's records."""

    def __init__(self, files: Sequence[str], sink: KafkaSink, query: str, step: int) -> None:
        self.files, self.sink = list(files), sink
        self.headers = [
            {"key": QUERY_HEADER, "value": query.encode()},
            {"key": STEP_HEADER, "value": str(step).encode()},
        ]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        for batch in _Rows(self.files, pa.schema([]))(batches):
            keys, values = self.sink.encode(batch)
            one = pa.array([self.headers], kind)
            headers = one.take(pa.array(np.zeros(batch.num_rows, dtype=np.int64)))
            yield pa.RecordBatch.from_arrays([keys, values, headers], names=["key", "value", "headers"])
