"""Finite requests to measure task scheduling with: pipelines, and nets of sorts and merges.

The papers' requests are queries over finite data that share nothing; what their plans have in common are
long pipelines, and sorts that are decomposed into sorting boxes and a net of merging ones (Bobox, section 2;
LAS, section 6.1.1).  Every request has a source, boxes and an output of its own.

    app = requests.network(count=16, kind="sort_merge", rows=200_000)
    app.run("threads", "las")

The five TPCx-BB queries over finite files are requests too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import headgate as hg
from benchmarks.workloads.merging import Merge
from headgate.api import Stream
from headgate.connectors.sink import Sink
from headgate.demo.examples import load_example
from headgate.errors import PipelineError, nearest

SCHEMA = pa.schema([("at", pa.timestamp("us")), ("key", pa.int64()), ("x", pa.int64()), ("y", pa.float64())])
BATCH = 32_768
KEYS = 64
_READS = {
    "q1": ("store_sales",),
    "q2": ("web_clickstreams",),
    "q3": ("web_clickstreams",),
    "q4": ("web_clickstreams", "web_page"),
    "q15": ("store_sales", "item"),
}
"""What each TPCx-BB query reads: a stream, and a table that it looks things up in."""
TPCX_BB = tuple(_READS)
LONG = 8
"""Boxes of each chain of a parallel request."""
WINDOWS = 8
"""Parts in which a sort–merge net sorts its input: it closes one after the other."""


def network(
    count: int = 1,
    kind: str = "pipeline",
    rows: int = 100_000,
    size: int = 8,
    *,
    seed: int = 0,
    to: Callable[[str], Sink] | None = None,
) -> hg.App:
    """An application of ``count`` requests, ``r0`` the oldest, each over that many rows.

    ``kind``: "pipeline", a chain of ``size`` boxes; "sort_merge", ``size`` sorting boxes with a tree of
    merging ones; "mixed", both in turns.  Or over ``size`` parts of the rows, each read by itself:
    "parallel", a chain for each; "merges", one chain of boxes that merge another part in, each.  ``to`` makes
    the sink of a request; by default results are let go.
    """
    known = [*KINDS, *SCANS, "mixed"]
    if kind not in known:
        raise PipelineError(
            f"requests.network(kind={kind!r}): there is no such kind.{nearest(kind, known)} "
            f"There are: {', '.join(known)}."
        )
    if min(count, rows, size) < 1:
        raise PipelineError(
            f"requests.network(count={count}, rows={rows}, size={size}): each must be at least 1."
        )
    app = hg.App(f"{count}-{kind}")
    kinds = list(KINDS)
    for number in range(count):
        sink = hg.to_function(_let_go) if to is None else to(f"r{number}")
        if kind in SCANS:
            parts = [batches(max(rows // size, 1), seed + number * size + part) for part in range(size)]
            streams = [app.source(f"s{number}-{n}", hg.from_batches(part)) for n, part in enumerate(parts)]
            made = SCANS[kind](streams)
        else:
            stream = app.source(f"s{number}", hg.from_batches(batches(rows, seed + number)))
            made = KINDS[kinds[number % len(kinds)] if kind == "mixed" else kind](stream, size)
        made.to(f"r{number}", sink)
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
    """A request's data; times run on through ``WINDOWS`` hours."""
    draw = np.random.default_rng(seed)
    at = (np.arange(rows) * (WINDOWS * 3_600_000_000 // rows)).astype("datetime64[us]")
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


def sort_merge(stream: Stream, size: int) -> Stream:
    """A scan, sorts of the parts that a remainder of x makes, and a tree of boxes that merge two each.

    A sorting box lets an hour go when it has seen a later one, and at the end all that is left.
    """
    stream = scan(stream)
    parts = [
        stream.filter(f"x % {size} = {part}").top(1 << 40, by="y, x", every="1 hour", on="at")
        for part in range(size)
    ]
    while len(parts) > 1:
        merged = [merge(one, other) for one, other in zip(parts[::2], parts[1::2], strict=False)]
        parts = merged + parts[len(merged) * 2 :]
    return parts[0]


def merge(one: Stream, other: Stream) -> Stream:
    """Two streams that are sorted by y within every hour, as one."""
    return one.apply(Merge(one.schema, _hour_and_y), other)


def _hour_and_y(batch: pa.RecordBatch) -> npt.NDArray[np.float64]:
    """The number of the hour, and y, which is below 1, behind the point."""
    place: npt.NDArray[np.float64] = _times(batch) // 3_600_000_000 + batch.column("y").to_numpy()
    return place


def _times(batch: pa.RecordBatch) -> npt.NDArray[np.float64]:
    times: npt.NDArray[np.float64] = batch.column("at").cast(pa.int64()).to_numpy().astype(np.float64)
    return times


def scan(stream: Stream) -> Stream:
    """The box with which a plan begins, as the papers' do: what it sends is hot in its worker's cache."""
    return stream.with_columns("y * 0.5 AS y")


def parallel(streams: Sequence[Stream]) -> Stream:
    """Pipelines side by side, which leave no core without work."""
    first, *others = [pipeline(stream, LONG) for stream in streams]
    return first.union(*others) if others else first


def merges(streams: Sequence[Stream]) -> Stream:
    """A pipeline of boxes that merge what the one before sends with what a box of their own scans, by time.

    That is what a query of many merge joins is, such as Q2 of SP²Bench.  Every stage lets about half of its
    rows pass, so that all have about as much to do.
    """
    first, *others = [scan(stream) for stream in streams]
    for stage, other in enumerate(others):
        first = first.apply(Merge(first.schema, _times, half=stage), other)
    return first


SCANS: dict[str, Callable[[Sequence[Stream]], Stream]] = {"parallel": parallel, "merges": merges}
KINDS: dict[str, Callable[[Stream, int], Stream]] = {"pipeline": pipeline, "sort_merge": sort_merge}


def _let_go(query: str, batch: pa.RecordBatch) -> None:
    pass
