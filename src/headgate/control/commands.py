"""What a run answers to ``headgate set``, and one on threads to ``headgate status``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headgate.control.line import Line
from headgate.control.socket import Handler
from headgate.errors import PipelineError, nearest
from headgate.graph.network import Output
from headgate.runtime.change import Change
from headgate.runtime.core import Core
from headgate.runtime.limits import MOST_BATCH, MOST_WORKERS, whole_number
from headgate.runtime.report import QueryReport, Report

WHAT = ("policy", "period", "batch", "workers", "add", "remove")


class Run(Protocol):
    """A run in real time, as commands need it."""

    lock: Any
    line: Line | None

    def now(self) -> float: ...
    def report(self, seconds: float) -> Report: ...
    def snapshot(self) -> Report: ...
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
    if what == "add":
        load = run.line.load if run.line is not None else None
        if load is None:
            raise PipelineError("This run was not started by an application; it can take no queries.")
        known = run.snapshot().queries
        outputs = [output for output in load(str(value)) if output.name not in known]
        if not outputs:
            raise PipelineError(f"{value} has no query that this run has not.")
        value = [output.name for output in outputs]
    options: dict[str, Any] = {str(what): value}
    run.change(Change(**options), outputs)
    report = run.snapshot()
    return {"what": what, "value": value, "policy": report.policy, "workers": report.workers}


def add_query(run: Run, given: dict[str, Any]) -> dict[str, Any]:
    """The handler of ``headgate add``: a SELECT, its name, goal and sink."""
    if run.line is None or run.line.added is None:
        raise PipelineError("This run was not started by an application; it can take no queries.")
    with run.line.added(given) as outputs:
        run.change(Change(add=[output.name for output in outputs]), outputs)
    return {"queries": [output.name for output in outputs]}


def handlers(run: Run, core: Core) -> dict[str, Handler]:
    """The commands by name; each is called on a thread of its own."""
    return {
        "status": lambda _: _status(run, core),
        "set": lambda given: set_something(run, given),
        "add": lambda given: add_query(run, given),
    }


def _status(run: Run, core: Core) -> dict[str, Any]:
    with run.lock:
        report = run.report(run.now())
        queries = []
        for live in core.live.outputs:
            own = live.report
            boxes = core.live.network.queries.get(own.name, frozenset())
            backlog = sum(core.live.boxes[box].inbox.rows for box in boxes) + live.inbox.rows
            queries.append(query_status(own, "removed" if own.removed else "running", backlog))
        return {
            "app": core.live.network.name,
            "engine": report.engine,
            "policy": report.policy,
            "seconds": report.seconds,
            "workers": report.workers,
            "queries": queries,
            "problems": report.problems,
        }


def query_status(own: QueryReport, state: str, backlog: int, restarts: int = 0) -> dict[str, Any]:
    """A query as ``headgate status`` shows it; ``state`` unless it has failed or waits for a source."""
    waits = own.waits_for is not None and state == "running"
    return {
        "name": own.name,
        "state": "failed" if own.error is not None else "waiting" if waits else state,
        "error": None if own.error is None else str(own.error),
        "waits_for": own.waits_for,
        "tuples_in": own.tuples_in,
        "tuples_out": own.tuples_out,
        "p50": own.latency.p50,
        "p99": own.latency.p99,
        "qos": own.qos,
        "utility": own.utility,
        "shed": own.shed,
        "backlog": backlog,
        "restarts": restarts,
    }
