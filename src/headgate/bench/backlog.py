"""A backlog on Spark: however much waits, the driver holds only offsets, so its memory does not grow."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from headgate.bench.memory import measure
from headgate.bench.result import Result

FILE_ROWS = 1_000_000

_CHILD = """
import json, resource, sys
import headgate as hg

folder = sys.argv[1]
app = hg.App("backlog")
rows = app.source("rows", hg.from_files(folder + "/in"))
rows.filter("x % 10 = 0").to("tenth", hg.to_parquet(folder + "/tenth"))
rows.key_by("k").running("sum(x) AS total").filter("x % 1000 = 0").to("sums", hg.to_parquet(folder + "/sums"))
minutes = rows.key_by("k").window(hg.tumbling("1 minute", on="ts")).agg("count(*) AS n", "max(x) AS x")
minutes.to("minutes", hg.to_parquet(folder + "/minutes"))
report = app.run(hg.Spark(checkpoint=folder + "/checkpoint"))
for query in report.queries.values():
    if query.error is not None:
        raise query.error
print(json.dumps({
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "tuples": report.tuples,
    "seconds": report.seconds,
    "steps": report.steps,
}))
"""


def run(quick: bool, console: Console) -> list[Result]:
    """A tenth of the rows and all of them; the driver's peak must be about the same."""
    total = 2_000_000 if quick else 10_000_000
    table = Table(title="a backlog of files on Spark: the driver's memory", title_justify="left")
    for column in ("rows", "steps", "seconds", "rows/s", "MiB at peak"):
        table.add_column(column, justify="right")
    peaks = []
    for rows in (total // 10, total):
        with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
            _generate(Path(folder) / "in", rows)
            found = measure(_CHILD, folder)
        table.add_row(
            f"{found['tuples']:,}",
            f"{found['steps']:,}",
            f"{found['seconds']:.1f}",
            f"{found['tuples'] / found['seconds']:,.0f}",
            f"{found['peak']:,.0f}",
        )
        peaks.append(found["peak"])
    console.print(table)
    return [
        Result(
            f"driver memory, {total:,} rows of backlog",
            "issue 3",
            "MiB at peak: at most 1.2 times that of a tenth of the rows",
            peaks[1],
            peaks[0],
            peaks[1] <= 1.2 * peaks[0],
        )
    ]


def _generate(folder: Path, rows: int) -> None:
    folder.mkdir(parents=True)
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        x = np.arange(first, min(first + FILE_ROWS, rows))
        columns = {"x": x, "k": (x * 7919) % 1_000, "ts": pa.array(x * 1_000, pa.timestamp("us", "UTC"))}
        pq.write_table(pa.table(columns), folder / f"part-{number:04d}.parquet", row_group_size=131_072)
