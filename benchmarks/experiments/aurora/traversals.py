"""Figures 6 and 7: traversals of a superbox, for latency and for memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from benchmarks.experiments.aurora.runs import (
    CALL,
    Curves,
    Memory,
    calls,
    finding,
    mean_latency,
    run_on,
)
from benchmarks.findings import SIMULATED, THREADS, Finding, Side
from benchmarks.workloads import aurora

TRAVERSALS = ("mm", "mc", "ml")
LOAD = 0.5


@dataclass(frozen=True)
class Sizes:
    """``rounds``: how often every input gets tuples."""

    threads: int
    simulated: int
    costs: Sequence[float] = (15e-6, 30e-6, 60e-6, 120e-6, 240e-6, 480e-6, 960e-6)
    thread_costs: Sequence[float] = (15e-6, 60e-6, 240e-6, 960e-6)
    depth: int = 5
    waiting: int = 40
    """Tuples that wait at every input when a superbox of figure 7 begins."""
    runs: int = 6
    """Trees that are drawn for figure 7."""

    def rounds(self, engine: str) -> int:
        return self.threads if engine == THREADS else self.simulated

    def levels(self, engine: str) -> int:
        return self.depth - (engine == THREADS)


def latency(sizes: Sizes, console: Console) -> list[Finding]:
    """Latency against the cost of a tuple; a tuple arrives at all inputs of the tree at once."""
    curves = Curves("figure 6: mean latency in ms by a tuple's cost in µs", "µs per tuple", 2)
    overhead: dict[str, list[float]] = {THREADS: [], SIMULATED: [CALL]}
    for engine, costs in ((THREADS, sizes.thread_costs), (SIMULATED, sizes.costs)):
        inputs = aurora.plan(queries=1, depth=sizes.levels(engine)).inputs
        for cost in costs:
            for policy in ("mc", "ml"):
                app = aurora.network(
                    queries=1,
                    depth=sizes.levels(engine),
                    cost=(cost, cost),
                    load=LOAD,
                    tuples=inputs * sizes.rounds(engine),
                    together=True,
                )
                report = run_on(engine)(app, policy)
                curves.add(engine, policy, cost * 1e6, mean_latency(report) * 1e3)
                if engine == THREADS:
                    spent = report.overhead
                    overhead[engine].append((spent.worker + spent.storage) / calls(report))
    console.print(curves.table())
    ratios = {}
    for engine in (THREADS, SIMULATED):
        crossing = curves.crossing(engine, "ml", "mc")
        call = sorted(overhead[engine])[len(overhead[engine]) // 2]
        ratios[engine] = None if crossing is None else crossing / 1e6 / call
        where = "no crossing" if crossing is None else f"ML is ahead from {crossing:,.0f} µs a tuple on"
        console.print(
            f"figure 6, {engine}: {where}"
            + ("" if crossing is None else f", p/o = {ratios[engine]:.2f}")
            + f" (a call takes {call * 1e6:,.0f} µs; the paper's example tree: p/o = 0.22)"
        )

    def dear(engine: str) -> Side:
        cost = curves.xs(engine)[-1]
        ours, theirs = curves.at(engine, "ml", cost), curves.at(engine, "mc", cost)
        return Side(ours, theirs, ours < theirs)

    def cheap(engine: str) -> Side:
        cost = curves.xs(engine)[0]
        ours, theirs = curves.at(engine, "mc", cost), curves.at(engine, "ml", cost)
        return Side(ours, theirs, ours < theirs)

    why = (
        "on threads a result leaves when its call is over, not after its own share of it, so that ML gains "
        "less than in simulation"
    )
    found = [
        finding("6", "dear boxes", "ML is ahead of MC for dear boxes (ms)", curves.on_engines(dear), why),
        finding("6", "cheap boxes", "MC is ahead of ML for cheap boxes (ms)", curves.on_engines(cheap), why),
    ]
    crossings = {engine: Side(ratio, 0.22, True) for engine, ratio in ratios.items() if ratio is not None}
    if crossings:
        claim = "they cross at a ratio p/o (here; 0.22 in the paper's example of six boxes)"
        found.append(finding("6", "crossing", claim, crossings))
    return found


def _held(engine: str, shape: dict[str, Any], waiting: int, rounds: int) -> dict[str, Memory]:
    """Each traversal's memory, where so many tuples wait at every input when a superbox begins."""
    drawn = {name: value for name, value in shape.items() if name != "order"}
    tuples = aurora.plan(**drawn).inputs * waiting * rounds
    held: dict[str, Memory] = {}
    for policy in TRAVERSALS:
        held[policy] = Memory(policy)
        app = aurora.network(**shape, burst=waiting, tuples=tuples, together=True)
        run_on(engine)(app, held[policy])
    return held


def memory(sizes: Sizes, console: Console) -> list[Finding]:
    """With ordered unions, in which a row may have to wait whatever the traversal wants, and without."""
    return [finding for order in ("serial", "arrival") for finding in _memory(sizes, order, console)]


def _memory(sizes: Sizes, order: str, console: Console) -> list[Finding]:
    """Tuples in the queues over a superbox's run, one after the other, of one tree that drops tuples."""
    title = f"figure 7, unions in the order of {'serials' if order == 'serial' else 'arrival'}"
    means = Curves(f"{title}: tuples held, mean over the run (1), times that of MM (2)", "")
    for engine in (THREADS, SIMULATED):
        depth, rounds = sizes.levels(engine), max(sizes.rounds(engine) // 10, 3)
        for seed in range(sizes.runs):
            shape: dict[str, Any] = {
                "queries": 1,
                "depth": depth,
                "selectivity": (0.2, 1.0),
                "load": LOAD,
                "order": order,
                "seed": seed,
            }
            held = _held(engine, shape, sizes.waiting, rounds)
            end = max(watched.times[-1] for watched in held.values())
            least = held["mm"].tuple_seconds()
            for policy, watched in held.items():
                means.add(engine, policy, 1, watched.tuple_seconds() / end)
                means.add(engine, policy, 2, watched.tuple_seconds() / least)
    console.print(means.table())
    console.print(
        "Memory: tuples in all queues, of a call until it is over, results until their superbox is."
    )

    def below(first: str, second: str, engine: str) -> Side:
        ours, theirs = means.at(engine, first, 2), means.at(engine, second, 2)
        return Side(ours, theirs, ours < theirs)

    single = _held(SIMULATED, shape | {"depth": sizes.depth}, 1, 3)
    least = single["mm"].tuple_seconds()
    spread = ", ".join(f"{p} {means.within(SIMULATED, p, 2)}" for p in TRAVERSALS)
    why = (
        f"means of {sizes.runs} trees, times MM, simulated: {spread}. With MC what a subtree has made waits "
        "for its siblings, while ML has it filtered all the way down; MC gains only by its fewer calls, and "
        "those are cheap next to whole queues. With a single tuple at every input MC has "
        f"{single['mc'].tuple_seconds() / least:.2f} and ML "
        f"{single['ml'].tuple_seconds() / least:.2f} times MM (simulated)"
    )
    unions = "ordered unions" if order == "serial" else "unions by arrival"
    return [
        finding(
            "7",
            f"{more.upper()}, {unions}",
            f"{more.upper()} needs less than {less.upper()}, {unions} (times MM)",
            means.on_engines(lambda engine, more=more, less=less: below(more, less, engine)),  # type: ignore[misc]
            why,
        )
        for more, less in (("mm", "mc"), ("mc", "ml"))
    ]
