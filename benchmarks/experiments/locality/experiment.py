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
from benchmarks.paired import PAIRS
from benchmarks.result import Result
from benchmarks.workloads import tpcx_bb

QUICK = host.Sizes(
    pairs=3,
    least=0.0,
    rows=80_000,
    shop_rows=3_000,
    sweep_rows=200_000,
    sweep_rounds=1,
    sweep_seconds=0.3,
    tuner_seconds=2,
)
FULL = host.Sizes(
    PAIRS,
    least=1.5,
    rows=6_000_000,
    shop_rows=400_000,
    sweep_rows=8_000_000,
    sweep_rounds=5,
    sweep_seconds=3,
    tuner_seconds=40,
)
QUICK_MACHINES = machines.Sizes(alone=16, each=3, sorting=2, computing=(1e-9,), smaller={})
FULL_MACHINES = machines.Sizes(
    alone=256,
    each=50,
    sorting=12,
    computing=machines.COMPUTING,
    smaller={machines.SMP: (256, 64, 16), machines.NUMA: (32,)},
)


def run(quick: bool, console: Console) -> list[Result]:
    """The host, the papers' machines, and the allocator."""
    sizes, simulated = (QUICK, QUICK_MACHINES) if quick else (FULL, FULL_MACHINES)
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        console.print(f"generating {2 * sizes.shop_rows:,} clicks and sales …")
        data = tpcx_bb.generate(Path(folder), sizes.shop_rows, seed=1)
        results = host.contests(sizes, data, console)
    results += host.packet_sizes(sizes, console)
    results += machines.las(simulated, console)
    results += assumptions.run(simulated, console)
    results += machines.bobox(simulated, console)
    results += machines.remote(simulated, console)
    results += machines.packet_sizes(simulated, console)
    if quick:
        console.print("the allocator: headgate bench allocator")
        return results
    console.rule("allocator, in short; in full: headgate bench allocator")
    return results + allocator.run(True, console)
