"""The TPCx-BB streams as parquet files, of any size (ordered processing, section 7 and table 1).

    from benchmarks.workloads import tpcx_bb

    tpcx_bb.generate("data/tpcx-bb", rows=1_000_000)

The rows are those of ``streams``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.workloads.tpcx_bb.streams import (
    DISORDER,
    ITEMS,
    ROWS_PER_DAY,
    SCHEMAS,
    STREAMS,
    USERS,
    dimension,
    stream,
)
from headgate.demo.tpcx_bb.tables import START

ROW_GROUP = 131_072
ROWS_PER_FILE = 8 * ROW_GROUP

Progress = Callable[[str, int, int], None]
"""Called with a table's name, its rows so far, and its rows in the end."""


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
