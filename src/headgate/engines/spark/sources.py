"""Sources by offset, as the driver sees them: what has become available, never the rows themselves.

A source that Spark tasks cannot address by offset (an iterator, a file of lines) is spooled: its rows are
written once, in order, to files that they can.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.checkpoint.offsets import Extent, Piece
from headgate.checkpoint.storage import Storage
from headgate.connectors import formats
from headgate.connectors.files import FileSource
from headgate.connectors.rate import RateSource
from headgate.connectors.source import Chunk, Wait
from headgate.errors import HeadgateError, SourceError
from headgate.graph.network import Source

ARRIVAL = "__arrival"
SPOOL_ROWS = 65_536
SPOOL_FILE_ROWS = 1 << 20
LIVE_EXTENT = 1 << 20


class OffsetSource:
    """What a source has, told as extents.  ``memory`` is what it must remember between runs, as JSON."""

    frames = False
    """Its rows come from a Spark DataFrame, not from a file that a task opens."""

    place = 0
    """Its number among the sources."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.ended = False

    def resume(self, memory: Any, rows: int) -> None:
        """Go on from where an earlier run was: ``rows`` of it have been admitted."""

    @property
    def memory(self) -> Any:
        return None

    def poll(self, now: float, clock: float) -> list[Extent]:
        """Extents that have become available; ``clock`` is when the application first started."""
        raise NotImplementedError

    def next_poll(self, now: float, clock: float) -> float:
        """When it is worth asking again."""
        return now + 0.02

    def frame(self, session: Any, pieces: Sequence[Piece]) -> Any:
        """A DataFrame of packed rows, if a connector of Spark's reads them."""
        raise NotImplementedError

    def explain(self, pieces: Sequence[Piece], error: Exception) -> HeadgateError | None:
        """Why a connector could not read these pieces, if that is what ``error`` comes from."""
        return None

    def close(self) -> None:
        """Give back what it holds."""


class Files(OffsetSource):
    """Parquet files, known by their footers.  A folder that grows: by (modification time, path)."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.origin: FileSource = source.origin
        self._seen: dict[str, int] = {}

    def resume(self, memory: Any, rows: int) -> None:
        self._seen = dict(memory or {})

    @property
    def memory(self) -> Any:
        return self._seen

    def poll(self, now: float, clock: float) -> list[Extent]:
        new = []
        for file in map(os.path.abspath, self.origin.files()):  # workers have another current folder
            if file not in self._seen:
                try:
                    new.append((os.stat(file).st_mtime_ns, file))
                except FileNotFoundError:
                    continue  # removed or renamed since it was listed
        extents = []
        for _, file in sorted(new) if self.origin.live else [(0, f) for _, f in new]:
            try:
                self.origin.format.check(file, self.origin.schema)
                rows = pq.read_metadata(file).num_rows
            except (OSError, pa.ArrowException) as error:
                raise SourceError(formats.explain(file, error)) from error
            self._seen[file] = rows
            if rows:
                extents.append(Extent(f"parquet:{file}", 0, rows, now))
        self.ended = self.origin.finite
        return extents

    def next_poll(self, now: float, clock: float) -> float:
        return now + 0.05


class Rate(OffsetSource):
    """Row i is known from i alone."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.origin: RateSource = source.origin
        self._next = 0

    def resume(self, memory: Any, rows: int) -> None:
        self._next = rows

    def poll(self, now: float, clock: float) -> list[Extent]:
        due = self.origin.due(now - clock)
        start, self._next = self._next, max(due, self._next)
        self.ended = self.origin.limit is not None and self._next >= self.origin.limit
        ends = [(first, min(first + LIVE_EXTENT, due)) for first in range(start, due, LIVE_EXTENT)]
        return [Extent("rate:", first, end - first, clock + self._mean(first, end)) for first, end in ends]

    def _mean(self, first: int, end: int) -> float:
        return (self.origin.arrival(first) + self.origin.arrival(end - 1)) / 2

    def next_poll(self, now: float, clock: float) -> float:
        return max(now + 0.005, clock + self.origin.arrival(self._next))


class Spool(OffsetSource):
    """Any other source: the driver reads it and writes files of Arrow batches for the tasks.

    After a restart it is read from its beginning, and what was admitted then is passed over.
    """

    def __init__(self, source: Source, storage: Storage) -> None:
        super().__init__(source)
        self._storage = storage
        self._skip = 0
        self._written = 0
        self._reader: Any = None
        self._begin = 0.0

    def resume(self, memory: Any, rows: int) -> None:
        self._skip = rows
        self._written = (memory or {}).get("files", 0)

    @property
    def memory(self) -> Any:
        return {"files": self._written}

    def poll(self, now: float, clock: float) -> list[Extent]:
        if self._reader is None:
            self._reader = self.source.origin.open()
            self._begin = time.time()
        chunks: list[Chunk] = []
        rows = 0
        while rows < SPOOL_FILE_ROWS:
            found = self._reader.poll(time.time() - self._begin, SPOOL_ROWS)
            if isinstance(found, Wait):
                break
            if found is None:
                self.ended = True
                break
            if self._skip:
                passed = min(self._skip, found.batch.num_rows)
                self._skip -= passed
                found = found.slice(passed, found.batch.num_rows - passed)
            if found.batch.num_rows:
                chunks.append(found)
                rows += found.batch.num_rows
        return [self._write(chunks, rows)] if rows else []

    def _write(self, chunks: list[Chunk], rows: int) -> Extent:
        name = f"spool/{self.source.name}-{self._written:06d}-{os.getpid()}-{time.time_ns()}.arrow"
        self._written += 1
        sink = pa.BufferOutputStream()
        schema = self.source.schema.append(pa.field(ARRIVAL, pa.float64()))
        arrived = 0.0
        with pa.ipc.new_file(sink, schema) as writer:
            for chunk in chunks:
                times = np.broadcast_to(np.asarray(chunk.arrivals), (chunk.batch.num_rows,)) + self._begin
                arrived += float(times.sum()) / rows
                columns = [*chunk.batch.columns, pa.array(times)]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        self._storage.write(name, sink.getvalue())
        return Extent(f"spool:{name}", 0, rows, arrived)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
