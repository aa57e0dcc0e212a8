"""What the papers' benchmarks find: figures by case, engine and workers, and the claims about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks.result import Result
from headgate.engines.simulated import Simulated
from headgate.runtime.report import Report

THREADS, SIMULATED = "threads", "simulated"
WORKERS = {THREADS: (1, 2), SIMULATED: (1, 2, 4, 8, 16)}
PAPER = "ordered processing, section 7"
ALIKE = 0.95
"""What is at least this share of another is as good."""
BETTER = 1.02
"""What is at least that many times another is more."""

Case = tuple[str, ...]


class Sweep:
    """A figure as numbers: for every case, on either engine, by workers."""

    def __init__(self, title: str, case: Sequence[str], digits: int = 2, *, least: bool = False) -> None:
        self.title = title
        self.least = least
        """The best is the least."""
        self._case = case
        self._digits = digits
        self._values: dict[Case, dict[tuple[str, int], float]] = {}

    def add(self, case: Case, engine: str, workers: int, value: float) -> None:
        self._values.setdefault(case, {})[engine, workers] = value

    def at(self, case: Case, engine: str, workers: int) -> float:
        return self._values[case][engine, workers]

    def best(self, case: Case, engine: str) -> float:
        """Over all numbers of workers, as the paper goes up to each query's peak."""
        found = [value for (on, _), value in self._values[case].items() if on == engine]
        return min(found) if self.least else max(found)

    def mean(self, case: Case, engine: str) -> float:
        """Over all numbers of workers, geometrically."""
        return mean_ratio((value, 1.0) for (on, _), value in self._values[case].items() if on == engine)

    def most(self, case: Case, engine: str) -> float:
        """With the most workers."""
        return self.at(case, engine, WORKERS[engine][-1])

    def table(self) -> Table:
        made = Table(title=self.title, title_justify="left")
        for name in self._case:
            made.add_column(name)
        columns = [(engine, workers) for engine in WORKERS for workers in WORKERS[engine]]
        for engine, workers in columns:
            made.add_column(f"{engine}\n{workers}", justify="right")
        for case, values in self._values.items():
            cells = [f"{values[c]:,.{self._digits}f}" if c in values else "-" for c in columns]
            made.add_row(*case, *cells)
        return made


@dataclass(frozen=True)
class Side:
    """One engine's answer to a claim: ``measured`` against ``baseline``, in the claim's unit."""

    measured: float
    baseline: float
    holds: bool

    def __str__(self) -> str:
        return f"{self.measured:,.3g} : {self.baseline:,.3g}"


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, or of the issue, and the result."""

    figure: str
    name: str
    claim: str
    """What is said, and in brackets what the numbers are."""
    sides: dict[str, Side]
    why: str = ""
    """Where it does not hold: what was measured that says why."""
    source: str = PAPER
    bench: str = "ordered"

    @property
    def holds(self) -> bool:
        return all(side.holds for side in self.sides.values())

    def results(self) -> list[Result]:
        return [
            Result(
                f"{self.bench}, figure {self.figure}, {self.name}, {engine}",
                self.source,
                self.claim,
                side.measured,
                side.baseline,
                side.holds,
                "" if side.holds else self.why,
            )
            for engine, side in self.sides.items()
        ]


def on_both(side: Callable[[str], Side]) -> dict[str, Side]:
    """A claim's answer on either engine."""
    return {engine: side(engine) for engine in WORKERS}


def summary(findings: Iterable[Finding]) -> Table:
    """All claims in one table."""
    made = Table(title="the paper's claims", title_justify="left", show_lines=True)
    for column in ("figure", "claim", "threads", "simulated", "holds", "why not"):
        made.add_column(column)
    for finding in findings:
        said = ", ".join(f"{on}: {'yes' if side.holds else 'no'}" for on, side in finding.sides.items())
        colour = "green" if finding.holds else "red"
        made.add_row(
            finding.figure,
            finding.claim,
            *(str(finding.sides.get(engine, "-")) for engine in WORKERS),
            f"[{colour}]{said}[/]",
            "" if finding.holds else finding.why,
        )
    return made


def mean_ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """The geometric mean of ratios: no query counts more than another."""
    return math.exp(sum(logs := [math.log(a / b) for a, b in pairs]) / len(logs))


@dataclass(frozen=True)
class Costs:
    """What a run of one worker on threads says of costs; the simulation repeats the run with these."""

    boxes: dict[str, float]
    call: float
    send: float

    @classmethod
    def of(cls, report: Report, *, stated: bool = False) -> Costs:
        """``stated``: boxes say their costs themselves, and what they took beyond is the machine's noise."""
        boxes = report.boxes.values()
        calls, sent = sum(b.calls for b in boxes), sum(b.tuples_out for b in boxes)
        beside = report.overhead.worker + report.overhead.scheduler
        if not stated:
            beside += sum(max(b.busy - b.cost * b.tuples_in, 0.0) for b in boxes)
        costs = {} if stated else {b.name: b.cost for b in boxes}
        return cls(costs, beside / max(calls, 1), report.overhead.storage / max(sent, 1))

    def engine(self, workers: int, packet_rows: int, **options: Any) -> Simulated:
        return Simulated(
            workers=workers,
            packet_rows=packet_rows,
            costs=self.boxes,
            call_overhead=self.call,
            send_cost=self.send,
            **options,
        )


def checked(report: Report) -> Report:
    """A run that failed measures nothing."""
    for query in report.queries.values():
        if query.error is not None:
            raise query.error
    return report


def fastest(reports: Iterable[Report]) -> Report:
    """The run that the rest of the machine disturbed least."""
    return max(reports, key=lambda report: report.throughput)


def seconds_per_tuple(report: Report, box: str) -> float:
    """Workers' time in a box's calls per tuple: its own, passing results on, and waiting to do so."""
    calls = [call for call in report.trace if call.box == box]
    return sum(call.end - call.start for call in calls) / max(sum(call.tuples for call in calls), 1)
