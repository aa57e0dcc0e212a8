"""What a call of an operator with a memory costs, by the rows of its packet.

Every stateful box of the five TPCx-BB queries, and a few operators that they do not use, over the same clicks
and sales.  A box's whole input is found first, then cut into packets of one size: half of it passes in large
packets, so that the state is as it is in a stream under way, and then calls are timed.  It is CPU time of the
one thread that calls, so most of what else the machine does is not counted.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.result import Result
from benchmarks.workloads.tpcx_bb.queries import QUERIES, Shop
from headgate.api import App, Stream
from headgate.connectors.batches import from_batches
from headgate.connectors.python import to_function
from headgate.graph.network import Network
from headgate.graph.operator import Kind, Operator
from headgate.graph.packet import Order, Packet
from headgate.graph.windows import sliding

SIZES = (1, 100, 1_000, 30_000)
"""Rows per packet."""
SMALL, MOST = 100, 300
"""A call with so few rows should take at most so many microseconds."""
LARGE = 32_768
"""Rows of the packets before those that are timed."""
SOURCE = "windows on small packets"


@dataclass(frozen=True)
class Case:
    """A box and everything that comes to it."""

    name: str
    operator: Operator
    inputs: tuple[Packet, ...]

    @property
    def rows(self) -> int:
        return sum(map(len, self.inputs))


@dataclass(frozen=True)
class Cost:
    """CPU seconds of a call."""

    usual: float
    """The median: most calls close no window."""
    mean: float


def others(clicks: Stream) -> dict[str, Stream]:
    """Operators that the queries do not use."""
    known = clicks.filter("wcs_user_sk IS NOT NULL AND wcs_item_sk IS NOT NULL")
    times = known.select("wcs_user_sk", "wcs_item_sk", "wcs_sales_sk", "wcs_ts")
    views, sales = times.filter("wcs_sales_sk IS NULL"), times.filter("wcs_sales_sk IS NOT NULL")
    hours = sliding("1 hour", every="10 minutes", on="wcs_ts", lateness="1 minute")
    return {
        "sliding": times.key_by("wcs_item_sk").window(hours).agg("count(*) AS n", "avg(wcs_sales_sk) AS a"),
        "running": times.key_by("wcs_user_sk").running("count(*) AS n", "max(wcs_ts) AS last"),
        "join": views.key_by("wcs_user_sk").join(
            sales.key_by("wcs_user_sk"), within="10 minutes", on="wcs_ts"
        ),
    }


def cases(rows: int) -> Iterator[Case]:
    """Every stateful box, over so many clicks or sales; one that calls Python for each row is left out."""
    shop = Shop(rows)
    for query in QUERIES:
        yield from _cases(query, shop.at_once(query, rows).network)
    app = App("others")
    clicks = app.source("clicks", from_batches(shop.batches("q2", rows)))
    for name, stream in others(clicks).items():
        stream.to(name, to_function(lambda query, batch: None))
    yield from _cases("", app.network)


def _cases(query: str, network: Network) -> Iterator[Case]:
    [source] = network.sources
    made: dict[tuple[Any, int], list[Packet]] = {(source, 0): list(_read(source.origin))}
    for box in network.boxes:
        operator, ports = box.operator, []
        for port, schema in zip(box.ports, operator.inputs, strict=True):
            packets = [p for arrow in port for p in made[arrow.node, arrow.output] if len(p)]
            ports.append(Packet.concat(packets) if packets else Packet.empty(schema))
        case = Case(f"{query} {box.name}".strip(), operator, tuple(ports))
        if operator.kind is not Kind.STATELESS and not operator.slow:
            yield case
        state = operator.open()
        calls = [operator.process(packets, state) for packets in _cut(case, LARGE)]
        for output in range(len(operator.outputs)):
            made[box, output] = [results[output] for results in calls]


def _read(source: Any) -> Iterator[Packet]:
    reader, serial = source.open(), 0
    while (chunk := reader.poll(0.0, LARGE)) is not None:
        yield Packet(chunk.batch, Order(serial, 0.0, chunk.batch.num_rows))
        serial += chunk.batch.num_rows


def _cut(case: Case, rows: int, start: int = 0) -> Iterator[list[Packet]]:
    """The rows from ``start`` on in the order in which they come, about so many for each call."""
    if len(case.inputs) == 1:
        [packet] = case.inputs
        for at in range(start, len(packet), rows):
            yield [packet.slice(at, min(rows, len(packet) - at))]
        return
    serials = [packet.order.serials for packet in case.inputs]
    together = np.sort(np.concatenate(serials))
    bounds = together[start::rows].tolist()
    for low, high in zip(bounds, [*bounds[1:], together[-1] + 1], strict=True):
        places = [np.searchsorted(at, (low, high)).tolist() for at in serials]
        yield [p.slice(a, b - a) for p, (a, b) in zip(case.inputs, places, strict=True)]


def measure(case: Case, rows: int, calls: int) -> Cost | None:
    """Calls with so many rows each, after half of all rows have passed; None if there are too few."""
    state, half = case.operator.open(), case.rows // 2
    if case.rows - half < rows:
        return None
    for packets in _cut(Case(case.name, case.operator, _first(case, half)), LARGE):
        case.operator.process(packets, state)
    seconds = []
    gc.collect()
    gc.disable()
    try:
        for packets, _ in zip(_cut(case, rows, half), range(calls), strict=False):
            if sum(map(len, packets)) < rows:
                break
            start = time.thread_time()
            case.operator.process(packets, state)
            seconds.append(time.thread_time() - start)
    finally:
        gc.enable()
    return Cost(median(seconds), mean(seconds))


def _first(case: Case, rows: int) -> tuple[Packet, ...]:
    """The first rows of all inputs together."""
    if len(case.inputs) == 1:
        return (case.inputs[0].slice(0, rows),)
    serials = [packet.order.serials for packet in case.inputs]
    end = np.sort(np.concatenate(serials))[rows]
    return tuple(p.slice(0, int(np.searchsorted(s, end))) for p, s in zip(case.inputs, serials, strict=True))


def run(quick: bool, console: Console) -> list[Result]:
    """A table of all boxes and sizes, then the claims."""
    table = Table(title="CPU microseconds per call: median, mean", title_justify="left")
    table.add_column("box")
    for rows in SIZES:
        table.add_column(f"{rows:,} rows", justify="right")
    table.add_column(f"ns per row, {SIZES[-1]:,} rows", justify="right")
    results: list[Result] = []
    for case in cases(100_000 if quick else 600_000):
        costs = {rows: measure(case, rows, 100 if quick else 1_000) for rows in SIZES}
        whole = costs[SIZES[-1]]
        table.add_row(
            case.name,
            *(f"{c.usual * 1e6:,.0f}, {c.mean * 1e6:,.0f}" if c else "-" for c in costs.values()),
            f"{whole.mean / SIZES[-1] * 1e9:,.0f}" if whole else "-",
        )
        results += _claims(case.name, costs)
    console.print(table)
    return results


def _claims(name: str, costs: dict[int, Cost | None]) -> list[Result]:
    results = []
    for rows, cost in costs.items():
        if cost is None:
            continue
        micros = cost.usual * 1e6
        claimed = rows == SMALL
        claim = "µs per call" + (f": at most {MOST}" if claimed else "")
        holds = micros <= MOST if claimed else None
        results.append(Result(f"operators, {name}, {rows:,} rows", SOURCE, claim, micros, None, holds))
    return results
