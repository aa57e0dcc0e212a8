"""Whether a calibrated simulation predicts: the TPCx-BB queries on one worker, predicted and measured.

Every operator is measured alone (``operator_costs``), on other rows than those that are predicted.  One
query, Q4, is measured and sets the one number that operators alone cannot tell, how much dearer they are
inside a query; the other four are predicted with it and measured only to compare.  A simulation processes
the query's real rows, so how many tuples every box passes on is that of the data; times are virtual.

Measured is the processor's time of the whole process: with one worker, that is what a run takes on a machine
with nothing else to do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from benchmarks.workloads.tpcx_bb.queries import QUERIES, Shop
from headgate.cli.calibration.calibrate import Tell
from headgate.cli.calibration.operator_costs import SAMPLE
from headgate.cli.calibration.yardstick import Yardstick
from headgate.engines.base import default_packet_rows
from headgate.engines.simulated import Simulated
from headgate.engines.threads import Threads
from headgate.graph.network import Network
from headgate.machine.calibration import Calibration

REFERENCE = "q4"
POLICY = "mc"
CLOSE = 0.15
PACKETS, FEW_PACKETS = SAMPLE, 3
"""Of the sources, in the runs that are predicted: as many as operators are measured with, since state grows;
the second when it has to be quick."""
SHORT = 1_000
"""Rows of a run that is mostly setting up."""
LEAST = 0.6
"""Seconds of a query's runs in a round: short ones are repeated."""


@dataclass(frozen=True)
class Prediction:
    """A query's throughput in tuples per second of one worker."""

    query: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def measured(quick: bool, yardstick: Yardstick) -> Measured:
    """The queries over the rows that are predicted, not measured yet."""
    return Measured(Shop((FEW_PACKETS if quick else PACKETS) * default_packet_rows()), yardstick)


def networks() -> list[Network]:
    """Of all five queries, over rows to measure their operators with: not those that are predicted."""
    shop = Shop(SAMPLE * default_packet_rows(), seed=2)
    return [shop.at_once(query, shop.rows).network for query in QUERIES]


class Measured:
    """Seconds of all five queries, the median of several runs each.

    Before every run that counts there is one that does not, so that memory is mapped and warm as in a run
    that has gone on for long.  A short run's time is taken off, and off the predictions: setting up is no
    part of it.
    """

    def __init__(self, shop: Shop, yardstick: Yardstick) -> None:
        self.shop = shop
        self._yards: dict[str, list[float]] = {query: [] for query in QUERIES}
        self._yardstick = yardstick

    def again(self, place: int) -> None:
        query = QUERIES[place]
        warm = self._run(query, self.shop.rows)
        times = math.ceil(LEAST / self._yardstick.seconds(warm))
        for _ in range(times):
            self._yards[query].append(self._run(query, self.shop.rows) - self._run(query, SHORT))

    def seconds(self, query: str) -> float:
        return self._yardstick.seconds(statistics.median(self._yards[query]))

    def _run(self, query: str, rows: int) -> float:
        app = self.shop.at_once(query, rows)
        _, yards = self._yardstick.of_process(lambda: app.run(Threads(workers=1), POLICY))
        return yards


def fitted(calibration: Calibration, measured: Measured) -> Calibration:
    """With the scale that makes the prediction of the reference query right; no other query is looked at."""
    bare = replace(calibration, scale=1.0)
    spent, beside = _simulated(bare, measured.shop, REFERENCE)
    return replace(bare, scale=max((measured.seconds(REFERENCE) - beside) / spent, 0.1))


def predictions(calibration: Calibration, measured: Measured, tell: Tell) -> Sequence[Prediction]:
    """The other four."""
    others = [query for query in QUERIES if query != REFERENCE]
    found, rows = [], measured.shop.rows
    for place, query in enumerate(others):
        tell(f"predict {query}", place / len(others))
        predicted = sum(_simulated(calibration, measured.shop, query))
        found.append(Prediction(query, (rows - SHORT) / predicted, (rows - SHORT) / measured.seconds(query)))
    return found


def _simulated(calibration: Calibration, shop: Shop, query: str) -> tuple[float, float]:
    """Virtual seconds: those of a query's operators, and those beside (calls, memory); less a short run's."""
    long, short = (_virtual(calibration, shop, query, rows) for rows in (shop.rows, SHORT))
    return long[0] - short[0], long[1] - short[1]


def _virtual(calibration: Calibration, shop: Shop, query: str, rows: int) -> tuple[float, float]:
    engine = Simulated(topology="host", memory=calibration.memory, costs=calibration, workers=1)
    report = shop.at_once(query, rows).run(engine, POLICY)
    assert report.traffic is not None
    beside = report.overhead.worker + report.traffic.seconds + report.traffic.waited
    return report.seconds - beside, beside


def show(compared: Sequence[Prediction], console: Console) -> None:
    """Predicted and measured throughput, query by query."""
    table = Table(title="throughput of one worker, tuples per second", title_justify="left")
    table.add_column("query")
    for column in ("predicted", "measured", "error"):
        table.add_column(column, justify="right")
    for one in compared:
        colour = "green" if abs(one.error) <= CLOSE else "red"
        table.add_row(
            one.query, f"{one.predicted:,.0f}", f"{one.measured:,.0f}", f"[{colour}]{one.error:+.0%}[/]"
        )
    console.print(table)
    console.print(f"{REFERENCE} was measured to fit; the aim is an error of at most 15 %.")
