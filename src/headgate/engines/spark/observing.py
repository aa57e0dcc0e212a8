"""What can be seen of a run on Spark at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.engines.spark.core import SparkCore
from headgate.engines.spark.sources import OffsetSource
from headgate.runtime.observing import (
    BoxSeen,
    Observation,
    QuerySeen,
    SourceSeen,
    seen_of_driver,
    state_of,
)


def observe(
    core: SparkCore,
    sources: Sequence[OffsetSource],
    came: Sequence[int],
    given: Mapping[str, Mapping[str, int]],
    waits: Mapping[str, str],
    now: float,
    calls_seen: int,
) -> Observation:
    """Lock held.  ``came``, ``given``: as a report needs them; ``waits``: by query, the silent source."""
    network, position = core.nodes.network, core.position
    queued = core.cursors.queued()
    late = [position.nodes[node.key].late for node in core.nodes.all]
    shed: dict[int, int] = {}
    for (_, place), tuples in core.cursors.shedding.dropped.items():
        shed[place] = shed.get(place, 0) + tuples
    queries = {}
    for node in core.nodes.outlets:
        live = core.live[node.place]
        assert live.report is not None
        boxes = network.queries.get(node.name, frozenset())
        finished = position.nodes[node.key].cursor > position.offsets.next_serial
        queries[node.name] = QuerySeen(
            report=live.report,
            state=state_of(live.report, waits.get(node.name), "finished" if finished else "running"),
            tuples_in=sum(given.get(node.name, {}).values()),
            tuples_out=live.report.tuples_out,
            late=sum([late[box] for box in boxes]),
            shed=sum([shed.get(box, 0) for box in boxes]) if shed else 0,
            backlog=sum([queued[box] for box in boxes]) + queued[node.place],
            sunk=0.0,
            waits_for=waits.get(node.name),
            restarts=live.restarts,
        )
    return Observation(
        engine="spark",
        now=now,
        network=network,
        queries=queries,
        boxes=[
            BoxSeen(waiting, e.tuples_in, e.tuples_out, e.busy, e.calls)
            for waiting, e in zip(queued, core.catalog.boxes, strict=False)
        ],
        sources=[SourceSeen(n, s.lag) for n, s in zip(came, sources, strict=True)],
        steps=core.steps_done,
        step_seconds=dict(core.step_seconds),
        **seen_of_driver(core.driver, calls_seen),  # type: ignore[arg-type]
    )
