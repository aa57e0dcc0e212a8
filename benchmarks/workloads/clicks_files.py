"""Clicks of a shop as parquet files of any size: seven columns, in order of arrival.

    from benchmarks.workloads import clicks_files

    clicks_files.generate("data/clicks", rows=5_000_000)

A query that uses three of the seven columns shows what a scan saves.  Row groups of a million rows are what
Spark writes; smaller ones are what Headgate's own sink writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("click_id", pa.int64()),
        ("user_id", pa.int64()),
        ("item_id", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("kind", pa.string()),
        ("price", pa.float64()),
        ("referrer", pa.string()),
    ]
)
ROW_GROUP = 1 << 20
ROWS_PER_FILE = 4 * ROW_GROUP
START = 1_700_000_000_000_000
"""Microseconds from 1970 of the first click."""

_CHUNK = 1 << 17
_KINDS = pa.array(["view", "search", "cart", "order"])
_KIND_SHARES = (0.7, 0.2, 0.08, 0.02)
_REFERRERS = pa.array([f"https://shop.example/page/{number}" for number in range(2_000)])
_ITEMS = 10_000
_ANONYMOUS = 0.04


def clicks(
    rows: int, seed: int = 0, users: int = 50_000, rows_per_second: float = 500.0, disorder: float = 2.0
) -> Iterator[pa.RecordBatch]:
    """The first ``rows`` clicks.  A click comes at most ``disorder`` seconds after one of a later time."""
    random = np.random.default_rng(seed)
    for first in range(0, rows, _CHUNK):
        count = min(_CHUNK, rows - first)
        number = np.arange(first, first + count)
        late = random.integers(0, int(disorder * 1e6) + 1, count)
        times = START + (number * (1e6 / rows_per_second)).astype(np.int64) - late
        anonymous = random.random(count) < _ANONYMOUS
        # Some users and items are much more active than others.
        user = (users * random.random(count) ** 2).astype(np.int64)
        item = (_ITEMS * random.random(count) ** 3).astype(np.int64)
        kind = random.choice(len(_KINDS), count, p=_KIND_SHARES)
        referrer = random.integers(0, len(_REFERRERS), count)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(number),
                pa.array(user, mask=anonymous),
                pa.array(item),
                pa.array(times, SCHEMA.field("ts").type),
                _KINDS.take(pa.array(kind)),
                pa.array(np.round(random.gamma(2.0, 20.0, count), 2)),
                _REFERRERS.take(pa.array(referrer)),
            ],
            schema=SCHEMA,
        )


def generate(
    directory: str | Path,
    rows: int,
    seed: int = 0,
    *,
    users: int = 50_000,
    row_group: int = ROW_GROUP,
    rows_per_file: int = ROWS_PER_FILE,
) -> Path:
    """Write clicks as files whose names sort in order of arrival; return the directory.

    Files of an earlier run are replaced.
    """
    root = Path(directory)
    root.mkdir(parents=True, exist_ok=True)
    for old in root.glob("clicks-*.parquet"):
        old.unlink()
    table = pa.Table.from_batches(list(clicks(rows, seed, users)), SCHEMA)
    for number, first in enumerate(range(0, rows, rows_per_file)):
        part = table.slice(first, rows_per_file)
        pq.write_table(part, root / f"clicks-{number:05d}.parquet", row_group_size=row_group)
    return root
