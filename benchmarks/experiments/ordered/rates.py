"""Rates of the five queries on two workers: their peak, latency at 80 % of it, and bytewax on Q4.

The peak is the highest rate of arrival that a query keeps up with: it is done soon after the last row has
come.  It is searched for downwards from the rate at which rows that are all there are worked off, which is
reported too: that has the advantage of full packets.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.ordered.paced import paced
from benchmarks.experiments.ordered.queries import run
from benchmarks.findings import checked
from benchmarks.peers import bytewax
from benchmarks.result import Result
from benchmarks.workloads.tpcx_bb.queries import Shop
from headgate.engines.base import default_packet_rows
from headgate.engines.threads import Threads
from headgate.runtime.report import Latency

POLICIES = ("ct", "lp")
OFFERED = 0.8
SOON = 0.1
"""Seconds after the last arrival in which a query that keeps up is done."""
STEPS = 6
"""Halvings of the search for the peak."""
SOURCE = "our aim"


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
        "M rows/s, all there",
        "peak M rows/s",
        "policy",
        "offered",
        "p50 ms",
        "p99 ms",
        "p99 ms from arrival",
    ):
        table.add_column(column, justify="right")
    results = []
    peaks: dict[str, float] = {}
    for query, rows in queries:
        backlog = 0.0
        for _ in range(sizes.rounds):
            for policy in POLICIES:
                report = run(shop, query, rows, Threads(2, split=False), policy)
                backlog = max(backlog, report.throughput)
        found = {policy: sustained(shop, query, backlog, sizes.seconds, policy) for policy in POLICIES}
        best = max(POLICIES, key=lambda policy: found[policy])
        peak = peaks[query] = found[best]
        tried = [offer(shop, query, OFFERED * peak, sizes.seconds, best) for _ in range(sizes.rounds)]
        processing, whole, _ = min(tried, key=lambda measured: measured[0].p99)
        cells = [processing.p50 * 1e3, processing.p99 * 1e3, whole.p99 * 1e3]
        rates = [f"{rate / 1e6:.2f}" for rate in (backlog, peak, OFFERED * peak)]
        table.add_row(query, *rates[:2], best, rates[2], *(f"{c:,.1f}" for c in cells))
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
            Result(f"ordered, {query}, backlog", SOURCE, "M rows/s", backlog / 1e6, None, None),
            Result(f"ordered, {query}, p50 at 80 %", SOURCE, "ms", cells[0], None, None),
            Result(f"ordered, {query}, p99 at 80 %", SOURCE, "ms: below 50", cells[1], 50.0, cells[1] < 50),
        ]
    table.caption = (
        f"Best of {sizes.rounds} rounds, at most {default_packet_rows():,} rows per packet. Processing "
        "latency, from the first operator to the exit, of markers; rows arrive every 5 ms. Keyed boxes are "
        "not split."
    )
    console.print(table)
    return results + _against_bytewax(shop, peaks.get("q4", 0.0), sizes, console)


def sustained(shop: Shop, query: str, most: float, seconds: float, policy: str) -> float:
    """The highest rate of arrival, up to ``most``, that a query keeps up with."""
    low, high = 0.0, most
    rate = most
    for _ in range(STEPS):
        keeps_up = offer(shop, query, rate, seconds, policy)[2] <= SOON
        low, high = (rate, high) if keeps_up else (low, rate)
        if low == most:
            break
        rate = (low + high) / 2
    return low


def offer(shop: Shop, query: str, rate: float, seconds: float, policy: str) -> tuple[Latency, Latency, float]:
    """Processing latency, latency from arrival, and by how many seconds it was done after the last row."""
    rows = min(round(rate * seconds), shop.rows)
    report = checked(paced(shop, query, rows, rate).run(Threads(2, split=False), policy))
    found = report.queries[query]
    return found.processing, found.end_to_end, report.seconds - rows / rate


def _against_bytewax(shop: Shop, ours: float, sizes: Sizes, console: Console) -> list[Result]:
    if importlib.util.find_spec("bytewax") is None:
        console.print(
            "bytewax is not installed; `make compare` installs it, and Q4 is then measured there too."
        )
        return []
    rows = bytewax.q4_rows(shop.batches("q4", sizes.bytewax_rows), shop.web_page)
    seconds = min(bytewax.q4(rows)[0] for _ in range(sizes.rounds))
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
