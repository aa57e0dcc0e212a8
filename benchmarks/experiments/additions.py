"""Thirty additions in simulation: is the forecast right?  The truth is the same run with the query in it.

Applications of boxes with random costs on two workers, loaded to between a third and all they can do.  After
ten seconds a query of random cost and goal asks to join: the forecast, from what the catalog has measured
until then, against a run in which it joins then.  A goal counts as broken if the ten seconds that follow gave
less than 0.9 of utility.  Virtual time, so neighbours do not matter.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from rich.console import Console

from benchmarks.result import Result
from headgate.api import App
from headgate.connectors.python import to_function
from headgate.connectors.rate import from_rate
from headgate.control.line import Line
from headgate.control.watching import MISSED
from headgate.engines.simulated import Simulated
from headgate.graph.qos import QoS
from headgate.recording.admitting import Figures, forecast
from headgate.runtime.change import Change
from headgate.runtime.report import Report
from headgate.scheduling import policies

ADDITIONS, WORKERS, SECONDS = 30, 2, 10.0
GOALS = (QoS([(0, 1), (0.1, 1), (0.5, 0)]), QoS([(0, 1), (1, 1), (4, 0)]))
POLICIES = ("qos", "mc", "lp")


@dataclass
class Addition:
    """One application, and the query that asks to join."""

    rate: float
    costs: list[float]
    new: float
    policy: str
    tight: bool

    @staticmethod
    def drawn(chance: random.Random) -> Addition:
        rate, load = chance.uniform(100, 600), chance.uniform(0.33, 1.0)
        shares = [chance.uniform(0.2, 1.0) for _ in range(chance.randrange(3, 8))]
        costs = [load * WORKERS / rate * share / sum(shares) for share in shares]
        new = chance.uniform(0.02, 1.2) * WORKERS / rate
        return Addition(rate, costs, new, chance.choice(POLICIES), chance.random() < 0.5)

    def app(self) -> App:
        made = App("additions")
        rows = made.source("rows", from_rate(self.rate, burst=5))
        for number, cost in enumerate(self.costs):
            box = rows.universal(cost=cost, selectivity=0.5, name=f"box {number}")
            box.to(f"q{number}", to_function(_nowhere), qos=GOALS[number % 2])
        rows.universal(cost=self.new, name="box new").to(
            "new", to_function(_nowhere), qos=GOALS[not self.tight]
        )
        return made

    def run(self, until: float, line: Line) -> Report:
        made = self.app()
        network = made._pipeline.network({"new"})
        line.planned = [Change(at=SECONDS, add=("new",))] if until > SECONDS else []
        line._outputs = {output.name: output for output in made._pipeline.outputs_named(["new"])}
        engine = Simulated(packet_rows=64, call_overhead=0.0005)
        return engine.run(network, policies.get(self.policy), workers=WORKERS, until=until, line=line)

    def foreseen(self) -> tuple[bool, Report]:
        """Whether the forecast lets it in, and how the run was until then."""
        line, seen = Line(), _Seen()
        line.onlookers.append(seen)
        report = self.run(SECONDS, line)
        figures = Figures.of(seen.core, {"rows": self.rate})
        # The outputs of the network that runs, so that its boxes are known.
        network = seen.core.network
        made = self.app()
        joining = made._pipeline.outputs_named(["new"])
        for output in joining:
            _point_to(network, output)
        return forecast(figures, joining).fits, report

    def kept(self, before: Report) -> bool:
        """Whether all goals were kept that had been kept before, with the query in it."""
        after = self.run(2 * SECONDS, Line())
        for name, own in after.queries.items():
            was = before.queries.get(name)
            worth, rows = (0.0, 0) if was is None else (was.worth, was.tuples_out)
            if was is not None and (was.utility or 0.0) < MISSED:
                continue  # it was missed anyway
            came = own.tuples_out - rows
            if not came or (own.worth - worth) / came < MISSED:
                return False
        return True


class _Seen:
    """Keeps the core of a run."""

    core: Any = None

    def begin(self, core: Any) -> None:
        self.core = core


def _nowhere(name: str, batch: pa.RecordBatch) -> None:
    pass


def _point_to(network: Any, output: Any) -> None:
    """Let a query of an equal application begin at the sources of this one."""
    sources = {source.name: source for source in network.sources}
    for arrow in output.port:
        box = arrow.node
        box.ports = tuple(
            tuple(type(one)(sources[one.node.name], one.output, one.in_order) for one in port)
            for port in box.ports
        )


def measure(additions: int, console: Console) -> Result:
    """The share of right answers."""
    chance = random.Random(22)
    right = unforeseen = refused = 0
    for _ in range(additions):
        addition = Addition.drawn(chance)
        fits, before = addition.foreseen()
        kept = addition.kept(before)
        right += fits == kept
        unforeseen += fits and not kept
        refused += kept and not fits
    console.print(
        f"In simulation {right} of {additions} additions were answered right; {unforeseen} broke a goal "
        f"unforeseen, {refused} would have been refused for nothing."
    )
    share = right / additions
    return Result("admission, simulated", "V6", "share of right answers", share, None, share >= 0.8)
