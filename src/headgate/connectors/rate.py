"""``hg.from_rate(rows_per_second)``: a counter, like Spark's rate source, that arrives at a steady rate."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.connectors.source import Chunk, Reader, Source, Wait
from headgate.errors import SourceError
from headgate.graph import arrays

_SCHEMA = pa.schema([("value", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC"))])
_START = datetime(2020, 1, 1, tzinfo=UTC)


class RateSource(Source):
    """Row i arrives with its burst, at ``first + floor(i / burst) * burst / rate`` seconds."""

    computed_by_tasks = True

    def __init__(
        self, rate: float, limit: int | None, burst: int, start_time: datetime, first: float = 0.0
    ) -> None:
        self.schema = _SCHEMA
        self.rate = rate
        self.limit = limit
        self.burst = burst
        self.first = first
        self.start_micros = round(start_time.timestamp() * 1_000_000)
        self.finite = limit is not None
        self.live = True

    def arrival(self, row: int) -> float:
        return self.first + row // self.burst * self.burst / self.rate

    def arrivals(self, start: int, end: int) -> npt.NDArray[np.float64]:
        """Arrival of the rows from ``start`` up to ``end``."""
        return self.first + np.arange(start, end) // self.burst * self.burst / self.rate

    def batch(self, start: int, end: int) -> pa.RecordBatch:
        """The rows from ``start`` up to ``end``."""
        micros = arrays.empty(end - start, np.int64)
        np.rint(self.arrivals(start, end) * 1_000_000, out=micros, casting="unsafe")
        micros += self.start_micros
        values = pa.array(arrays.arange(start, end))
        times = pa.array(micros).cast(self.schema.field("timestamp").type)
        return pa.RecordBatch.from_arrays([values, times], schema=self.schema)

    def due(self, now: float) -> int:
        """How many rows have arrived by ``now``."""
        burst = max(0, math.floor((now - self.first) * self.rate / self.burst))
        # The estimate may be off by one burst where the division rounds.
        while self.arrival(burst * self.burst) <= now:
            burst += 1
        while burst > 0 and self.arrival((burst - 1) * self.burst) > now:
            burst -= 1
        rows = burst * self.burst
        return rows if self.limit is None else min(rows, self.limit)

    def open(self) -> Reader:
        return _RateReader(self)


class _RateReader(Reader):
    def __init__(self, source: RateSource) -> None:
        self._source = source
        self._next = 0

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        source, start = self._source, self._next
        if source.limit is not None and start >= source.limit:
            return None
        end = min(source.due(now), start + max_rows)
        if end <= start:
            return Wait(source.arrival(start))
        self._next = end
        return Chunk(source.batch(start, end), source.arrivals(start, end))


def from_rate(
    rows_per_second: float,
    limit: int | None = None,
    *,
    burst: int = 1,
    first: float = 0.0,
    start_time: datetime = _START,
) -> RateSource:
    """A source of ``value BIGINT, timestamp TIMESTAMP``: 0, 1, 2, ... at ``rows_per_second``.

    ``limit`` rows in all (None: it never ends), ``burst`` of them at a time, the first of them after
    ``first`` seconds.  The timestamp is the time of arrival counted from ``start_time``, which is fixed so
    that runs can be repeated exactly.

    >>> from_rate(10, limit=100).finite
    True
    """
    if isinstance(rows_per_second, bool) or not isinstance(rows_per_second, (int, float)):
        raise SourceError(f"from_rate: rows_per_second must be a number, not {rows_per_second!r}.")
    if not (rows_per_second > 0 and math.isfinite(rows_per_second)):
        raise SourceError(f"from_rate: rows_per_second must be more than 0, not {rows_per_second}.")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise SourceError(f"from_rate: limit must be a number of rows or None, not {limit!r}.")
    if isinstance(burst, bool) or not isinstance(burst, int) or burst < 1:
        raise SourceError(f"from_rate: burst must be at least 1 row, not {burst!r}.")
    if isinstance(first, bool) or not isinstance(first, (int, float)) or not 0 <= first < math.inf:
        raise SourceError(f"from_rate: first must be a number of seconds, 0 or more, not {first!r}.")
    return RateSource(float(rows_per_second), limit, burst, start_time, float(first))
