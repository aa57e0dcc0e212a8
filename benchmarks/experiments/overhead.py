"""What the engine costs: a chain of kernels through it, against the same kernels in a bare loop.

Filter, compute, filter, group, over packets of several sizes, on one and on two workers, in one run and in
turns, so that whatever else the machine does falls on both alike.  With bytewax and Pathway installed
(``make compare``) the same chain runs there too.
"""

from __future__ import annotations

import gc
import importlib.util
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from benchmarks.peers import bytewax, pathway
from benchmarks.result import Result
from headgate.api import App
from headgate.connectors.batches import from_batches
from headgate.connectors.python import to_function
from headgate.engines.base import default_packet_rows
from headgate.engines.threads import Threads

SCHEMA = pa.schema([("k", pa.int64()), ("x", pa.float64()), ("y", pa.float64())])
GROUPED = pa.schema([("k", pa.int64()), ("z_sum", pa.float64())])
CUT = pa.scalar(0.2)
LIMIT = pa.scalar(0.5)
ROUNDS = 5
"""Timings are the best of so many rounds, bare loop and engine in turns."""
PEERS = {"bytewax": bytewax.chain, "pathway": pathway.chain}


def _data(rows: int) -> pa.RecordBatch:
    random = np.random.default_rng(0)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(random.integers(0, 100, rows)),
            pa.array(random.random(rows)),
            pa.array(random.random(rows)),
        ],
        schema=SCHEMA,
    )


def _group(batch: pa.RecordBatch) -> pa.RecordBatch:
    grouped = pa.Table.from_batches([batch]).group_by("k", use_threads=False).aggregate([("z", "sum")])
    return grouped.combine_chunks().to_batches()[0]


def _bare(packet: pa.RecordBatch) -> pa.RecordBatch:
    packet = packet.filter(pc.greater(packet.column(1), CUT))
    packet = packet.append_column("z", pc.multiply(packet.column(1), packet.column(2)))
    packet = packet.filter(pc.less(packet.column(3), LIMIT))
    return _group(packet)


def _cut(data: pa.RecordBatch, packet_rows: int) -> list[pa.RecordBatch]:
    return [data.slice(start, packet_rows) for start in range(0, data.num_rows, packet_rows)]


def bare_loop(packets: list[pa.RecordBatch], threads: int) -> None:
    """The kernels alone; with two threads, each takes the next packet that is left."""
    if threads == 1:
        for packet in packets:
            _bare(packet)
        return
    shared = iter(packets)
    lock = threading.Lock()

    def following() -> Iterator[pa.RecordBatch]:
        while True:
            with lock:
                packet = next(shared, None)
            if packet is None:
                return
            yield packet

    def work() -> None:
        for packet in following():
            _bare(packet)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def engine_run(data: pa.RecordBatch, packet_rows: int, workers: int) -> None:
    """The same chain as an application on threads."""
    app = App("overhead")
    stream = app.source("rows", from_batches([data]))
    chain = stream.filter("x > 0.2D").with_columns("x * y AS z").filter("z < 0.5D")
    chain.map_packets(_group, schema=GROUPED).to("sums", to_function(lambda query, batch: None))
    app.run(Threads(workers=workers, packet_rows=packet_rows), until="drained")


def _seconds(work: Callable[[], None]) -> float:
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def run(quick: bool, console: Console) -> list[Result]:
    """The whole table over packet sizes, then the claims."""
    rows = 2_000_000 if quick else 16_000_000
    data = _data(rows)
    sizes = [1024, 8192, default_packet_rows(), 131_072]
    table = Table(title="rows per second, millions", title_justify="left")
    for column in ("packet rows", "workers", "bare loop", "engine", "ratio"):
        table.add_column(column, justify="right")
    results: list[Result] = []
    arrow_threads = pa.cpu_count()
    pa.set_cpu_count(1)
    fastest = 0.0
    try:
        for size in sorted(set(sizes)):
            for workers in (1, 2):
                packets = _cut(data, size)
                bare, engine = [], []
                for _ in range(ROUNDS):
                    bare.append(_seconds(lambda: bare_loop(packets, workers)))  # noqa: B023 - called at once
                    engine.append(_seconds(lambda: engine_run(data, size, workers)))  # noqa: B023
                rates = rows / min(bare) / 1e6, rows / min(engine) / 1e6
                table.add_row(
                    f"{size:,}",
                    str(workers),
                    f"{rates[0]:.1f}",
                    f"{rates[1]:.1f}",
                    f"{rates[1] / rates[0]:.2f}",
                )
                fastest = max(fastest, rates[1])
                claimed = (workers == 1 and size == default_packet_rows()) or (workers == 2 and size >= 8192)
                results.append(
                    Result(
                        f"overhead, {size:,} rows per packet, {workers} worker{'s' if workers > 1 else ''}",
                        "our aim",
                        "M rows/s: at least 0.8 of the bare loop" if claimed else "M rows/s",
                        rates[1],
                        rates[0],
                        rates[1] >= 0.8 * rates[0] if claimed else None,
                    )
                )
    finally:
        pa.set_cpu_count(arrow_threads)
    console.print(table)
    return results + _against_others(data, quick, fastest, console)


def _against_others(data: pa.RecordBatch, quick: bool, ours: float, console: Console) -> list[Result]:
    results = []
    sample = data.slice(0, 100_000 if quick else 400_000)
    for name, chain in PEERS.items():
        if importlib.util.find_spec(name) is None:
            console.print(
                f"{name} is not installed; `make compare` installs it, and it is then measured here too."
            )
            continue
        theirs = sample.num_rows / chain(sample) / 1e6
        console.print(f"{name}: {theirs:.3f} M rows/s; Headgate at its best: {ours:.1f} M rows/s")
        results.append(
            Result(
                f"overhead, against {name}",
                "our aim",
                "M rows/s: at least 30 times",
                ours,
                theirs,
                ours >= 30 * theirs,
            )
        )
    return results
