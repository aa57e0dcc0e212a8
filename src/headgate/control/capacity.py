"""Do the workers suffice?  What boxes keep busy at the rates of now, told by how tight the goals are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headgate.control.lateness import goal
from headgate.graph.durations import spell_duration
from headgate.graph.network import Box, Network, Source
from headgate.graph.qos import QoS
from headgate.runtime.observing import Observation

CERTAIN = 1.1
"""So many times what there is must be needed: costs are measured while calls wait for each other."""


def workers_busy(
    network: Network, rates: Mapping[str, float], costs: Callable[[Box], tuple[float, float]]
) -> list[float]:
    """By box, the workers that it keeps busy.  ``costs``: its results and its seconds per tuple."""
    flows: dict[Box, float] = {}
    busy = []
    for box in network.boxes:
        coming = 0.0
        for arrow in (arrow for port in box.ports for arrow in port):
            node = arrow.node
            coming += rates.get(node.name, 0.0) if isinstance(node, Source) else flows[node]
        selectivity, seconds = costs(box)
        flows[box] = coming * selectivity
        busy.append(coming * seconds)
    return busy


def overloaded_by(before: Observation, now: Observation) -> str:
    """What to say if queries with the tightest goals alone need more than the workers; else nothing."""
    network, seconds = now.network, now.now - before.now
    if before.network is not network or seconds <= 0 or len(before.sources) != len(now.sources):
        return ""
    rates = {
        source.name: (own.rows - was.rows) / seconds
        for source, own, was in zip(network.sources, now.sources, before.sources, strict=True)
    }

    def costs(box: Box) -> tuple[float, float]:
        own, was = now.boxes[network.index[box]], before.boxes[network.index[box]]
        if own.tuples_in - was.tuples_in > 0:
            tuples = own.tuples_in - was.tuples_in
            return (own.tuples_out - was.tuples_out) / tuples, (own.busy - was.busy) / tuples
        return own.tuples_out / max(1, own.tuples_in), own.busy / max(1, own.tuples_in)

    busy = workers_busy(network, rates, costs)
    needed: set[int] = set()
    for tight, queries in _by_goal(network.goals):
        needed |= {box for query in queries for box in network.queries[query]}
        need = sum([busy[box] for box in needed])
        if need > CERTAIN * now.workers:
            return (
                f"Queries with goals of {spell_duration(round(tight * 1e6))} or less alone exceed the "
                f"capacity: they need {need:.1f} workers of {now.workers}. "
                "No policy keeps all of these goals."
            )
    return ""


def _by_goal(goals: Mapping[str, QoS]) -> Sequence[tuple[float, list[str]]]:
    found: dict[float, list[str]] = {}
    for name, qos in goals.items():
        found.setdefault(goal(qos), []).append(name)
    return sorted(found.items())
