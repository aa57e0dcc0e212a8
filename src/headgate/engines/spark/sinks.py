"""Sinks on Spark: who writes, and when what was written becomes visible.

Parquet files are written by tasks under hidden names and get their own after the commit, so a reader sees
exactly what was committed.  A list, a function and the console get their rows from the driver, before the
commit: the step's ranges are logged first, so that after a crash the very same rows come again, and none are
lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.checkpoint.disk import make_folder
from headgate.checkpoint.names import label
from headgate.connectors.folder import next_number, part_name, publish
from headgate.connectors.parquet import ParquetSink
from headgate.connectors.sink import StepWriter, Writer
from headgate.engines.spark.messages import Delivery, OutputPart
from headgate.engines.spark.parts import STAGED, staged_name, write_parquet
from headgate.errors import SinkError
from headgate.graph.durations import parse_duration
from headgate.graph.network import Output

Claim = dict[str, Any]
"""What the log remembers of a sink that was opened: nothing may be written to it before the log does."""
USED_BEFORE: Claim = {"used": True}
"""The claim of a query that has used its folder before claims were logged."""


class Outlet:
    """The way out of one query."""

    visible = False
    """Rows can be seen before the commit."""
    fence = 0
    """The number of the checkpoint's owner."""
    target = ""
    """What Spark writes to, if that is how rows are handed over: different ones at the same time."""

    def __init__(self, output: Output, history: str) -> None:
        self.output = output
        self.history = history
        """Folder of what the query keeps, or nothing."""

    def open(self, claim: Claim) -> Claim:
        """Make ready, or raise an error.  ``claim``: what the log says that this query has claimed outside
        the checkpoint, {} for nothing; returns what the log is to say before the first commit.
        """
        if self.history:
            make_folder(self.history, durable=True, private=True)
            label(Path(self.history), self.output.name)
            _sweep(self.history, "", self.fence)
        return {}

    def delivery(self) -> Delivery:
        raise NotImplementedError

    def hand_over(self, parts: Sequence[OutputPart], step: int, repeated: bool) -> None:
        """Before the commit: make rows visible that cannot wait for it.

        ``repeated``: the step was announced before, and may have been handed over.
        """

    def files(self, parts: Sequence[OutputPart], step: int) -> list[list[str]]:
        """What to publish after the commit: written name, final name."""
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
    """A folder of parquet files.

    The name of a part has the number that the folder gave when it was claimed, so that what is appended
    later sorts behind; then a hash of checkpoint and query, so that no two ever have the same name; then the
    step.
    """

    def __init__(self, output: Output, history: str, identity: str, durable: bool) -> None:
        super().__init__(output, history)
        self._folder = os.path.abspath(output.sink.path)
        self._tag = hashlib.sha256(f"{identity} {output.name}".encode()).hexdigest()[:16]
        self._durable = durable
        self._number = 0

    def open(self, claim: Claim) -> Claim:
        super().open(claim)
        sink: ParquetSink = self.output.sink
        if claim.get("folder") == self._folder:
            make_folder(self._folder, durable=self._durable)
            number = claim["number"]
        elif claim == USED_BEFORE:
            make_folder(self._folder, durable=self._durable)
            number = next_number(os.listdir(self._folder))
        else:
            number = sink.claim(self.output.name, durable=self._durable)
        _sweep(self._folder, self._tag, self.fence)
        self._number = number
        return {"folder": self._folder, "number": number}

    def delivery(self) -> Delivery:
        return Delivery("parquet", self._folder, self.history, self._tag)

    def files(self, parts: Sequence[OutputPart], step: int) -> list[list[str]]:
        own = [[part.file, self._final(step, i)] for i, part in enumerate(p for p in parts if p.file)]
        return own + super().files(parts, step)

    def _final(self, step: int, place: int) -> str:
        return f"{self._folder}/{part_name(self._number, f'-{self._tag}-{step:012d}-{place:04d}')}"

    def close(self, error: bool, rows: int) -> None:
        """A query without results leaves one empty file, so that its folder can be read."""
        folder = Path(self._folder)
        if not error and not rows and folder.is_dir() and not any(folder.glob("part-*.parquet")):
            written = staged_name(self._folder, self._tag, "empty")
            write_parquet(written, self.output.schema.empty_table(), self._durable)
            publish([[written, self._final(0, 0)]], durable=self._durable)


class Inline(Outlet):
    """A sink in this process: a list, a function, the console."""

    visible = True

    def __init__(self, output: Output, history: str, retries: int) -> None:
        super().__init__(output, history)
        self._retries = retries
        self._writer: Writer | None = None

    def open(self, claim: Claim) -> Claim:
        super().open(claim)
        self._writer = self.output.sink.open(self.output.name, self.output.schema)
        return {}

    def delivery(self) -> Delivery:
        return Delivery("inline", keep=self.history)

    def hand_over(self, parts: Sequence[OutputPart], step: int, repeated: bool) -> None:
        writer = self._writer
        assert writer is not None
        batches = (batch for part in parts for batch in pa.ipc.open_stream(part.payload))
        if isinstance(writer, StepWriter):
            self._try(partial(writer.write_step, step, list(batches)))
            return
        for batch in batches:
            self._try(partial(writer.write, batch))

    def _try(self, write: Callable[[], None]) -> None:
        for left in range(self._retries, -1, -1):
            try:
                write()
                return
            except Exception:
                if not left:
                    raise

    def close(self, error: bool, rows: int) -> None:
        if self._writer is not None:
            self._writer.close(error)


_BY_OWNER = re.compile(r"\d{9}-(\d+)\.[0-9a-f]{8}-")
"""In the name of a part: the owner under which it was written.  A later one's must stay."""


def _sweep(folder: str, tag: str, fence: int) -> None:
    """Remove what owners of this checkpoint before this one wrote and did not commit.

    Only its own: another application may be writing to the folder at this moment.
    """
    for file in Path(folder).glob(f"{STAGED}{tag}*"):
        made = _BY_OWNER.search(file.name)
        if made is None or int(made[1]) < fence:
            with contextlib.suppress(OSError):
                file.unlink()


def wrapped(query: str, error: BaseException) -> Any:
    """A sink's failure in the user's words."""
    if isinstance(error, SinkError):
        return error
    found = SinkError(f"Query '{query}': its sink failed: {type(error).__name__}: {error}")
    found.__cause__ = error
    return found
