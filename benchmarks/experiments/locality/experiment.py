"""Task scheduling that knows caches and memory nodes: on this machine, and on the papers' in simulation.

On the host everything that is compared runs in interleaved pairs.  What needs other machines runs in virtual
time with their memory models.  The allocator has a benchmark of its own, of which this one shows the short
form (``headgate bench allocator`` is the long one).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.experiments import allocator
from benchmarks.experiments.locality import assumptions, host, machines
from benchmarks.experiments.requests import experiment as requests
from benchmarks.experiments.requests.cases import Data
from benchmarks.experiments.requests.machines import Machines, bobox, las
from benchmarks.paired import PAIRS
from benchmarks.result import Result
from benchmarks.workloads import tpcx_bb, xquery

QUICK = host.Sizes(
    pairs=3,
    least=0.0,
    triples=5_000,
    document=5_000,
    shop_rows=3_000,
    sweep_rows=200_000,
    sweep_rounds=1,
    sweep_seconds=0.3,
    tuner_seconds=2,
)
FULL = host.Sizes(
    PAIRS,
    least=1.5,
    triples=100_000,
    document=xquery.NODES,
    shop_rows=400_000,
    sweep_rows=8_000_000,
    sweep_rounds=5,
    sweep_seconds=3,
    tuner_seconds=40,
)
PACKETS, QUICK_PACKETS = 256, 16
"""Of the pipelines in simulation."""


def run(quick: bool, console: Console) -> list[Result]:
    """The host, the papers' machines, and the allocator."""
    sizes = QUICK if quick else FULL
    packets, plans = (QUICK_PACKETS, requests.QUICK) if quick else (PACKETS, requests.FULL)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        console.print(f"generating {2 * sizes.shop_rows:,} clicks and sales …")
        shop = tpcx_bb.generate(Path(folder) / "shop", sizes.shop_rows, seed=1)
        data = Data(Path(folder))
        results = host.contests(sizes, shop, data.of(sizes.triples), console)
        results += host.packet_sizes(sizes, console)
        simulated = Machines(plans, data)
        results += las(simulated, console, plans.questions)
        results += assumptions.run(simulated, console)
        results += bobox(simulated, console, plans.loads)
    results += machines.remote(packets, machines.COMPUTING[:1] if quick else machines.COMPUTING, console)
    results += machines.packet_sizes(packets, console)
    if quick:
        console.print("the allocator: headgate bench allocator")
        return results
    console.rule("allocator, in short; in full: headgate bench allocator")
    return results + allocator.run(True, console)
