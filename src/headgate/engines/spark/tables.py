"""Tables that grow, of any format that Spark reads.

Which rows are new is asked by the value of a column that grows; a step reads ranges of its values, sorted and
packed as it goes: a row of Spark's is a packet of ours, with its serials.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headgate.checkpoint.offsets import Extent, Piece
from headgate.connectors.table import TableSource
from headgate.engines.spark.exchange import SCHEMA
from headgate.engines.spark.messages import Packed
from headgate.engines.spark.poller import PATIENCE, Watch
from headgate.engines.spark.session import first_line
from headgate.engines.spark.sources import OffsetSource
from headgate.engines.spark.task import packed_row
from headgate.errors import HeadgateError, SourceError
from headgate.graph.network import Source
from headgate.graph.packet import Order, Packet
from headgate.graph.schema import normalise_batch
from headgate.sql.types import spark_name

EXTENT = 1 << 16
"""Rows that are admitted at a time: a step that needs some of them sorts them all."""
POLL = 1.0


class Table(OffsetSource):
    """A table that grows: an extent is a range of the followed column's values."""

    frames = True

    def __init__(self, source: Source, session: Any) -> None:
        super().__init__(source)
        self.origin: TableSource = source.origin
        self._session = session
        self._last: Any = None
        self._asked: Any = None
        """Up to here the thread that asks has asked, further than what has been taken from it."""
        self._watch: Watch[list[tuple[Any, Any, int]]] | None = None
        self._kind = self.origin.schema.field(self.origin.follow_column).type

    def resume(self, memory: Any, rows: int) -> None:
        self._last = self._asked = memory

    @property
    def memory(self) -> Any:
        return self._last

    def poll(self, now: float, clock: float) -> list[Extent]:
        if self.origin.finite:
            found = self._ask()
            self.ended = True
        else:
            if self._watch is None:
                self._watch = Watch(
                    f"table-{self.source.name}",
                    self._ask,
                    every=POLL,
                    away=SourceError,
                    patience=PATIENCE,
                    patience_at_start=0.0,
                )
            try:
                found = [each for answer in self._watch.take() for each in answer]
            except Exception:
                self._watch, self._asked = None, self._last
                raise
        if found:
            self._last = found[-1][1]
        return [Extent(f"table:{json.dumps(each)}", 0, each[2], now) for each in found]

    def _ask(self) -> list[tuple[Any, Any, int]]:
        """Ranges of values with new rows: beyond which, up to which, and how many rows."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        column = self._column()
        try:
            rows = self._rows().where(column.isNotNull())
            if self._asked is not None:
                rows = rows.where(column > self._literal(self._asked))
            total = rows.count()
            if total == 0:
                return []
            counted = rows.groupBy(column.alias("value")).count()
            upto = f.sum("count").over(Window.orderBy("value"))
            cuts = counted.select("value", f.col("count"), upto.alias("upto"))
            # A value whose rows pass a multiple of the extent's size ends an extent; so does the last.
            past = f.floor(f.col("upto") / EXTENT) > f.floor((f.col("upto") - f.col("count")) / EXTENT)
            last = f.max("upto").over(Window.partitionBy())
            chosen = cuts.withColumn("last", last).where(past | (f.col("upto") == f.col("last")))
            found = chosen.orderBy("upto").select(self._plain("value"), "upto").collect()
        except Exception as error:
            raise self._unreadable(error) from error
        ranges, before = [], 0
        for value, upto in found:
            ranges.append((self._asked, value, upto - before))
            self._asked, before = value, upto
        return ranges

    def _unreadable(self, error: Exception) -> SourceError:
        return SourceError(
            f"Source '{self.source.name}': {self.origin.named} cannot be read: {first_line(error)}"
        )

    def _rows(self) -> Any:
        origin = self.origin
        if origin.table is not None:
            # A catalog remembers a table's files; new ones are why we ask.
            self._session.catalog.refreshTable(origin.table)
            return self._session.table(origin.table)
        return self._session.read.format(origin.format).options(**origin.options).load()

    def _column(self) -> Any:
        from pyspark.sql import functions as f

        return f.col(quoted(self.origin.follow_column))

    def _plain(self, name: str) -> Any:
        """A value of the followed column as JSON has it, from which ``_literal`` gets the very same."""
        from pyspark.sql import functions as f

        column = f.col(name)
        if pt.is_timestamp(self._kind) and self._kind.tz is not None:
            return f.unix_micros(column)
        return column.cast("bigint" if pt.is_integer(self._kind) else "string")

    def _literal(self, value: Any) -> Any:
        from pyspark.sql import functions as f

        if pt.is_timestamp(self._kind) and self._kind.tz is not None:
            return f.timestamp_micros(f.lit(value))
        return f.lit(value).cast(spark_name(self._kind))

    def next_poll(self, now: float, clock: float) -> float:
        return now + 0.05

    def frame(self, session: Any, pieces: Sequence[tuple[int, Piece]]) -> Any:
        from pyspark.sql import functions as f

        column = self._column()
        frames = None
        for number, piece in pieces:
            low, high, count = json.loads(piece.unit.partition(":")[2])
            rows = self._rows().where(column <= self._literal(high))
            if low is not None:
                rows = rows.where(column > self._literal(low))
            names = [f.col(quoted(name)) for name in self.origin.schema.names]
            # Rows of one value have no order of their own; all columns give them one that repeats.
            rows = rows.select(*names).coalesce(1).sortWithinPartitions(column, *names)
            packed = rows.mapInArrow(_PackTable(self, number, piece, count), SCHEMA)
            frames = packed if frames is None else frames.union(packed)
        return frames

    def explain(self, pieces: Sequence[Piece], error: Exception) -> HeadgateError | None:
        try:
            self._rows().where(self._column().isNull()).limit(1).count()
        except Exception as why:
            return self._unreadable(why)
        return None

    def close(self) -> None:
        if self._watch is not None:
            self._watch.end()


def quoted(name: str) -> str:
    """A column's name as Spark takes it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


class _PackTable:
    """Rows of a range of values, in order, as packets; of them those that the piece asks for."""

    def __init__(self, table: Table, number: int, piece: Piece, count: int) -> None:
        self.slice = number
        self.place, self.schema, self.piece, self.count = table.place, table.origin.schema, piece, count
        self.name, self.column = table.source.name, table.origin.follow_column
        self.named = table.origin.named

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
                yield packed_row(Packed(self.slice, self.place, Packet(rows, order)))
            seen += batch.num_rows
        if seen != self.count:
            yield packed_row(Packed(self.slice, self.place, error=self._changed(seen)))

    def _changed(self, seen: int) -> SourceError:
        return SourceError(
            f"Source '{self.name}': {self.named} had {self.count} rows in a range of '{self.column}' when "
            f"they were noticed, and has {seen} now. Rows that were noticed must stay, and new ones must "
            f"have a larger '{self.column}' than all before; follow a column that grows with every insert."
        )
