"""Reading a source's rows in a task, by offset.

Steps that follow each other read ranges that follow each other, so a worker keeps the file that it read last
open, with the row group that it decoded last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.checkpoint import checks
from headgate.checkpoint.offsets import PARQUET, REFUSED, SPOOL, Piece
from headgate.connectors.refused import COLUMN, has_refused
from headgate.engines.spark.spooling import ARRIVAL
from headgate.errors import HeadgateError, SourceError
from headgate.graph.packet import Order, Packet
from headgate.graph.schema import normalise_batch
from headgate.runtime.dead_letters import Letter, refused_letters

OPEN_FILES = 16
RATE = "rate:"


class _Parquet:
    """A parquet file with the row group decoded last."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        try:
            self._file = pq.ParquetFile(path, memory_map=True)
        except FileNotFoundError as error:
            raise SourceError(
                f"File '{path}' is gone, but not all of its rows have been processed; bring it back and "
                "restart, or start with a new checkpoint."
            ) from error
        self._schema = schema
        sizes = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        self.starts = np.concatenate([[0], np.cumsum(sizes)])
        self._group = -1
        self._rows: pa.Table | None = None

    def read(self, first: int, rows: int) -> Iterator[pa.RecordBatch]:
        if first + rows > self.starts[-1]:
            raise SourceError(
                f"File '{self._file.reader}' has {self.starts[-1]} rows now, and had more when it was listed."
            )
        group = int(np.searchsorted(self.starts, first, side="right")) - 1
        while rows:
            start = first - int(self.starts[group])
            count = min(rows, int(self.starts[group + 1]) - first)
            for batch in self._decoded(group).slice(start, count).to_batches():
                yield normalise_batch(batch, self._schema)
            first, rows, group = first + count, rows - count, group + 1

    def _decoded(self, group: int) -> pa.Table:
        if group != self._group or self._rows is None:
            self._rows = self._file.read_row_group(group, columns=self._schema.names, use_threads=False)
            self._rows = self._rows.combine_chunks()
            self._group = group
        return self._rows


class _Spooled:
    """A file of Arrow batches with arrivals."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._file = pa.ipc.open_file(checks.opened(path, "spool", checks.stamp(path)))
        self._batches = [self._file.get_batch(i) for i in range(self._file.num_record_batches)]
        self.starts = np.concatenate([[0], np.cumsum([b.num_rows for b in self._batches])])

    def read(self, first: int, rows: int) -> Iterator[pa.RecordBatch]:
        place = int(np.searchsorted(self.starts, first, side="right")) - 1
        while rows:
            start = first - int(self.starts[place])
            batch = self._batches[place].slice(start, rows)
            yield batch
            first, rows, place = first + batch.num_rows, rows - batch.num_rows, place + 1


_open: dict[tuple[Any, ...], Any] = {}


def _opened(kind: Any, path: str, schema: pa.Schema) -> Any:
    """The file, kept open; a file that was replaced is opened anew."""
    try:
        stat = os.stat(path)
        key = (kind, path, stat.st_mtime_ns, stat.st_size)
    except OSError:
        key = (kind, path, 0, 0)
    found = _open.pop(key, None) or kind(path, schema)
    _open[key] = found  # the newest last
    while len(_open) > OPEN_FILES:
        del _open[next(iter(_open))]
    return found


@dataclass
class Read:
    """What was read of a source: packets in order, rows that it refused, and pieces that cannot be read."""

    packets: list[Packet] = field(default_factory=list)
    refused: list[Letter] = field(default_factory=list)
    failed: list[tuple[Piece, HeadgateError]] = field(default_factory=list)


def read(origin: Any, schema: pa.Schema, pieces: Sequence[Piece], root: str, clock: float) -> Read:
    """The rows of some pieces of a source."""
    found = Read()
    for piece in _joined(pieces):
        kind, _, name = piece.unit.partition(":")
        serials = piece.serials()
        done = 0
        try:
            for batch, arrivals in _batches(kind, name, origin, schema, piece, root, clock):
                count = batch.num_rows
                own = serials + done if isinstance(serials, int) else serials[done : done + count]
                packet = Packet(batch, Order(own, arrivals, count))
                done += count
                if has_refused(batch):
                    packet, refused = refused_letters(packet)
                    found.refused += refused
                found.packets.append(packet)
        except HeadgateError as error:
            found.failed.append((piece, error))
    return found


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Numbers that follow each other are one packet, however often the driver had a look at the clock."""
    last: Piece | None = None
    for piece in pieces:
        if last is not None and _follows(last, piece):
            last = replace(last, rows=last.rows + piece.rows)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def _follows(piece: Piece, other: Piece) -> bool:
    return (
        piece.unit == other.unit == RATE
        and piece.turns is None
        and piece.first + piece.rows == other.first
        and piece.serial + piece.rows == other.serial
    )


def _batches(
    kind: str, name: str, origin: Any, schema: pa.Schema, piece: Piece, root: str, clock: float
) -> Iterator[tuple[pa.RecordBatch, Any]]:
    if kind == PARQUET:
        for batch in _opened(_Parquet, name, schema).read(piece.first, piece.rows):
            yield batch, float(piece.arrival or 0.0)
    elif kind in (SPOOL, REFUSED):
        for batch in _opened(_Spooled, os.path.join(root, name), schema).read(piece.first, piece.rows):
            arrivals = batch.column(ARRIVAL).to_numpy(zero_copy_only=False)
            own = schema.append(COLUMN) if kind == REFUSED else schema
            rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=own)
            yield rows, float(arrivals[0]) if (arrivals == arrivals[0]).all() else arrivals
    else:
        end = piece.first + piece.rows
        yield origin.batch(piece.first, end), origin.arrivals(piece.first, end) + clock
