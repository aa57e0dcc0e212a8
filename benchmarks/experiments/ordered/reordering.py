"""Figures 12 and 13: the reordering schemes on light operators, and on one with a high selectivity.

Trains and packets are short: what the two schemes differ in would vanish in long ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from rich.console import Console

from benchmarks.experiments.ordered.boxes import COST, Sizes, ignore, keys_of
from benchmarks.findings import (
    BETTER,
    SIMULATED,
    THREADS,
    WORKERS,
    Costs,
    Finding,
    Side,
    Sweep,
    checked,
    fastest,
    on_both,
    seconds_per_tuple,
)
from headgate.api import App
from headgate.connectors.batches import from_batches
from headgate.connectors.python import to_function
from headgate.engines.threads import Threads
from headgate.runtime.report import Report
from headgate.scheduling.interface import Policy
from headgate.scheduling.ordered.heuristics import CurrentThroughput

REORDERS = ("nonblocking", "lock")
LIGHT = 20e-6
FAN_OUT = 50


def _light(tuples: int) -> App:
    app = App("light")
    keys = app.source("keys", from_batches([keys_of(np.arange(tuples))]))
    keys.universal(cost=LIGHT, name="first").to("q", to_function(ignore))
    return app


def _fan_out(tuples: int) -> App:
    app = App("fan-out")
    keys = app.source("keys", from_batches([keys_of(np.arange(tuples))]))
    many = keys.universal(cost=COST, selectivity=FAN_OUT, name="first")
    many.key_by("k").universal(cost=COST, name="second").to("q", to_function(ignore))
    return app


def light(sizes: Sizes, console: Console) -> list[Finding]:
    """A light stateless operator in short packets."""
    tuples, packet = round(sizes.tuples * COST / LIGHT), 32
    return _reordering(
        "12", "light operators", lambda: _light(tuples), packet, packet * LIGHT, sizes, console
    )


def fan_out(sizes: Sizes, console: Console) -> list[Finding]:
    """An operator that makes fifty tuples of one, before a keyed one."""
    tuples = max(sizes.tuples // FAN_OUT, 32)
    return _reordering(
        "13", f"a selectivity of {FAN_OUT}", lambda: _fan_out(tuples), FAN_OUT, 10 * COST, sizes, console
    )


def _reordering(
    figure: str,
    what: str,
    build: Callable[[], App],
    packet_rows: int,
    time_slice: float,
    sizes: Sizes,
    console: Console,
) -> list[Finding]:
    speedups = Sweep(f"figure {figure}a: {what}, speedup over one worker", ("reordering",))
    paid = Sweep(f"figure {figure}b: {what}, µs of a worker per tuple", ("reordering",), 1, least=True)

    def policy() -> Policy:
        return CurrentThroughput(time_slice)

    found: dict[tuple[str, int], list[Report]] = {}
    for _ in range(sizes.rounds):
        for reorder in REORDERS:
            for workers in WORKERS[THREADS]:
                engine = Threads(workers, packet_rows, reorder=reorder)
                found.setdefault((reorder, workers), []).append(checked(build().run(engine, policy())))
    alone = fastest(found["nonblocking", 1])
    costs = Costs.of(alone, stated=True)
    for reorder in REORDERS:
        simulated = {
            workers: checked(build().run(costs.engine(workers, packet_rows, reorder=reorder), policy()))
            for workers in WORKERS[SIMULATED]
        }
        one = simulated[1].throughput
        threads = {workers: fastest(found[reorder, workers]) for workers in WORKERS[THREADS]}
        for engine_name, reports in ((THREADS, threads), (SIMULATED, simulated)):
            for workers, report in reports.items():
                speedup = report.throughput / reports[1].throughput
                speedups.add((reorder,), engine_name, workers, speedup)
                paid.add((reorder,), engine_name, workers, seconds_per_tuple(report, "first") * 1e6)
        console.print(f"figure {figure}: {reorder} done")
    console.print(speedups.table())
    console.print(paid.table())

    def scales(engine: str) -> Side:
        ours, theirs = (speedups.most((reorder,), engine) for reorder in REORDERS)
        return Side(ours, theirs, ours >= BETTER * theirs)

    def steeper(engine: str) -> Side:
        ours, theirs = (
            paid.most((reorder,), engine) / paid.at((reorder,), engine, 1) for reorder in REORDERS
        )
        return Side(theirs, ours, theirs >= BETTER * ours)

    sent = alone.boxes["first"].tuples_out / alone.tuples
    bound = 1 / (one * sent * costs.send)
    full = sum(report.ring_full for report in found["nonblocking", 2])
    why = (
        f"passing a tuple on takes {costs.send * 1e6:.2f} µs and a call {costs.call * 1e6:,.0f} µs without "
        f"its tuples; sending is serial either way, which bounds the speedup at {bound:.1f}; on two threads "
        f"{full} results found the ring full"
    )
    return [
        Finding(
            f"{figure}a",
            "non-blocking",
            f"{what}: non-blocking scales better than lock-based (speedup)",
            on_both(scales),
            why,
        ),
        Finding(
            f"{figure}b",
            "lock",
            f"{what}: lock-based's cost per tuple rises more (ratio to one worker)",
            on_both(steeper),
            why,
        ),
    ]
