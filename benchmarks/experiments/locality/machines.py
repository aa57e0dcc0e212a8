"""The papers' experiments on the papers' machines, in simulation with their caches and memory nodes.

Real packets go through real boxes; how long a box computes per row is set (``COMPUTING``), since no paper
says what the papers' operators took.  What reading and writing costs on top comes from the machine's memory
model.  Nothing is charged for semaphores and for deciding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.locality.host import MANY
from benchmarks.findings import ALIKE, checked
from benchmarks.result import Result
from benchmarks.workloads import requests
from headgate.api import App
from headgate.engines import base
from headgate.engines.simulated import Simulated
from headgate.machine import host as topology
from headgate.machine import memory_model
from headgate.runtime.report import Report
from headgate.scheduling import policies
from headgate.scheduling.interface import Policy

SMP, NUMA, BOBOX = "e5310", "e7-4820", "e7540"
LAS_PAPER, BOBOX_PAPER = "locality-aware scheduling", "Bobox"
ROW = 32
"""Bytes of a row of ``benchmarks.workloads.requests``."""
CALL = 2e-6
"""Seconds that a call costs apart from its rows: assumed."""
COMPUTING = (1e-9, 5e-9, 25e-9)
"""Seconds per row and box: a comparison, some arithmetic, a probe of a hash table."""
LONG = 1e-6
"""So long per row that the load is balanced, which happens every 100 ms, several times in a request."""
TWICE, MOST, BETTER = 2.0, 3.3, 1.08
"""What the papers claim: almost twice as fast, 3.3 times at best, 8 to 12 %."""
ABOUT = 0.9
"""A figure that was read off a chart is reached with this share of it."""
CONSTANT = 16_384
"""Rows of the baseline's packets, whatever the cache; the paper does not say how many."""
TIMES = 4
"""As many packets as on the E5310 have requests on the other machines, whose packets are an eighth."""
PLACES = ("L1", "L2", "L3", "memory", "remote")


@dataclass(frozen=True)
class Sizes:
    """Packets of a request: alone, and of each of sixteen; sorting takes fewer, for it takes long to do.

    On machines with small packets requests have ``TIMES`` as many.  The fewer there are, the more of a run is
    its end, when some cores have nothing left to do, and the less the order of the tasks before it matters.
    """

    alone: int
    each: int
    sorting: int
    computing: Sequence[float]
    smaller: Mapping[str, Sequence[int]]
    """By machine, kB of the packets that merges are also tried with."""


@dataclass(frozen=True)
class Case:
    machine: str
    kind: str
    requests: int
    packets: int
    """As many as a request's rows fill if packets are half of L2."""
    computing: float
    kilobytes: int | None = None
    """Of a packet, if not half of L2."""

    @property
    def packet_rows(self) -> int:
        size = self.kilobytes * 1024 if self.kilobytes else half_of_l2(self.machine)
        return size // ROW

    def app(self) -> App:
        return requests.network(self.requests, self.kind, self.packets * half_of_l2(self.machine) // ROW)

    def run(self, policy: str | Policy, **given: Any) -> Report:
        app = self.app()
        costs = {box.name: self.computing for box in app.network.boxes}
        options = {"topology": self.machine, "memory": True, "packet_rows": self.packet_rows, **given}
        engine = Simulated(costs=costs, call_overhead=CALL, **options)
        return checked(app.run(engine, policy))

    @property
    def title(self) -> str:
        many = "1 request" if self.requests == 1 else f"{self.requests} requests"
        packets = f", packets of {self.kilobytes} kB" if self.kilobytes else ""
        return f"{self.kind}, {many}, {self.computing * 1e9:g} ns a row{packets}"


def half_of_l2(machine: str) -> int:
    """Bytes: half of what a core has of L2, which cores may share (threads of one core share all of it)."""
    return base.half_of_l2(topology.get(machine))


def cases(machine: str, sizes: Sizes, levels: Sequence[float]) -> list[Case]:
    """One and sixteen requests; merges, which depend on memory most, at several levels of computing."""
    middle = sizes.computing[len(sizes.computing) // 2]
    times = 1 if machine == SMP else TIMES
    found = [
        Case(machine, kind, count, times * (packets if count == 1 else few), computing)
        for count in (1, MANY)
        for kind, packets, few, at in (
            ("merges", sizes.alone, sizes.each, levels),
            ("parallel", sizes.alone, sizes.each, (middle,)),
            ("sort_merge", sizes.sorting, sizes.sorting, (middle,)),
        )
        for computing in at
    ]
    smaller = [
        Case(machine, "merges", count, times * packets, levels[0], kilobytes)
        for count, packets in ((1, sizes.alone), (MANY, sizes.each))
        for kilobytes in sizes.smaller.get(machine, ())
    ]
    return found + smaller


class Comparison:
    """A table of cases: seconds of a policy and of another, and where each found its bytes.

    By the clock, requests count that end late and leave most cores idle; by the cores' time, they do not.
    """

    def __init__(self, machine: str, one: str, other: str) -> None:
        self.ratios: dict[Case, float] = {}
        self._one, self._other = one, other
        self._table = Table(title=f"{machine}, simulated: {one} against {other}", title_justify="left")
        for column in ("requests", f"{one}, ms", f"{other}, ms", "times as fast", "by cores' time"):
            self._table.add_column(column, justify="left" if column == "requests" else "right")
        for policy in (one, other):
            self._table.add_column(f"{policy}: {', '.join(PLACES)}, %", justify="right")

    def add(self, case: Case, ours: Report, theirs: Report) -> None:
        ratio = self.ratios[case] = theirs.seconds / ours.seconds
        self._table.add_row(
            case.title,
            f"{ours.seconds * 1e3:.2f}",
            f"{theirs.seconds * 1e3:.2f}",
            f"{ratio:.2f}",
            f"{theirs.busy / ours.busy:.2f}",
            shares(ours),
            shares(theirs),
        )

    def show(self, console: Console) -> None:
        console.print(self._table)

    def best(self, count: int) -> tuple[Case, float]:
        found = {case: ratio for case, ratio in self.ratios.items() if case.requests == count}
        best = max(found, key=lambda case: found[case])
        return best, found[best]

    def least(self, count: int | None = None) -> tuple[Case, float]:
        found = {case: ratio for case, ratio in self.ratios.items() if count in (None, case.requests)}
        least = min(found, key=lambda case: found[case])
        return least, found[least]


def shares(report: Report) -> str:
    """Where the bytes were that workers read and wrote, in per cent."""
    assert report.traffic is not None
    found = report.traffic.bytes
    total = max(sum(found.values()), 1)
    return " ".join(f"{100 * found.get(place, 0) / total:.0f}" for place in PLACES)


# --- LAS against NLS --------------------------------------------------------------------------------------


def las(sizes: Sizes, console: Console) -> list[Result]:
    """Figures 5 to 8: single and sixteen requests, on two processors with one memory and on four nodes."""
    results = []
    for machine, count, claimed, figure in ((SMP, 1, TWICE, "5"), (NUMA, MANY, MOST, "8")):
        found = Comparison(machine, "las", "nls")
        for case in cases(machine, sizes, sizes.computing):
            found.add(case, case.run("las"), case.run("nls"))
        found.show(console)
        case, ratio = found.best(count)
        results.append(
            Result(
                f"locality, las against nls, the best case, {machine} simulated",
                f"{LAS_PAPER}, figure {figure}",
                f"times as fast at best, {case.title}",
                ratio,
                claimed,
                ratio >= ABOUT * claimed,
            )
        )
        case, ratio = found.least()
        results.append(
            Result(
                f"locality, las against nls, the worst case, {machine} simulated",
                f"{LAS_PAPER}, section 6",
                f"times as fast: never slower (5 % for chance), {case.title}",
                ratio,
                1.0,
                ratio >= ALIKE,
            )
        )
    return results


# --- Bobox against its baseline ---------------------------------------------------------------------------


def bobox(sizes: Sizes, console: Console) -> list[Result]:
    """Figure 3, one and sixteen requests: against the baseline with the same packets, and with its own."""
    same, own = (Comparison(BOBOX, "bobox", f"baseline, {what}") for what in ("same packets", "own packets"))
    long = Case(BOBOX, "parallel", 1, TIMES * sizes.alone, LONG)
    for case in (*cases(BOBOX, sizes, sizes.computing), long):
        ours = case.run("bobox")
        same.add(case, ours, case.run("bobox_baseline"))
        own.add(case, ours, case.run(policies.get("bobox_baseline", packet_rows=CONSTANT)))
    results = []
    for found, what in ((same, "the same packets"), (own, f"packets of {CONSTANT:,} rows")):
        found.show(console)
        for which, (case, ratio) in (("best", found.best(MANY)), ("worst", found.least(MANY))):
            results.append(
                Result(
                    f"locality, bobox against its baseline with {what}, the {which} case, {BOBOX} simulated",
                    f"{BOBOX_PAPER}, figure 3",
                    f"times as fast: 8 to 12 %, {case.title}",
                    ratio,
                    BETTER,
                    ratio >= BETTER,
                )
            )
    return results


# --- memory and packets -----------------------------------------------------------------------------------


def remote(sizes: Sizes, console: Console) -> list[Result]:
    """Figure 2: a request on the first node's cores, all its memory there, and all of it on another node."""
    machine = topology.get(BOBOX)
    cores = len({machine.cache(core, 1) for core in machine.nodes[0].cores})
    table = Table(
        title=f"{BOBOX}, simulated: a request on node 0, its memory elsewhere", title_justify="left"
    )
    for column in ("requests", *(f"memory on {node}, ms" for node in range(len(machine.nodes))), "slower"):
        table.add_column(column, justify="left" if column == "requests" else "right")
    results = []
    for computing in sizes.computing:
        case = Case(BOBOX, "pipeline", 1, sizes.alone, computing)
        prices = memory_model.get(True, machine)
        seconds = [
            case.run("bobox", workers=cores, memory=replace(prices, placement=node)).seconds
            for node in range(len(machine.nodes))
        ]
        slower = max(seconds) / seconds[0]
        table.add_row(case.title, *(f"{s * 1e3:.2f}" for s in seconds), f"{slower:.2f}")
        if computing == sizes.computing[0]:
            most = max(machine.factors[0])
            results.append(
                Result(
                    f"locality, remote memory, {BOBOX} simulated",
                    f"{BOBOX_PAPER}, figure 2",
                    f"times as slow with remote memory: more than 1, not more than the factor {most:g}",
                    slower,
                    most,
                    1.0 < slower <= most,
                )
            )
    console.print(table)
    return results


def packet_sizes(sizes: Sizes, console: Console) -> list[Result]:
    """Figure 1: the same rows in packets of an eighth of L2 to sixteen times its size, on one core."""
    case = Case(BOBOX, "pipeline", 1, sizes.alone, sizes.computing[0])
    half = case.packet_rows
    rates: dict[int, float] = {}
    for shift in range(-4, 6):
        rows = half << shift if shift >= 0 else half >> -shift
        rates[rows] = case.run("bobox", workers=1, packet_rows=rows).throughput
    best = max(rates, key=lambda rows: rates[rows])
    table = Table(title=f"{BOBOX}, simulated: M rows/s by kB of a packet, one core", title_justify="left")
    for rows in rates:
        table.add_column(f"[bold]{rows * ROW // 1024}[/]" if rows == half else f"{rows * ROW // 1024}")
    table.add_row(*(f"[bold]{r / 1e6:.2f}[/]" if n == best else f"{r / 1e6:.2f}" for n, r in rates.items()))
    console.print(table)
    return [
        Result(
            f"locality, packet size, {BOBOX} simulated",
            f"{BOBOX_PAPER}, figure 1",
            f"kB of the best packet: it fits into L2 ({2 * half * ROW // 1024} kB)",
            best * ROW / 1024,
            2 * half * ROW / 1024,
            best <= 2 * half,
        )
    ]
