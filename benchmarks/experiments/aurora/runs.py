"""What Aurora's experiments share: simulated costs, runs on either engine, curves, watching policies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from rich.table import Table

from benchmarks.findings import THREADS, Finding, Side, checked
from headgate.api import App
from headgate.engines.simulated import Simulated
from headgate.engines.threads import Threads
from headgate.runtime.report import Report
from headgate.scheduling import policies
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Changed, Event, Finished, Idle, Spawned, Started
from headgate.scheduling.interface import Decision, Policy
from headgate.scheduling.wrapper import Around

COST = (1e-4, 1e-3)
"""Seconds per tuple, as in the paper."""
MEAN_COST = sum(COST) / 2
CALL = 60e-6
"""Seconds of a box call apart from its tuples, in simulation.

Implied by the paper: superboxes hold at 90 % of the capacity, so that a call of one tuple of 550 µs takes at
most 550 / 0.9 - 550 = 61 µs more.
"""
DECISION = 175e-6
"""Seconds of a scheduling decision, in simulation.

Implied by the paper: a box at a time, with a decision for every call, it is overloaded from 70 % of its
capacity on (figure 11), so that both together take 550 / 0.7 - 550 = 236 µs.
"""


def simulate(
    app: App,
    policy: str | Policy,
    *,
    call: float = CALL,
    decision: float | Callable[[Policy], float] = DECISION,
) -> Report:
    """One processor of the paper's machine."""
    engine = Simulated(workers=1, call_overhead=call, decision_cost=decision)
    return checked(app.run(engine, policy))


def on_threads(app: App, policy: str | Policy) -> Report:
    """One worker; the sources have the other core."""
    return checked(app.run(Threads(1), policy))


def mean_latency(report: Report) -> float:
    """Of all results."""
    queries = [query for query in report.queries.values() if query.tuples_out]
    return sum(q.latency.mean * q.tuples_out for q in queries) / sum(q.tuples_out for q in queries)


def mean_qos(report: Report) -> float:
    """Of all results."""
    queries = report.queries.values()
    return sum(query.worth for query in queries) / sum(query.tuples_out for query in queries)


def busy(report: Report) -> float:
    """Seconds of the boxes' own work."""
    return sum(box.busy for box in report.boxes.values())


def calls(report: Report) -> int:
    return sum(box.calls for box in report.boxes.values())


def measured_costs(app: App) -> tuple[float, float]:
    """Seconds of a call here apart from its tuples, and of a decision, of which every call here has one."""
    report = on_threads(app, "round_robin")
    beside = report.overhead.worker + report.overhead.storage
    return beside / calls(report), report.overhead.scheduler / calls(report)


STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57}
"""By number of runs, half-widths of a 95 % interval in standard errors."""


def half_width(values: Sequence[float]) -> float:
    """Of the 95 % confidence interval around the mean; 0 for a single run."""
    if len(values) < 2:
        return 0.0
    return float(STUDENT.get(len(values), 2.0) * np.std(values, ddof=1) / len(values) ** 0.5)


class Curves:
    """A figure as numbers: lines over x, on either engine; the mean of the runs that were added."""

    def __init__(self, title: str, x: str, digits: int = 3) -> None:
        self.title = title
        self._x = x
        self._digits = digits
        self._values: dict[tuple[str, str], dict[float, list[float]]] = {}

    def add(self, engine: str, line: str, x: float, y: float) -> None:
        self._values.setdefault((engine, line), {}).setdefault(x, []).append(y)

    def at(self, engine: str, line: str, x: float) -> float:
        return float(np.mean(self._values[engine, line][x]))

    def within(self, engine: str, line: str, x: float) -> str:
        """The mean, with its confidence interval if there were several runs."""
        runs, mean = self._values[engine, line][x], self.at(engine, line, x)
        half = f" ± {half_width(runs):,.{self._digits}f}" if len(runs) > 1 else ""
        return f"{mean:,.{self._digits}f}{half}"

    def xs(self, engine: str) -> list[float]:
        """Ascending."""
        return sorted({x for (on, _), line in self._values.items() if on == engine for x in line})

    def engines(self) -> list[str]:
        return list(dict.fromkeys(engine for engine, _ in self._values))

    def mean(self, engine: str, line: str, most: float = float("inf")) -> float:
        """Over all x up to ``most``."""
        return float(np.mean([self.at(engine, line, x) for x in self._values[engine, line] if x <= most]))

    def knee(self, engine: str, line: str, times: float) -> float:
        """The greatest x up to which the line stays below ``times`` its first value; 0 if never."""
        first = self.at(engine, line, self.xs(engine)[0])
        found = 0.0
        for x in self.xs(engine):
            if self.at(engine, line, x) > times * first:
                break
            found = x
        return found

    def crossing(self, engine: str, line: str, other: str) -> float | None:
        """Where a line comes to lie below another, on a logarithmic axis; None if it does not."""
        xs = self.xs(engine)
        apart = [self.at(engine, line, x) / self.at(engine, other, x) - 1 for x in xs]
        for place in range(1, len(xs)):
            before, after = apart[place - 1], apart[place]
            if before > 0 >= after:
                share = before / (before - after)
                return float(xs[place - 1] * (xs[place] / xs[place - 1]) ** share)
        return None

    def on_engines(self, side: Callable[[str], Side]) -> dict[str, Side]:
        """A claim's answer on each engine that has the figure."""
        return {engine: side(engine) for engine in self.engines()}

    def table(self) -> Table:
        made = Table(title=self.title, title_justify="left")
        made.add_column(self._x, justify="right")
        for engine, line in self._values:
            made.add_column(f"{engine}\n{line}", justify="right")
        for x in sorted({x for line in self._values.values() for x in line}):
            cells = [self.within(*of, x) if x in line else "-" for of, line in self._values.items()]
            made.add_row(f"{x:,.4g}", *cells)
        return made


def finding(
    figure: str, name: str, claim: str, sides: dict[str, Side], why: str = "", section: str = "5"
) -> Finding:
    return Finding(figure, name, claim, sides, why, f"Aurora, section {section}", "aurora")


def run_on(engine: str) -> Callable[[App, str | Policy], Report]:
    return on_threads if engine == THREADS else simulate


# --- policies that watch another one ------------------------------------------------------------------------


class Memory(Around):
    """Writes down how many tuples there are: queued, of a call until it is over, and results.

    A result counts until its superbox is over: the paper's rate of freeing memory takes no output box for
    one that frees all that it is given.
    """

    def __init__(self, policy: str | Policy) -> None:
        super().__init__(policies.get(policy))
        self.times: list[float] = []
        self.tuples: list[int] = []
        """Without the results."""
        self.results: list[int] = []
        self._queues: dict[int, int] = {}
        self._now = self._results = 0

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        self._catalog = catalog
        return super().start(catalog, workers, seed)

    def handle(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Started):
            self._now += event.tuples
            self._set(event.box, event.queue.tuples)
        elif isinstance(event, Finished):
            self._now -= event.tuples_in
            for box, queue in event.queues:
                self._set(box, queue.tuples)
            if not self._catalog.boxes[event.box].downstream:
                self._results += event.tuples_out
        elif isinstance(event, Idle):
            self._results = 0
        elif isinstance(event, (Spawned, Changed)):
            self._set(event.box, event.queue.tuples)
        self.times.append(event.time)
        self.tuples.append(self._now)
        self.results.append(self._results)
        return super().handle(event)

    def _set(self, box: int, tuples: int) -> None:
        self._now += tuples - self._queues.get(box, 0)
        self._queues[box] = tuples

    def tuple_seconds(self, results: bool = True) -> float:
        """Tuples held, times how long."""
        held = np.array(self.tuples) + (self.results if results else 0)
        return float(np.sum(np.diff(self.times) * held[:-1]))

    def at(self, when: float) -> int:
        place = int(np.searchsorted(self.times, when, side="right")) - 1
        return self.tuples[place] + self.results[place] if place >= 0 else 0


class Timed(Around):
    """Measures what deciding takes: this thread's time in the policy, all events since the last plan."""

    def __init__(self, policy: str | Policy) -> None:
        super().__init__(policies.get(policy))
        self._seconds = 0.0

    def handle(self, event: Event) -> Sequence[Decision]:
        begin = time.thread_time()
        decisions = super().handle(event)
        self._seconds += time.thread_time() - begin
        return decisions

    def take(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def measured(policy: Policy) -> float:
    """For ``Simulated(decision_cost=)``: what the decision really took."""
    assert isinstance(policy, Timed)
    return policy.take()
