"""The five TPCx-BB queries over rows in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from benchmarks.workloads.tpcx_bb import streams
from headgate.api import App
from headgate.connectors.batches import from_batches
from headgate.connectors.python import to_function
from headgate.connectors.source import Source
from headgate.demo.examples import load_example

QUERIES = ("q1", "q2", "q3", "q4", "q15")
_SALES = ("q1", "q15")


class Shop:
    """So many clicks and sales in memory, that reading them is no part of what is measured."""

    def __init__(self, rows: int, seed: int = 1) -> None:
        self.rows = rows
        self._batches = {
            table: list(streams.stream(rows, seed=seed, batch_rows=131_072, table=table))
            for table in streams.STREAMS
        }
        self._item, self.web_page = (streams.dimension(name, seed=seed) for name in ("item", "web_page"))

    def batches(self, query: str, rows: int) -> list[pa.RecordBatch]:
        """The first rows of the query's stream."""
        return list(_first(self._batches["store_sales" if query in _SALES else "web_clickstreams"], rows))

    def at_once(self, query: str, rows: int) -> App:
        """The query over rows that have all arrived."""
        return self.over(query, from_batches(self.batches(query, rows)))

    def over(self, query: str, source: Source) -> App:
        """The query over rows from this source."""
        app = App(query)
        stream = app.source("rows", source)
        more = {"q4": (self.web_page,), "q15": (self._item,)}.get(query, ())
        answers = getattr(load_example(f"tpcx_bb/{query}"), query)(stream, *more)
        answers.to(query, to_function(_ignore))
        return app


def _first(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if rows <= 0:
            return
        yield batch.slice(0, rows)
        rows -= batch.num_rows


def _ignore(query: str, batch: Any) -> None:
    pass
