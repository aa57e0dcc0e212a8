"""Memory: many rows from files through the five TPCx-BB queries, with a peak that does not grow with them.

What bounds it: every queue holds about sixteen packets, a full queue stops the box before it and in the end
the source, files are read a packet at a time, and operators keep the state of open windows only.  Each size
runs in a process of its own, whose peak is the operating system's own figure.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import apart
from benchmarks.result import Result
from benchmarks.workloads import tpcx_bb

_CHILD = """
import json, resource, sys
from headgate.connectors.python import to_function
from headgate.engines.threads import Threads
from headgate.demo.examples import load_example

ignore = to_function(lambda query, batch: None)
app = load_example("tpcx_bb/all").build(sys.argv[1], dict.fromkeys(["q1", "q2", "q3", "q4", "q15"], ignore))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = app.run(Threads(workers=2), until="drained")
for query in report.queries.values():
    if query.error is not None:
        raise query.error
print(json.dumps({
    "before": before / 1024,
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "tuples": report.tuples,
    "seconds": report.seconds,
    "results": {name: query.tuples_out for name, query in report.queries.items()},
}))
"""


def peaks_of(
    console: Console,
    title: str,
    total: int,
    generate: Callable[[Path, int], None],
    program: str,
    more: Mapping[str, str],
) -> list[float]:
    """MiB at the peak for a tenth of ``total`` rows and for all; ``more`` of a run's figures, by column."""
    table = Table(title=title, title_justify="left")
    for column in ("rows", "seconds", "rows/s", *more, "MiB at peak"):
        table.add_column(column, justify="right")
    peaks = []
    for rows in (total // 10, total):
        with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
            console.print(f"generating {rows:,} rows …")
            generate(Path(folder), rows)
            found = apart.found(f"the run over {folder}", program, folder)
        table.add_row(
            f"{found['tuples']:,}",
            f"{found['seconds']:.1f}",
            f"{found['tuples'] / found['seconds']:,.0f}",
            *(f"{found[figure]:,.0f}" for figure in more.values()),
            f"{found['peak']:,.0f}",
        )
        peaks.append(found["peak"])
    console.print(table)
    return peaks


def run(quick: bool, console: Console) -> list[Result]:
    """A tenth of the rows and all of them; the peak must be about the same."""
    total = 4_000_000 if quick else 50_000_000

    def generate(folder: Path, rows: int) -> None:
        tpcx_bb.generate(folder, rows // 2, seed=1)

    peaks = peaks_of(console, "peak memory", total, generate, _CHILD, {"MiB before": "before"})
    return [
        Result(
            f"memory, {total:,} rows through five queries",
            "our aim",
            "MiB at peak: at most 1.5 times that of a tenth of the rows",
            peaks[1],
            peaks[0],
            peaks[1] <= 1.5 * peaks[0],
        )
    ]
