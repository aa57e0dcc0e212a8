"""Data for the TPCx-BB streaming queries (ordered processing, section 7 and table 1).

Two streams, ``web_clickstreams`` and ``store_sales``, and two dimensions, ``item`` and ``web_page``, with
the benchmark's columns, plus ``wcs_ts`` and ``ss_ts``: the event time as a timestamp.  Rows come in order
of arrival: by event time, up to a bounded disorder.  The first n rows are the same whatever follows.

    clicks = hg.from_batches(streams.stream(60_000, seed=7))
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pyarrow as pa

from benchmarks.workloads.tpcx_bb.clicks import clicks
from benchmarks.workloads.tpcx_bb.sales import sales
from headgate.demo.tpcx_bb import tables
from headgate.demo.tpcx_bb.tables import SECOND, START
from headgate.errors import HeadgateError, nearest

SCHEMAS: dict[str, pa.Schema] = {
    "web_clickstreams": tables.WEB_CLICKSTREAMS,
    "store_sales": tables.STORE_SALES,
    "item": tables.ITEM,
    "web_page": tables.WEB_PAGE,
}
STREAMS = ("web_clickstreams", "store_sales")

ROWS_PER_DAY = 100_000
DISORDER = 60.0
USERS = 50_000
ITEMS = 10_000


def stream(
    rows: int,
    seed: int = 0,
    batch_rows: int = 32_768,
    *,
    table: str = "web_clickstreams",
    start: datetime = START,
    rows_per_day: float = ROWS_PER_DAY,
    disorder: float = DISORDER,
    users: int = USERS,
    items: int = ITEMS,
) -> Iterator[pa.RecordBatch]:
    """Yield the first ``rows`` rows of a stream as batches of ``batch_rows``.

    ``rows_per_day`` sets how much event time they span, and ``disorder`` by how many seconds, at most,
    a row comes after one of a later time.  Users and items are as skewed as in a shop.
    """
    if table not in STREAMS:
        raise HeadgateError(f"TPCx-BB has no stream '{table}'.{nearest(table, STREAMS)} It has {STREAMS}.")
    if rows < 0 or batch_rows < 1 or rows_per_day <= 0 or disorder < 0 or users < 1 or items < 1:
        raise HeadgateError(
            "TPCx-BB: rows and disorder must not be negative; the other sizes must be positive."
        )
    generated, to_batch = (clicks, tables.clicks) if table == "web_clickstreams" else (sales, tables.sales)
    epoch = round(start.timestamp()) * SECOND
    chunks = generated(seed, epoch, rows_per_day, round(disorder * SECOND), users, items)
    return _recut((to_batch(chunk) for chunk in chunks), rows, batch_rows)


def _recut(batches: Iterator[pa.RecordBatch], rows: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """The first ``rows`` rows, in batches of ``batch_rows`` and a smaller last one."""
    waiting: list[pa.RecordBatch] = []
    waiting_rows = 0
    while rows > 0:
        size = min(batch_rows, rows)
        while waiting_rows < size:
            waiting.append(next(batches))
            waiting_rows += waiting[-1].num_rows
        whole = pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]
        offset = 0
        while rows > 0 and whole.num_rows - offset >= (size := min(batch_rows, rows)):
            yield whole.slice(offset, size)
            offset += size
            rows -= size
        waiting = [whole.slice(offset)]
        waiting_rows = waiting[0].num_rows


def dimension(table: str, seed: int = 0, items: int = ITEMS) -> pa.Table:
    """The ``item`` or ``web_page`` table that belongs to the streams of the same seed."""
    if table == "item":
        return tables.item(items, seed)
    if table == "web_page":
        return tables.web_page()
    raise HeadgateError(f"TPCx-BB has no dimension '{table}': it has 'item' and 'web_page'.")
