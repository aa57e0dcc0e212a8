"""Task policies on this machine: pairs of runs, what they do with semaphores, and the size of packets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headgate.app import App
from headgate.bench.findings import checked
from headgate.bench.paired import Paired, interleaved
from headgate.bench.result import Result
from headgate.engines.base import default_packet_rows
from headgate.engines.report import Report
from headgate.engines.threads import Threads
from headgate.workloads import requests

MANY = 16
CONTESTS = (("las", "nls"), ("bobox", "bobox_baseline"))
"""Which policy is compared with which."""
SOURCES = {"las": "locality-aware scheduling, section 6", "bobox": "Bobox, section 6"}
SWEPT = (1_024, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072, 524_288)
"""Rows of a packet."""
NEAR = 0.95
"""At least this share of the best size's throughput is as good."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured; rows are all requests' of a run together."""

    pairs: int
    rows: int
    """Of pipelines; sorting takes an eighth of them for as long."""
    shop_rows: int
    """In the files of each TPCx-BB stream; sixteen requests together read sixteen times as many."""
    sweep_rows: int
    sweep_rounds: int


@dataclass(frozen=True)
class Case:
    """Requests that one run works off."""

    name: str
    count: int
    apps: Sequence[Callable[[], App]]
    """One after the other, their times added up: the five queries are single requests in turns."""

    def run(self, policy: str) -> list[Report]:
        return [checked(make().run(Threads(), policy)) for make in self.apps]

    @property
    def title(self) -> str:
        return f"{self.name}, {self.count} request{'s' if self.count > 1 else ''}"


def cases(sizes: Sizes, data: Path) -> list[Case]:
    found = []
    for kind, share in (("pipeline", 1), ("sort_merge", 8)):
        for count in (1, MANY):
            rows = sizes.rows // share // count
            found.append(Case(kind, count, [lambda k=kind, c=count, r=rows: requests.network(c, k, r)]))  # type: ignore[misc]
    alone = [lambda q=query: requests.queries(data, 1, (q,)) for query in requests.TPCX_BB]
    found.append(Case("tpcx-bb", 1, alone))
    found.append(Case("tpcx-bb", MANY, [lambda: requests.queries(data, MANY)]))
    return found


@dataclass(frozen=True)
class Contest:
    """A policy against another: times, and what both did with semaphores in the last pair."""

    policies: tuple[str, str]
    paired: Paired
    seconds: tuple[float, float]
    """Medians."""
    touched: tuple[float, float]
    """Operations on semaphores per hundred calls."""


def contest(case: Case, one: str, other: str, pairs: int) -> Contest:
    last: dict[str, list[Report]] = {}

    def seconds(policy: str) -> float:
        last[policy] = case.run(policy)
        return sum(report.seconds for report in last[policy])

    paired, ones, others = interleaved(pairs, lambda: seconds(one), lambda: seconds(other))
    return Contest(
        (one, other),
        paired,
        (statistics.median(ones), statistics.median(others)),
        (per_hundred_calls(last[one]), per_hundred_calls(last[other])),
    )


def contests(sizes: Sizes, data: Path, console: Console) -> list[Result]:
    """Every policy against what its paper compares it with, on one and on sixteen requests."""
    table = Table(
        title=f"times as fast as the other, {sizes.pairs} interleaved pairs; semaphores per 100 calls",
        title_justify="left",
    )
    columns = ("requests", "policies", "times (95 %)", "seconds", "the other", "semaphores", "the other")
    for column in columns:
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    results = []
    for case in cases(sizes, data):
        for one, other in CONTESTS:
            found = contest(case, one, other, sizes.pairs)
            both = [*(f"{s:.3f}" for s in found.seconds), *(f"{t:.2f}" for t in found.touched)]
            table.add_row(case.title, f"{one} : {other}", str(found.paired), *both)
            results += judged(case, found)
    console.print(table)
    return results


def judged(case: Case, found: Contest) -> list[Result]:
    """Not slower beyond the interval; and of Bobox, whether it leaves semaphores alone under load."""
    one, other = found.policies
    low, high = found.paired.interval
    results = [
        Result(
            f"locality, {one} against {other}, {case.title}, host",
            SOURCES[one],
            f"times as fast: not slower beyond the interval ({low:.3f} to {high:.3f}) of "
            f"{len(found.paired.ratios)} pairs",
            found.paired.median,
            1.0,
            found.paired.not_slower,
        )
    ]
    if one == "bobox" and case.count == MANY:
        results.append(
            Result(
                f"locality, semaphores, {case.title}, host",
                "Bobox, section 5.2",
                "operations per 100 calls, beginning and end of the run included: fewer than the baseline's",
                found.touched[0],
                found.touched[1],
                found.touched[0] < found.touched[1],
            )
        )
    return results


def per_hundred_calls(reports: Sequence[Report]) -> float:
    calls = sum(box.calls for report in reports for box in report.boxes.values())
    return 100 * sum(report.semaphores for report in reports) / max(calls, 1)


def packet_sizes(sizes: Sizes, console: Console) -> list[Result]:
    """Throughput by rows of a packet (Bobox, figure 1), one pipeline on one worker; the sizes in turns."""
    half = default_packet_rows()
    swept = sorted({*SWEPT, half})
    rates: dict[int, list[float]] = {rows: [] for rows in swept}
    for turn in range(sizes.sweep_rounds):
        for rows in swept if turn % 2 == 0 else swept[::-1]:
            app = requests.network(1, "pipeline", sizes.sweep_rows)
            rates[rows].append(checked(app.run(Threads(1, rows), "bobox")).throughput)
    medians = {rows: statistics.median(found) for rows, found in rates.items()}
    best = max(medians, key=lambda rows: medians[rows])
    table = Table(title="M rows/s by rows of a packet, a pipeline on one worker", title_justify="left")
    for rows in swept:
        table.add_column(f"[bold]{rows:,}[/]" if rows == half else f"{rows:,}", justify="right")
    table.add_row(*(f"[bold]{m / 1e6:.2f}[/]" if r == best else f"{m / 1e6:.2f}" for r, m in medians.items()))
    console.print(table)
    tuned = checked(requests.network(1, "pipeline", 4 * sizes.sweep_rows).run(Threads(1, "auto"), "bobox"))
    console.print(f"packet_rows='auto' ended with {tuned.packet_rows:,} rows")
    return [
        Result(
            "locality, packet size, host",
            "Bobox, figure 1",
            f"rows/s: half of L2 ({half:,} rows) as good as the best size ({best:,} rows), 5 % for noise",
            medians[half],
            medians[best],
            medians[half] >= NEAR * medians[best],
        )
    ]
