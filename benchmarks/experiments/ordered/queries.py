"""Figures 8, 11 and 14: heuristics, partitioning and reordering on the five TPCx-BB queries.

Threads run in rounds, all cases of a query in turns.  One run of one worker says what every box costs, and
the simulation repeats the cases with that, real rows through real operators, on up to sixteen cores.
Keyed boxes are split only for figure 11: these cost less per tuple than splitting does, and a measured cost
that a busy machine has spoilt must not split them in one case and not in the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from benchmarks.findings import (
    ALIKE,
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
    mean_ratio,
    on_both,
)
from benchmarks.workloads.tpcx_bb.queries import QUERIES, Shop
from headgate.engines.base import Engine
from headgate.engines.threads import Threads
from headgate.graph.operator import Kind
from headgate.runtime.report import Report
from headgate.scheduling.interface import Policy

HEURISTICS = ("ct", "lp", "et", "qst")
LEAST = 16
"""Packets that a run has at least."""
BUCKETS = 16
"""A part of a packet costs these operators as much as thousands of rows; a hundred parts are measured too."""
FINE = "hybrid, 100"
FINE_PACKETS = 4
"""Enough to see a hundred parts of some forty rows, which take a second and more for a packet."""
SPLITS: dict[str, dict[str, Any]] = {
    f"hybrid, {BUCKETS}": {"split": True, "partitioning": "hybrid", "buckets": BUCKETS},
    "partitioned": {"split": True, "partitioning": "partitioned", "buckets": BUCKETS},
    FINE: {"split": True, "partitioning": "hybrid", "buckets": 100},
    "not split": {"split": False},
}
REORDERS = ("nonblocking", "lock")


@dataclass
class Sizes:
    """How much is measured."""

    rows: int
    packet_rows: int
    """Fewer than the default, so that queues are short and there are packets enough for sixteen workers."""
    seconds: float
    """About how long a run on one worker takes."""
    simulated: float
    """About how many seconds of real work a simulated run goes through."""
    rounds: int
    fine: bool = True
    """Also with a hundred buckets."""


@dataclass
class Query:
    """A query with what one worker said of it."""

    name: str
    rows: int
    simulated_rows: int
    costs: Costs
    bound: float
    """Rows per second that its slowest box with one lane lets through, however many workers there are."""
    narrow: str


def measure(shop: Shop, sizes: Sizes, console: Console) -> list[Query]:
    """How fast every query is on one worker, and what its boxes cost."""
    queries, packet = [], sizes.packet_rows
    for name in QUERIES:
        probe = run(shop, name, min(LEAST * packet, shop.rows), Threads(1, packet), "ct")
        rows = _rows(probe, sizes.seconds, packet, shop.rows)
        app = shop.at_once(name, rows)
        report = fastest(checked(app.run(Threads(1, packet), "ct")) for _ in range(sizes.rounds))
        serial = {b.name for b in app.network.boxes if b.operator.kind is not Kind.STATELESS}
        narrow = max((b for b in report.boxes.values() if b.name in serial), key=lambda b: b.busy)
        bound = report.tuples / narrow.busy
        simulated_rows = _rows(report, sizes.simulated, packet, rows)
        queries.append(Query(name, rows, simulated_rows, Costs.of(report), bound, narrow.name))
        console.print(
            f"{name}: {report.throughput / 1e6:.2f} M rows/s on one worker; {narrow.name}, which one worker "
            f"can be in at a time, lets {bound / 1e6:.2f} M rows/s through; measured with {rows:,} rows"
        )
    return queries


def _rows(report: Report, seconds: float, packet: int, most: int) -> int:
    """Rows that one worker needs so many seconds for."""
    return min(max(round(report.throughput * seconds) // packet, LEAST) * packet, most)


def run(shop: Shop, query: str, rows: int, engine: Engine, policy: str | Policy) -> Report:
    """One run to the end of the rows."""
    return checked(shop.at_once(query, rows).run(engine, policy))


# --- figure 8 ---------------------------------------------------------------------------------------------


def heuristics(shop: Shop, queries: Sequence[Query], sizes: Sizes, console: Console) -> list[Finding]:
    """Throughput and mean processing latency of every heuristic on every query."""
    rates = Sweep("figure 8a: M rows/s by heuristic", ("query", "heuristic"))
    latencies = Sweep("figure 8b: mean processing latency, ms", ("query", "heuristic"), 1, least=True)
    for query in queries:
        found: dict[tuple[str, int], list[Report]] = {}
        for _ in range(sizes.rounds):
            for policy in HEURISTICS:
                for workers in WORKERS[THREADS]:
                    engine = Threads(workers, sizes.packet_rows, split=False)
                    found.setdefault((policy, workers), []).append(
                        run(shop, query.name, query.rows, engine, policy)
                    )
        for (policy, workers), reports in found.items():
            note(rates, latencies, (query.name, policy), THREADS, workers, reports, query.name)
        for policy in HEURISTICS:
            for workers in WORKERS[SIMULATED]:
                simulated = query.costs.engine(workers, sizes.packet_rows, split=False)
                report = run(shop, query.name, query.simulated_rows, simulated, policy)
                note(rates, latencies, (query.name, policy), SIMULATED, workers, [report], query.name)
        console.print(f"figure 8: {query.name} done")
    console.print(rates.table())
    console.print(latencies.table())
    return _claims_of_figure_8(rates, latencies, queries)


def note(
    rates: Sweep,
    latencies: Sweep,
    case: tuple[str, ...],
    engine: str,
    workers: int,
    reports: Sequence[Report],
    query: str,
) -> None:
    """The best throughput of several rounds, and the mean of their latencies."""
    rates.add(case, engine, workers, max(report.throughput for report in reports) / 1e6)
    means = [report.queries[query].processing.mean for report in reports]
    latencies.add(case, engine, workers, sum(means) / len(means) * 1e3)


def _claims_of_figure_8(rates: Sweep, latencies: Sweep, queries: Sequence[Query]) -> list[Finding]:
    names = [query.name for query in queries]

    def peak(policy: str, engine: str, of: Sequence[str] = names) -> float:
        return mean_ratio((rates.best((query, policy), engine), 1.0) for query in of)

    def throughput(engine: str) -> Side:
        others = mean_ratio(
            (max(rates.best((query, other), engine) for other in HEURISTICS if other != "ct"), 1.0)
            for query in names
        )
        return Side(peak("ct", engine), others, peak("ct", engine) >= ALIKE * others)

    def lp(of: Sequence[str], as_good: bool, engine: str) -> Side:
        ours, ct = peak("lp", engine, of), peak("ct", engine, of)
        return Side(ours, ct, (ours >= ALIKE * ct) == as_good)

    def behind(engine: str) -> Side:
        ours, ct = max(peak(policy, engine) for policy in ("et", "qst")), peak("ct", engine)
        return Side(ours, ct, ours < ALIKE * ct)

    def wait(policy: str, engine: str) -> float:
        return mean_ratio((latencies.mean((query, policy), engine), 1.0) for query in names)

    def latency(engine: str) -> Side:
        others = min(wait(policy, engine) for policy in HEURISTICS if policy != "lp")
        return Side(wait("lp", engine), others, wait("lp", engine) <= others)

    def slow(engine: str) -> Side:
        ours, ct = min(wait(policy, engine) for policy in ("et", "qst")), wait("ct", engine)
        return Side(ours, ct, ours >= BETTER * ct)

    def scales(engine: str) -> Side:
        cores = min(8, WORKERS[engine][-1])
        speedup = mean_ratio(
            (rates.at((q, "ct"), engine, cores), rates.at((q, "ct"), engine, 1)) for q in names
        )
        return Side(speedup, cores, speedup >= 0.75 * cores)

    narrow = "one lane: " + ", ".join(
        f"{query.name} {query.narrow} {query.bound / 1e6:.2f} M rows/s" for query in queries
    )
    return [
        Finding(
            "8a",
            "ct",
            "CT has the best throughput (M rows/s, against the best other)",
            on_both(throughput),
            f"fastest: {_firsts(rates, names)}",
        ),
        Finding(
            "8a",
            "lp as good",
            "LP is as fast as CT on Q1 and Q15 (M rows/s)",
            on_both(lambda engine: lp(("q1", "q15"), True, engine)),
            f"fastest: {_firsts(rates, names)}",
        ),
        Finding(
            "8a",
            "lp behind",
            "LP is slower than CT on Q2, Q3 and Q4 (M rows/s)",
            on_both(lambda engine: lp(("q2", "q3", "q4"), False, engine)),
            f"LP takes a packet through all boxes at once, without a queue; {narrow}",
        ),
        Finding("8a", "et and qst", "ET and QST are slower than CT (M rows/s)", on_both(behind), narrow),
        Finding("8a", "scaling", "CT scales almost linearly to 8 cores (speedup)", on_both(scales), narrow),
        Finding(
            "8b",
            "lp",
            "LP has the lowest processing latency (ms, against the best other)",
            on_both(latency),
            f"lowest: {_firsts(latencies, names)}",
        ),
        Finding(
            "8b",
            "et and qst",
            "ET and QST have higher latencies than CT (ms)",
            on_both(slow),
            f"lowest: {_firsts(latencies, names)}",
        ),
    ]


def _firsts(sweep: Sweep, queries: Sequence[str]) -> str:
    """Which heuristic is best where."""
    said = []
    for engine in WORKERS:
        pick = min if sweep.least else max
        best = [
            f"{q} {pick(HEURISTICS, key=lambda policy: sweep.best((q, policy), engine))}" for q in queries
        ]
        said.append(f"{engine}: {', '.join(best)}")
    return "; ".join(said)


# --- figures 11 and 14 ------------------------------------------------------------------------------------


def partitioning(shop: Shop, queries: Sequence[Query], sizes: Sizes, console: Console) -> list[Finding]:
    """Hybrid against partitioned, CT, every keyed box split, which these cheap ones otherwise are not."""
    rates = Sweep("figure 11a: M rows/s by partitioning", ("query", "scheme"), 3)
    latencies = Sweep("figure 11b: mean processing latency, ms", ("query", "scheme"), 1, least=True)
    for query in queries:
        rows = max(query.rows // 5, LEAST // 2 * sizes.packet_rows)
        found: dict[str, list[Report]] = {}
        for turn in range(sizes.rounds):
            for scheme, options in SPLITS.items():
                if scheme == FINE and (turn or not sizes.fine):
                    continue
                engine = Threads(2, sizes.packet_rows, **options)
                few = FINE_PACKETS * sizes.packet_rows if scheme == FINE else rows
                found.setdefault(scheme, []).append(run(shop, query.name, few, engine, "ct"))
        for scheme, reports in found.items():
            note(rates, latencies, (query.name, scheme), THREADS, 2, reports, query.name)
        rows = max(query.simulated_rows // 5, LEAST // 2 * sizes.packet_rows)
        for scheme, options in SPLITS.items():
            if scheme == FINE:
                continue
            for workers in WORKERS[SIMULATED][1:]:
                simulated = query.costs.engine(workers, sizes.packet_rows, **options)
                report = run(shop, query.name, rows, simulated, "ct")
                note(rates, latencies, (query.name, scheme), SIMULATED, workers, [report], query.name)
        console.print(f"figure 11: {query.name} done")
    console.print(rates.table())
    console.print(latencies.table())
    hybrid = next(iter(SPLITS))

    def faster(engine: str) -> Side:
        pairs = [
            (rates.best((q.name, hybrid), engine), rates.best((q.name, "partitioned"), engine))
            for q in queries
        ]
        mean = (mean_ratio((a, 1.0) for a, _ in pairs), mean_ratio((b, 1.0) for _, b in pairs))
        return Side(*mean, all(a >= BETTER * b for a, b in pairs))

    def quicker(engine: str) -> Side:
        pairs = [
            (latencies.best((q.name, hybrid), engine), latencies.best((q.name, "partitioned"), engine))
            for q in queries
        ]
        lower = sum(BETTER * a <= b for a, b in pairs)
        return Side(lower, 3, lower >= 3)

    whole = mean_ratio((rates.at((q.name, "not split"), THREADS, 2), 1.0) for q in queries)
    why = (
        f"a call takes {mean_ratio((q.costs.call, 1e-6) for q in queries):,.0f} µs whatever its rows: "
        f"{BUCKETS} parts of a packet take that {BUCKETS} times, a queue per worker only twice; "
        f"not split: {whole:.2f} M rows/s on threads"
    )
    return [
        Finding(
            "11a",
            "hybrid",
            "hybrid is faster than partitioned on every query (M rows/s)",
            on_both(faster),
            why,
        ),
        Finding(
            "11b", "hybrid", "hybrid has the lower latency in 3 of 5 queries (queries)", on_both(quicker), why
        ),
    ]


def reordering(shop: Shop, queries: Sequence[Query], sizes: Sizes, console: Console) -> list[Finding]:
    """Non-blocking against lock-based on the queries, CT."""
    rates = Sweep("figure 14: M rows/s by reordering", ("query", "reordering"))
    for query in queries:
        found: dict[tuple[str, int], list[float]] = {}
        for _ in range(sizes.rounds):
            for reorder in REORDERS:
                for workers in WORKERS[THREADS]:
                    report = run(
                        shop,
                        query.name,
                        query.rows,
                        Threads(workers, sizes.packet_rows, reorder=reorder, split=False),
                        "ct",
                    )
                    found.setdefault((reorder, workers), []).append(report.throughput / 1e6)
        for (reorder, workers), best in found.items():
            rates.add((query.name, reorder), THREADS, workers, max(best))
        for reorder in REORDERS:
            for workers in WORKERS[SIMULATED]:
                simulated = query.costs.engine(workers, sizes.packet_rows, reorder=reorder, split=False)
                report = run(shop, query.name, query.simulated_rows, simulated, "ct")
                rates.add((query.name, reorder), SIMULATED, workers, report.throughput / 1e6)
        console.print(f"figure 14: {query.name} done")
    console.print(rates.table())

    def faster(engine: str) -> Side:
        pairs = [tuple(rates.best((q.name, reorder), engine) for reorder in REORDERS) for q in queries]
        mean = (mean_ratio((pair[0], 1.0) for pair in pairs), mean_ratio((pair[1], 1.0) for pair in pairs))
        return Side(*mean, all(pair[0] >= BETTER * pair[1] for pair in pairs))

    send = mean_ratio((q.costs.send, 1e-9) for q in queries)
    cost = mean_ratio((sum(q.costs.boxes.values()) / len(q.costs.boxes), 1e-9) for q in queries)
    why = (
        f"passing a tuple on takes {send:,.0f} ns in packets, working on it {cost:,.0f} ns: "
        "there is next to nothing to wait for"
    )
    return [
        Finding(
            "14",
            "non-blocking",
            "non-blocking is faster than lock-based on every query (M rows/s)",
            on_both(faster),
            why,
        )
    ]
