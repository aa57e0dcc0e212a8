"""The experiments of ordered processing (section 7): figures 8 to 14, on two cores and simulated on sixteen.

On threads everything that is compared runs in turns, in one run.  Costs that one worker had there are the
simulation's; it knows no interpreter lock, no cache and no source that takes time, so where the two differ
on two workers, that is why.
"""

from __future__ import annotations

from rich.console import Console

from headgate.bench import ordered_boxes, ordered_queries, ordered_rates, ordered_reordering, ordered_slices
from headgate.bench.findings import Finding, summary
from headgate.bench.ordered_shop import Shop
from headgate.bench.result import Result


def run(quick: bool, console: Console) -> list[Result]:
    """All figures, then the rates, then the claims in one table."""
    queries = ordered_queries.Sizes(
        rows=200_000 if quick else 4_000_000,
        packet_rows=1024 if quick else 4096,
        seconds=0.05 if quick else 1.2,
        simulated=0.02 if quick else 0.6,
        rounds=1 if quick else 2,
        fine=not quick,
    )
    boxes = (
        ordered_boxes.Sizes(600, 1, sigmas=(0.1, 4.0), costs=(100e-6, 1e-3))
        if quick
        else ordered_boxes.Sizes(8_000, 2)
    )
    live = ordered_rates.Sizes(0.5, 1, 5_000) if quick else ordered_rates.Sizes(5.0, 3, 100_000)
    console.print(f"generating {queries.rows:,} clicks and sales …")
    shop = Shop(queries.rows)
    known = ordered_queries.measure(shop, queries, console)
    findings: list[Finding] = [
        *ordered_queries.heuristics(shop, known, queries, console),
        *ordered_slices.slices(shop, known, queries, console),
        *ordered_boxes.skew(boxes, console),
        *ordered_boxes.latency(boxes, console),
        *ordered_queries.partitioning(shop, known, queries, console),
        *ordered_reordering.light(boxes, console),
        *ordered_reordering.fan_out(boxes, console),
        *ordered_queries.reordering(shop, known, queries, console),
    ]
    rates = ordered_rates.rates(shop, [(query.name, query.rows) for query in known], live, console)
    console.print(summary(findings))
    return [result for finding in findings for result in finding.results()] + rates
