"""Reading a source's rows in a task, by offset.

Steps that follow each other read ranges that follow each other, so a worker keeps files open, and row groups
that it decoded.  A row group is decoded for the columns that are needed, or not at all if no row of it can
pass the first filters (``graph.needs``).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.checkpoint import checks
from headgate.checkpoint.offsets import PARQUET, REFUSED, SPOOL, Piece
from headgate.checkpoint.storage import Storage
from headgate.connectors.parquet_scan import decode
from headgate.connectors.refused import COLUMN, has_refused
from headgate.engines.spark.spooling import ARRIVAL
from headgate.errors import HeadgateError, SourceError
from headgate.graph.needs import Needs
from headgate.graph.packet import Order, Packet
from headgate.runtime.dead_letters import Letter, refused_letters

OPEN_FILES = 16
GROUP_BYTES = 256 << 20
"""Bytes of decoded row groups that a worker keeps; the newest stays, however large."""
RATE = "rate:"


class _Parquet:
    """A parquet file."""

    def __init__(self, path: str) -> None:
        try:
            self._mapped = pa.memory_map(path)
            self._file = pq.ParquetFile(self._mapped, pre_buffer=False)
        except FileNotFoundError as error:
            raise SourceError(
                f"File '{path}' is gone, but not all of its rows have been processed; bring it back and "
                "restart, or start with a new checkpoint."
            ) from error
        self._path = path
        sizes = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        self.starts = np.concatenate([[0], np.cumsum(sizes)])

    def read(self, first: int, rows: int, needs: Needs) -> Iterator[pa.RecordBatch]:
        if first + rows > self.starts[-1]:
            raise SourceError(
                f"File '{self._path}' has {self.starts[-1]} rows now, and had more when it was listed."
            )
        group = int(np.searchsorted(self.starts, first, side="right")) - 1
        while rows:
            start = first - int(self.starts[group])
            count = min(rows, int(self.starts[group + 1]) - first)
            yield from _cut(_decoded(self, self._file, group, needs), start, count)
            first, rows, group = first + count, rows - count, group + 1


def _cut(batches: Sequence[pa.RecordBatch], start: int, count: int) -> Iterator[pa.RecordBatch]:
    """``count`` rows from ``start``, without a copy."""
    for batch in batches:
        if start < batch.num_rows and count:
            piece = batch.slice(start, count)
            count -= piece.num_rows
            yield piece
        start = max(start - batch.num_rows, 0)


class _Groups:
    """Row groups that were decoded, as many as fit into some bytes; the one used last stays longest."""

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], tuple[int, list[pa.RecordBatch]]] = {}
        self._bytes = 0

    def get(self, file: _Parquet, opened: pq.ParquetFile, group: int, needs: Needs) -> list[pa.RecordBatch]:
        key = (file, group, needs.columns, needs.filters)
        found = self._held.pop(key, None)
        if found is None:
            batches = decode(opened, group, needs)
            found = sum(batch.nbytes for batch in batches), batches
            self._bytes += found[0]
        self._held[key] = found  # the newest last
        while self._bytes > GROUP_BYTES and len(self._held) > 1:
            self._bytes -= self._held.pop(next(iter(self._held)))[0]
        return found[1]


_decoded = _Groups().get


@lru_cache(maxsize=4096)
def _starts(path: str, modified: int, size: int) -> list[int]:
    metadata = pq.read_metadata(path)
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    starts = [0, *itertools.accumulate(sizes)]
    return [start for start, size in zip(starts, sizes, strict=False) if size]


def row_groups(path: str) -> list[int]:
    """The row at which each row group of a file starts, if it has rows.

    A file that was replaced is looked at again.
    """
    stat = os.stat(path)
    return _starts(path, stat.st_mtime_ns, stat.st_size)


class _Spooled:
    """A file of Arrow batches with arrivals."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._file = pa.ipc.open_file(checks.opened(storage, name, "spool", checks.stamp(name)))
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


def _spooled(storage: Storage, name: str) -> _Spooled:
    key = (_Spooled, storage.root, name, storage.version(name))
    found: _Spooled = _held(key, lambda: _Spooled(storage, name))
    return found


def _opened(kind: Any, path: str) -> Any:
    """The file, kept open; a file that was replaced is opened anew."""
    try:
        stat = os.stat(path)
        key = (kind, path, stat.st_mtime_ns, stat.st_size)
    except OSError:
        key = (kind, path, 0, 0)
    return _held(key, lambda: kind(path))


def _held(key: tuple[Any, ...], opened: Callable[[], Any]) -> Any:
    found = _open.pop(key, None) or opened()
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


def read(origin: Any, needs: Needs, pieces: Sequence[Piece], storage: Storage, clock: float) -> Read:
    """The rows of some pieces of a source; columns and rows that are not needed may be null."""
    found = Read()
    for piece in _joined(pieces):
        kind, _, name = piece.unit.partition(":")
        serials = piece.serials()
        done = 0
        try:
            for batch, arrivals in _batches(kind, name, origin, needs, piece, storage, clock):
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


def _columns(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
    """The columns of rows that may have been spooled before their source had all of these."""
    if batch.num_columns == len(schema) + 1:
        return list(batch.columns[:-1])
    known = batch.schema.names
    return [
        batch.column(field.name) if field.name in known else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]


def _batches(
    kind: str, name: str, origin: Any, needs: Needs, piece: Piece, storage: Storage, clock: float
) -> Iterator[tuple[pa.RecordBatch, Any]]:
    if kind == PARQUET:
        for batch in _opened(_Parquet, name).read(piece.first, piece.rows, needs):
            yield batch, float(piece.arrival or 0.0)
    elif kind in (SPOOL, REFUSED):
        schema = needs.schema
        for batch in _spooled(storage, name).read(piece.first, piece.rows):
            arrivals = batch.column(ARRIVAL).to_numpy(zero_copy_only=False)
            own = schema.append(COLUMN) if kind == REFUSED else schema
            rows = pa.RecordBatch.from_arrays(_columns(batch, own), schema=own)
            yield rows, float(arrivals[0]) if (arrivals == arrivals[0]).all() else arrivals
    else:
        end = piece.first + piece.rows
        yield origin.batch(piece.first, end), origin.arrivals(piece.first, end) + clock
