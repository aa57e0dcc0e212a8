"""Whether a calibrated simulation predicts: the TPCx-BB queries on one worker, predicted and measured.

Operators' costs come from rows at random (``calibrating``).  One query, Q4, is measured and sets the one
number that operators alone cannot tell, how much dearer they are inside a query; the other four are predicted
with it and measured only to compare.  A simulation processes the query's real rows, so how many tuples every
box passes on is that of the data; times are virtual.

Measured is the processor's time of the whole process, the least of several runs: with one worker, that is
what a run would take on a machine with nothing else to do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headgate.bench.calibrating import Tell
from headgate.bench.ordered_shop import QUERIES, Shop
from headgate.engines.calibration import Calibration
from headgate.engines.simulated import Simulated
from headgate.engines.threads import Threads
from headgate.graph.network import Network

REFERENCE = "q4"
POLICY = "mc"
CLOSE = 0.15


@dataclass(frozen=True)
class Prediction:
    """A query's throughput in tuples per second of one worker."""

    query: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def networks(shop: Shop) -> list[Network]:
    """Of all five queries."""
    return [shop.at_once(query, 1).network for query in QUERIES]


def fitted(calibration: Calibration, shop: Shop, rounds: int) -> Calibration:
    """With the scale that makes the prediction of the reference query right."""
    bare = replace(calibration, scale=1.0)
    measured = min(_measured(shop, REFERENCE) for _ in range(rounds))
    spent, beside = _simulated(bare, shop, REFERENCE)
    return replace(bare, scale=max((measured - beside) / spent, 0.1))


def predictions(calibration: Calibration, shop: Shop, rounds: int, tell: Tell) -> Sequence[Prediction]:
    """The other four, the measured runs in turns."""
    others = [query for query in QUERIES if query != REFERENCE]
    measured = dict.fromkeys(others, float("inf"))
    for turn in range(rounds):
        for place, query in enumerate(others):
            tell(f"measure {query}", (turn + place / len(others)) / rounds)
            measured[query] = min(measured[query], _measured(shop, query))
    found = []
    for query in others:
        tell(f"predict {query}", 1.0)
        found.append(
            Prediction(
                query, shop.rows / sum(_simulated(calibration, shop, query)), shop.rows / measured[query]
            )
        )
    return found


def _measured(shop: Shop, query: str) -> float:
    app = shop.at_once(query, shop.rows)
    begin = time.process_time()
    app.run(Threads(workers=1), POLICY)
    return time.process_time() - begin


def _simulated(calibration: Calibration, shop: Shop, query: str) -> tuple[float, float]:
    """Virtual seconds of a query: those of its operators, and those beside (calls, memory)."""
    engine = Simulated(topology="host", memory=calibration.memory, costs=calibration, workers=1)
    report = shop.at_once(query, shop.rows).run(engine, POLICY)
    assert report.traffic is not None
    beside = report.overhead.worker + report.traffic.seconds + report.traffic.waited
    return report.seconds - beside, beside
