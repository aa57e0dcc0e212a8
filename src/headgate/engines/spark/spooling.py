"""Sources that tasks cannot address by offset: the driver reads them and writes files of Arrow batches.

Rows that a source refuses are spooled with the others if there are dead letters for them; otherwise they are
errors here, before they are admitted, so that a source that was mended can be read again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.checkpoint.checks import stamped
from headgate.checkpoint.names import safe_name
from headgate.checkpoint.offsets import REFUSED, SPOOL, Extent
from headgate.checkpoint.storage import Storage
from headgate.connectors import formats
from headgate.connectors.files import FileSource
from headgate.connectors.refused import COLUMN, has_refused, none_refused, split_refused
from headgate.connectors.source import Chunk, Wait, fitted
from headgate.engines.spark.sources import OffsetSource
from headgate.errors import RunError, SourceError
from headgate.graph.network import Source
from headgate.runtime.dead_letters import refusal

ARRIVAL = "__arrival"
SPOOL_ROWS = 65_536
SPOOL_FILE_ROWS = 1 << 20


class Spool(OffsetSource):
    """Any reader of rows.

    After a restart it is read from its beginning, and what was admitted then is passed over.
    """

    def __init__(self, source: Source, storage: Storage, letters: bool) -> None:
        super().__init__(source)
        self._storage = storage
        self._letters = letters
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
        self.fresh = frozenset()
        if self._reader is None:
            self._reader = self.source.origin.open()
            self._begin = time.time()
        chunks: list[Chunk] = []
        rows = 0
        while rows < SPOOL_FILE_ROWS:
            polled = self._reader.poll(time.time() - self._begin, SPOOL_ROWS)
            found = fitted(polled, self.source.name, self.source.schema)
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
                self.check(found.batch)
                chunks.append(found)
                rows += found.batch.num_rows
        return self.write(chunks)

    def check(self, batch: pa.RecordBatch) -> None:
        """An error for the first row that the source has refused, unless there are dead letters for it."""
        if not self._letters and has_refused(batch):
            for _, reason, _ in split_refused(batch)[2][:1]:
                raise refusal(self.source.name, reason)

    def write(self, chunks: Sequence[Chunk]) -> list[Extent]:
        """A file of the rows of some chunks, and where they are in it; none if there are no rows."""
        rows = sum(chunk.batch.num_rows for chunk in chunks)
        if not rows:
            return []
        mark = f"{self._written:06d}-f{self._storage.fence}-{os.getpid()}-{time.time_ns()}"
        name = f"spool/{safe_name(self.source.name)}-{mark}.arrow"
        self._written += 1
        refused = any(has_refused(chunk.batch) for chunk in chunks)
        fields = [*self.source.schema, *([COLUMN] if refused else []), pa.field(ARRIVAL, pa.float64())]
        arrived = 0.0
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, pa.schema(fields)) as writer:
            for chunk in chunks:
                batch = chunk.batch
                times = np.broadcast_to(np.asarray(chunk.arrivals), (batch.num_rows,)) + self._begin
                arrived += float(times.sum()) / rows
                if refused and not has_refused(batch):
                    batch = none_refused(batch)
                writer.write_batch(batch.append_column(fields[-1], pa.array(times)))
        data = sink.getvalue()
        name = stamped(name, data)
        self.fresh = frozenset([name])
        try:
            self._storage.write(name, [data])
        except OSError as error:  # not the source's fault: it must not be given up for that
            raise RunError(
                f"checkpoint '{self._storage.root}': {name} could not be written: "
                f"{error.strerror or error}. See to that (make room, if the disk is full) and run the "
                "application again to go on."
            ) from error
        return [Extent(f"{REFUSED if refused else SPOOL}:{name}", 0, rows, arrived)]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class FileSpool(Spool):
    """Files of lines: how far each has been read is known by itself.

    So a restart goes on with every file where it was, whatever has become of the others meanwhile: those that
    were read may be gone, and new ones may be older than they.
    """

    def __init__(self, source: Source, storage: Storage, letters: bool) -> None:
        super().__init__(source, storage, letters)
        self.origin: FileSource = source.origin
        self._files: dict[str, list[int]] = {}
        """For every file that was opened: rows spooled, size, time of modification, whether it is done."""
        self._todo: list[str] | None = None
        """Files to read next; None before the first look."""
        self._rows: Iterator[pa.RecordBatch] | None = None
        """What is left of the first of them."""
        self._resumed = False
        self._changed: dict[str, None] = {}
        """Files about which more is known than was asked for."""
        self._looked = True
        """The list of files to read is new."""

    def resume(self, memory: Any, rows: int) -> None:
        if memory is None:
            return
        if "read" not in memory:
            raise SourceError(
                f"Source '{self.source.name}': the checkpoint, made by an earlier version of Headgate, does "
                "not say how far each of its files was read; start with a new one."
            )
        self._written, self._files = memory["files"], memory["read"]
        if memory["todo"] is not None:
            # The list is logged once; which of its files are done, the log says of each.
            done = {file for file, known in self._files.items() if known[_DONE]}
            self._todo = [file for file in memory["todo"] if file not in done]
        self._resumed = True

    @property
    def memory(self) -> Any:
        # What a followed folder holds is found by looking again; a finite source stays what it was.
        todo = self._todo if self.origin.finite else None
        return {"files": self._written, "read": self._files, "todo": todo}

    def news(self) -> Any:
        read = {file: list(self._files[file]) for file in self._changed if file in self._files}
        news: dict[str, Any] = {"files": self._written, "read": read}
        if self._looked:
            news["todo"] = self.memory["todo"]
        self._changed, self._looked = {}, False
        return news

    def poll(self, now: float, clock: float) -> list[Extent]:
        self.fresh = frozenset()
        self._begin = self._begin or time.time()
        chunks: list[tuple[str, Chunk]] = []
        rows = 0
        before = {file: list(known) for file, known in self._files.items() if not known[_DONE]}
        while rows < SPOOL_FILE_ROWS:
            try:
                found = self._next()
                if found is None:
                    break
                self.check(found[1])
            except Exception:
                chunks = self._without_failed(chunks, before)
                if not chunks:
                    raise
                break  # what came before it is admitted first; the next poll fails as this one did
            file, batch = found
            self._files[file][_ROWS] += batch.num_rows
            self._changed[file] = None
            rows += batch.num_rows
            chunks.append((file, Chunk(batch, time.time() - self._begin)))
        self._look_ahead()
        return self.write([chunk for _, chunk in chunks])

    def _without_failed(
        self, chunks: list[tuple[str, Chunk]], before: dict[str, list[int]]
    ) -> list[tuple[str, Chunk]]:
        """A file that cannot be read to its end gives nothing, so that it can be mended and read whole.

        If it is so long that its beginning has been admitted already, it must come back as it was.
        """
        self._rows = None
        if not self._todo:
            return chunks
        failed = self._todo[0]
        if failed in before:
            self._files[failed] = before[failed]
            self._changed[failed] = None
        else:
            self._files.pop(failed, None)
        return [(file, chunk) for file, chunk in chunks if file != failed]

    def _next(self) -> tuple[str, pa.RecordBatch] | None:
        """The next rows and their file; None if there are none now."""
        while True:
            if not self._todo:
                self._todo, self._looked = self._look(), True
                if not self._todo:
                    return None
            file = self._todo[0]
            if self._rows is None:
                self._rows = self._open(file)
            for batch in self._rows:
                if batch.num_rows:
                    return file, batch
            self._rows = None
            self._finished(self._todo.pop(0))

    def _look_ahead(self) -> None:
        """Whether a file is done must be known with its last rows: it may be gone after a restart."""
        if self._rows is None or not self._todo:
            return
        try:
            ahead = next((batch for batch in self._rows if batch.num_rows), None)
        except Exception:
            self._rows = None  # read from here again, and told then
            return
        if ahead is not None:
            self._rows = chain([ahead], self._rows)
            return
        self._rows = None
        self._finished(self._todo.pop(0))

    def _finished(self, file: str) -> None:
        self._files[file][_DONE] = 1
        self._changed[file] = None

    def _look(self) -> list[str]:
        """Files that are to be read, first those that were begun; a finite source has them all at once."""
        if self._todo is not None and self.origin.finite:
            self.ended = True
            return []
        there = [os.path.abspath(file) for file in self.origin.files()]
        begun = [file for file, known in self._files.items() if not known[_DONE]]
        if self._resumed:
            self._refuse_changed(there)
            self._resumed = False
        new = []
        for file in there:
            if file not in self._files:
                try:
                    new.append((os.stat(file).st_mtime_ns if self.origin.live else 0, file))
                except FileNotFoundError:
                    continue  # removed or renamed since it was listed
        found = begun + [file for _, file in sorted(new)]
        self.ended = self.origin.finite and not found
        return found

    def _open(self, file: str) -> Iterator[pa.RecordBatch]:
        """A file's rows from where it was left."""
        known = self._files.get(file)
        try:
            stat = os.stat(file)
        except FileNotFoundError as error:
            if known is None:
                raise SourceError(formats.explain(file, error)) from error
            raise SourceError(
                f"File '{file}' is gone, but only {known[_ROWS]} of its rows have been read; bring it back "
                "and restart, or start with a new checkpoint."
            ) from error
        now = [0, stat.st_size, stat.st_mtime_ns, 0]
        if known is not None and known[_SIZE:_DONE] != now[_SIZE:_DONE]:
            raise SourceError(
                f"File '{file}' has changed after {known[_ROWS]} of its rows were read; bring it back as it "
                "was, with its time of modification, and restart, or start with a new checkpoint."
            )
        self._files[file] = now if known is None else known
        self._changed[file] = None
        return _rest(self.origin.batches(file), self._files[file][_ROWS])

    def _refuse_changed(self, there: Sequence[str]) -> None:
        """Rows that were added to a file since it was read would never be."""
        for file in there:
            known = self._files.get(file)
            if known is None or not known[_DONE]:
                continue
            try:
                size = os.path.getsize(file)
            except FileNotFoundError:
                continue  # removed since it was listed
            if size != known[_SIZE]:
                raise SourceError(
                    f"File '{file}' has changed since it was read: it had {known[_SIZE]} bytes, now "
                    f"{size}. Each file is read once, so put new rows into new files. Bring this one back "
                    "as it was, or remove it, and restart."
                )


_ROWS, _SIZE, _TIME, _DONE = range(4)


def _rest(batches: Iterator[pa.RecordBatch], skip: int) -> Iterator[pa.RecordBatch]:
    """The rows behind the first ``skip``."""
    for batch in batches:
        passed = min(skip, batch.num_rows)
        skip -= passed
        yield batch.slice(passed)
