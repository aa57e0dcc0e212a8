"""Requests over SP²Bench: eight questions alone and sixteen at once, under task policies; beside pyoxigraph.

pyoxigraph answers in a process of its own, which is ended when a question takes too long.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.findings import checked
from benchmarks.paired import interleaved
from benchmarks.result import Result
from benchmarks.workloads import sp2bench
from benchmarks.workloads.sp2bench.queries import QUERIES
from headgate.api import App
from headgate.connectors.python import to_function
from headgate.engines.threads import Threads

MANY = 16
CONTESTS = (("las", "nls"), ("bobox", "bobox_baseline"))
PUBLISHED = {
    10_000: (147, 23_200, 155, 229, 0, 184, 4, 10),
    50_000: (965, 104_700, 1_100, 1_800, 2, 264, 4, 10),
    250_000: (6_200, 542_800, 6_900, 12_100, 62, 332, 4, 10),
    1_000_000: (32_800, 2_600_000, 35_200, 62_800, 292, 400, 4, 10),
    5_000_000: (248_700, 18_400_000, 210_700, 417_600, 1_200, 493, 4, 10),
}
"""Rows per question that SP²Bench's authors report (ICDE 2009), rounded, and quoted from memory."""
"""By triples, how many rows the questions have on the benchmark's own data (SP²Bench, table of results)."""


def network(data: Path, names: list[str], counts: dict[str, int] | None = None) -> App:
    """An application of one request for each name."""
    app = App("requests")
    for number, name in enumerate(names):

        def count(query: str, batch: object, name: str = name) -> None:
            if counts is not None:
                counts[name] = counts.get(name, 0) + batch.num_rows  # type: ignore[attr-defined]

        app.sparql(QUERIES[name], data).to(f"{name}-{number}", to_function(count))
    return app


def run(quick: bool, console: Console, rows: int | None = None, repeat: int | None = None) -> list[Result]:
    """The questions over ``rows`` triples, in ``repeat`` pairs."""
    triples, pairs = rows or (50_000 if quick else 1_000_000), repeat or (2 if quick else 7)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        data = Path(folder)
        console.print(f"generating {triples:,} triples …")
        sp2bench.generate(data, triples)
        return _counts(data, triples, console) + _peer(data, quick, console) + _policies(data, pairs, console)


def _counts(data: Path, triples: int, console: Console) -> list[Result]:
    counts: dict[str, int] = {}
    checked(network(data, list(QUERIES), counts).run(Threads(), "las"))
    said = PUBLISHED.get(triples)
    table = Table("question", "rows", "published", title=f"rows of {triples:,} triples", title_justify="left")
    for place, name in enumerate(QUERIES):
        table.add_row(name, f"{counts.get(name, 0):,}", "-" if said is None else f"{said[place]:,}")
    console.print(table)
    return []


def _peer(data: Path, quick: bool, console: Console) -> list[Result]:
    """How long each question takes here and with pyoxigraph; the data is in its store before."""
    limit = 10.0 if quick else 60.0
    table = Table("question", "seconds", "pyoxigraph", title="one request, two workers", title_justify="left")
    won = 0
    for name in QUERIES:
        mine = min(_asked(data, name) for _ in range(3))
        theirs = _oxigraph(data, name, limit)
        won += theirs is None or mine <= theirs
        table.add_row(name, f"{mine:.3f}", f"over {limit:.0f}" if theirs is None else f"{theirs:.3f}")
    console.print(table)
    claim = "questions on which Headgate is not slower than pyoxigraph, of eight; at least five"
    return [Result("requests pyoxigraph", "issue 20", claim, won, 5, won >= 5)]


def _policies(data: Path, pairs: int, console: Console) -> list[Result]:
    table = Table("requests", "policies", "times (95 %)", "seconds", title="times as fast as the other")
    results = []
    eight = list(QUERIES)
    for label, names in (
        *((name, [name]) for name in eight),
        (f"{MANY} at once", eight * (MANY // len(eight))),
    ):
        for one, other in CONTESTS:
            paired, ones, _ = interleaved(
                pairs,
                lambda names=names, one=one: _seconds(data, names, one),  # type: ignore[misc]
                lambda names=names, other=other: _seconds(data, names, other),  # type: ignore[misc]
            )
            table.add_row(label, f"{one} : {other}", str(paired), f"{statistics.median(ones):.3f}")
            claim = f"{label}: {one} is not slower than {other}, times as fast"
            results.append(
                Result(f"requests {label} {one}", "LAS, Bobox", claim, paired.median, 1, paired.not_slower)
            )
    console.print(table)
    return results


def _seconds(data: Path, names: list[str], policy: str) -> float:
    return checked(network(data, names).run(Threads(workers=2), policy)).seconds


def _asked(data: Path, name: str) -> float:
    """With parsing and planning, which are in the other's time too."""
    begin = time.perf_counter()
    checked(network(data, [name]).run(Threads(workers=2), "las"))
    return time.perf_counter() - begin


def _oxigraph(data: Path, name: str, limit: float) -> float | None:
    """Seconds of the question once the store is filled; None if it takes longer than ``limit``."""
    command = [sys.executable, "-c", _CHILD, str(data / "data.nt"), QUERIES[name]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()  # the store is filled
        try:
            out, _ = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            child.kill()
            return None
    return float(json.loads(out))


_CHILD = """
import json, sys, time
import pyoxigraph as ox
store = ox.Store()
store.bulk_load(path=sys.argv[1], format=ox.RdfFormat.N_TRIPLES)
print("filled", flush=True)
seconds = []
for _ in range(3):
    begin = time.perf_counter()
    rows = sum(1 for _ in store.query(sys.argv[2]))
    seconds.append(time.perf_counter() - begin)
    if sum(seconds) > 5:
        break
print(json.dumps(min(seconds)))
"""

__all__ = ["network", "run"]
