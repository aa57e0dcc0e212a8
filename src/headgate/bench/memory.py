"""Memory: many rows from files through the five TPCx-BB queries, with a peak that does not grow with them.

What bounds it: every queue holds about sixteen packets, a full queue stops the box before it and in the end
the source, files are read a packet at a time, and operators keep the state of open windows only.  Each size
runs in a process of its own, whose peak is the operating system's own figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headgate.bench.result import Result
from headgate.workloads import tpcx_bb

_CHILD = """
import json, resource, sys
from headgate.engines.sinks import to_function
from headgate.engines.threads import Threads
from headgate.workloads.examples import load_example

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


def measure(program: str, folder: str) -> dict[str, Any]:
    """What a program says of its run over a folder, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program, folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the run over {folder} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(quick: bool, console: Console) -> list[Result]:
    """A tenth of the rows and all of them; the peak must be about the same."""
    total = 4_000_000 if quick else 50_000_000
    table = Table(title="peak memory", title_justify="left")
    for column in ("rows", "seconds", "rows/s", "MiB before", "MiB at peak"):
        table.add_column(column, justify="right")
    peaks = []
    for rows in (total // 10, total):
        with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
            data = Path(folder) / "tpcx-bb"
            console.print(f"generating {rows:,} rows …")
            tpcx_bb.generate(data, rows // 2, seed=1)
            found = measure(_CHILD, str(data))
        table.add_row(
            f"{found['tuples']:,}",
            f"{found['seconds']:.1f}",
            f"{found['tuples'] / found['seconds']:,.0f}",
            f"{found['before']:,.0f}",
            f"{found['peak']:,.0f}",
        )
        peaks.append(found["peak"])
    console.print(table)
    return [
        Result(
            f"memory, {total:,} rows through five queries",
            "issue 2",
            "MiB at peak: at most 1.5 times that of a tenth of the rows",
            peaks[1],
            peaks[0],
            peaks[1] <= 1.5 * peaks[0],
        )
    ]
