"""Topics of Kafka, read by Spark's own connector.

What the connector reads is packed at once: a row of Spark's is a packet of ours, with its serials, so that
the step's task gets it as it gets a file's.  A value that cannot be decoded goes along as such, since only
the task knows whom it concerns.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.checkpoint.offsets import Extent, Piece
from headgate.connectors.json_decode import sift
from headgate.connectors.kafka import KafkaSource
from headgate.connectors.kafka_offsets import BrokerUnreachable
from headgate.engines.spark.exchange import SCHEMA
from headgate.engines.spark.messages import Packed
from headgate.engines.spark.poller import PATIENCE, PATIENCE_AT_START, Watch
from headgate.engines.spark.session import first_line
from headgate.engines.spark.sources import OffsetSource
from headgate.engines.spark.task import packed_row
from headgate.errors import HeadgateError, SourceError
from headgate.graph.network import Source
from headgate.graph.packet import Order, Packet
from headgate.runtime.dead_letters import Letter

EXTENT = 1 << 20
"""Offsets that are admitted at a time from a partition with a backlog."""
POLL = 0.05
COLUMNS = ("key", "value", "timestamp", "offset", "partition")


class Kafka(OffsetSource):
    """A topic: an extent is a range of one partition's offsets, in the order in which they were noticed.

    That order is the merge of the partitions; the commit log has it, extent by extent.
    """

    frames = True

    def __init__(self, source: Source, session: Any) -> None:
        super().__init__(source)
        self.origin: KafkaSource = source.origin
        self._session = session
        self._client = self.origin.offsets()
        self._next: dict[int, int] | None = None
        self._end: dict[int, int] | None = None
        self._begin = time.time()
        # A group that stays the same lets the connector keep its consumers from step to step; they are told
        # what to read, so the group itself does nothing.  Its prefix is Spark's own, as a broker may ask.
        self._group = f"spark-kafka-relation-headgate-{uuid.uuid4().hex}"
        self._watch: Watch[dict[int, int]] | None = None
        self._earliest: dict[int, int] | None = None
        self._first: dict[int, int] | None = None
        """With which offsets it began: a query that wants the earliest rows begins there, too."""
        self._again = False

    def resume(self, memory: Any, rows: int) -> None:
        if memory is None or memory["next"] is None:
            return
        self._again = memory.get("anew", False)
        again = memory.get("again")
        self._first = None if again is None else {int(p): first for p, first in again["next"].items()}
        self._next = {int(p): offset for p, offset in memory["next"].items()}
        if memory["end"] is not None:
            self._end = {int(p): offset for p, offset in memory["end"].items()}

    @property
    def memory(self) -> Any:
        if self._next is None:
            return {"next": None, "end": self._end}
        again = None if self._first is None else {"next": self._first, "end": None, "anew": True}
        return {"next": dict(self._next), "end": self._end, "again": again}

    def poll(self, now: float, clock: float) -> list[Extent]:
        if self._watch is None:
            require_kafka(self._session, f"Source '{self.source.name}'")
            self._watch = Watch(
                f"topic-{self.origin.topic}",
                self._ask,
                every=POLL,
                away=BrokerUnreachable,
                patience=PATIENCE,
                patience_at_start=PATIENCE_AT_START,
            )
        try:
            answers = self._watch.take()
        except Exception:
            self._watch = None  # a restarted query asks again
            raise
        return self._admit(answers[-1], now) if answers else []

    def _ask(self) -> dict[int, int]:
        if self._earliest is None:
            self._earliest = self._client.earliest()
        latest: dict[int, int] = self._client.latest()
        return latest

    def _admit(self, latest: dict[int, int], now: float) -> list[Extent]:
        if self._next is None:
            assert self._earliest is not None
            self._next = dict(self._earliest if self.origin.starting == "earliest" else latest)
            self._first = dict(self._next)
        elif self._again:
            self._first = dict(self._next)
            self._pass_over(self._earliest or {}, self._next)
            self._again = False
        elif self._earliest:
            self._refuse_lost(self._earliest, self._next)
        self._earliest = {}  # from here on the connector notices
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

    def _pass_over(self, earliest: dict[int, int], wanted: dict[int, int]) -> None:
        """A query wants the earliest records that there are: those that were removed are counted."""
        gone = {p: earliest[p] - first for p, first in wanted.items() if earliest.get(p, first) > first}
        for partition in gone:
            wanted[partition] = earliest[partition]
        if gone:
            self.lost = (
                f"Source '{self.source.name}' is read from the earliest records that there are: the broker "
                f"has removed {sum(gone.values())} offsets of topic '{self.origin.topic}' before them."
            )

    def _refuse_lost(self, earliest: dict[int, int], wanted: dict[int, int]) -> None:
        forgiven = {k.lower(): v for k, v in self.origin.options.items()}.get("failondataloss") == "false"
        for partition, first in sorted(wanted.items()):
            there = earliest.get(partition, first)
            if there > first and forgiven:
                wanted[partition] = there
            elif there > first:
                raise self._lost(partition, first, there)

    def _lost(self, partition: int, first: int, there: int) -> SourceError:
        return SourceError(
            f"Source '{self.source.name}': the broker no longer has offsets {first} to {there - 1} of topic "
            f"'{self.origin.topic}', partition {partition}: they were removed before they were read. Nothing "
            "can bring them back; start with a new checkpoint to go on without them, and keep records for "
            "longer (retention.ms)."
        )

    @property
    def silent(self) -> tuple[float, str] | None:
        found = (self._begin, None) if self._watch is None else self._watch.silent
        if found is None:
            return None
        since, error = found
        return since, f"Kafka at '{self.origin.servers}' does not answer" if error is None else str(error)

    def next_poll(self, now: float, clock: float) -> float:
        return now + POLL / 2

    def frame(self, session: Any, pieces: Sequence[tuple[int, Piece]]) -> Any:
        ranges: dict[int, tuple[int, int]] = {}
        for _, piece in pieces:
            partition = int(piece.unit.partition(":")[2])
            low, high = ranges.get(partition, (piece.first, piece.first))
            ranges[partition] = (min(low, piece.first), max(high, piece.first + piece.rows))
        topic = self.origin.topic
        options = {"kafka.group.id": self._group, **self.origin.reader_options()}
        del options["subscribe"]
        if "groupIdPrefix" in options:
            del options["kafka.group.id"]
        reader = session.read.format("kafka").options(**options)
        reader = reader.option("assign", json.dumps({topic: sorted(ranges)}))
        for which, place in (("startingOffsets", 0), ("endingOffsets", 1)):
            offsets = {str(partition): bounds[place] for partition, bounds in ranges.items()}
            reader = reader.option(which, json.dumps({topic: offsets}))
        tasks = 1 + max(number for number, _ in pieces)
        if tasks > len(ranges) and "minPartitions" not in options:
            reader = reader.option("minPartitions", str(tasks))
        pack = _PackKafka(self.place, self.origin, pieces, self._begin)
        return reader.load().select(*COLUMNS).mapInArrow(pack, SCHEMA)

    def explain(self, pieces: Sequence[Piece], error: Exception) -> HeadgateError | None:
        try:
            earliest = self._client.earliest()
        except SourceError as why:
            return why
        for piece in pieces:
            partition = int(piece.unit.partition(":")[2])
            if earliest.get(partition, 0) > piece.first:
                return self._lost(partition, piece.first, earliest[partition])
        return None

    def close(self) -> None:
        if self._watch is not None:
            self._watch.end()
        self._client.close()


def require_kafka(session: Any, who: str, kind: type[HeadgateError] = SourceError) -> None:
    """An error if the session's Spark has no connector for Kafka."""
    reader = session.read.format("kafka").option("kafka.bootstrap.servers", "localhost:1")
    try:
        reader.option("subscribe", "none").load().schema  # noqa: B018, looks the connector up and sends no request
    except Exception as error:
        raise kind(
            f"{who}: the Spark session has no connector for Kafka ({first_line(error)}). Start it with the "
            "package spark-sql-kafka-0-10 of its version (spark.jars.packages, or --packages of spark-submit "
            "or of the Connect server); a session that Headgate makes by itself has it."
        ) from error


class _PackKafka:
    """Records of some offsets as packets."""

    def __init__(
        self, place: int, origin: KafkaSource, pieces: Sequence[tuple[int, Piece]], begin: float
    ) -> None:
        self.place, self.origin, self.begin = place, origin, begin
        self.pieces = [(int(p.unit.partition(":")[2]), number, p) for number, p in pieces]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            partitions = batch.column("partition").to_numpy()
            offsets = batch.column("offset").to_numpy()
            for partition, number, piece in self.pieces:
                mine = (partitions == partition) & (offsets >= piece.first)
                rows = np.flatnonzero(mine & (offsets < piece.first + piece.rows))
                if len(rows):
                    yield packed_row(self._packed(batch.take(pa.array(rows)), piece, number))

    def _packed(self, records: pa.RecordBatch, piece: Piece, number: int) -> Packed:
        if not self.origin.raw:
            # A record without a value says that its key is gone; it is no row of nulls.
            records = records.filter(records.column("value").is_valid())
        # A topic may lack offsets (compacted, or marks of transactions): serials follow the offsets.
        serials = piece.serial + (records.column("offset").to_numpy() - piece.first)
        stamps = records.column("timestamp").cast(pa.timestamp("us", tz="UTC"))
        # A record came when its time says, but not before anybody looked nor after it was noticed.
        arrivals = np.clip(stamps.cast(pa.int64()).to_numpy() / 1e6, self.begin, piece.arrival)
        places, good, bad = sift(records.num_rows, lambda start, stop: self._rows(records, start, stop))
        packet = None
        if good:
            packet = Packet(pa.concat_batches(good), Order(serials[places], arrivals[places], len(places)))
        where = f"Kafka topic '{self.origin.topic}', partition {piece.unit.partition(':')[2]}, offset"
        numbers = records.column("offset")
        letters = [
            Letter(
                int(serials[at]),
                float(arrivals[at]),
                f"{where} {numbers[at].as_py()}: {reason}",
                _shown(records, at),
            )
            for at, reason in bad
        ]
        return Packed(number, self.place, packet, letters)

    def _rows(self, records: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
        part = records.slice(start, stop - start)
        return self.origin.decode(*(part.column(name) for name in COLUMNS))


def _shown(records: pa.RecordBatch, at: int) -> str:
    """A record as JSON, for who reads dead letters."""
    record = records.slice(at, 1).to_pylist()[0]
    text = {
        name: None if record[name] is None else record[name].decode("utf-8", "backslashreplace")
        for name in ("key", "value")
    }
    where = {"partition": record["partition"], "offset": record["offset"]}
    return json.dumps({**where, **text}, ensure_ascii=False)
