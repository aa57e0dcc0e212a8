"""What queries keep of their results (``keep=``) without a checkpoint: parquet files for ``headgate query``.

A query has a folder.  Rows wait in memory for a second or so, or until there are enough for a file; a
question has them written first.  A file that is older than its query keeps results is removed.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.checkpoint.disk import make_folder
from headgate.checkpoint.names import label, safe_name
from headgate.connectors.sink import Writer
from headgate.graph.durations import parse_duration
from headgate.graph.network import Output
from headgate.sql.types import spark_name

FILE_ROWS = 1 << 20
FILE_SECONDS = 1.0


class KeepingWriter(Writer):
    """Another writer, whose rows also go into files: written here once the sink has taken them."""

    def __init__(self, writer: Writer, folder: Path, schema: pa.Schema, seconds: float) -> None:
        self._writer, self._folder, self._schema, self._seconds = writer, folder, schema, seconds
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._since = time.monotonic()
        self._lock = threading.Lock()
        files = [path.name for path in folder.glob("part-*.parquet")]
        self._next = 1 + max([int(name[5:-8]) for name in files if name[5:-8].isdigit()], default=-1)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch)
        with self._lock:
            self._waiting.append(batch)
            self._rows += batch.num_rows
            if self._rows >= FILE_ROWS or time.monotonic() - self._since >= FILE_SECONDS:
                self._flush()

    def close(self, error: bool) -> None:
        self._writer.close(error)
        self.flush()

    def flush(self) -> None:
        """For any thread: write what waits."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        self._since = time.monotonic()
        if self._rows:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._waiting, self._rows = [], 0
            final = self._folder / f"part-{self._next:012d}.parquet"
            self._next += 1
            hidden = final.with_name(f".{final.name}")  # no question sees half a file
            pq.write_table(table, hidden)
            os.replace(hidden, final)
        oldest = time.time() - self._seconds
        for file in self._folder.glob("part-*.parquet"):
            if file.stat().st_mtime < oldest:
                file.unlink()


class History:
    """The histories of a run, in ``folder``, or in a temporary one that goes with it."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._kept: dict[str, tuple[Output, Path, KeepingWriter]] = {}

    def open(self, output: Output) -> Writer:
        """A query's writer, which also keeps its results if it is to."""
        writer: Writer = output.sink.open(output.name, output.schema)
        if output.keep is None:
            return writer
        try:
            return self._keeping(output, writer)
        except BaseException:
            writer.close(True)
            raise

    def _keeping(self, output: Output, writer: Writer) -> Writer:
        if self._folder is None and self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="headgate-history-")
        above = Path(self._temporary.name if self._temporary is not None else str(self._folder))
        path = above / "history" / safe_name(output.name)
        make_folder(path, durable=False, private=True)
        label(path, output.name)
        seconds = parse_duration(output.keep or 0, "keep") / 1e6
        made = KeepingWriter(writer, path, output.schema, seconds)
        self._kept[output.name] = output, path, made
        return made

    def outputs(self) -> dict[str, Any]:
        """The handler of ``headgate query``: where the histories are, with all rows so far."""
        kept = list(self._kept.values())
        for _, _, writer in kept:
            writer.flush()
        return {
            "outputs": [
                {
                    "query": output.name,
                    "path": str(path),
                    "schema": {field.name: spark_name(field.type) for field in output.schema},
                    "keep": output.keep,
                }
                for output, path, _ in kept
            ]
        }

    def close(self) -> None:
        """The run is over."""
        if self._temporary is not None:
            self._temporary.cleanup()
