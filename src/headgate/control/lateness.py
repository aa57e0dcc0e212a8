"""How late results are, and why: waiting for their turn, own work, the source, or the sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headgate.graph.qos import QoS
from headgate.runtime.observing import Observation

Seconds = npt.NDArray[np.float64]
MANY = 256
"""Rows of one hand-over that are looked at."""
KEPT = 32
"""Latencies of a query that a sample holds."""
NOTHING = (0.0, 0.0, 0.0, 0.0)


class Delivered(NamedTuple):
    """Results that were handed over between two observations."""

    values: Sequence[tuple[float, int]]
    """Latencies in order, with how many results had them."""
    rows: int
    mean: float
    worth: float | None
    """Utility of all together; None without a QoS graph."""
    late: int
    """Results past the goal: the latency up to which results keep their full utility."""

    @staticmethod
    def of(recent: Iterable[tuple[float | Seconds, int]], qos: QoS | None) -> Delivered:
        """Judge latencies, each of so many results, or of one each."""
        given = list(recent)
        if not given:
            return Delivered((), 0, 0.0, None if qos is None else 0.0, 0)
        single = [(seconds, rows) for seconds, rows in given if isinstance(seconds, float)]
        # Of many rows of one hand-over, some stand for all: watching must stay cheap at millions a second.
        strides = [(s, -(-len(s) // MANY)) for s, _ in given if not isinstance(s, float)]
        many = [seconds[::stride] for seconds, stride in strides]
        latencies = np.concatenate([np.array([seconds for seconds, _ in single]), *many])
        alike = [np.full(len(own), len(s) / len(own)) for own, (s, _) in zip(many, strides, strict=True)]
        weights = np.concatenate([np.array([rows for _, rows in single]), *alike])
        rows = round(float(weights.sum()))
        mean = float(latencies @ weights) / max(rows, 1)
        kept = _kept(latencies, weights)
        if qos is None:
            return Delivered(kept, rows, mean, None, 0)
        late = round(float(weights[latencies > goal(qos)].sum()))
        return Delivered(kept, rows, mean, float(qos.utilities(latencies) @ weights), late)


def _kept(latencies: Seconds, weights: Seconds) -> list[tuple[float, int]]:
    """In order; of many, each stands for its neighbours before it."""
    order = np.argsort(latencies)
    ranks = np.cumsum(weights[order]).round().astype(np.int64)
    ends = np.arange(len(order))
    if len(order) > KEPT:
        ends = np.unique(np.linspace(0, len(order) - 1, KEPT).round().astype(np.int64))
    rows = np.diff(ranks[ends], prepend=0)
    return list(zip(latencies[order[ends]].tolist(), rows.tolist(), strict=True))


def goal(qos: QoS) -> float:
    """The latency up to which results keep their full utility."""
    best = qos.points[0][1]
    return max(latency for latency, utility in qos.points if utility == best)


Why = Callable[[str, Delivered], tuple[float, float, float, float]]


def reasons(before: Observation | None, seen: Observation) -> Why:
    """Splits a query's mean latency into (turn, own work, source, sink).

    Own work is the mean time of a call on the longest way through its boxes; on Spark, of a step without its
    commit, since all queries of a step share it.  The source's part is the time from arrival to admission.
    What is left is waiting for a turn.
    """
    if before is None:
        return lambda query, delivered: NOTHING
    network = seen.network
    source = {
        s: max((now.lag - was.lag) / (now.rows - was.rows), 0.0) if now.rows > was.rows else 0.0
        for s, now, was in zip(network.sources, seen.sources, before.sources, strict=True)
    }
    ways = [0.0] * len(network.upstream)
    step = commit = 0.0
    # A delivery can be seen before its step is counted; its own part is then part of the waiting.
    if seen.steps > before.steps:
        spent = {what: now - before.step_seconds.get(what, 0.0) for what, now in seen.step_seconds.items()}
        commit = spent.pop("commit", 0.0) / (seen.steps - before.steps)
        step = sum(spent.values()) / (seen.steps - before.steps)
    elif seen.engine != "spark":
        for place, (now, was) in enumerate(zip(seen.boxes, before.boxes, strict=True)):
            own = (now.busy - was.busy) / (now.calls - was.calls) if now.calls > was.calls else 0.0
            ways[place] = own + max([ways[up] for up in network.upstream[place]], default=0.0)

    def why(query: str, delivered: Delivered) -> tuple[float, float, float, float]:
        if not delivered.rows:
            return NOTHING
        rest = delivered.mean
        was = before.queries.get(query)
        sunk = 0.0 if was is None else seen.queries[query].sunk - was.sunk
        parts = []
        work = step or max([ways[box] for box in network.queries.get(query, ())], default=0.0)
        came = max([source[s] for s in network.sources_by_query.get(query, ())], default=0.0)
        for part in (work, commit or sunk / max(len(delivered.values), 1), came):
            parts.append(min(part, rest))
            rest -= parts[-1]
        return (rest, parts[0], parts[2], parts[1])

    return why
