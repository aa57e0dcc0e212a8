"""What a recorder sees of a run on Spark: steps with their phases, and the calls in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.engines.spark.core import SparkCore
from headgate.engines.spark.messages import BoxCost
from headgate.engines.spark.stimuli import Noticed, StepCommitted
from headgate.recording import format as file


class Steps:
    """Reads arrivals and steps off Spark's core."""

    def __init__(self, core: SparkCore, writer: file.Writer) -> None:
        self._core, self._writer = core, writer
        self._rows = [own.rows for own in core.position.offsets.sources]

    def handlers(self) -> dict[type, Callable[[Any, float], None]]:
        return {Noticed: lambda _, now: self._arrived(now), StepCommitted: self._committed}

    def _arrived(self, now: float) -> None:
        """What is admitted has come by now: nothing holds a source back on Spark."""
        for place, own in enumerate(self._core.position.offsets.sources):
            came, self._rows[place] = own.rows - self._rows[place], own.rows
            if came:
                self._writer.add((file.ARRIVAL, now, place, -1, came, 0, 0, 1, now, now, 0, 0))

    def _committed(self, stimulus: StepCommitted, now: float) -> None:
        self._arrived(now)
        step = stimulus.step
        costs: dict[int, BoxCost] = {}
        phases: dict[str, float] = {}
        for result in stimulus.results:
            for phase, seconds in result.seconds.items():
                phases[phase] = max(phases.get(phase, 0.0), seconds)
            for place, cost in result.costs.items():
                total = costs.setdefault(place, BoxCost())
                total.tuples_in += cost.tuples_in
                total.tuples_out += cost.tuples_out
                total.seconds += cost.seconds
        inside = sum(cost.seconds for cost in costs.values())
        apart = max(0.0, now - step.start - inside) / max(1, len(costs))
        rows = sum(cost.tuples_in for cost in costs.values())
        boxes = len(self._core.nodes.boxes)
        for place, cost in sorted(costs.items()):
            if place < boxes:
                numbers = (cost.tuples_in, cost.tuples_out, 0, 1, cost.seconds, apart)
                self._writer.add((file.CALL, step.start, place, step.worker, *numbers, 0, 0))
        told = phases | {"all": now - step.start, "tuples": rows}
        self._writer.note(file.STEP, step.start, told, step.number)
