"""The best size of packets, found while running (what Bobox leaves to future work: section 7).

Small packets pay for every one of them, large ones fall out of the cache (section 4.1, figure 1).  Half of
L2 is where to begin; hill climbing on measured throughput, by factors of two, goes on from there.  A core's
speed may change from one second to the next by more than a size makes of it, so a size is tried in turns with
the one before, and judged by the median of the pairs.  A stream that comes no faster than it is worked off
gains by no size, so it stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from headgate.errors import PipelineError
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Event, Finished, Started, Timer
from headgate.scheduling.interface import Decision, Policy, SetPacketRows, SetTimer
from headgate.scheduling.tuning.climbing import Climber
from headgate.scheduling.wrapper import Around

PERIOD = 0.25
"""Seconds for which a size is in use until it is the other's turn."""
PAIRS, AGREED = 8, 6
"""So many of the pairs must be better with a size for it to be: by chance they are once in seven times."""
WARM_UP = 4
"""Periods until a size is tried at all: at first memory is new to the process."""
MARGIN = 0.05
HALVINGS = 6
DOUBLINGS = 3
_TIMER = "packet size"


class _Trial:
    """Two sizes in turns: first the one in use, then two periods each, so that a drift favours neither."""

    def __init__(self, usual: int, tried: int, margin: float = MARGIN) -> None:
        self._sizes = (usual, tried)
        self._margin = margin
        self._rates: list[float] = []

    @property
    def size(self) -> int:
        """Whose turn it is."""
        return self._sizes[(len(self._rates) + 1) // 2 % 2]

    def add(self, rate: float) -> None:
        self._rates.append(rate)

    @property
    def over(self) -> bool:
        """After all pairs, or after half of them if there is no doubt."""
        if len(self._rates) == PAIRS:
            return min(self._gains) > 1 + self._margin or max(self._gains) < 1
        return len(self._rates) == 2 * PAIRS

    @property
    def gain(self) -> float:
        """The rate with the size that is tried, by that with the usual one; none if the pairs disagree."""
        gains = self._gains
        agreed = sum([gain > 1 for gain in gains]) * PAIRS >= AGREED * len(gains)
        return median(gains) if agreed else min(median(gains), 1.0)

    @property
    def _gains(self) -> list[float]:
        """By pair; every second one had the size that is tried first."""
        ratios = [later / earlier for earlier, later in zip(self._rates[::2], self._rates[1::2], strict=True)]
        return [ratio if pair % 2 == 0 else 1 / ratio for pair, ratio in enumerate(ratios)]


class PacketTuner(Around):
    """Another policy, on packets of the size that serves it best, found around ``rows``.

    It begins with packets of ``begin`` rows, where another left off, or with ``rows``.
    """

    def __init__(
        self,
        policy: Policy,
        rows: int,
        begin: int | None = None,
        period: float = PERIOD,
        margin: float = MARGIN,
    ) -> None:
        if min(rows, rows if begin is None else begin) < 1 or period <= 0 or not 0 <= margin < 1:
            raise PipelineError(
                f"PacketTuner(rows={rows}, begin={begin}, period={period:g}, margin={margin:g}): rows, begin "
                "and period must be positive, and the margin a share below 1."
            )
        super().__init__(policy, "packets")
        self._around = rows
        step = 0 if begin is None else round(math.log2(begin / rows))
        self._begin = min(max(step, -HALVINGS), DOUBLINGS)
        self.rows = self.settled = self._rows(self._begin)
        """Rows of a packet now, and those of the usual size while another is tried."""
        self.period = period
        self.margin = margin

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        self.rows = self.settled = self._rows(self._begin)
        wanted = 1 + self.margin
        # Where a cache of a level ends, a size may be worse than both the next smaller and the next larger.
        self._climber = Climber(-HALVINGS, DOUBLINGS, self._begin, up=wanted, down=wanted, leaps=True)
        self._trial: _Trial | None = None
        self._rest = 1 + WARM_UP
        """Periods until another size may be tried."""
        self._first = {place: catalog.boxes[place] for place in catalog.first()}
        self._called = 0
        """Tuples in calls on them."""
        self._older = 0
        """Tuples in packets of the size before, which are worked off first."""
        self._tuples = 0
        self._since = self._last = catalog.since
        """When calls on the first boxes ended: the last before this period, and the last so far."""
        decisions = [
            *self.policy.start(catalog, workers, seed),
            SetTimer(catalog.since + self.period, _TIMER),
        ]
        return [SetPacketRows(self.rows), *decisions] if catalog.since else decisions

    def handle(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Timer) and event.name == _TIMER:
            return [*self._reconsider(), SetTimer(event.time + self.period, _TIMER)]
        if isinstance(event, Started) and event.box in self._first:
            self._called += event.tuples
        elif isinstance(event, Finished) and event.box in self._first:
            # It may have begun before there was anyone to count it.
            self._called = max(self._called - event.tuples_in, 0)
            self._last = event.time
            if self._older > 0:
                self._older -= event.tuples_in
                self._since = event.time
            else:
                self._tuples += event.tuples_in
        return self.policy.handle(event)

    def _reconsider(self) -> Sequence[Decision]:
        # From the end of a call to the end of a call: a period cuts long trains anywhere.
        seconds = self._last - self._since
        if self._older > 0 or seconds < self.period / 2 or not self._tuples:
            return ()  # too little to tell: this period becomes longer
        rate = self._tuples / seconds
        self._tuples, self._since = 0, self._last
        if self._trial is None:
            self._rest -= 1
            if self._rest > 0:
                return ()
            usual, tried = self._climber.value, self._climber.reconsider(1.0)
            if tried == usual:
                self._rest = 2 * PAIRS
                return ()
            self._trial = _Trial(usual, tried, self.margin)
        self._trial.add(rate)
        if not self._trial.over:
            return self._use(self._rows(self._trial.size))
        gain, self._trial = self._trial.gain, None
        self.settled = self._rows(self._climber.reconsider(gain))
        return self._use(self.settled)

    def _rows(self, exponent: int) -> int:
        return max(1, round(self._around * 2.0**exponent))

    def _use(self, rows: int) -> Sequence[Decision]:
        if rows == self.rows:
            return ()
        self.rows = rows
        self._older = self._called + sum(box.queue.tuples for box in self._first.values())
        return (SetPacketRows(rows),)
