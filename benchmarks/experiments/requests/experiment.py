"""Requests as Bobox and LAS ran them: on this machine, on theirs in simulation, and beside pyoxigraph.

On the host everything that is compared runs in interleaved pairs.  The papers ask five million triples and
read 10 MB of XML; the sizes here fit eight minutes on two cores.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.experiments.requests import host, machines, peer
from benchmarks.experiments.requests.cases import Data, Sizes
from benchmarks.result import Result
from benchmarks.workloads import xquery
from benchmarks.workloads.sp2bench.queries import QUERIES

QUICK = Sizes(
    peer=50_000,
    limit=3.0,
    alone=20_000,
    many=5_000,
    questions=("q2", "q4", "q11"),
    pairs=1,
    least=0.0,
    document=5_000,
    loads=(1, 4),
    simulated_alone=20_000,
    simulated_many=2_000,
    rounds=1,
)
FULL = Sizes(
    peer=1_000_000,
    limit=6.0,
    alone=100_000,
    many=10_000,
    questions=tuple(QUERIES),
    pairs=6,
    least=0.1,
    document=xquery.NODES,
    loads=(1, 4),
    simulated_alone=60_000,
    simulated_many=10_000,
    rounds=1,
)


def run(quick: bool, console: Console, rows: int | None = None, repeat: int | None = None) -> list[Result]:
    """``rows``: triples of the comparison with pyoxigraph.  ``repeat``: pairs on the host."""
    sizes = sized(QUICK if quick else FULL, rows, repeat)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        data = Data(Path(folder))
        results = peer.run(sizes, data, console)
        results += host.policies(sizes, data, console)
        results += host.allocators(sizes, data, console)
        simulated = machines.Machines(sizes, data)
        results += machines.las(simulated, console, sizes.questions)
        results += machines.allocator(simulated, console, sizes.questions)
        return results + machines.bobox(simulated, console, sizes.loads)


def sized(sizes: Sizes, rows: int | None, repeat: int | None) -> Sizes:
    given = {"peer": rows, "pairs": repeat}
    return Sizes(**{**vars(sizes), **{name: value for name, value in given.items() if value is not None}})
