"""Figures 3, 5, 8 and 9: threads against states, superboxes, trains, and where the overhead goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.aurora.runs import (
    CALL,
    COST,
    MEAN_COST,
    Curves,
    busy,
    calls,
    finding,
    mean_latency,
    measured_costs,
    on_threads,
    run_on,
    simulate,
)
from benchmarks.findings import SIMULATED, THREADS, Finding, Side
from benchmarks.workloads import aurora
from headgate.runtime.report import Report
from headgate.scheduling.aurora.round_robin import RoundRobin
from headgate.scheduling.trains import Share

SATURATED = 10.0
"""A system is saturated where results take that many times as long as with the least load."""


@dataclass(frozen=True)
class Sizes:
    """What is measured: ``rounds`` tuples at every input, on threads and in simulation."""

    threads: int
    simulated: int
    operators: Sequence[int] = (50, 100, 200, 500, 1000)
    loads: Sequence[float] = (0.1, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    thread_loads: Sequence[float] = (0.3, 0.5, 0.7, 0.9)
    shares: Sequence[float] = (0.2, 0.4, 0.6, 0.8, 1.0)
    depth: int = 5
    """Of the simulated trees; those on threads are one level lower."""
    forest: int = 4
    """Tuples at every input of the several large trees that are simulated."""
    runs: int = 6
    """Networks that are drawn for figures 3, 5 and 8."""

    def rounds(self, engine: str) -> int:
        return self.threads if engine == THREADS else self.simulated

    def levels(self, engine: str) -> int:
        return self.depth - (engine == THREADS)


# --- figure 3: a thread per box, or one state ---------------------------------------------------------------

FIXED = 0.5
"""Load with any number of operators: only their number grows, not what they have to do."""
INPUT = 8_000
"""Tuples in all, so that more operators do not take longer to measure."""


def execution_models(sizes: Sizes, console: Console) -> list[Finding]:
    """Latency against the number of operators, in chains of five."""
    curves = Curves("figure 3: mean latency in ms by number of operators", "operators", 2)
    most, least = max(sizes.operators), min(sizes.operators)
    for operators in sizes.operators:
        chains = operators // 5
        tuples = max(INPUT * sizes.threads // 40, chains)
        for engine, seed in product((THREADS, SIMULATED), range(sizes.runs)):
            for policy in ("thread_per_box", "mc"):
                app = aurora.network(
                    queries=chains, fan_out=1, cost=COST, load=FIXED, tuples=tuples, seed=seed
                )
                report = on_threads(app, policy) if engine == THREADS else simulate(app, policy, decision=0.0)
                curves.add(engine, policy, operators, mean_latency(report) * 1e3)
        console.print(f"figure 3: {operators} operators done")
    console.print(curves.table())

    def grows(engine: str, policy: str) -> float:
        return curves.at(engine, policy, most) / curves.at(engine, policy, least)

    def linear(engine: str) -> Side:
        return Side(grows(engine, "mc"), most / least, grows(engine, "mc") <= 2 * most / least)

    def explodes(engine: str) -> Side:
        ours, theirs = (curves.at(engine, policy, most) for policy in ("mc", "thread_per_box"))
        return Side(theirs, ours, theirs >= 2 * ours)

    return [
        finding(
            "3",
            "state-based",
            "state-based execution degrades about linearly (times the latency, times the operators)",
            curves.on_engines(linear),
            f"at a load of {FIXED:g} whatever their number; the mean of {sizes.runs} networks",
            "3",
        ),
        finding(
            "3",
            "thread per box",
            f"a thread per box explodes (ms with {most} operators, against state-based)",
            curves.on_engines(explodes),
            "in simulation a switch takes 5 µs whatever the number of threads: it knows neither the caches "
            "nor the locks that the paper blames",
            "3",
        ),
    ]


# --- figure 5: a box at a time, or an application -----------------------------------------------------------


def superboxes(sizes: Sizes, console: Console) -> list[Finding]:
    """Latency against load, for five application trees; on threads for two smaller ones.

    In simulation a call and a decision cost what they take here on threads, where nothing is overloaded:
    nothing of it comes from the paper's own result.
    """
    curves = Curves("figure 5: mean latency in ms by load", "load", 2)
    extra: dict[str, list[str]] = {}
    shape = {"queries": 2, "depth": sizes.levels(THREADS)}
    few = aurora.plan(**shape).inputs * sizes.threads  # type: ignore[arg-type]
    call, decision = measured_costs(aurora.network(**shape, load=0.3, tuples=few))  # type: ignore[arg-type]
    console.print(f"figure 5: a call takes {call * 1e6:,.0f} µs, a decision {decision * 1e6:,.0f} µs here")
    for engine, loads in ((THREADS, sizes.thread_loads), (SIMULATED, sizes.loads)):
        trees = {"queries": 2 if engine == THREADS else 5, "depth": sizes.levels(engine)}
        inputs = aurora.plan(**trees).inputs  # type: ignore[arg-type]
        for load, seed in product(loads, range(sizes.runs)):
            for policy in ("round_robin", "mc"):
                rounds = sizes.threads if engine == THREADS else sizes.forest
                app = aurora.network(**trees, load=load, tuples=inputs * rounds, seed=seed)  # type: ignore[arg-type]
                report = (
                    on_threads(app, policy)
                    if engine == THREADS
                    else simulate(app, policy, call=call, decision=decision)
                )
                curves.add(engine, policy, load, mean_latency(report) * 1e3)
                if load == max(loads) and seed == 0:
                    spent = report.overhead.total / calls(report)
                    train = report.tuples * trees["depth"] / calls(report)
                    extra.setdefault(engine, []).append(
                        f"{train:.1f} tuples and {spent * 1e6:,.0f} µs apart from them a call with {policy}"
                    )
        console.print(f"figure 5: {engine} done")
    console.print(curves.table())

    def holds(engine: str) -> Side:
        ours, theirs = (curves.knee(engine, policy, SATURATED) for policy in ("mc", "round_robin"))
        return Side(ours, theirs, ours > theirs)

    def far(engine: str) -> Side:
        ours = curves.knee(engine, "mc", SATURATED)
        return Side(ours, 0.9, ours >= 0.9)

    def sooner(engine: str) -> Side:
        ours, theirs = (curves.mean(engine, policy, 0.9) for policy in ("mc", "round_robin"))
        return Side(ours, theirs, ours < theirs)

    why = f"simulated with calls of {call * 1e6:,.0f} µs and decisions of {decision * 1e6:,.0f} µs; "
    why += "; ".join(f"{engine} at the highest load: {', '.join(said)}" for engine, said in extra.items())
    why += "; whole-queue trains: a box that waits longer takes more at a time, so a box at a time recovers"
    return [
        finding(
            "5",
            "saturation",
            "a box at a time saturates much earlier than superboxes (the highest load that each takes)",
            curves.on_engines(holds),
            why,
        ),
        finding("5", "90 %", "superboxes hold past 90 % of the capacity (load)", curves.on_engines(far), why),
        finding(
            "5",
            "latency",
            "superboxes answer sooner (ms, mean over loads up to 0.9, against a box at a time)",
            curves.on_engines(sooner),
            why,
        ),
    ]


# --- figure 8: trains ---------------------------------------------------------------------------------------

BURSTS = (1, 2, 4)
LIGHT = (COST[0] / 10, COST[1] / 10)
LOADS = (0.3, 0.2, 0.1, 0.05, 0.02)
"""Figure 8 is at the highest of these at which trains change nothing without bursts."""
NOTHING = 0.1
"""Latencies that differ by less than this share are alike."""


def quiet_load(sizes: Sizes) -> float:
    """The load of figure 8, found in simulation."""
    inputs = aurora.plan(queries=1, fan_out=2).inputs
    for load in LOADS:
        app = aurora.network(queries=1, fan_out=2, load=load, tuples=inputs * sizes.simulated)
        ends = [mean_latency(simulate(app, RoundRobin(Share(share)))) for share in (sizes.shares[0], 1.0)]
        if abs(ends[0] / ends[1] - 1) < NOTHING:
            return load
    return LOADS[-1]


def trains(sizes: Sizes, console: Console) -> list[Finding]:
    """A result's latency less the work on its path, by train size and burst; a box at a time, one tree."""
    curves = Curves("figure 8: ms of a result's latency without its processing, by train size", "share", 2)
    system = Curves("the same runs: ms of the system's overhead per input tuple", "share", 2)
    quiet = quiet_load(sizes)
    console.print(f"figure 8: at a load of {quiet:g}")
    for engine, seed in product((THREADS, SIMULATED), range(sizes.runs)):
        shares = sizes.shares if engine == SIMULATED else (sizes.shares[0], sizes.shares[-1])
        drawn = aurora.plan(queries=1, fan_out=2, load=quiet, seed=seed)
        tuples = drawn.inputs * sizes.rounds(engine)
        path = sum(tree.work() for tree in drawn.trees) / drawn.inputs
        for burst in BURSTS:
            for share in shares:
                app = aurora.network(queries=1, fan_out=2, load=quiet, burst=burst, tuples=tuples, seed=seed)
                report = run_on(engine)(app, RoundRobin(Share(share)))
                line = f"burst {burst}"
                curves.add(engine, line, share, (mean_latency(report) - path) * 1e3)
                system.add(engine, line, share, report.overhead.total / report.tuples * 1e3)
    console.print(curves.table())
    console.print(system.table())
    small, whole = sizes.shares[0], sizes.shares[-1]

    def flat(engine: str) -> Side:
        ends = [curves.at(engine, "burst 1", share) for share in (small, whole)]
        return Side(ends[1], ends[0], 0.8 <= ends[1] / ends[0] <= 1.25)

    def bursts(engine: str) -> Side:
        found = curves.at(engine, "burst 4", small)
        even = curves.at(engine, "burst 1", small)
        return Side(found, even, found >= 2 * even)

    def removed(engine: str) -> Side:
        found, before = (curves.at(engine, "burst 4", share) for share in (whole, small))
        return Side(found, before, found <= 0.8 * before)

    def converges(engine: str) -> Side:
        found, even = (curves.at(engine, f"burst {burst}", whole) for burst in (4, 1))
        return Side(found, even, found <= 2 * even)

    cheap = {}
    for burst in (1, 4):
        app = aurora.network(
            queries=1, fan_out=2, load=quiet / 10, cost=LIGHT, burst=burst, tuples=16 * sizes.simulated
        )
        cheap[burst] = mean_latency(simulate(app, RoundRobin(Share(whole)))) * 1e3
    spared = [system.at(SIMULATED, "burst 4", share) for share in (small, whole)]
    why = (
        f"whole trains cut the system's overhead per tuple from {spared[0]:.2f} to {spared[1]:.2f} ms "
        "(simulated), but a tuple also waits for the work on those that came with it, and that is "
        f"{MEAN_COST / CALL:.0f} times the overhead of a call; with tuples of a tenth of the cost "
        f"latencies are {cheap[4]:.2f} and {cheap[1]:.2f} ms, {cheap[4] / cheap[1]:.1f} times"
    )
    return [
        finding("8", "no bursts", "without bursts trains have no effect (ms)", curves.on_engines(flat), why),
        finding(
            "8",
            "bursts",
            "small trains: a burst of 4 costs a multiple, in the paper four times (ms, against burst 1)",
            curves.on_engines(bursts),
            why,
        ),
        finding(
            "8",
            "whole queues",
            "whole-queue trains markedly reduce that (ms at burst 4, against small trains)",
            curves.on_engines(removed),
            why,
        ),
        finding(
            "8",
            "converging",
            "with whole queues bursts come near to no bursts (ms, burst 4 against 1)",
            curves.on_engines(converges),
            why,
        ),
    ]


# --- figure 9: where the overhead goes ----------------------------------------------------------------------

GRANULARITIES = {"tuple_at_a_time": "tuple", "round_robin": "box, trains", "mc": "superbox"}
OFFERED = 0.9


def overheads(sizes: Sizes, console: Console) -> list[Finding]:
    """Three parts of overhead, and the time of processing all, for four trees."""
    table = Table(title="figure 9: overhead in three parts", title_justify="left")
    for column in (
        "engine",
        "a call takes",
        "worker s",
        "storage s",
        "scheduler s",
        "boxes s",
        "total s",
        "calls",
    ):
        table.add_column(column, justify="right")
    found: dict[tuple[str, str], Report] = {}
    for engine in (THREADS, SIMULATED):
        fan_out = 2 if engine == THREADS else 3
        inputs = aurora.plan(queries=4, fan_out=fan_out, depth=sizes.levels(engine)).inputs
        for policy, what in GRANULARITIES.items():
            app = aurora.network(
                queries=4,
                fan_out=fan_out,
                depth=sizes.levels(engine),
                load=OFFERED,
                burst=4,
                tuples=inputs * (sizes.threads if engine == THREADS else sizes.forest),
            )
            report = found[engine, policy] = run_on(engine)(app, policy)
            spent = report.overhead
            parts = (spent.worker, spent.storage, spent.scheduler, busy(report), _total(report))
            table.add_row(engine, what, *(f"{part:,.3f}" for part in parts), f"{calls(report):,}")
    console.print(table)

    def worse(engine: str) -> Side:
        tuple_, trains_ = (_total(found[engine, policy]) for policy in ("tuple_at_a_time", "round_robin"))
        return Side(tuple_, trains_, tuple_ >= 1.02 * trains_)

    def half(engine: str) -> Side:
        ours, theirs = (_total(found[engine, policy]) for policy in ("mc", "round_robin"))
        return Side(ours, theirs, ours <= 0.6 * theirs)

    def less(engine: str) -> Side:
        ours, theirs = (found[engine, policy].overhead.total for policy in ("mc", "round_robin"))
        return Side(ours, theirs, ours <= 0.6 * theirs)

    def rises(engine: str) -> Side:
        shares = [
            found[engine, policy].overhead.scheduler / found[engine, policy].overhead.total
            for policy in GRANULARITIES
        ]
        return Side(shares[-1], shares[0], shares[0] < shares[1] < shares[2])

    engines = (THREADS, SIMULATED)
    trains_, superbox = (found[SIMULATED, policy] for policy in ("round_robin", "mc"))
    why_half = (
        f"boxes take {busy(trains_) / _total(trains_):.0%} of the time of trains (simulated), which no "
        "schedule can save; of the overhead superboxes save "
        f"{1 - superbox.overhead.total / trains_.overhead.total:.0%}"
    )
    return [
        finding(
            "9",
            "tuple at a time",
            "tuple at a time is significantly worse than trains (s in all)",
            {engine: worse(engine) for engine in engines},
            f"trains had {_train(found, THREADS):.1f} tuples on threads and "
            f"{_train(found, SIMULATED):.1f} in simulation",
        ),
        finding(
            "9",
            "superbox",
            "superboxes nearly halve the time of trains (s in all)",
            {engine: half(engine) for engine in engines},
            why_half,
        ),
        finding(
            "9",
            "superbox, overhead",
            "they nearly halve its overhead (s)",
            {engine: less(engine) for engine in engines},
            why_half,
        ),
        finding(
            "9",
            "scheduler",
            "the scheduler's share of the overhead rises with batching (superbox, against a tuple)",
            {engine: rises(engine) for engine in engines},
            "in simulation a decision costs the same for a superbox as for a box, and there are fewer; on "
            "threads a plan of many calls is visited call by call, which counts as storage",
        ),
    ]


def _total(report: Report) -> float:
    return busy(report) + report.overhead.total


def _train(found: dict[tuple[str, str], Report], engine: str) -> float:
    """Tuples of a call with trains: those of calls with one tuple each, by the calls it took."""
    return calls(found[engine, "tuple_at_a_time"]) / calls(found[engine, "round_robin"])
