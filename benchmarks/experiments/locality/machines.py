"""Memory and packets on Bobox's machine, in simulation: one pipeline of boxes with costs that are set.

Real packets go through real boxes; what reading and writing costs on top comes from the machine's memory
model.  What the papers' policies come to there is in ``benchmarks/experiments/requests/machines.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.requests.machines import BOBOX_MACHINE, CALL
from benchmarks.findings import checked
from benchmarks.result import Result
from benchmarks.workloads import requests
from headgate.engines import base
from headgate.engines.simulated import Simulated
from headgate.machine import host as topology
from headgate.machine import memory_model
from headgate.runtime.report import Report

BOBOX_PAPER = "Bobox"
ROW = 32
"""Bytes of a row of ``benchmarks.workloads.requests``."""
COMPUTING = (1e-9, 5e-9, 25e-9)
"""Seconds per row and box: a comparison, some arithmetic, a probe of a hash table."""


@dataclass(frozen=True)
class Case:
    """A pipeline over as many packets as ``packets``, if they are half of L2."""

    packets: int
    computing: float

    @property
    def packet_rows(self) -> int:
        return base.half_of_l2(topology.get(BOBOX_MACHINE)) // ROW

    def run(self, **given: Any) -> Report:
        app = requests.pipelines(1, self.packets * self.packet_rows)
        costs = {box.name: self.computing for box in app.network.boxes}
        options = {"topology": BOBOX_MACHINE, "memory": True, "packet_rows": self.packet_rows, **given}
        return checked(app.run(Simulated(costs=costs, call_overhead=CALL, **options), "bobox"))

    @property
    def title(self) -> str:
        return f"pipeline, {self.computing * 1e9:g} ns a row"


def remote(packets: int, computing: Sequence[float], console: Console) -> list[Result]:
    """Figure 2: a request on the first node's cores, all its memory there, and all of it on another node."""
    machine = topology.get(BOBOX_MACHINE)
    cores = len({machine.cache(core, 1) for core in machine.nodes[0].cores})
    table = Table(
        title=f"{BOBOX_MACHINE}, simulated: a request on node 0, its memory elsewhere", title_justify="left"
    )
    for column in ("requests", *(f"memory on {node}, ms" for node in range(len(machine.nodes))), "slower"):
        table.add_column(column, justify="left" if column == "requests" else "right")
    results = []
    for each in computing:
        case = Case(packets, each)
        prices = memory_model.get(True, machine)
        seconds = [
            case.run(workers=cores, memory=replace(prices, placement=node)).seconds
            for node in range(len(machine.nodes))
        ]
        slower = max(seconds) / seconds[0]
        table.add_row(case.title, *(f"{s * 1e3:.2f}" for s in seconds), f"{slower:.2f}")
        if each == computing[0]:
            most = max(machine.factors[0])
            results.append(
                Result(
                    f"locality, remote memory, {BOBOX_MACHINE} simulated",
                    f"{BOBOX_PAPER}, figure 2",
                    f"times as slow with remote memory: more than 1, not more than the factor {most:g}",
                    slower,
                    most,
                    1.0 < slower <= most,
                )
            )
    console.print(table)
    return results


def packet_sizes(packets: int, console: Console) -> list[Result]:
    """Figure 1: the same rows in packets of an eighth of L2 to sixteen times its size, on one core."""
    case = Case(packets, COMPUTING[0])
    half = case.packet_rows
    rates: dict[int, float] = {}
    for shift in range(-4, 6):
        rows = half << shift if shift >= 0 else half >> -shift
        rates[rows] = case.run(workers=1, packet_rows=rows).throughput
    best = max(rates, key=lambda rows: rates[rows])
    table = Table(
        title=f"{BOBOX_MACHINE}, simulated: M rows/s by kB of a packet, one core", title_justify="left"
    )
    for rows in rates:
        table.add_column(f"[bold]{rows * ROW // 1024}[/]" if rows == half else f"{rows * ROW // 1024}")
    table.add_row(*(f"[bold]{r / 1e6:.2f}[/]" if n == best else f"{r / 1e6:.2f}" for n, r in rates.items()))
    console.print(table)
    return [
        Result(
            f"locality, packet size, {BOBOX_MACHINE} simulated",
            f"{BOBOX_PAPER}, figure 1",
            f"kB of the best packet: it fits into L2 ({2 * half * ROW // 1024} kB)",
            best * ROW / 1024,
            2 * half * ROW / 1024,
            best <= 2 * half,
        )
    ]
