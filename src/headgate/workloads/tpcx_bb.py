"""Data for the TPCx-BB streaming queries (ordered processing, section 7 and table 1).

Two streams, ``web_clickstreams`` and ``store_sales``, and two dimensions, ``item`` and ``web_page``, with
the benchmark's columns, plus ``wcs_ts`` and ``ss_ts``: the event time as a timestamp.  Rows come in order
of arrival: by event time, up to a bounded disorder.  The first n rows are the same whatever follows.

    from headgate.workloads import tpcx_bb

    tpcx_bb.generate("data/tpcx-bb", rows=1_000_000)
    clicks = hg.from_batches(tpcx_bb.stream(60_000, seed=7))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.errors import HeadgateError, nearest
from headgate.workloads import shop_clicks, shop_dimensions, shop_sales
from headgate.workloads.arrivals import SECOND

SCHEMAS: dict[str, pa.Schema] = {
    "web_clickstreams": shop_clicks.WEB_CLICKSTREAMS,
    "store_sales": shop_sales.STORE_SALES,
    "item": shop_dimensions.ITEM,
    "web_page": shop_dimensions.WEB_PAGE,
}
STREAMS = ("web_clickstreams", "store_sales")

START = datetime(2024, 1, 4, tzinfo=UTC)
"""A Thursday, so that weeks from here are weeks from 1970-01-01, as windows are."""
ROWS_PER_DAY = 100_000
DISORDER = 60.0
USERS = 50_000
ITEMS = 10_000
ROW_GROUP = 131_072
ROWS_PER_FILE = 8 * ROW_GROUP

Progress = Callable[[str, int, int], None]
"""Called with a table's name, its rows so far, and its rows in the end."""


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
    module_rows = shop_clicks.clicks if table == "web_clickstreams" else shop_sales.sales
    to_batch = shop_clicks.batch if table == "web_clickstreams" else shop_sales.batch
    epoch = round(start.timestamp()) * SECOND
    chunks = module_rows(seed, epoch, rows_per_day, round(disorder * SECOND), users, items)
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
        return shop_dimensions.item(items, seed)
    if table == "web_page":
        return shop_dimensions.web_page()
    raise HeadgateError(f"TPCx-BB has no dimension '{table}': it has 'item' and 'web_page'.")


def generate(
    directory: str | Path,
    rows: int,
    seed: int = 0,
    start: datetime = START,
    progress: Progress | None = None,
    *,
    rows_per_day: float = ROWS_PER_DAY,
    disorder: float = DISORDER,
    users: int = USERS,
    items: int = ITEMS,
    rows_per_file: int = ROWS_PER_FILE,
) -> Path:
    """Write ``rows`` clicks, ``rows`` store sales and both dimensions as parquet; return the directory.

    One folder per table, files in order of arrival by name.  Only one row group is in memory at a time,
    whatever the number of rows.  Files of an earlier run in these folders are replaced.
    """
    root = Path(directory)
    for table in STREAMS:
        batches = stream(
            rows,
            seed,
            min(ROW_GROUP, rows_per_file),
            table=table,
            start=start,
            rows_per_day=rows_per_day,
            disorder=disorder,
            users=users,
            items=items,
        )
        _write_stream(_fresh(root / table), SCHEMAS[table], batches, rows, rows_per_file, progress)
    for table in ("item", "web_page"):
        pq.write_table(dimension(table, seed, items), _fresh(root / table) / f"{table}.parquet")
    return root


def _fresh(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.parquet"):
        old.unlink()
    return folder


def _write_stream(
    folder: Path,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    rows: int,
    rows_per_file: int,
    progress: Progress | None,
) -> None:
    done = files = 0
    writer: pq.ParquetWriter | None = None
    in_file = 0
    for batch in batches:
        if writer is None or in_file + batch.num_rows > rows_per_file:
            if writer is not None:
                writer.close()
            writer, in_file = pq.ParquetWriter(folder / f"part-{files:05d}.parquet", schema), 0
            files += 1
        writer.write_batch(batch)
        in_file += batch.num_rows
        done += batch.num_rows
        if progress is not None:
            progress(folder.name, done, rows)
    if writer is None:
        writer = pq.ParquetWriter(folder / "part-00000.parquet", schema)
    writer.close()
