"""What can be seen of a run at one moment: cheap enough to be taken twice a second, under the run's lock.

A report sorts markers and percentiles of everything since the start.  An observation only reads counters;
to get rates, or figures of the last minute, compare two of them (``headgate.control.watching``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.graph.network import Network
from headgate.runtime.core import Core
from headgate.runtime.policy_driver import PolicyDriver
from headgate.runtime.report import BoxCall, QueryReport

MOST_CALLS = 4_000
"""Box calls that one observation takes along; of more, the newest."""


class QuerySeen(NamedTuple):
    """One query."""

    report: QueryReport
    """Shared with the run: it counts on."""
    state: str
    """running, waiting, failed, removed or finished."""
    tuples_in: int
    tuples_out: int
    late: int
    shed: int
    backlog: int
    sunk: float
    """Seconds that its sink was at work."""
    waits_for: str | None = None
    restarts: int = 0


class BoxSeen(NamedTuple):
    """One box; all but ``queued`` count since the start."""

    queued: int
    tuples_in: int
    tuples_out: int
    busy: float
    calls: int


class SourceSeen(NamedTuple):
    """One source, since the start."""

    rows: int
    lag: float
    """Seconds from arrival to admission, of all rows together."""


@dataclass
class Observation:
    """A run at one moment."""

    engine: str
    now: float
    network: Network
    policy: str
    settings: dict[str, object]
    """Of the policy, those that can be changed."""
    workers: int
    queries: dict[str, QuerySeen]
    boxes: list[BoxSeen]
    sources: list[SourceSeen]
    calls: list[BoxCall]
    """Box calls since the last observation, in the order in which they ended."""
    calls_total: int
    problems: list[str]
    steps: int = 0
    step_seconds: dict[str, float] = field(default_factory=dict)


def seen_of_driver(driver: PolicyDriver, calls_seen: int) -> dict[str, object]:
    """The part of an observation that all engines have in common, by field."""
    policy = driver.policy
    return {
        "policy": policy.name,
        "settings": {name: getattr(policy, name, None) for name in sorted(policy.settings)},
        "workers": driver.workers,
        "calls": driver.trace.newest(max(0, min(driver.trace.total - calls_seen, MOST_CALLS))),
        "calls_total": driver.trace.total,
        "problems": [*driver.problems, *policy.problems],
    }


def state_of(report: QueryReport, waits_for: str | None, otherwise: str = "running") -> str:
    """A query's state in one word."""
    if report.error is not None:
        return "failed"
    if report.removed:
        return "removed"
    return "waiting" if waits_for is not None and otherwise == "running" else otherwise


def observe(core: Core, engine: str, now: float, calls_seen: int) -> Observation:
    """Lock held: a run of the core on threads."""
    live, network = core.live, core.live.network
    rows = {s.name: e.rows for s, e in zip(network.sources, core.admission.entries, strict=True)}
    late = [box.late for box in live.boxes]
    shed = [0 if box.gate is None else sum(box.gate.counts.values()) for box in live.boxes]
    queued = [0 if box.removed else box.inbox.rows for box in live.boxes]
    queries = {}
    for output in live.outputs:
        query = output.output
        boxes = network.queries.get(query.name, frozenset())
        queries[query.name] = QuerySeen(
            report=output.report,
            state=state_of(output.report, None),
            tuples_in=output.given(rows, network.sources_by_query.get(query.name, ())),
            tuples_out=output.report.tuples_out,
            late=sum([late[box] for box in boxes]),
            shed=sum([shed[box] for box in boxes]) - sum(output.shed_before.values()),
            backlog=sum([queued[box] for box in boxes]) + output.inbox.rows,
            sunk=output.report.sink_seconds,
        )
    return Observation(
        engine=engine,
        now=now,
        network=network,
        queries=queries,
        boxes=[
            BoxSeen(waiting, e.tuples_in, e.tuples_out, e.busy, e.calls)
            for waiting, e in zip(queued, core.catalog.boxes, strict=True)
        ],
        sources=[SourceSeen(e.rows, e.lag) for e in core.admission.entries],
        **seen_of_driver(core.driver, calls_seen),  # type: ignore[arg-type]
    )
