"""Sinks on Spark: who writes, and when what was written becomes visible.

Parquet files are written by tasks under hidden names and renamed after the commit, so a reader sees exactly
what was committed.  A list, a function and the console get their rows from the driver, before the commit:
the step's ranges are logged first, so that after a crash the very same rows come again, and none are lost.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.connectors.parquet import ParquetSink
from headgate.connectors.sink import Writer
from headgate.engines.spark.messages import Delivery, OutputPart
from headgate.errors import SinkError
from headgate.graph.durations import parse_duration
from headgate.graph.network import Output


class Outlet:
    """The way out of one query."""

    visible = False
    """Rows can be seen before the commit."""

    def __init__(self, output: Output, history: str) -> None:
        self.output = output
        self.history = history
        """Folder of what the query keeps, or nothing."""

    def open(self, resumed: bool) -> None:
        """Make ready; ``resumed``: an earlier run of the application has been here."""
        if self.history:
            Path(self.history).mkdir(parents=True, exist_ok=True)
            _sweep(self.history)

    def delivery(self) -> Delivery:
        raise NotImplementedError

    def hand_over(self, parts: Sequence[OutputPart], step: int) -> None:
        """Before the commit: make rows visible that cannot wait for it."""

    def files(self, parts: Sequence[OutputPart], step: int) -> list[list[str]]:
        """What to rename after the commit: written name, final name."""
        kept = [p.kept for p in parts if p.kept]
        return [[name, f"{self.history}/part-{step:012d}-{i:03d}.parquet"] for i, name in enumerate(kept)]

    def prune(self, now: float) -> None:
        """Remove history that is older than the query keeps it."""
        if not self.history:
            return
        oldest = now - parse_duration(self.output.keep or 0, "keep") / 1e6
        for file in Path(self.history).glob("part-*.parquet"):
            with contextlib.suppress(OSError):
                if file.stat().st_mtime < oldest:
                    file.unlink()

    def close(self, error: bool, rows: int) -> None:
        """The run is over."""


class Files(Outlet):
    """A folder of parquet files."""

    def open(self, resumed: bool) -> None:
        super().open(resumed)
        sink: ParquetSink = self.output.sink
        if resumed:
            Path(sink.path).mkdir(parents=True, exist_ok=True)
        else:
            sink.open(self.output.name, self.output.schema)
        _sweep(sink.path)

    def delivery(self) -> Delivery:
        return Delivery("parquet", os.path.abspath(self.output.sink.path), self.history)

    def files(self, parts: Sequence[OutputPart], step: int) -> list[list[str]]:
        folder = os.path.abspath(self.output.sink.path)
        own = [
            [part.file, f"{folder}/part-{step:012d}-{i:03d}.parquet"]
            for i, part in enumerate(p for p in parts if p.file)
        ]
        return own + super().files(parts, step)

    def close(self, error: bool, rows: int) -> None:
        """A query without results leaves one empty file, so that its folder can be read."""
        folder = Path(self.output.sink.path)
        if not error and not rows and folder.is_dir() and not any(folder.glob("part-*.parquet")):
            pq.write_table(self.output.schema.empty_table(), folder / f"part-{0:012d}-000.parquet")


class Inline(Outlet):
    """A sink in this process: a list, a function, the console."""

    visible = True

    def __init__(self, output: Output, history: str, retries: int) -> None:
        super().__init__(output, history)
        self._retries = retries
        self._writer: Writer | None = None

    def open(self, resumed: bool) -> None:
        super().open(resumed)
        self._writer = self.output.sink.open(self.output.name, self.output.schema)

    def delivery(self) -> Delivery:
        return Delivery("inline", keep=self.history)

    def hand_over(self, parts: Sequence[OutputPart], step: int) -> None:
        assert self._writer is not None
        for part in parts:
            for batch in pa.ipc.open_stream(part.payload):
                self._write(batch)

    def _write(self, batch: pa.RecordBatch) -> None:
        assert self._writer is not None
        for left in range(self._retries, -1, -1):
            try:
                self._writer.write(batch)
                return
            except Exception:
                if not left:
                    raise

    def close(self, error: bool, rows: int) -> None:
        if self._writer is not None:
            self._writer.close(error)


def publish(files: Sequence[Sequence[str]]) -> None:
    """Give committed files their names; what has its name already is left alone."""
    for written, final in files:
        try:
            os.rename(written, final)
        except FileNotFoundError:
            if not os.path.exists(final):
                raise SinkError(
                    f"'{final}' was committed, but neither it nor '{written}' is there any more; somebody "
                    "removed it. Restore the folder, or start with a new checkpoint."
                ) from None


def _sweep(folder: str) -> None:
    """Remove what an earlier run wrote and did not commit."""
    for file in Path(folder).glob(".staged-*"):
        with contextlib.suppress(OSError):
            file.unlink()


def wrapped(query: str, error: BaseException) -> Any:
    """A sink's failure in the user's words."""
    if isinstance(error, SinkError):
        return error
    found = SinkError(f"Query '{query}': its sink failed: {type(error).__name__}: {error}")
    found.__cause__ = error
    return found
