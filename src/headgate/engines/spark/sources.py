"""Sources by offset, as the driver sees them: what has become available, never the rows themselves.

A source that Spark tasks cannot address by offset (an iterator, a file of lines) is spooled: its rows are
written once, in order, to files that they can (``spooling``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.checkpoint.offsets import PARQUET, Extent, Piece
from headgate.connectors import formats
from headgate.connectors.files import FileSource
from headgate.connectors.rate import RateSource
from headgate.errors import HeadgateError, SourceError
from headgate.graph.network import Source

LIVE_EXTENT = 1 << 20


class OffsetSource:
    """What a source has, told as extents.  ``memory`` is what it must remember between runs, as JSON."""

    frames = False
    """Its rows come from a Spark DataFrame, not from a file that a task opens."""

    place = 0
    """Its number among the sources."""

    lost = ""
    """What is gone of the rows that a query asked for, once that is known; told once."""

    fresh: frozenset[str] = frozenset()
    """Files that it has written for rows that are not admitted yet: no extent names them, but one will."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.ended = False
        self.lag = 0.0
        """Seconds from arrival to admission, of all rows together."""

    def resume(self, memory: Any, rows: int) -> None:
        """Go on from where an earlier run was: ``rows`` of it have been admitted."""

    @property
    def memory(self) -> Any:
        return None

    def news(self) -> Any:
        """What ``memory`` has gained since this was last asked, for ``checkpoint.memory.merged``.

        None: its memory stays small, and is told as a whole.
        """
        return None

    def poll(self, now: float, clock: float) -> list[Extent]:
        """Extents that have become available; ``clock`` is when the application first started."""
        raise NotImplementedError

    @property
    def silent(self) -> tuple[float, str] | None:
        """Since when a server that should answer does not, and what is known of it; None if all is well."""
        return None

    def next_poll(self, now: float, clock: float) -> float:
        """When it is worth asking again."""
        return now + 0.02

    def frame(self, session: Any, pieces: Sequence[tuple[int, Piece]]) -> Any:
        """A DataFrame of packed rows, if a connector of Spark's reads them; each piece with its slice."""
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
        self._news: dict[str, int] = {}

    def resume(self, memory: Any, rows: int) -> None:
        self._seen = dict(memory or {})

    @property
    def memory(self) -> Any:
        return self._seen

    def news(self) -> Any:
        news, self._news = self._news, {}
        return news

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
                found = pq.read_metadata(file)
                self.origin.format.check(file, self.origin.expected(found.schema.to_arrow_schema()))
                rows = found.num_rows
            except (OSError, pa.ArrowException) as error:
                raise SourceError(formats.explain(file, error)) from error
            self._seen[file] = self._news[file] = rows
            if rows:
                extents.append(Extent(f"{PARQUET}:{file}", 0, rows, now))
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
