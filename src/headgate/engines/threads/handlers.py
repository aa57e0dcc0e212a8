"""What an application that runs on threads answers to ``headgate status`` and ``set``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.engines.control import Handler
from headgate.engines.setting import set_something

if TYPE_CHECKING:
    from headgate.engines.threads.engine import _Run


def handlers(run: _Run) -> dict[str, Handler]:
    """The commands by name; each is called on a thread of its own."""
    return {"status": lambda _: _status(run), "set": lambda given: set_something(run, given)}


def _status(run: _Run) -> dict[str, Any]:
    with run.lock:
        report, runtime = run.report(run.now()), run.runtime
        queries = []
        for live in runtime.outputs:
            own = live.report
            boxes = runtime.network.queries.get(own.name, frozenset())
            queries.append(
                {
                    "name": own.name,
                    "state": "failed" if own.error is not None else "removed" if own.removed else "running",
                    "error": None if own.error is None else str(own.error),
                    "tuples_in": own.tuples_in,
                    "tuples_out": own.tuples_out,
                    "p50": own.latency.p50,
                    "p99": own.latency.p99,
                    "qos": own.qos,
                    "shed": own.shed,
                    "backlog": sum(runtime.boxes[box].inbox.rows for box in boxes) + live.inbox.rows,
                    "restarts": 0,
                }
            )
        return {
            "app": runtime.network.name,
            "engine": "threads",
            "policy": report.policy,
            "seconds": report.seconds,
            "workers": report.workers,
            "queries": queries,
            "problems": report.problems,
        }
