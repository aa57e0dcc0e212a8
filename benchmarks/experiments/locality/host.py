"""Task policies on this machine: pairs of runs, what they do with semaphores, and the size of packets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.requests.cases import BASELINES, MANY, asked
from benchmarks.findings import checked
from benchmarks.paired import Paired, interleaved
from benchmarks.result import Result
from benchmarks.workloads import requests, xquery
from headgate.api import App
from headgate.connectors.batches import from_batches
from headgate.connectors.python import to_function
from headgate.engines.base import Engine, default_packet_rows
from headgate.engines.threads import Threads
from headgate.runtime.report import Report
from headgate.scheduling import policies
from headgate.scheduling.tuning.packet_size import PacketTuner

CONTESTS = tuple(BASELINES.items())
"""Which policy is compared with which."""
ASKED = ("q2", "q4", "q6")
"""SP²Bench's questions of which LAS says most; all eight are in ``headgate bench requests``."""
SOURCES = {"las": "locality-aware scheduling, section 6", "bobox": "Bobox, section 6"}
SWEPT = (1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288)
"""Rows of a packet."""
BEGINS = (4_096, 262_144)
"""Sizes from which the tuner has to find its way."""
AGAIN = 1_000
WORKED_OFF = 8
"""A rate is made from at least so many packets; the last one may be half done."""
NEAR = 0.95
"""At least this share of the best size's throughput is as good."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    pairs: int
    least: float
    """Seconds that either side of a pair runs for at least, in as many runs as that takes."""
    triples: int
    document: int
    """Nodes of the document that Bobox's plan reads."""
    shop_rows: int
    """In the files of each TPCx-BB stream; sixteen requests together read sixteen times as many."""
    sweep_rows: int
    sweep_rounds: int
    sweep_seconds: float
    """Of the stream without an end, for each size and round; longer where that is too short for a rate."""
    tuner_seconds: float


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


def cases(sizes: Sizes, shop: Path, triples: Path) -> list[Case]:
    """Questions of both papers' plans, and the five TPCx-BB queries."""
    found = []
    nodes = xquery.document(sizes.document)
    for count in (1, MANY):
        for name in ASKED:
            found.append(Case(name, count, [lambda n=name, c=count: asked(triples, n, c)]))  # type: ignore[misc]
        found.append(
            Case(f"{xquery.OPERATORS} operators", count, [lambda c=count: xquery.network(nodes, c)])  # type: ignore[misc]
        )
    alone = [lambda q=query: requests.queries(shop, 1, (q,)) for query in requests.TPCX_BB]
    found.append(Case("tpcx-bb", 1, alone))
    found.append(Case("tpcx-bb", MANY, [lambda: requests.queries(shop, MANY)]))
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


def contest(case: Case, one: str, other: str, sizes: Sizes) -> Contest:
    last: dict[str, list[Report]] = {}

    def seconds(policy: str) -> float:
        last[policy] = case.run(policy)
        return sum(report.seconds for report in last[policy])

    paired, ones, others = interleaved(sizes.pairs, lambda: seconds(one), lambda: seconds(other), sizes.least)
    return Contest(
        (one, other),
        paired,
        (statistics.median(ones), statistics.median(others)),
        (per_hundred_calls(last[one]), per_hundred_calls(last[other])),
    )


def contests(sizes: Sizes, shop: Path, triples: Path, console: Console) -> list[Result]:
    """Every policy against what its paper compares it with, on one and on sixteen requests."""
    table = Table(
        title=f"times as fast as the other, {sizes.pairs} interleaved pairs; semaphores per 100 calls",
        title_justify="left",
    )
    columns = ("requests", "policies", "times (95 %)", "seconds", "the other", "semaphores", "the other")
    for column in columns:
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    results = []
    for case in cases(sizes, shop, triples):
        for one, other in CONTESTS:
            found = contest(case, one, other, sizes)
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


def _one_worker(rows: int) -> Engine:
    return Threads(1, rows)


def packet_sizes(
    sizes: Sizes, console: Console, engine: Callable[[int], Engine] = _one_worker
) -> list[Result]:
    """Throughput by rows of a packet (Bobox, figure 1), one pipeline on one worker; the sizes in turns.

    Once as a request with an end, once as a stream without: in a short run memory is new to the process.
    ``engine`` is made for each number of rows.
    """
    half = default_packet_rows()
    swept = sorted({*SWEPT, half})
    kinds: dict[str, Callable[[int], Report]] = {
        "with an end": lambda rows: requests.pipelines(1, sizes.sweep_rows).run(engine(rows), "bobox"),
        "without": lambda rows: _without_end(rows, sizes, engine),
    }
    rates: dict[str, dict[int, list[float]]] = {kind: {rows: [] for rows in swept} for kind in kinds}
    for turn in range(sizes.sweep_rounds):
        for rows in swept if turn % 2 == 0 else swept[::-1]:
            for kind, run in kinds.items():
                rates[kind][rows].append(_rate(checked(run(rows))))
    table = Table(title="M rows/s by rows of a packet, a pipeline on one worker", title_justify="left")
    for column in ("stream", *(f"[bold]{rows:,}[/]" if rows == half else f"{rows:,}" for rows in swept)):
        table.add_column(column, justify="left" if column == "stream" else "right")
    results = []
    for kind, found in rates.items():
        medians = {rows: statistics.median(of_size) for rows, of_size in found.items()}
        best = max(medians, key=lambda rows: medians[rows])
        shown = {rows: f"{median / 1e6:.2f}" for rows, median in medians.items()}
        table.add_row(kind, *(f"[bold]{text}[/]" if rows == best else text for rows, text in shown.items()))
        results.append(
            Result(
                f"locality, packet size, stream {kind}, host",
                "Bobox, figure 1",
                f"rows/s: half of L2 ({half:,} rows) as good as the best size ({best:,} rows), 5 % for noise",
                medians[half],
                medians[best],
                medians[half] >= NEAR * medians[best],
            )
        )
    console.print(table)
    begins = dict.fromkeys((half, *BEGINS))
    return [*results, *(tuned(rows, sizes, medians, console, engine) for rows in begins)]


def _worked_off(report: Report) -> int:
    """Rows that the first box took; of large packets more have been read, and wait, at the end."""
    return next(iter(report.boxes.values())).tuples_in


def _rate(report: Report) -> float:
    return _worked_off(report) / report.seconds


def _without_end(rows: int, sizes: Sizes, engine: Callable[[int], Engine]) -> Report:
    """The stream without an end, for the seconds asked for.

    A run that is too short for a rate does not count: where packets are large or the machine is slow, none
    may be worked off in that time.  It is run again for twice as long.  Measuring a number of rows instead
    would make small packets run for a fraction of the time that large ones have.
    """
    seconds, enough = sizes.sweep_seconds, min(WORKED_OFF * rows, sizes.sweep_rows * AGAIN)
    while True:
        report = checked(_endless(sizes).run(engine(rows), "bobox", until=seconds))
        if _worked_off(report) >= enough:
            return report
        seconds *= 2


def tuned(
    rows: int,
    sizes: Sizes,
    rates: Mapping[int, float],
    console: Console,
    engine: Callable[[int], Engine] = _one_worker,
) -> Result:
    """What ``packet_rows="auto"`` makes of a size to begin with, on the stream without an end."""
    policy = PacketTuner(policies.get("bobox"), default_packet_rows(), rows)
    checked(_endless(sizes).run(engine(rows), policy, until=sizes.tuner_seconds))
    ended = policy.settled
    console.print(f"packet_rows='auto' that begins with {rows:,} rows ended with {ended:,}")
    rate, best = rates[min(rates, key=lambda known: abs(math.log(known / ended)))], max(rates.values())
    return Result(
        f"locality, packet size, tuner from {rows:,} rows, host",
        "Bobox, section 7",
        f"rows/s: the size that it ends with ({ended:,} rows) as good as the best, 5 % for noise",
        rate,
        best,
        rate >= NEAR * best,
    )


def _endless(sizes: Sizes) -> App:
    """A pipeline whose rows come again and again, for longer than the measurement."""
    app = App("endless")
    source = app.source("s0", from_batches(requests.batches(sizes.sweep_rows, 0) * AGAIN))
    requests.pipeline(source, 8).to("r0", to_function(lambda query, batch: None))
    return app
