"""The five TPCx-BB queries over rows that arrive at a given rate."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmarks.workloads.tpcx_bb.queries import Shop
from headgate.api import App
from headgate.connectors.source import Chunk, Cutter, Reader, Source, Wait
from headgate.graph.schema import normalise, normalise_batch


def paced(shop: Shop, query: str, rows: int, rate: float) -> App:
    """The query over rows that arrive at a rate."""
    return shop.over(query, Paced(shop.batches(query, rows), rate))


class Paced(Source):
    """Batches whose rows arrive at a steady rate by the clock, a burst at a time."""

    live = True
    finite = True
    EVERY = 0.005

    def __init__(self, batches: list[pa.RecordBatch], rate: float) -> None:
        self.schema = normalise(batches[0].schema)
        self.batches = [normalise_batch(batch, self.schema) for batch in batches]
        self.burst = max(1, round(rate * self.EVERY))

    def open(self) -> Reader:
        return _PacedReader(self)


class _PacedReader(Reader):
    """Gives whatever has arrived, as brokers and folders do: who is late finds more of it."""

    def __init__(self, source: Paced) -> None:
        self._cutter = Cutter(iter(source.batches))
        self._burst, self._every = source.burst, source.EVERY
        self._given = 0

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        arrived = (int(now / self._every) + 1) * self._burst - self._given
        if arrived <= 0:
            return Wait(self._given // self._burst * self._every)
        batch = self._cutter.take(min(arrived, max_rows))
        if batch is None:
            return None
        rows = np.arange(self._given, self._given + batch.num_rows)
        self._given += batch.num_rows
        return Chunk(batch, rows // self._burst * self._every)
