"""Two hundred SELECTs over one source, added one after the other while the application runs.

One query filters a stream; each of the others filters it alike and computes columns of its own.  Counted are
the boxes that run in the end, one more than there are queries if all share the filter; the seconds that
adding takes; and every query's median latency from when it was added, so while others were added too.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import pyarrow as pa
from rich.console import Console

import headgate as hg
from benchmarks import apart
from benchmarks.result import Result

SELECTS = 200
RATE = 2_000
"""Rows a second."""


def select(number: int) -> str:
    """What query ``number`` asks."""
    return f"SELECT value * {number} AS product, timestamp FROM numbers WHERE value % 2 = 0"


def _taken(query: str, batch: pa.RecordBatch) -> None:
    """A sink that takes results and keeps nothing."""


def measure(engine: str, selects: int, seconds: float) -> dict[str, float]:
    """Add so many SELECTs to a running application, then watch for so many seconds."""
    app = hg.App("joining")
    app.source("numbers", hg.from_rate(RATE))
    app.sql(select(0)).to("q0", hg.to_function(_taken))
    chosen = hg.Threads(workers=2) if engine == "threads" else hg.Spark(master="local[2]")
    with app.start(chosen) as running:
        while not running.report().queries["q0"].tuples_out:
            time.sleep(0.1)
        began = time.perf_counter()
        for number in range(1, selects + 1):
            app.sql(select(number)).to(f"q{number}", hg.to_function(_taken), start="now")
            running.add(f"q{number}")
        added = time.perf_counter() - began
        settle = time.perf_counter() + 60
        while min(q.tuples_out for q in running.report().queries.values()) == 0:
            if time.perf_counter() > settle:
                break
            time.sleep(0.1)
        time.sleep(seconds)
        report = running.report()
    medians = [query.latency.p50 for query in report.queries.values() if query.tuples_out]
    return {
        "boxes": sum(1 for box in report.boxes.values() if box.tuples_in),
        "adding": added,
        "answering": len(medians),
        "p50": statistics.median(medians),
        "worst": max(medians),
    }


def run(quick: bool, console: Console) -> list[Result]:
    """Threads and Spark, each in a process of its own."""
    selects, seconds = (20, 3.0) if quick else (SELECTS, 10.0)
    results = []
    for engine in ("threads", "spark"):
        program = f"from {__name__} import main; main()"
        found = apart.found(engine, program, engine, str(selects), str(seconds))
        console.print(
            f"{engine}: {found['boxes']} boxes for {selects + 1} queries, added in {found['adding']:.1f} s; "
            f"median age of results: {found['p50'] * 1e3:.0f} ms, worst query {found['worst'] * 1e3:.0f} ms",
            highlight=False,
        )
        few = selects + 2
        results += [
            Result(
                f"joining {engine}",
                "DESIGN",
                f"boxes for {selects + 1} queries",
                found["boxes"],
                few,
                found["boxes"] <= few,
            ),
            Result(f"joining {engine}", "DESIGN", "seconds to add them all", found["adding"], None, None),
            Result(f"joining {engine}", "DESIGN", "worst median age, seconds", found["worst"], None, None),
        ]
    return results


def main() -> None:
    """In a process of its own: the engine, the number of SELECTs and the seconds are its arguments."""
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
