"""A backlog on Spark: however much waits, the driver holds only offsets, so its memory does not grow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from benchmarks.experiments.memory import peaks_of
from benchmarks.result import Result

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
    title = "a backlog of files on Spark: the driver's memory"
    peaks = peaks_of(console, title, total, _generate, _CHILD, {"steps": "steps"})
    return [
        Result(
            f"driver memory, {total:,} rows of backlog",
            "our aim",
            "MiB at peak: at most 1.2 times that of a tenth of the rows",
            peaks[1],
            peaks[0],
            peaks[1] <= 1.2 * peaks[0],
        )
    ]


def _generate(folder: Path, rows: int) -> None:
    (folder / "in").mkdir()
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        x = np.arange(first, min(first + FILE_ROWS, rows))
        columns = {"x": x, "k": (x * 7919) % 1_000, "ts": pa.array(x * 1_000, pa.timestamp("us", "UTC"))}
        pq.write_table(
            pa.table(columns), folder / "in" / f"part-{number:04d}.parquet", row_group_size=131_072
        )
