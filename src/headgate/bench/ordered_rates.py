"""Rates of the five queries on two workers: their peak, latency at 80 % of it, and bytewax beside Q4."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from headgate.bench import others
from headgate.bench.findings import checked
from headgate.bench.ordered_queries import run
from headgate.bench.ordered_shop import Shop
from headgate.bench.result import Result
from headgate.engines.base import default_packet_rows
from headgate.engines.report import Latency
from headgate.engines.threads import Threads

POLICIES = ("ct", "lp")
OFFERED = 0.8
SOURCE = "issue 4"


@dataclass(frozen=True)
class Sizes:
    """Seconds of a run, rounds of it, and rows for bytewax."""

    seconds: float
    rounds: int
    bytewax_rows: int


def rates(shop: Shop, queries: Sequence[tuple[str, int]], sizes: Sizes, console: Console) -> list[Result]:
    """``queries``: each with the rows that one worker takes about a second for."""
    table = Table(title="rates on two workers", title_justify="left")
    for column in (
        "query",
        "peak M rows/s",
        "policy",
        "offered",
        "policy",
        "p50 ms",
        "p99 ms",
        "p99 ms from arrival",
    ):
        table.add_column(column, justify="right")
    results = []
    peaks: dict[str, float] = {}
    for query, rows in queries:
        found: dict[str, float] = dict.fromkeys(POLICIES, 0.0)
        for _ in range(sizes.rounds):
            for policy in POLICIES:
                report = run(shop, query, rows, Threads(2, split=False), policy)
                found[policy] = max(found[policy], report.throughput)
        fastest = max(POLICIES, key=lambda policy: found[policy])
        peak = peaks[query] = found[fastest]
        offered = OFFERED * peak
        live = {policy: offer(shop, query, offered, sizes.seconds, policy) for policy in POLICIES}
        steadiest = min(POLICIES, key=lambda policy: live[policy][0].p99)
        processing, whole = live[steadiest]
        cells = [processing.p50 * 1e3, processing.p99 * 1e3, whole.p99 * 1e3]
        table.add_row(
            query,
            f"{peak / 1e6:.2f}",
            fastest,
            f"{offered / 1e6:.2f}",
            steadiest,
            *(f"{c:,.1f}" for c in cells),
        )
        console.print(f"rates: {query} done")
        claimed = query in ("q4", "q15")
        results += [
            Result(
                f"ordered, {query}, peak",
                SOURCE,
                "M rows/s: at least 1" if claimed else "M rows/s",
                peak / 1e6,
                1.0 if claimed else None,
                peak >= 1e6 if claimed else None,
            ),
            Result(f"ordered, {query}, p50 at 80 %", SOURCE, "ms", cells[0], None, None),
            Result(f"ordered, {query}, p99 at 80 %", SOURCE, "ms: below 50", cells[1], 50.0, cells[1] < 50),
        ]
    table.caption = (
        f"Best of {sizes.rounds} rounds, {default_packet_rows():,} rows per packet. Processing latency, from "
        "the first operator to the exit, of markers; rows arrive every 5 ms. Keyed boxes are not split."
    )
    console.print(table)
    return results + _against_bytewax(shop, peaks.get("q4", 0.0), sizes, console)


def offer(shop: Shop, query: str, rate: float, seconds: float, policy: str) -> tuple[Latency, Latency]:
    """Processing latency, and latency from arrival, of rows that come at a rate."""
    rows = min(round(rate * seconds), shop.rows)
    found = checked(shop.paced(query, rows, rate).run(Threads(2, split=False), policy)).queries[query]
    return found.processing, found.end_to_end


def _against_bytewax(shop: Shop, ours: float, sizes: Sizes, console: Console) -> list[Result]:
    if importlib.util.find_spec("bytewax") is None:
        console.print(
            "bytewax is not installed; `make compare` installs it, and Q4 is then measured there too."
        )
        return []
    rows = others.q4_rows(shop.batches("q4", sizes.bytewax_rows), shop.web_page)
    seconds = min(others.bytewax_q4(rows)[0] for _ in range(sizes.rounds))
    theirs = sizes.bytewax_rows / seconds
    console.print(
        f"bytewax on Q4: {theirs / 1e6:.3f} M rows/s; Headgate at its peak: {ours / 1e6:.2f} M rows/s"
    )
    return [
        Result(
            "ordered, q4, against bytewax",
            SOURCE,
            "M rows/s: at least 20 times",
            ours / 1e6,
            theirs / 1e6,
            ours >= 20 * theirs,
        )
    ]
