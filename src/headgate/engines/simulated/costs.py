"""How long boxes compute in virtual time: as they state, as given, or as ``headgate calibrate`` measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headgate.machine.calibration import Calibration, OperatorCost, keys_of
from headgate.runtime.boxes import LiveBox, Work


class Costs:
    """Seconds by box name, or a calibration, which knows operators; what a box states itself goes first."""

    def __init__(self, costs: Mapping[str, float] | str | Path | Calibration | None) -> None:
        self.by_box = dict(costs) if isinstance(costs, Mapping) else {}
        self.calibration = Calibration.load(costs) if isinstance(costs, str | Path) else None
        if isinstance(costs, Calibration):
            self.calibration = costs

    threads = False
    """As on Python's threads: calls of a plan become superboxes, and reading sources costs time too."""
    exact = True
    """A tuple has its cost, and its results leave when it is done; else they leave when the call is over."""

    @property
    def call_overhead(self) -> float:
        """What a call costs apart from its operator, where that was measured."""
        return 0.0 if self.calibration is None else self.calibration.call_overhead

    def seconds(self, live: LiveBox, packets: int, tuples: int, results: int, keys: int = 0) -> float:
        """How long a box computes."""
        measured = self._measured(live)
        if measured is not None:
            return measured.seconds(packets, tuples, results, keys)
        return self.per_tuple(live) * tuples

    def per_tuple(self, live: LiveBox) -> float:
        """As stated or given."""
        stated = live.operator.cost
        return self.by_box.get(live.box.name, 0.0) if stated is None else stated

    def overhead(self, work: Work, stated: float, *, follows: bool = False) -> float:
        """What a call takes apart from its operators; ``stated`` for all of them.

        ``follows``: it follows another one of the same plan.
        """
        return stated

    def held(self, live: LiveBox, packets: int) -> float:
        """Of the seconds of a call, those with the interpreter's lock."""
        return 0.0

    def aside(self, work: Work) -> float:
        """Of a call with all that it delivers, the seconds that no core computes."""
        return 0.0

    def admitting(self, rows: int) -> float:
        """What it takes to read and admit rows."""
        return 0.0

    def slower(self, now: float) -> float:
        """How much longer everything takes at a time, because others use the machine."""
        return 1.0

    rest = 0.0
    """Seconds from an arrival that is waited for to its reading."""

    def waking(self) -> float:
        """What a parked worker takes to come back."""
        return 0.0

    def keys(self, work: Work) -> int:
        """Keys in what a call takes, where it matters."""
        measured = self._measured(work.live)
        if measured is None or not measured.key:
            return 0
        return sum([keys_of(work.live.operator, round_) for round_ in work.rounds])

    def _measured(self, live: LiveBox) -> OperatorCost | None:
        if self.calibration is None or live.operator.cost is not None:
            return None
        return self.calibration.cost(live.operator.label)
