"""The experiments of ordered processing (section 7): figures 8 to 14, on two cores and simulated on sixteen.

On threads everything that is compared runs in turns, in one run.  Costs that one worker had there are the
simulation's; it knows no interpreter lock, no cache and no source that takes time, so where the two differ
on two workers, that is why.
"""

from __future__ import annotations

from rich.console import Console

from benchmarks.experiments.ordered import boxes, queries, rates, reordering, slices
from benchmarks.findings import Finding, summary
from benchmarks.result import Result
from benchmarks.workloads.tpcx_bb.queries import Shop


def run(quick: bool, console: Console) -> list[Result]:
    """All figures, then the rates, then the claims in one table."""
    large = queries.Sizes(
        rows=200_000 if quick else 4_000_000,
        packet_rows=1024 if quick else 4096,
        seconds=0.05 if quick else 1.2,
        simulated=0.02 if quick else 0.6,
        rounds=1 if quick else 2,
        fine=not quick,
    )
    small = boxes.Sizes(600, 1, sigmas=(0.1, 4.0), costs=(100e-6, 1e-3)) if quick else boxes.Sizes(8_000, 2)
    live = rates.Sizes(0.5, 1, 5_000) if quick else rates.Sizes(5.0, 3, 100_000)
    console.print(f"generating {large.rows:,} clicks and sales …")
    shop = Shop(large.rows)
    known = queries.measure(shop, large, console)
    findings: list[Finding] = [
        *queries.heuristics(shop, known, large, console),
        *slices.slices(shop, known, large, console),
        *boxes.skew(small, console),
        *boxes.latency(small, console),
        *queries.partitioning(shop, known, large, console),
        *reordering.light(small, console),
        *reordering.fan_out(small, console),
        *queries.reordering(shop, known, large, console),
    ]
    found = rates.rates(shop, [(query.name, query.rows) for query in known], live, console)
    console.print(summary(findings))
    return [result for finding in findings for result in finding.results()] + found
