"""The local allocator against malloc and Arrow's pools, by size of the buffers, and under the five queries.

Every allocator runs in a process of its own, since what a heap does depends on what it has been through.  The
processes take turns, and of each figure the best is kept: the least disturbed.  Seconds are of processor
time, page faults included, so that neighbours on the machine count as little as possible.
"""

from __future__ import annotations

import json
import resource
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from benchmarks import apart
from benchmarks.result import Result
from benchmarks.workloads import tpcx_bb
from headgate.connectors.python import to_function
from headgate.demo.examples import load_example
from headgate.engines.threads import Threads
from headgate.memory import Allocator
from headgate.memory.classes import SIZES

Make = Callable[[int], Any]
PAPER = "locality-aware scheduling, section 6.4"
MALLOC = "malloc"
LOCAL = "local"
QUEUED = 16
"""Buffers that are in use at once, as many as a queue holds packets."""
CLASSES = (0, 15, 30, 41, 51, 62)
"""Classes that are measured: 8 kB, 23 kB, 62 kB, 131 kB, 258 kB and 543 kB."""
QUERIES = ("q1", "q2", "q3", "q4", "q15")


def sources() -> list[str]:
    return [LOCAL, MALLOC, *(f"arrow {name}" for name in pa.supported_memory_backends())]


def maker(source: str) -> tuple[Make, Callable[[], None]]:
    """How to get an array of so many bytes from there, and what to do every once in a while."""
    if source == LOCAL:
        local = Allocator()
        return (lambda size: local.array(size // 8, np.int64)), local.recollect
    if source == MALLOC:
        return (lambda size: np.empty(size // 8, np.int64)), lambda: None
    pool = getattr(pa, f"{source.removeprefix('arrow ')}_memory_pool")()
    return (lambda size: np.frombuffer(pa.allocate_buffer(size, pool), np.int64)), lambda: None


# --- one process ----------------------------------------------------------------------------------------


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def allocation_rate(make: Make, size: int, seconds: float) -> float:
    """Buffers a second, allocated and freed at once, untouched."""
    count, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < seconds:
        for _ in range(100):
            make(size)
        count += 100
    return count / spent


def work(make: Make, tidy: Callable[[], None], size: int, seconds: float) -> tuple[float, float]:
    """Bytes a second filled by numpy and read by Arrow, a queue's worth in use; page faults per buffer."""
    values = np.arange(size // 8, dtype=np.int64)
    queue: deque[Any] = deque()

    def some(buffers: int) -> None:
        for _ in range(buffers):
            array = make(size)
            np.add(values, 1, out=array)
            queue.append(array)
            if len(queue) > QUEUED:
                pc.sum(pa.array(queue.popleft()))
        tidy()

    some(4 * QUEUED)
    count, before, begin = 0, faults(), time.process_time()
    while (spent := time.process_time() - begin) < seconds:
        some(QUEUED)
        count += QUEUED
    return count * size / spent, (faults() - before) / count


def passing(make: Make, tidy: Callable[[], None], size: int, seconds: float) -> float:
    """Bytes a second that one thread fills and another reads and frees."""
    values = np.arange(size // 8, dtype=np.int64)
    passed: SimpleQueue[Any] = SimpleQueue()
    room = threading.Semaphore(QUEUED)

    def read() -> None:
        while (array := passed.get()) is not None:
            pc.sum(pa.array(array))
            del array
            room.release()

    reader = threading.Thread(target=read)
    reader.start()
    count, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < seconds:
        for _ in range(QUEUED):
            room.acquire()
            array = make(size)
            np.add(values, 1, out=array)
            passed.put(array)
            del array
        tidy()
        count += QUEUED
    passed.put(None)
    reader.join()
    return count * size / spent


def measure_source(source: str, seconds: float) -> dict[str, list[float]]:
    """For each class: buffers a second, GB/s on one thread, page faults per buffer, GB/s on two threads."""
    make, tidy = maker(source)
    found: dict[str, list[float]] = {}
    for which in CLASSES:
        size = SIZES[which]
        rate = allocation_rate(make, size, seconds / 4)
        throughput, per_buffer = work(make, tidy, size, seconds)
        found[str(size)] = [rate, throughput / 1e9, per_buffer, passing(make, tidy, size, seconds) / 1e9]
    return found


def measure_queries(allocator: str, folder: str) -> dict[str, float]:
    """The five queries together, over files; no box is split, which a busy machine's times might suggest."""
    ignore = to_function(lambda query, batch: None)
    app = load_example("tpcx_bb/all").build(folder, dict.fromkeys(QUERIES, ignore))
    begin = time.process_time()
    report = app.run(Threads(workers=2, allocator=allocator, split=False), until="drained")
    spent = time.process_time() - begin
    for query in report.queries.values():
        if query.error is not None:
            raise query.error
    memory = report.memory
    assert memory is not None
    return {
        "rows/s": report.tuples / spent,
        "page faults": memory.page_faults,
        "share": memory.share,
        "in classes": memory.requested_bytes / max(memory.requested_bytes + memory.passed_bytes, 1),
        "superblocks": memory.superblocks,
        "recollected": memory.recollected,
        "outstanding": memory.outstanding,
        "rounding": memory.rounding,
        "fragmentation": memory.fragmentation,
    }


def _apart(function: str, *given: Any) -> dict[str, Any]:
    """What a function of this module returns in a process of its own."""
    program = (
        "import json, sys; from benchmarks.experiments import allocator; "
        f"print(json.dumps(allocator.{function}(*json.loads(sys.argv[1]))))"
    )
    said: dict[str, Any] = apart.found(f"{function}{given}", program, json.dumps(given))
    return said


# --- the benchmark --------------------------------------------------------------------------------------


def run(quick: bool, console: Console) -> list[Result]:
    """By size, then the five queries."""
    return [*by_size(quick, console), *under_queries(quick, console)]


def by_size(quick: bool, console: Console) -> list[Result]:
    turns, seconds = (1, 0.05) if quick else (5, 0.3)
    found: dict[str, list[dict[str, list[float]]]] = {source: [] for source in sources()}
    for _ in range(turns):
        for source, runs in found.items():
            runs.append(_apart("measure_source", source, seconds))

    def best(source: str, size: int, what: int) -> float:
        return max(run[str(size)][what] for run in found[source])

    results: list[Result] = []
    titles = {
        0: "buffers a second, allocated and freed",
        1: "filled and read, GB/s",
        3: "filled by one thread, freed by another, GB/s",
    }
    for what, title in titles.items():
        table = _table(title, found)
        for which in CLASSES:
            size = SIZES[which]
            values = {source: best(source, size, what) for source in found}
            ahead = max(values, key=lambda source: values[source])
            cells = [f"[bold]{v:,.3g}[/]" if s == ahead else f"{v:,.3g}" for s, v in values.items()]
            table.add_row(f"{size:,}", *cells)
            if what:
                results.append(
                    Result(
                        f"allocator, {size / 1e3:.0f} kB, {title}",
                        PAPER,
                        "GB/s: never behind malloc (5 % for noise)",
                        values[LOCAL],
                        values[MALLOC],
                        values[LOCAL] >= 0.95 * values[MALLOC],
                    )
                )
        console.print(table)
    table = _table("page faults per buffer", found)
    for which in CLASSES:
        size = SIZES[which]
        medians = [statistics.median([run[str(size)][2] for run in runs]) for runs in found.values()]
        table.add_row(f"{size:,}", *(f"{value:,.3g}" for value in medians))
    console.print(table)
    return results


def _table(title: str, columns: Sequence[str] | dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("bytes", *columns):
        table.add_column(column, justify="right")
    return table


def under_queries(quick: bool, console: Console) -> list[Result]:
    rows, turns = (400_000, 1) if quick else (4_000_000, 5)
    allocators = ("default", LOCAL, "system", "mimalloc")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in allocators}
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        console.print(f"generating {rows:,} rows …")
        tpcx_bb.generate(Path(folder), rows // 2, seed=1)
        for turn in range(turns):
            for name in allocators if turn % 2 == 0 else allocators[::-1]:
                found[name].append(_apart("measure_queries", name, folder))
    table = Table(title="five TPCx-BB queries, two workers", title_justify="left")
    for column in ("allocator", "rows/s (best)", "rows/s (median)", "page faults", "share of bytes ours"):
        table.add_column(column, justify="left" if column == "allocator" else "right")
    for name, runs in found.items():
        every = [run["rows/s"] for run in runs]
        share = f"{runs[0]['share']:.1%}" if name == LOCAL else "-"
        pages = statistics.median([run["page faults"] for run in runs])
        table.add_row(name, f"{max(every):,.0f}", f"{statistics.median(every):,.0f}", f"{pages:,.0f}", share)
    console.print(table)
    ours = found[LOCAL][0]
    console.print(
        f"local: {ours['in classes']:.0%} of our bytes in size classes, {ours['superblocks']:.0f} "
        f"superblocks, {ours['recollected']:,.0f} blocks recollected from other threads, "
        f"{ours['rounding']:.1%} lost to rounding, fragmentation {ours['fragmentation']:.2f}, "
        f"{ours['outstanding']:.0f} blocks left at the end"
    )
    rates = {name: max(run["rows/s"] for run in runs) for name, runs in found.items()}
    return [
        Result(
            "allocator, five TPCx-BB queries",
            PAPER,
            "rows/s: local never behind malloc (5 % for noise)",
            rates[LOCAL],
            rates["default"],
            rates[LOCAL] >= 0.95 * rates["default"],
        ),
        Result(
            "allocator, blocks left at the end of a run",
            "leak check",
            "blocks: none",
            max(run["outstanding"] for run in found[LOCAL]),
            None,
            max(run["outstanding"] for run in found[LOCAL]) == 0,
        ),
    ]
