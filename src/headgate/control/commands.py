"""What a run in real time answers to ``headgate status`` and ``headgate set``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

from headgate.control.line import Line
from headgate.control.socket import Handler
from headgate.errors import PipelineError, nearest
from headgate.graph.network import Output
from headgate.graph.qos import QoS
from headgate.runtime.change import Change
from headgate.runtime.limits import MOST_BATCH, MOST_WORKERS, whole_number
from headgate.runtime.observing import Observation, QuerySeen
from headgate.runtime.report import QueryReport, Report

WHAT = ("policy", "period", "batch", "workers", "qos", "add", "remove")
MOST_POINTS = 100
"""Points of a QoS graph that is given from outside."""


class Run(Protocol):
    """A run in real time, as commands need it."""

    line: Line | None

    def snapshot(self) -> Report: ...
    def observe(self, calls_seen: int) -> Observation: ...
    def change(self, change: Change, outputs: Sequence[Output] = ()) -> None: ...


def set_something(run: Run, given: dict[str, Any]) -> dict[str, Any]:
    """The handler: what to set, and to what."""
    what, value = given.get("what"), given.get("value")
    if what not in WHAT:
        raise PipelineError(
            f"'{what}' cannot be set.{nearest(str(what), WHAT)} These can: {', '.join(WHAT)}."
        )
    if what in ("batch", "workers"):
        value = whole_number(value, what, MOST_BATCH if what == "batch" else MOST_WORKERS)
    outputs: list[Output] = []
    changed: Any = value
    if what == "qos":
        changed = _goals(value)
    if what == "add":
        load = run.line.load if run.line is not None else None
        if load is None:
            raise PipelineError("This run was not started by an application; it can take no queries.")
        known = run.snapshot().queries
        outputs = [output for output in load(str(value)) if output.name not in known]
        if not outputs:
            raise PipelineError(f"{value} has no query that this run has not.")
        changed = value = [output.name for output in outputs]
    if what in ("policy", "period") and (
        isinstance(value, bool) or not isinstance(value, str if what == "policy" else (str, int, float))
    ):
        raise PipelineError(f"{what}: give {'a name' if what == 'policy' else 'seconds'}, not {value!r}.")
    options: dict[str, Any] = {str(what): changed}
    run.change(Change(**options), outputs)
    if what == "qos" and run.line is not None:
        run.line.watch.goals_changed()
    report = run.snapshot()
    return {"what": what, "value": value, "policy": report.policy, "workers": report.workers}


def _goals(value: object) -> dict[str, QoS]:
    """A QoS graph as text, ``carts=0:1,0.5:1,5:0``, or as ``{"query": …, "points": [[0, 1], …]}``."""
    usage = PipelineError("qos: give a query and points of (seconds, utility), e.g. 'carts=0:1,0.5:1,5:0'.")
    query, points = None, None
    if isinstance(value, dict):
        query, points = value.get("query"), value.get("points")
    elif isinstance(value, str):
        query, found, text = value.rpartition("=")
        points = [point.split(":") for point in text.split(",")] if found else None
    if not query or not isinstance(query, str) or not isinstance(points, list):
        raise usage
    if len(points) > MOST_POINTS or not all(isinstance(p, list) and len(p) == 2 for p in points):
        raise usage
    return {query: QoS([tuple(point) for point in points])}


def add_query(run: Run, given: dict[str, Any]) -> dict[str, Any]:
    """The handler of ``headgate add``: a SELECT, its name, goal and sink."""
    if run.line is None or run.line.added is None:
        raise PipelineError("This run was not started by an application; it can take no queries.")
    if given.pop("check", False):
        return _forecast(run, run.line, given)
    with run.line.added(given) as outputs:
        run.change(Change(add=[output.name for output in outputs]), outputs)
    return {"queries": [output.name for output in outputs]}


class _Checked(Exception):
    """Takes a query back that was only to be checked."""


def _forecast(run: Run, line: Line, given: dict[str, Any]) -> dict[str, Any]:
    """What would happen if a query were added."""
    if line.forecast is None or line.added is None:
        raise PipelineError("This run was not started by an application; it cannot be asked for forecasts.")
    found: Any = None
    try:
        with line.added(given) as outputs:
            found = line.forecast(run, outputs, {})
            raise _Checked
    except _Checked:
        pass
    return {
        "fits": found.fits,
        "says": str(found),
        "goals": [vars(goal) | {"broken": goal.broken} for goal in found.goals],
    }


def handlers(run: Run) -> dict[str, Handler]:
    """The commands by name; each is called on a thread of its own."""
    return {
        "status": lambda _: status(run),
        "set": lambda given: set_something(run, given),
        "add": lambda given: add_query(run, given),
    }


def status(run: Run) -> dict[str, Any]:
    """The handler: every query since the start, and over the last minute."""
    report, seen = run.snapshot(), run.observe(sys.maxsize)
    watch = None if run.line is None else run.line.watch
    return {
        "app": seen.network.name,
        "engine": report.engine,
        "policy": report.policy,
        "seconds": report.seconds,
        "workers": report.workers,
        "queries": [
            query_status(report.queries[name], own, watch.last(name) if watch is not None else None)
            for name, own in seen.queries.items()
        ],
        "problems": report.problems,
    }


def query_status(own: QueryReport, seen: QuerySeen, minute: dict[str, Any] | None) -> dict[str, Any]:
    """A query as ``headgate status`` shows it."""
    return {
        "name": own.name,
        "state": seen.state,
        "error": None if own.error is None else str(own.error),
        "waits_for": seen.waits_for,
        "tuples_in": own.tuples_in,
        "tuples_out": own.tuples_out,
        "p50": own.latency.p50,
        "p99": own.latency.p99,
        "qos": own.qos,
        "utility": own.utility,
        "late": own.late,
        "shed": own.shed,
        "backlog": seen.backlog,
        "restarts": seen.restarts,
        "minute": minute,
    }
