"""What a run answers to ``headgate set``: a change, in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.engines.change import Change
from headgate.errors import PipelineError, nearest
from headgate.graph.network import Output

if TYPE_CHECKING:
    from headgate.engines.attended import Attended

WHAT = ("policy", "period", "batch", "workers", "add", "remove")


def set_something(run: Attended, given: dict[str, Any]) -> dict[str, Any]:
    """The handler: what to set, and to what."""
    what, value = given.get("what"), given.get("value")
    if what not in WHAT:
        raise PipelineError(
            f"'{what}' cannot be set.{nearest(str(what), WHAT)} These can: {', '.join(WHAT)}."
        )
    if what in ("batch", "workers"):
        try:
            value = int(str(value))
        except ValueError:
            raise PipelineError(f"{what} {value}: it must be a whole number of at least 1.") from None
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
