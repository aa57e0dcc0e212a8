"""The network and the samples of a watch as plain data, compact enough to be sent twice a second.

Rows are lists, in the order that ``static/model.js`` names.
"""

from __future__ import annotations

import json
import math
from typing import Any

from headgate.control.capacity import overloaded_by
from headgate.control.lateness import goal
from headgate.control.watching import WINDOW, Event, Sample, Watch, percentile
from headgate.graph.network import Box, Network
from headgate.scheduling import policies

HISTORY_CELLS = 60_000
"""Figures of queries that a page is sent when it is opened."""
JOINED = 0.0005
"""Seconds between two calls of a box that are shown as one."""


def dumps(data: object) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def network_data(network: Network, version: int, engine: str) -> dict[str, Any]:
    """What does not change between two samples: sources, boxes, queries, arrows."""
    number: dict[Any, int] = {}
    nodes: list[dict[str, Any]] = []
    for kind, things in (("source", network.sources), ("box", network.boxes), ("query", network.outputs)):
        for thing in things:
            number[thing] = len(nodes)
            does = thing.operator.label if isinstance(thing, Box) else ""
            nodes.append({"kind": kind, "name": thing.name, "does": does})
    arrows = [
        (number[arrow.node], number[box]) for box in network.boxes for port in box.ports for arrow in port
    ]
    arrows += [(number[arrow.node], number[out]) for out in network.outputs for arrow in out.port]
    return {
        "v": version,
        "app": network.name,
        "engine": engine,
        "nodes": nodes,
        "arrows": arrows,
        "boxQueries": [list(queries) for queries in network.queries_of],
        "queries": [
            {
                "name": output.name,
                "qos": output.qos.points if output.qos is not None else None,
                "goal": goal(output.qos) if output.qos is not None else None,
                "columns": [f"{field.name} {field.type}" for field in output.schema],
            }
            for output in network.outputs
        ],
        "sources": [
            {"name": source.name, "columns": [f"{f.name} {f.type}" for f in source.schema]}
            for source in network.sources
        ],
        "policies": [
            {"name": name, "does": policies.describe(name), "settings": sorted(policies.get(name).settings)}
            for name in policies.names()
        ],
    }


def overload(watch: Watch) -> str:
    """Whether what the tightest queries need is too much, over the last seconds."""
    samples = list(watch.samples)
    if len(samples) < 2:
        return ""
    now = samples[-1].seen
    before = next((s.seen for s in samples if s.seen.now >= now.now - WINDOW), samples[0].seen)
    return overloaded_by(before, now)


def sample_data(sample: Sample, over: str = "") -> dict[str, Any]:
    """One sample; ``over``: what is to be said of the capacity."""
    seen = sample.seen
    place = {box.name: number for number, box in enumerate(seen.network.boxes)}
    queries, texts = [], {}
    for output in seen.network.outputs:
        own = sample.queries.get(output.name)
        if own is None:
            queries.append(["gone", *[0] * 15])
            continue
        got, query = own.delivered, own.seen
        queries.append(
            [
                query.state,
                query.tuples_in,
                query.tuples_out,
                query.late,
                query.shed,
                query.backlog,
                got.rows,
                _short(percentile(got.values, got.rows, 50)),
                _short(percentile(got.values, got.rows, 99)),
                _short(got.mean),
                _short(got.worth / got.rows if got.worth is not None and got.rows else None),
                got.late,
                *(_short(part) for part in own.why),
            ]
        )
        if query.report.error is not None or query.waits_for is not None:
            texts[output.name] = str(query.report.error or f"waits for {query.waits_for}")[:2_000]
    return {
        "t": round(seen.now, 3),
        "dt": round(sample.seconds, 3),
        "v": sample.version,
        "policy": seen.policy,
        "settings": {name: _setting(value) for name, value in seen.settings.items()},
        "workers": seen.workers,
        "q": queries,
        "x": texts,
        "b": [[b.queued, b.tuples_in, b.tuples_out, round(b.busy, 4)] for b in seen.boxes],
        "s": [[s.rows, round(s.lag, 3)] for s in seen.sources],
        "c": _calls(sample, place),
        "steps": seen.steps,
        "phases": {what: round(spent, 4) for what, spent in seen.step_seconds.items()},
        "problems": [*([over] if over else []), *seen.problems[-5:]],
    }


def _calls(sample: Sample, place: dict[str, int]) -> list[list[float]]:
    """Box calls as (worker, box, tuples, start, end); those of one box in a row are one."""
    found: list[list[float]] = []
    last: dict[int, list[float]] = {}
    for worker, box, tuples, start, end in sample.seen.calls:
        number = place.get(box, -1)
        before = last.get(worker)
        if before is not None and before[1] == number and 0 <= start - before[4] < JOINED:
            before[2] += tuples
            before[4] = round(end, 5)
            continue
        last[worker] = call = [worker, number, tuples, round(start, 5), round(end, 5)]
        found.append(call)
    return found


def history(watch: Watch) -> list[dict[str, Any]]:
    """The samples that a page is sent when it is opened."""
    samples = list(watch.samples)
    size = max((len(s.queries) + len(s.seen.boxes) for s in samples), default=1)
    newest = samples[-max(20, min(240, HISTORY_CELLS // max(size, 1))) :]
    return [sample_data(sample) for sample in newest if sample.version == watch.version]


def event_data(event: Event) -> dict[str, Any]:
    return {"kind": event.kind, "query": event.query, "message": event.message[:2_000], "at": event.at}


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def _setting(value: object) -> object:
    if isinstance(value, (int, float)) or value is None:
        return value
    tuples = getattr(value, "tuples", None)
    return tuples if isinstance(tuples, int) else str(value)
