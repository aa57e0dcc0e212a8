"""The time slice for which a worker is given an operator (ordered processing, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from benchmarks.experiments.ordered.queries import Query, Sizes, note, run
from benchmarks.findings import (
    ALIKE,
    SIMULATED,
    THREADS,
    WORKERS,
    Finding,
    Side,
    Sweep,
    mean_ratio,
    on_both,
)
from benchmarks.workloads.tpcx_bb.queries import Shop
from headgate.engines.threads import Threads
from headgate.scheduling import policies
from headgate.scheduling.interface import Policy

SLICES = (0.001, 0.004, 0.016, 0.064)
SLICED = ("q2", "q4")


def slices(shop: Shop, queries: Sequence[Query], sizes: Sizes, console: Console) -> list[Finding]:
    """Throughput and latency by the time for which a worker is given an operator (section 6.1)."""
    rates = Sweep("M rows/s by time slice, CT", ("query", "slice"))
    latencies = Sweep("mean processing latency, ms", ("query", "slice"), 1, least=True)
    cases = [(query, seconds) for query in queries if query.name in SLICED for seconds in SLICES]
    for query, seconds in cases:
        case = (query.name, f"{seconds * 1e3:g} ms")
        reports = [
            run(shop, query.name, query.rows, Threads(2, sizes.packet_rows, split=False), _ct(seconds))
            for _ in range(sizes.rounds)
        ]
        note(rates, latencies, case, THREADS, 2, reports, query.name)
        for workers in WORKERS[SIMULATED]:
            engine = query.costs.engine(workers, sizes.packet_rows, split=False)
            report = run(shop, query.name, query.simulated_rows, engine, _ct(seconds))
            note(rates, latencies, case, SIMULATED, workers, [report], query.name)
    console.print(rates.table())
    console.print(latencies.table())
    shortest, longest = (f"{seconds * 1e3:g} ms" for seconds in (SLICES[0], SLICES[-1]))

    def amortised(engine: str) -> Side:
        long = mean_ratio((rates.best((name, longest), engine), 1.0) for name in SLICED)
        short = mean_ratio((rates.best((name, shortest), engine), 1.0) for name in SLICED)
        return Side(long, short, long >= ALIKE * short)

    def responsive(engine: str) -> Side:
        long = mean_ratio((latencies.mean((name, longest), engine), 1.0) for name in SLICED)
        short = mean_ratio((latencies.mean((name, shortest), engine), 1.0) for name in SLICED)
        return Side(short, long, short <= long)

    why = f"a train is cut at whole packets, of {sizes.packet_rows:,} rows here, however short the slice"
    return [
        Finding("6.1", "slice", "long slices cost no throughput (M rows/s)", on_both(amortised), why),
        Finding("6.1", "slice", "short slices keep latency down (ms)", on_both(responsive), why),
    ]


def _ct(seconds: float) -> Policy:
    return policies.get("ct", time_slice=seconds)
