"""What a running application answers to ``headgate status``, ``restart``, ``query`` and ``set``."""

from __future__ import annotations

import time
from typing import Any

from headgate.checkpoint.opening import open_storage
from headgate.checkpoint.savepoint import savepoint
from headgate.checkpoint.storage import Storage
from headgate.control.commands import add_query, set_something, status
from headgate.control.socket import Handler
from headgate.engines.spark.shell import Shell
from headgate.errors import PipelineError, nearest
from headgate.sql.types import spark_name

PATIENCE = 3.0
"""Seconds that the answer to ``restart`` waits for a sign of the query."""


def handlers(run: Shell) -> dict[str, Handler]:
    """The commands by name; each is called on a thread of its own."""
    return {
        "status": lambda _: status(run) | {"step": run.position.step},
        "restart": lambda given: _restart(run, given),
        "history": lambda _: _history(run),
        "checkpoint": lambda _: {"root": _kept(run).root},
        "savepoint": lambda given: _savepoint(run, given),
        "set": lambda given: set_something(run, given),
        "add": lambda given: add_query(run, given),
    }


def _restart(run: Shell, given: dict[str, Any]) -> dict[str, Any]:
    query = given.get("query")
    names = [node.name for node in run.nodes.outlets]
    if query not in names:
        raise PipelineError(f"There is no query '{query}'.{nearest(str(query), names)}")
    with run.lock:
        if query not in run.position.failed:
            raise PipelineError(f"Query '{query}' has not failed; there is nothing to restart.")
        before = _passed(run, query)
        run.restart_query(query)
        # What made it fail may still be so: the answer waits until that shows, or something is committed.
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not run.stopping:
            if query in run.position.failed:
                why = run.position.failed[query]
                raise PipelineError(f"Query '{query}' was restarted and has failed again: {why}")
            if _passed(run, query) > before:
                break
            run.alarm.wait(0.1)
        return {"ok": True, "query": query, "went_on": _passed(run, query) > before}


def _kept(run: Shell) -> Storage:
    if not run.storage.durable:
        raise PipelineError("This run has no checkpoint; start it with hg.Spark(checkpoint=…).")
    return run.storage


def _savepoint(run: Shell, given: dict[str, Any]) -> dict[str, Any]:
    """The lock keeps the log as it is, and its files where they are, until they are copied."""
    place = _kept(run)
    with run.lock:
        return savepoint(place, open_storage(str(given.get("folder"))))


def _passed(run: Shell, query: str) -> int:
    """The serial up to which a query has committed its results."""
    return run.position.nodes[run.core.outlet(query).node.key].cursor


def _history(run: Shell) -> dict[str, Any]:
    outputs = [
        {
            "query": node.name,
            "path": run.outlets[node.place].history,
            "schema": {field.name: spark_name(field.type) for field in node.output.schema},
            "keep": node.output.keep,
        }
        for node in run.nodes.outlets
        if node.output is not None and node.output.keep
    ]
    return {"outputs": outputs}
