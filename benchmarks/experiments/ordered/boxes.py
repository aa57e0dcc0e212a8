"""Figures 9 and 10: the partitioning schemes under skew, and their latency, on parametric operators.

The operators keep a core busy without the interpreter's lock, so two workers are two cores' work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

from benchmarks.findings import (
    SIMULATED,
    THREADS,
    WORKERS,
    Costs,
    Finding,
    Side,
    Sweep,
    checked,
    fastest,
    mean_ratio,
    on_both,
)
from headgate.api import App
from headgate.connectors.batches import from_batches
from headgate.connectors.python import to_function
from headgate.engines.simulated.engine import Simulated
from headgate.engines.simulated.run import SimulatedRun
from headgate.engines.threads import Threads
from headgate.graph.operators.universal import busy
from headgate.runtime.report import Report
from headgate.scheduling import policies

KEYS = 10_000
RANGES = 100
"""As many as the paper's hybrid scheme has; the partitioned one has as many as workers."""
COST = 100e-6
PACKET_ROWS = 500
SCHEMES = ("hybrid", "partitioned")
KEY = pa.schema([("k", pa.int64())])


@dataclass(frozen=True)
class Sizes:
    """How much is measured: tuples are of 100 µs, more of lighter ones."""

    tuples: int
    rounds: int
    sigmas: Sequence[float] = (0.1, 0.25, 0.5, 1.0, 4.0)
    costs: Sequence[float] = (10e-6, 100e-6, 1e-3, 1e-2)


def keys_of(keys: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(np.asarray(keys, dtype=np.int64))], schema=KEY)


def ignore(query: str, batch: pa.RecordBatch) -> None:
    pass


# --- figure 9: skew ---------------------------------------------------------------------------------------


def skewed(sigma: float, rows: int, centre: float = 0.0) -> pa.RecordBatch:
    """Keys from a normal distribution whose range [-1, 1] is scaled to the key space."""
    random, found = np.random.default_rng(9), np.empty(0)
    while len(found) < rows:
        drawn = random.normal(centre, sigma, 2 * rows)
        found = np.concatenate([found, drawn[np.abs(drawn) < 1]])
    return keys_of((found[:rows] + 1) / 2 * KEYS)


def _ranged(keys: pa.RecordBatch, ranges: int) -> App:
    app = App("skew")
    boundaries = [KEYS * place // ranges for place in range(1, ranges)]
    keyed = app.source("keys", from_batches([keys])).key_by("k", ranges=boundaries or None)
    keyed.universal(cost=COST, name="box").to("q", to_function(ignore))
    return app


def _run(keys: pa.RecordBatch, scheme: str, engine: Threads | Simulated) -> Report:
    assert engine.workers is not None
    ranges = RANGES if scheme == "hybrid" else engine.workers
    return checked(_ranged(keys, ranges).run(engine, "ct"))


def _speedups(sweep: Sweep, sigma: float, keys: pa.RecordBatch, rounds: int) -> list[Report]:
    """Both schemes on two threads against one; returns what one said."""
    alone, found = [], dict.fromkeys(SCHEMES, 0.0)
    for _ in range(rounds):
        alone.append(_run(keys, "partitioned", Threads(1, PACKET_ROWS)))
        for scheme in SCHEMES:
            report = _run(keys, scheme, Threads(2, PACKET_ROWS, partitioning=scheme))
            found[scheme] = max(found[scheme], report.throughput)
    one = fastest(alone).throughput
    for scheme in SCHEMES:
        sweep.add((f"{sigma:g}", scheme), THREADS, 1, 1.0)
        sweep.add((f"{sigma:g}", scheme), THREADS, 2, found[scheme] / one)
    return alone


def skew(sizes: Sizes, console: Console) -> list[Finding]:
    """Speedup over one worker as keys get more skewed; a second time on threads with the keys off centre."""
    sweep = Sweep("figure 9: speedup over one worker by skew", ("sigma", "scheme"))
    shifted = Sweep("the same, keys around 0.5 instead of 0", ("sigma", "scheme"))
    alone: list[Report] = []
    for sigma in sizes.sigmas:
        alone += _speedups(sweep, sigma, skewed(sigma, sizes.tuples), sizes.rounds)
        alone += _speedups(shifted, sigma, skewed(sigma, sizes.tuples, 0.5), sizes.rounds)
        console.print(f"figure 9: sigma {sigma:g} done")
    costs = Costs.of(fastest(alone), stated=True)
    for sigma in sizes.sigmas:
        keys = skewed(sigma, sizes.tuples)
        one = _run(keys, "partitioned", costs.engine(1, PACKET_ROWS)).throughput
        for scheme in SCHEMES:
            for workers in WORKERS[SIMULATED]:
                report = _run(keys, scheme, costs.engine(workers, PACKET_ROWS, partitioning=scheme))
                sweep.add((f"{sigma:g}", scheme), SIMULATED, workers, report.throughput / one)
    console.print(sweep.table())
    console.print(shifted.table())
    most, least = f"{min(sizes.sigmas):g}", f"{max(sizes.sigmas):g}"

    def steady(engine: str) -> Side:
        found = [sweep.most((f"{sigma:g}", "hybrid"), engine) for sigma in sizes.sigmas]
        return Side(min(found), max(found), min(found) >= 0.8 * max(found))

    def drops(engine: str) -> Side:
        skewed_, even = (sweep.most((s, "partitioned"), engine) for s in (most, least))
        return Side(skewed_, even, skewed_ <= 0.8 * even)

    def alike(engine: str) -> Side:
        partitioned, hybrid = (sweep.most((least, scheme), engine) for scheme in reversed(SCHEMES))
        return Side(partitioned, hybrid, 0.8 <= partitioned / hybrid <= 1.25)

    off = [shifted.at((s, scheme), THREADS, 2) for scheme in SCHEMES for s in (most, least)]
    halves = (
        "two ranges of a distribution around 0 weigh the same, whatever its sigma; around 0.5, on two "
        f"workers, hybrid has {off[0]:.2f} with the most skew and {off[1]:.2f} with the least, partitioned "
        f"{off[2]:.2f} and {off[3]:.2f}"
    )
    widest = np.bincount(skewed(min(sizes.sigmas), sizes.tuples).column(0).to_numpy() * RANGES // KEYS).max()
    share = (
        f"the fullest of {RANGES} ranges has {widest / sizes.tuples:.0%} of the tuples, for one worker at a "
        f"time; of two threads' time {sweep.most((least, 'hybrid'), THREADS) / 2:.0%} goes to tuples with "
        f"{RANGES} ranges, {sweep.most((least, 'partitioned'), THREADS) / 2:.0%} with two"
    )
    return [
        Finding(
            "9", "hybrid", "hybrid is steady over skew (speedup, least and most)", on_both(steady), share
        ),
        Finding(
            "9",
            "partitioned",
            "partitioned drops with skew (speedup, most skewed against even)",
            on_both(drops),
            halves,
        ),
        Finding(
            "9",
            "no skew",
            "without skew both are alike (speedup of partitioned and hybrid)",
            on_both(alike),
            share,
        ),
    ]


# --- figure 10: latency -----------------------------------------------------------------------------------


@dataclass
class Stamps:
    """Tuples know when work on them began; the sink sees how long ago that was when they leave, in order."""

    clock: Callable[[], float] = time.perf_counter
    seen: list[float] = field(default_factory=list)

    def app(self, tuples: int, cost: float) -> App:
        """A keyed box of one tuple at a time that spends ``cost`` on it; nothing in simulation, cost 0."""

        def work(row: dict[str, Any], state: Any) -> dict[str, Any]:
            begun = self.clock()
            busy(cost)
            return {"begun": begun}

        def leave(query: str, batch: pa.RecordBatch) -> None:
            self.seen.extend((self.clock() - batch.column(0).to_numpy()).tolist())

        app = App("latency")
        keyed = app.source(
            "keys", from_batches([keys_of(np.random.default_rng(10).integers(0, KEYS, tuples))])
        )
        out = pa.schema([("begun", pa.float64())])
        keyed.key_by("k").process(work, schema=out, state=list, name="box").to("q", to_function(leave))
        return app

    def mean(self) -> float:
        """Over the middle 60 %, as in the paper."""
        return float(np.mean(self.seen[len(self.seen) // 5 : max(len(self.seen) * 4 // 5, 1)]))


def latency(sizes: Sizes, console: Console) -> list[Finding]:
    """From the beginning of work on a tuple to its leaving in order: a unit is a tuple, as in the paper.

    So packets hold one row and calls take one; with longer trains either scheme holds a tuple until its
    whole unit is done, and that would be all that is seen.
    """
    sweep = Sweep("figure 10: latency in the operator, µs", ("µs per tuple", "scheme"), 0, least=True)
    calls = []
    for cost in sizes.costs:
        tuples = max(min(sizes.tuples // 8, round(sizes.tuples * COST / cost)), 50)
        found: dict[str, list[float]] = {}
        alone = checked(Stamps().app(tuples, cost).run(Threads(1, 1), "tuple_at_a_time"))
        costs = Costs({"box": cost}, Costs.of(alone, stated=True).call, 0.0)
        calls.append(costs.call)
        for _ in range(sizes.rounds):
            for scheme in SCHEMES:
                stamps = Stamps()
                engine = Threads(2, 1, partitioning=scheme, split=True)
                checked(stamps.app(tuples, cost).run(engine, "tuple_at_a_time"))
                found.setdefault(scheme, []).append(stamps.mean())
        for scheme in SCHEMES:
            case = (f"{cost * 1e6:,.0f}", scheme)
            sweep.add(case, THREADS, 2, sum(found[scheme]) / len(found[scheme]) * 1e6)
            for workers in WORKERS[SIMULATED][1:]:
                simulated = costs.engine(workers, 1, partitioning=scheme, split=True)
                sweep.add(case, SIMULATED, workers, simulated_latency(tuples, simulated) * 1e6)
        console.print(f"figure 10: {cost * 1e6:,.0f} µs done")
    console.print(sweep.table())
    cases = [f"{cost * 1e6:,.0f}" for cost in sizes.costs]
    dear = cases[-1]

    def close(engine: str) -> Side:
        ours = sweep.most((dear, "hybrid"), engine)
        return Side(ours, sizes.costs[-1] * 1e6, ours <= 1.5e6 * sizes.costs[-1])

    def higher(engine: str) -> Side:
        ours, theirs = (
            mean_ratio((sweep.most((case, scheme), engine), 1.0) for case in cases)
            for scheme in reversed(SCHEMES)
        )
        return Side(ours, theirs, ours >= 1.5 * theirs)

    why = (
        f"every call takes {np.mean(calls) * 1e6:,.0f} µs of Python without its tuple, and splitting a tuple "
        f"over {RANGES} buckets more, which the other tuples wait for"
    )
    return [
        Finding(
            "10",
            "hybrid",
            f"hybrid's latency is close to the cost of a tuple ({dear} µs)",
            on_both(close),
            why,
        ),
        Finding(
            "10", "partitioned", "partitioned's is much higher (µs, mean over costs)", on_both(higher), why
        ),
    ]


def simulated_latency(tuples: int, engine: Simulated) -> float:
    """The mean in virtual time."""
    stamps = Stamps()
    app = stamps.app(tuples, 0.0)
    simulation = SimulatedRun(engine.settings, app.network, policies.get("tuple_at_a_time"))
    stamps.clock = simulation.clock.now
    checked(simulation.run())
    return stamps.mean()
