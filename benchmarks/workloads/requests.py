"""Finite requests to measure task scheduling with: pipelines, and the five TPCx-BB queries over files.

    app = requests.pipelines(count=16, rows=200_000)
    app.run("threads", "las")

The papers' own requests are SP²Bench's questions (``sp2bench``) and a plan of 170 operators (``xquery``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headgate as hg
from headgate.api import Stream
from headgate.connectors.sink import Sink
from headgate.demo.examples import load_example
from headgate.errors import PipelineError

SCHEMA = pa.schema([("at", pa.timestamp("us")), ("key", pa.int64()), ("x", pa.int64()), ("y", pa.float64())])
BATCH = 32_768
KEYS = 64
HOURS = 8
_READS = {
    "q1": ("store_sales",),
    "q2": ("web_clickstreams",),
    "q3": ("web_clickstreams",),
    "q4": ("web_clickstreams", "web_page"),
    "q15": ("store_sales", "item"),
}
"""What each TPCx-BB query reads: a stream, and a table that it looks things up in."""
TPCX_BB = tuple(_READS)


def pipelines(
    count: int = 1,
    rows: int = 100_000,
    size: int = 8,
    *,
    seed: int = 0,
    to: Callable[[str], Sink] | None = None,
) -> hg.App:
    """An application of ``count`` requests, ``r0`` the oldest, each a chain of ``size`` boxes.

    ``to`` makes the sink of a request; by default results are let go.
    """
    if min(count, rows, size) < 1:
        raise PipelineError(
            f"requests.pipelines(count={count}, rows={rows}, size={size}): each must be at least 1."
        )
    app = hg.App(f"{count}-pipelines")
    for number in range(count):
        sink = hg.to_function(_let_go) if to is None else to(f"r{number}")
        stream = app.source(f"s{number}", hg.from_batches(batches(rows, seed + number)))
        pipeline(stream, size).to(f"r{number}", sink)
    return app


def queries(data: str | Path, count: int, names: Sequence[str] = TPCX_BB) -> hg.App:
    """``count`` requests over the files that ``headgate generate tpcx-bb`` writes: its queries in turns.

    Every request reads the files itself.  ``r0`` is the oldest; results are let go.
    """
    app = hg.App(f"{count}-tpcx-bb")
    tables = {name: pq.read_table(f"{data}/{name}") for name in ("item", "web_page")}
    for number in range(count):
        name = names[number % len(names)]
        read, *more = _READS[name]
        stream = app.source(f"s{number}", hg.from_files(f"{data}/{read}", format="parquet"))
        answers = getattr(load_example(f"tpcx_bb/{name}"), name)(stream, *(tables[table] for table in more))
        answers.to(f"r{number}", hg.to_function(_let_go))
    return app


def batches(rows: int, seed: int) -> list[pa.RecordBatch]:
    """A request's data; times run on through ``HOURS`` hours."""
    draw = np.random.default_rng(seed)
    at = (np.arange(rows) * (HOURS * 3_600_000_000 // rows)).astype("datetime64[us]")
    columns = [
        pa.array(at),
        pa.array(draw.integers(0, KEYS, rows)),
        pa.array(draw.integers(0, 1_000_000, rows)),
        pa.array(draw.random(rows)),
    ]
    whole = pa.record_batch(columns, schema=SCHEMA)
    return [whole.slice(begin, BATCH) for begin in range(0, rows, BATCH)]


def pipeline(stream: Stream, size: int) -> Stream:
    """Boxes that compute, filter a little, and keep a running sum per key, one after the other."""
    for place in range(size):
        if place % 4 == 3:
            stream = stream.filter(f"x % 11 <> {place % 11}")
        elif place == size // 2:
            stream = stream.key_by("key").running("sum(x) AS total").select("at", "key", "total AS x", "y")
        else:
            stream = stream.with_columns(f"x + {place} AS x", f"y * 0.5 + {place} AS y")
    return stream


def _let_go(query: str, batch: pa.RecordBatch) -> None:
    pass
