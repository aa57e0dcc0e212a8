"""The experiments of Aurora (sections 3, 5 and 6): figures 3, 5 to 9, 11, 13 and 14.

On threads with one worker, which keeps a core busy while the sources have the other; in simulation at the
paper's size, with fewer tuples and one run instead of six, since it has no noise to average.  There a call
and a decision cost what the paper implies (``aurora_runs.CALL`` and ``DECISION``), except in figures 13 and
14, where a decision costs what it really takes.
"""

from __future__ import annotations

from rich.console import Console

from headgate.bench import aurora_batching, aurora_qos, aurora_traversals
from headgate.bench.aurora_runs import CALL, DECISION
from headgate.bench.findings import Finding, summary
from headgate.bench.result import Result


def run(quick: bool, console: Console) -> list[Result]:
    """All figures, then the claims in one table."""
    batching = (
        aurora_batching.Sizes(
            4,
            5,
            (25, 100),
            loads=(0.3, 0.7, 0.9),
            thread_loads=(0.3, 0.9),
            shares=(0.2, 1.0),
            depth=4,
            forest=5,
        )
        if quick
        else aurora_batching.Sizes(40, 20)
    )
    traversals = (
        aurora_traversals.Sizes(6, 5, (15e-6, 120e-6, 960e-6), (15e-6, 480e-6), depth=4, waiting=10)
        if quick
        else aurora_traversals.Sizes(30, 10)
    )
    qos = (
        aurora_qos.Sizes(10, 40, (0.3, 0.7, 0.9), (0.5, 0.9), (1, 20, 100), 50, 10, (1.2, 2.0))
        if quick
        else aurora_qos.Sizes(60, 200)
    )
    console.print(
        f"simulated: a call costs {CALL * 1e6:.0f} µs and a decision {DECISION * 1e6:.0f} µs beside "
        "tuples of 100 to 1,000 µs, as the paper implies"
    )
    findings: list[Finding] = [
        *aurora_batching.execution_models(batching, console),
        *aurora_batching.superboxes(batching, console),
        *aurora_traversals.latency(traversals, console),
        *aurora_traversals.memory(traversals, console),
        *aurora_batching.trains(batching, console),
        *aurora_batching.overheads(batching, console),
        *aurora_qos.utility(qos, console),
        *aurora_qos.bucketing(qos, console),
    ]
    console.print(summary(findings))
    return [result for finding in findings for result in finding.results()]
