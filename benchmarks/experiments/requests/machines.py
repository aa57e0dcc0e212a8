"""The same requests on the papers' machines, in simulation, with costs of operators measured here.

The papers ask five million triples.  Here data, caches, packets and the cost of a call are all a twentieth,
so that what fits where is as there, and a simulation takes seconds.  Prices of caches and memory are those of
the machines' memory models, most of which are assumed (docs/research/locality.md).

Python's operators cost more than those of the papers, which leaves less to be near to.  So everything is also
simulated with a nanosecond for each row: plans that mostly wait for memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.requests.cases import BASELINES, BOBOX, LAS, MANY, Data, Sizes, asked
from benchmarks.findings import ALIKE, BETTER, checked
from benchmarks.result import Result
from benchmarks.workloads import xquery
from headgate.api import App
from headgate.cli.calibration.operator_costs import OperatorCalls, costs_by_label, inputs
from headgate.cli.calibration.yardstick import Yardstick, on_one_core
from headgate.engines.simulated import Simulated
from headgate.graph.network import Network
from headgate.machine import host, memory_model
from headgate.machine.calibration import Calibration, OperatorCost
from headgate.machine.memory_model import MemoryModel
from headgate.machine.topology import Topology
from headgate.runtime.report import Report
from headgate.scheduling import policies
from headgate.scheduling.interface import Policy

SMP, NUMA, BOBOX_MACHINE = "e5310", "e7-4820", "e7540"
SCALE = 20
CALL = 2e-6
"""Seconds that a call costs beside its operator: assumed."""
MEASURED, ROW = "measured here", "1 ns a row"
LEVELS = (MEASURED, ROW)
CONSTANT = 16_384
"""Rows of the packets of Bobox's baseline, whatever the cache; the paper does not say how many."""
ABOUT = 0.9
"""A figure that was read off a chart is reached with this share of it."""
ALMOST_ALL, SEVERAL = 7, 3
"""Questions, of eight."""
PLACES = ("L1", "L2", "L3", "memory", "remote")


@dataclass(frozen=True)
class Case:
    machine: str
    name: str
    """A question, or Bobox's plan."""
    count: int
    level: str

    @property
    def title(self) -> str:
        many = "1 request" if self.count == 1 else f"{self.count} requests"
        return f"{self.name}, {many}, {self.level}"


class Machines:
    """Simulates requests on described machines, once what operators cost is measured."""

    def __init__(self, sizes: Sizes, data: Data) -> None:
        self._sizes, self._data = sizes, data
        self._document = xquery.document(sizes.document)
        self._costs: dict[str, dict[str, OperatorCost]] = {}

    def app(self, name: str, count: int) -> App:
        if name == BOBOX:
            return xquery.network(self._document, count)
        triples = self._sizes.simulated_alone if count == 1 else self._sizes.simulated_many
        return asked(self._data.of(triples), name, count)

    def run(
        self,
        case: Case,
        policy: str | Policy,
        prices_of: Callable[[MemoryModel], MemoryModel] = lambda prices: prices,
        machine_of: Callable[[Topology], Topology] = lambda machine: machine,
    ) -> Report:
        """With other prices and another machine, if they are made of the case's."""
        scale = 1 if case.name == BOBOX else SCALE
        machine = machine_of(scaled(host.get(case.machine), scale))
        prices = prices_of(memory_model.get(True, machine))
        app = self.app(case.name, case.count)
        costs: Any = {box.name: 1e-9 for box in app.network.boxes}
        if case.level == MEASURED:
            known = self._measured(case.name)
            operators = {label: cost._replace(call=cost.call / scale) for label, cost in known.items()}
            costs = Calibration(prices, operators)
        engine = Simulated(topology=machine, memory=prices, costs=costs, call_overhead=CALL / scale)
        return checked(app.run(engine, policy))

    def _measured(self, name: str) -> dict[str, OperatorCost]:
        if name not in self._costs:
            self._costs[name] = measured(self.app(name, 1).network, self._sizes.rounds)
        return self._costs[name]


def measured(network: Network, rounds: int) -> dict[str, OperatorCost]:
    """What the operators of a plan cost on this machine, each alone on the rows that reach it."""
    yardstick = Yardstick()
    with on_one_core(host.host().cores[0]):
        alone = [OperatorCalls(share, yardstick) for share in inputs(network) if any(map(len, share.rows))]
        # Garbage is collected before each measurement: what is there already need not be looked at again.
        gc.freeze()
        try:
            for _ in range(rounds):
                for operator in alone:
                    operator.again()
        finally:
            gc.unfreeze()
    return costs_by_label(alone)


def scaled(machine: Topology, scale: int) -> Topology:
    """The same machine with smaller caches."""
    caches = tuple(replace(cache, size=max(cache.size // scale, 1)) for cache in machine.caches)
    return replace(machine, caches=caches)


class Comparison:
    """A table of cases: seconds of a policy and of another, and where each found its bytes.

    By the clock, requests count that end late and leave most cores idle; by the cores' time, they do not.
    """

    def __init__(self, title: str, one: str, other: str) -> None:
        self.ratios: dict[Case, float] = {}
        self._table = Table(title=title, title_justify="left")
        for column in ("requests", f"{one}, ms", f"{other}, ms", "times as fast", "by cores' time"):
            self._table.add_column(column, justify="left" if column == "requests" else "right")
        for side in (one, other):
            self._table.add_column(f"{side}: {', '.join(PLACES)}, %", justify="right")

    def add(self, case: Case, ours: Report, theirs: Report) -> None:
        ratio = self.ratios[case] = theirs.seconds / ours.seconds
        self._table.add_row(
            case.title,
            f"{ours.seconds * 1e3:.3f}",
            f"{theirs.seconds * 1e3:.3f}",
            f"{ratio:.2f}",
            f"{theirs.busy / ours.busy:.2f}",
            shares(ours),
            shares(theirs),
        )

    def show(self, console: Console) -> None:
        console.print(self._table)

    def of(self, count: int, level: str) -> dict[str, float]:
        """Ratios by question."""
        return {
            case.name: ratio
            for case, ratio in self.ratios.items()
            if (case.count, case.level) == (count, level)
        }


def shares(report: Report) -> str:
    """Where the bytes were that workers read and wrote, in per cent."""
    assert report.traffic is not None
    found = report.traffic.bytes
    total = max(sum(found.values()), 1)
    return " ".join(f"{100 * found.get(place, 0) / total:.0f}" for place in PLACES)


# --- LAS --------------------------------------------------------------------------------------------------


def las(machines: Machines, console: Console, questions: Sequence[str]) -> list[Result]:
    """Figures 5 to 8: one and sixteen requests, on two processors with one memory and on four nodes."""
    results = []
    for machine in (SMP, NUMA):
        found = Comparison(f"{machine}, simulated: {LAS} against {BASELINES[LAS]}", LAS, BASELINES[LAS])
        for level in LEVELS:
            for count in (1, MANY):
                for name in questions:
                    case = Case(machine, name, count, level)
                    found.add(case, machines.run(case, LAS), machines.run(case, BASELINES[LAS]))
        found.show(console)
        for level in LEVELS:
            alone, many = found.of(1, level), found.of(MANY, level)
            results += smp_claims(alone, many, level) if machine == SMP else numa_claims(alone, many, level)
    return results


def smp_claims(alone: dict[str, float], many: dict[str, float], level: str) -> list[Result]:
    """Figures 5 and 6."""
    better = sum(ratio >= BETTER for ratio in many.values())
    needed = min(ALMOST_ALL, len(many))
    return [
        *(_reached("5", SMP, 1, name, claimed, alone, level) for name, claimed in (("q2", 2.0),)),
        *(_more("5", SMP, name, alone, level) for name in ("q4", "q6")),
        _never("5", SMP, 1, alone, level),
        _simulated("6", f"{MANY} requests, {SMP}", "questions that gain: almost all", better, needed, level),
        _never("6", SMP, MANY, many, level),
    ]


def numa_claims(alone: dict[str, float], many: dict[str, float], level: str) -> list[Result]:
    """Figures 7 and 8."""
    twice = sum(ratio >= 2.0 for ratio in many.values())
    needed = min(SEVERAL, len(many))
    return [
        _never("7", NUMA, 1, alone, level),
        _reached("8", NUMA, MANY, "q2", 3.3, many, level),
        _simulated("8", f"{MANY} requests, {NUMA}", "questions twice as fast: several", twice, needed, level),
        _never("8", NUMA, MANY, many, level),
    ]


def allocator(machines: Machines, console: Console, questions: Sequence[str]) -> list[Result]:
    """Figures 9 and 10: memory that was freed last is used first, against results written to cold memory."""
    results = []
    for machine, figure, gains in ((NUMA, "9", {"q4": 1.35, "q2": 1.15}), (SMP, "10", {})):
        found = Comparison(f"{machine}, simulated, {LAS}: warm memory against cold", "warm", "cold")
        for name in questions:
            case = Case(machine, name, MANY, ROW)
            cold = machines.run(case, LAS, lambda prices: replace(prices, recycles=False))
            found.add(case, machines.run(case, LAS), cold)
        found.show(console)
        ratios = found.of(MANY, ROW)
        results += [_reached(figure, machine, MANY, n, c, ratios, ROW) for n, c in gains.items()]
        results.append(_never(figure, machine, MANY, ratios, ROW))
    return results


def _reached(
    figure: str, machine: str, count: int, name: str, claimed: float, ratios: dict[str, float], level: str
) -> Result:
    measured = ratios.get(name, 0.0)
    what = f"times as fast, {ABOUT:g} of the paper's figure at least"
    result = _simulated(figure, f"{name}, {count} at once, {machine}", what, measured, claimed, level)
    return replace(result, holds=measured >= ABOUT * claimed)


def _more(figure: str, machine: str, name: str, ratios: dict[str, float], level: str) -> Result:
    return _simulated(
        figure, f"{name}, 1 at once, {machine}", "times as fast: more", ratios.get(name, 0.0), BETTER, level
    )


def _never(figure: str, machine: str, count: int, ratios: dict[str, float], level: str) -> Result:
    worst = min(ratios, key=lambda name: ratios[name])
    what = f"times as fast in the worst case ({worst}): never slower, 5 % for chance"
    return _simulated(figure, f"{count} at once, {machine}", what, ratios[worst], ALIKE, level)


def _simulated(figure: str, name: str, claim: str, measured: float, claimed: float, level: str) -> Result:
    name = f"requests, {name}, {level}, simulated"
    return Result(name, f"LAS, figure {figure}", claim, measured, claimed, measured >= claimed)


# --- Bobox ------------------------------------------------------------------------------------------------


def bobox(machines: Machines, console: Console, loads: Iterable[int]) -> list[Result]:
    """Figure 3: the plan of 170 operators under growing load; the baseline's packets are constant."""
    found = Comparison(f"{BOBOX_MACHINE}, simulated: {BOBOX} against its baseline", BOBOX, "baseline")
    for level in LEVELS:
        for count in loads:
            case = Case(BOBOX_MACHINE, BOBOX, count, level)
            baseline = policies.get(BASELINES[BOBOX], packet_rows=CONSTANT)
            found.add(case, machines.run(case, BOBOX), machines.run(case, baseline))
    found.show(console)
    return [
        Result(
            f"requests, {xquery.OPERATORS} operators, {case.title}, {BOBOX_MACHINE} simulated",
            "Bobox, figure 3",
            "times as fast: 8 to 12 %",
            ratio,
            1.08,
            ratio >= 1.08,
        )
        for case, ratio in found.ratios.items()
    ]
