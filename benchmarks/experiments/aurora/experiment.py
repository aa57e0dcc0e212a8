"""The experiments of Aurora (sections 3, 5 and 6): figures 3, 5 to 9, 11, 13 and 14.

On threads with one worker, which keeps a core busy while the sources have the other; in simulation at the
paper's size, with fewer tuples.  Figures 3, 5, 7 and 8 are means of six networks.  In simulation a call and
a decision cost what the paper implies (``runs.CALL`` and ``DECISION``), except in figure 5, where they cost
what they take here, and in figures 13 and 14, where a decision does.
"""

from __future__ import annotations

from rich.console import Console

from benchmarks.experiments.aurora import batching, qos, traversals
from benchmarks.experiments.aurora.runs import CALL, DECISION
from benchmarks.findings import Finding, summary
from benchmarks.result import Result


def run(quick: bool, console: Console) -> list[Result]:
    """All figures, then the claims in one table."""
    batches = (
        batching.Sizes(
            4,
            5,
            (50, 200),
            loads=(0.3, 0.7, 0.9),
            thread_loads=(0.3, 0.9),
            shares=(0.2, 1.0),
            depth=4,
            forest=5,
            runs=1,
        )
        if quick
        else batching.Sizes(40, 20)
    )
    orders = (
        traversals.Sizes(6, 5, (15e-6, 120e-6, 960e-6), (15e-6, 480e-6), depth=4, waiting=10, runs=1)
        if quick
        else traversals.Sizes(30, 10)
    )
    goals = (
        qos.Sizes(10, 40, (0.3, 0.7, 0.9), (0.5, 0.9), (1, 20, 100), 50, 10, (1.2, 2.0))
        if quick
        else qos.Sizes(60, 200)
    )
    console.print(
        f"simulated: a call costs {CALL * 1e6:.0f} µs and a decision {DECISION * 1e6:.0f} µs, for "
        "tuples of 100 to 1,000 µs, as the paper implies"
    )
    findings: list[Finding] = [
        *batching.execution_models(batches, console),
        *batching.superboxes(batches, console),
        *traversals.latency(orders, console),
        *traversals.memory(orders, console),
        *batching.trains(batches, console),
        *batching.overheads(batches, console),
        *qos.utility(goals, console),
        *qos.bucketing(goals, console),
    ]
    console.print(summary(findings))
    return [result for finding in findings for result in finding.results()]
