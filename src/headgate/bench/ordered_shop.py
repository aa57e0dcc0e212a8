"""The five TPCx-BB queries over rows in memory, at once or at a given rate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.api import App
from headgate.connectors.batches import from_batches
from headgate.connectors.python import to_function
from headgate.connectors.source import Chunk, Cutter, Reader, Source, Wait
from headgate.graph.schema import normalise, normalise_batch
from headgate.workloads import tpcx_bb
from headgate.workloads.examples import load_example

QUERIES = ("q1", "q2", "q3", "q4", "q15")
_SALES = ("q1", "q15")


class Shop:
    """So many clicks and sales in memory, that reading them is no part of what is measured."""

    def __init__(self, rows: int, seed: int = 1) -> None:
        self.rows = rows
        self._batches = {
            table: list(tpcx_bb.stream(rows, seed=seed, batch_rows=131_072, table=table))
            for table in tpcx_bb.STREAMS
        }
        self._item, self.web_page = (tpcx_bb.dimension(name, seed=seed) for name in ("item", "web_page"))

    def batches(self, query: str, rows: int) -> list[pa.RecordBatch]:
        """The first rows of the query's stream."""
        return list(_first(self._batches["store_sales" if query in _SALES else "web_clickstreams"], rows))

    def at_once(self, query: str, rows: int) -> App:
        """The query over rows that have all arrived."""
        return self._app(query, from_batches(self.batches(query, rows)))

    def paced(self, query: str, rows: int, rate: float) -> App:
        """The query over rows that arrive at a rate."""
        return self._app(query, Paced(self.batches(query, rows), rate))

    def _app(self, query: str, source: Source) -> App:
        app = App(query)
        stream = app.source("rows", source)
        more = {"q4": (self.web_page,), "q15": (self._item,)}.get(query, ())
        answers = getattr(load_example(f"tpcx_bb/{query}"), query)(stream, *more)
        answers.to(query, to_function(_ignore))
        return app


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


def _first(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if rows <= 0:
            return
        yield batch.slice(0, rows)
        rows -= batch.num_rows


def _ignore(query: str, batch: Any) -> None:
    pass
