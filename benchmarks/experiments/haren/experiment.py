"""The experiments of Haren: policies against dedicated threads, the cost of scheduling, classes of queries.

Operators outnumber cores.  On threads everything that is compared runs in turns, in one run; in simulation
the same load runs in virtual time, where nothing but the schedule differs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.haren.change import changes
from benchmarks.experiments.haren.load import Chain, Measured, application, bursts, chains, measure
from benchmarks.result import Result
from headgate.engines.base import Engine
from headgate.engines.simulated import Simulated
from headgate.engines.threads import Threads
from headgate.runtime.report import Report
from headgate.scheduling import policies

Load = tuple[Chain, Sequence[float], int]
PAPER = "Haren, evaluation"
POLICIES = ("thread_per_box", "round_robin", "fcfs", "queue_size", "highest_rate", "chain", "random")
GOALS: dict[str, tuple[str, Callable[[Measured], float], bool]] = {
    "fcfs": ("maximum latency, s", lambda m: m.most, False),
    "highest_rate": ("mean latency, s", lambda m: m.mean, False),
    "chain": ("tuples held, mean", lambda m: m.queued, False),
    "queue_size": ("throughput, tuples/s", lambda m: m.throughput, True),
}
"""What each policy is for, and whether more of it is better."""
NEAR = 1.1
"""What is at most that many times the best is near it."""
LONGEST = 0.02
"""The share of worker time that scheduling tasks may take."""
CROWDED = 1.25
"""From there on figures of threads say as much about other programs as about the schedule."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    queries: int
    seconds: float
    rounds: int
    operators: Sequence[int]
    periods: Sequence[float]
    loads: Sequence[float]


QUICK = Sizes(4, 1.0, 1, (40, 200), (0.05,), (0.0, 0.9))
FULL = Sizes(10, 8.0, 3, (20, 100, 200, 400), (0.01, 0.05, 0.1, 0.5), (0.0, 0.3, 0.6, 0.9, 1.2))


def run(quick: bool, console: Console) -> list[Result]:
    """The three evaluations, and live change."""
    sizes = QUICK if quick else FULL
    cores = min(os.cpu_count() or 1, 2)
    return [
        *goals(sizes, cores, console),
        *overheads(sizes, cores, console),
        *multi_class(sizes, cores, console),
        *changes(3.0 if quick else 60.0, cores, console),
    ]


def engines(cores: int) -> dict[str, Callable[[], Engine]]:
    return {"threads": lambda: Threads(cores), "simulated": lambda: Simulated(workers=cores)}


# --- evaluation 1: each policy at its own goal ----------------------------------------------------------


def bursty(queries: Sequence[Chain], share: float, cores: int, seconds: float, rows: int = 100) -> list[Load]:
    """Bursts for all queries at one rate, so that together they are that share of what the cores can do."""
    rate = share * cores / sum(query.seconds for query in queries)
    return [(q, bursts(rate, rows, seconds, seed), rows) for seed, q in enumerate(queries)]


def goals(sizes: Sizes, cores: int, console: Console) -> list[Result]:
    """Chains of five operators in bursts, at nine tenths of the cores' time; for throughput, at twice of it.

    While all that arrives can be done, throughput is what arrives, whatever the schedule.
    """
    results: list[Result] = []
    for share, seconds, served in (
        (0.9, sizes.seconds, ("fcfs", "highest_rate", "chain")),
        (2.0, sizes.seconds / 4, ("queue_size",)),
    ):
        load = bursty(chains(sizes.queries, 5), share, cores, seconds)
        for engine, made in engines(cores).items():
            found: dict[str, list[Measured]] = {policy: [] for policy in POLICIES}
            for _ in range(sizes.rounds if engine == "threads" else 1):
                for policy in POLICIES:
                    found[policy].append(measure(application(load), made(), policy))
            title = f"{len(load)} chains of 5 operators, {cores} workers, load {share:.0%}, {engine}"
            _show(title, found, console)
            results += _at_goals(found, engine, served)
            if "chain" in served:
                results += _memory(found, engine)
    return results


_FIGURES: dict[str, Callable[[Measured], float]] = {
    "tuples/s": lambda m: m.throughput,
    "mean latency, s": lambda m: m.mean,
    "longest, s": lambda m: m.most,
    "held, mean": lambda m: m.queued,
    "most": lambda m: m.queued_most,
    "CPU s/1000": lambda m: m.cpu,
}


def _show(title: str, found: dict[str, list[Measured]], console: Console) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("policy")
    for column in _FIGURES:
        table.add_column(column, justify="right")
    for policy, runs in found.items():
        table.add_row(policy, *(f"{_middle(runs, figure):,.4g}" for figure in _FIGURES.values()))
    console.print(table)
    _tell_crowd([m for runs in found.values() for m in runs], console)


def _tell_crowd(runs: Sequence[Measured], console: Console) -> None:
    crowded = _middle(runs, lambda m: m.crowded)
    if crowded > CROWDED:
        console.print(
            f"[yellow]Other programs were running: calls took {crowded:.1f} times their processor time. "
            "Latencies and shares of threads are not those of this machine alone.[/]"
        )


def _middle(runs: Sequence[Measured], figure: Callable[[Measured], float]) -> float:
    found = sorted(figure(m) for m in runs)
    return found[len(found) // 2]


def _at_goals(found: dict[str, list[Measured]], engine: str, wanted: Sequence[str]) -> list[Result]:
    results = []
    for policy in wanted:
        goal, figure, more = GOALS[policy]
        own = _middle(found[policy], figure)
        others = {other: _middle(runs, figure) for other, runs in found.items() if other != policy}
        best = (max if more else min)(others, key=others.__getitem__)
        near = own * NEAR >= others[best] if more else own <= NEAR * others[best]
        dedicated = others["thread_per_box"]
        better = own >= dedicated if more else own <= dedicated
        results.append(
            Result(
                f"haren, {policy}, {engine}",
                f"{PAPER} 1",
                f"best or near best at its goal: {goal}; best of the others: {best}",
                own,
                others[best],
                near,
            )
        )
        results.append(
            Result(
                f"haren, {policy} against threads, {engine}",
                f"{PAPER} 1",
                f"better than dedicated threads: {goal}",
                own,
                dedicated,
                better,
            )
        )
    return results


def _memory(found: dict[str, list[Measured]], engine: str) -> list[Result]:
    """Chain against those that it is compared with in its paper."""
    own = _middle(found["chain"], lambda m: m.queued)
    results = []
    for other in ("round_robin", "fcfs"):
        theirs = _middle(found[other], lambda m: m.queued)
        results.append(
            Result(
                f"haren, chain against {other}, {engine}",
                "Babcock et al. 2003",
                f"fewer tuples held on bursty input than {other}, mean",
                own,
                theirs,
                own < theirs,
            )
        )
    return results


# --- evaluation 2: what scheduling costs ----------------------------------------------------------------


def overheads(sizes: Sizes, cores: int, console: Console) -> list[Result]:
    """The share of the workers' time in scheduling tasks, waiting included, by period and operators.

    In brackets the processor's time of a task over the period, as if all workers waited for all of it: what
    the share would be if no other program wanted the cores.
    """
    table = Table(title="share of worker time in scheduling tasks, threads", title_justify="left")
    table.add_column("operators", justify="right")
    for period in sizes.periods:
        table.add_column(f"period {period * 1e3:g} ms", justify="right")
    results, runs = [], []
    for operators in sizes.operators:
        cells = []
        for period in sizes.periods:
            load = bursty(chains(max(operators // 5, 1), 5), 0.9, cores, max(sizes.seconds / 2, 1.0), rows=20)
            policy = policies.haren(prioritize="highest_rate", period=period)
            measured = measure(application(load), Threads(cores), policy)
            runs.append(measured)
            overhead, report = measured.report.overhead, measured.report
            share = overhead.rescheduling / (report.workers * report.seconds)
            computing = overhead.rescheduling_cpu / max(measured.tasks, 1) / period
            cells.append(f"{share:.2%} ({computing:.2%})")
            if (operators, period) == (200, 0.05):
                results += [
                    Result(
                        "haren, scheduling tasks",
                        f"{PAPER} 2",
                        "share of worker time, waiting included, with 200 operators every 50 ms",
                        share,
                        LONGEST,
                        share < LONGEST,
                    ),
                    Result(
                        "haren, scheduling tasks, processor",
                        f"{PAPER} 2",
                        "the same of the processor's time, as if all waited for the worker that computes",
                        computing,
                        LONGEST,
                        computing < LONGEST,
                    ),
                ]
        table.add_row(f"{operators}", *cells)
    console.print(table)
    _tell_crowd(runs, console)
    return results


# --- evaluation 3: classes ------------------------------------------------------------------------------


def multi_class(sizes: Sizes, cores: int, console: Console) -> list[Result]:
    """Three queries of the high class at a tenth of the cores' time, ten of the low one with ever more."""
    high = chains(3, 3, seed=1, query_class=1, name="high")
    low = chains(10, 5, seed=2, name="low")
    results = []
    for engine, made in engines(cores).items():
        table = Table(title=f"three high, ten low queries, {engine}", title_justify="left")
        for column in ("low load", "high p99, s", "bound, s", "low p99, s"):
            table.add_column(column, justify="right")
        unloaded, worst, runs = 0.0, (0.0, 1.0), []
        for share in sizes.loads:
            load = bursty(high, 0.1, cores, sizes.seconds, rows=10)
            load += bursty(low, share, cores, sizes.seconds, rows=50) if share else []
            runs.append(measure(application(load), made(), "multi_class"))
            report = runs[-1].report
            found = _p99(report, "high")
            unloaded = unloaded or found
            bound = unloaded + _longest_call(report, "low")
            if share:
                worst = max(worst, (found, bound), key=lambda pair: pair[0] / pair[1])
            table.add_row(
                f"{share:.0%}", f"{found:.4f}", f"{bound:.4f}", f"{_p99(report, 'low'):.4f}" if share else "-"
            )
        console.print(table)
        _tell_crowd(runs, console)
        results.append(
            Result(
                f"haren, multi-class, {engine}",
                f"{PAPER} 3",
                "high class's p99 latency below its unloaded value plus the longest low call, s",
                worst[0],
                worst[1],
                worst[0] <= worst[1],
            )
        )
    return results


def _p99(report: Report, name: str) -> float:
    return max(q.latency.p99 for q in report.queries.values() if q.name.startswith(name) and q.tuples_out)


def _longest_call(report: Report, name: str) -> float:
    return max((call.end - call.start for call in report.trace if call.box.startswith(name)), default=0.0)
