"""What a recorded box does, for any cut of its tuples into calls.

The k-th tuple that comes to a box is the same one under every schedule, since order is kept.  So results and
costs are replayed by the place of a tuple: a call takes what its tuples took in the recording.

Seconds of a call are ``packets * fixed + tuples * each + results * result``, fitted to all calls of the
box, times what the recorded calls on the same tuples took compared with that.  A call that is cut as it was
recorded takes exactly what it took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.engines.simulated.costs import Costs
from headgate.recording.format import Rows
from headgate.runtime.boxes import LiveBox, Work

Numbers = npt.NDArray[np.float64]
DIFFERENT = 0.1
"""Calls whose sizes spread by less than this share of their mean tell nothing about what is fixed."""
_ONCE = 1e-9
"""Less than any share of a result: sums of shares must not round down."""


@dataclass
class BoxModel:
    """One box; tuples beyond those that were recorded begin again with the first."""

    tuples: Numbers
    """By recorded call."""
    results: Numbers
    factors: Numbers
    """How much longer a recorded call took than ``base`` says."""
    fixed: float
    each: float
    result: float
    counts: npt.NDArray[np.int64] | None
    """By tuple, its results, where the recording has them."""
    apart: Numbers
    """By call, seconds apart from the operator."""
    end_results: int = 0
    end_seconds: float = 0.0
    more: float = 0.0
    """Results by the second output, per tuple."""
    within: npt.NDArray[np.float64] | None = None
    """By call, between which shares of its tuples those lie that have results; None: evenly in all."""

    def __post_init__(self) -> None:
        self._rows = np.concatenate([[0.0], np.cumsum(self.tuples)])
        self._made = np.concatenate([[0.0], np.cumsum(self.results)])
        self._knots, self._steps = self._rows, self._made
        if self.within is not None:
            begins, rows = self._rows[:-1, None], self.tuples[:, None]
            inner = np.sort(np.round(begins + self.within * rows), axis=1)
            inner[:, 1] = np.minimum(np.maximum(inner[:, 1], inner[:, 0] + 1), self._rows[1:])
            inner[:, 0] = np.minimum(inner[:, 0], inner[:, 1] - 1)
            self._knots = np.concatenate([[0.0], np.hstack([inner, self._rows[1:, None]]).ravel()])
            before, after = self._made[:-1, None], self._made[1:, None]
            self._steps = np.concatenate([[0.0], np.hstack([before, after, after]).ravel()])
        self._slow = np.concatenate([[0.0], np.cumsum(self.tuples * self.factors)])

    @property
    def selectivity(self) -> float:
        return float(self._made[-1] / self._rows[-1]) if self._rows[-1] else 1.0

    def made_by(self, start: int, rows: int) -> npt.NDArray[np.int64]:
        """By tuple, how many results the tuples from ``start`` have."""
        total = int(self._rows[-1])
        if not total or not rows:
            return np.ones(rows, dtype=np.int64)
        if self.counts is not None:
            found: npt.NDArray[np.int64] = self.counts[np.arange(start, start + rows) % total]
            return found
        return np.diff(np.floor(self._until(self._knots, self._steps, start, rows) + _ONCE)).astype(np.int64)

    def base(self, packets: int, tuples: int, results: float) -> float:
        return self.fixed * packets + self.each * tuples + self.result * results

    def seconds(self, start: int, packets: int, tuples: int, results: int) -> float:
        """What a call on the tuples from ``start`` takes."""
        if not tuples:
            return self.end_seconds
        factor = 1.0
        if self._rows[-1]:
            low, high = self._until(self._rows, self._slow, start, 0, tuples)
            factor = float(high - low) / tuples
        return self.base(packets, tuples, results) * factor

    def _until(self, knots: Numbers, sums: Numbers, start: int, rows: int, step: int = 1) -> Numbers:
        """What is summed up to every tuple from ``start``; with ``step``, up to the first and the last."""
        places = np.arange(start, start + rows + 1) if step == 1 and rows else np.array([start, start + step])
        laps, within = np.divmod(places, int(self._rows[-1]))
        found: Numbers = laps * sums[-1] + np.interp(within, knots, sums)
        return found


def of_calls(calls: Rows, *, exact: bool) -> BoxModel:
    """The model of a box, from its calls in the order in which they began."""
    rows, closing = calls["rows"], calls["rows"] < 0
    own = (rows > 0) & ~closing
    tuples, results = rows[own].astype(float), calls["out"][own].astype(float)
    packets, seconds = calls["packets"][own].astype(float), _seconds(calls)[own]
    fixed, each, result = _fitted(packets, tuples, results, seconds)
    base = fixed * packets + each * tuples + result * results
    factors = np.divide(seconds, base, out=np.ones_like(seconds), where=base > 0)
    counts, within = None, None
    values = calls.values
    if exact and any(one is not None for one in values):
        parts: list[npt.NDArray[np.int64]] = []
        for place in np.flatnonzero(own):
            said = values[place]
            even = (
                _even(int(calls["out"][place]), int(rows[place])) if said is None else said.astype(np.int64)
            )
            parts.append(even)
        counts = np.concatenate(parts)
    elif any(one is not None for one in values):
        whole = np.array([0.0, 1.0])
        within = np.array(
            [whole if values[place] is None else values[place] for place in np.flatnonzero(own)]
        )
    return BoxModel(
        tuples,
        results,
        factors,
        fixed,
        each,
        result,
        counts,
        calls["overhead"][own],
        int(calls["out"][closing].sum()),
        float(_seconds(calls)[closing].sum()),
        float(calls["more"][own].sum() / max(1.0, tuples.sum())),
        within,
    )


def _seconds(calls: Rows) -> Numbers:
    """Processor time where it was weighed."""
    spent: Numbers = calls["cpu"]
    return spent if np.any(spent) else calls["seconds"]


def _even(results: int, rows: int) -> npt.NDArray[np.int64]:
    return np.diff(np.arange(rows + 1) * results // rows)


def _fitted(packets: Numbers, tuples: Numbers, results: Numbers, seconds: Numbers) -> tuple[float, ...]:
    """Fixed seconds per packet, and seconds per tuple and per result, none of them negative."""
    if not len(seconds) or not seconds.sum():
        return 0.0, 0.0, 0.0
    used = [1]
    per_packet = tuples / packets
    if len(seconds) > 2 and np.std(per_packet) > DIFFERENT * np.mean(per_packet):
        used.append(0)
    if len(seconds) > 3 and np.std(results / tuples) > DIFFERENT * max(
        float(np.mean(results / tuples)), _ONCE
    ):
        used.append(2)
    columns = np.stack([packets, tuples, results], axis=1)
    weights = 1.0 / np.sqrt(tuples)  # the time of a long call varies more
    while True:
        solved = np.linalg.lstsq(columns[:, used] * weights[:, None], seconds * weights, rcond=None)[0]
        if len(used) == 1 or bool(np.all(solved >= 0)):
            break
        used = [one for one, part in zip(used, solved, strict=True) if part >= 0] or [1]
    if used == [1]:
        solved = np.array([seconds.sum() / tuples.sum()])
    found = [0.0, 0.0, 0.0]
    for place, part in zip(used, solved, strict=True):
        found[place] = float(part)
    return tuple(found)


class ModelCosts(Costs):
    """Seconds of stand-ins, by their models."""

    def seconds(self, live: LiveBox, packets: int, tuples: int, results: int, keys: int = 0) -> float:
        stand_in: Any = live.operator
        found: float = stand_in.model.seconds(stand_in.taken - tuples, packets, tuples, results)
        return found

    def per_tuple(self, live: LiveBox) -> float:
        return 0.0


class RecordedCosts(ModelCosts):
    """Seconds as recorded; every stand-in knows its model."""

    exact = False

    def __init__(self, wakes: Sequence[float], apart: Sequence[float] = ()) -> None:
        """``apart``: by call, in order, seconds apart from its operators; without it boxes have their own."""
        super().__init__(None)
        self._wakes, self._woken = list(wakes), 0
        self._apart, self._calls = list(apart), 0

    def overhead(self, work: Work, stated: float, *, follows: bool = False) -> float:
        """As the recorded calls, one after the other; a call that would be one of a superbox takes none."""
        if follows and len(work.live.feeders) == 1:
            return stated
        if not self._apart:
            stand_in: Any = work.live.operator
            return stated + float(stand_in.model.apart.mean()) if len(stand_in.model.apart) else stated
        self._calls += 1
        return stated + self._apart[self._calls % len(self._apart)]

    def waking(self) -> float:
        self._woken += 1
        return self._wakes[self._woken % len(self._wakes)] if self._wakes else 0.0


def models(calls: Rows, boxes: int, *, exact: bool) -> list[BoxModel]:
    """Of every box."""
    return [of_calls(calls.where("who", place).ordered("at"), exact=exact) for place in range(boxes)]
