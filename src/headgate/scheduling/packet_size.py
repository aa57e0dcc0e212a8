"""The best size of packets, found while running (what Bobox leaves to future work: section 7).

Small packets pay for every one of them, large ones fall out of the cache (section 4.1, figure 1).  Half of
L2 is where to begin; hill climbing on measured throughput, by factors of two, goes on from there.  A stream
that comes no faster than it is worked off gains by no size, so it stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.errors import PipelineError
from headgate.scheduling.around import Around
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.climbing import Climber
from headgate.scheduling.interface import Decision, Event, Finished, Policy, SetPacketRows, SetTimer, Timer

PERIOD = 0.5
MARGIN = 0.05
HALVINGS = 6
DOUBLINGS = 3
_TIMER = "packet size"


class PacketTuner(Around):
    """Another policy, on packets of the size that serves it best; ``rows`` to begin with."""

    def __init__(self, policy: Policy, rows: int, period: float = PERIOD, margin: float = MARGIN) -> None:
        if rows < 1 or period <= 0 or not 0 <= margin < 1:
            raise PipelineError(
                f"PacketTuner(rows={rows}, period={period:g}, margin={margin:g}): rows and period must be "
                "positive, and the margin a share below 1."
            )
        super().__init__(policy, "packets")
        self.rows = self._first_rows = rows
        """Rows of a packet now."""
        self.period = period
        self.margin = margin

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        self.rows = self._first_rows
        wanted = 1 + self.margin
        self._climber = Climber(-HALVINGS, DOUBLINGS, 0, up=wanted, down=wanted)
        self._first = catalog.first()
        self._tuples = 0
        self._since = self._last = catalog.since
        """When calls on the first boxes ended: the last before this period, and the last so far."""
        self._settling = False
        decisions = [
            *self.policy.start(catalog, workers, seed),
            SetTimer(catalog.since + self.period, _TIMER),
        ]
        return [SetPacketRows(self.rows), *decisions] if catalog.since else decisions

    def handle(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Timer) and event.name == _TIMER:
            return [*self._reconsider(), SetTimer(event.time + self.period, _TIMER)]
        if isinstance(event, Finished) and event.box in self._first:
            self._tuples += event.tuples_in
            self._last = event.time
        return self.policy.handle(event)

    def _reconsider(self) -> Sequence[Decision]:
        # From the end of a call to the end of a call: a period cuts long trains anywhere.
        rate = self._tuples / (self._last - self._since) if self._last > self._since else 0.0
        self._tuples, self._since = 0, self._last
        if not rate:  # nothing came, and nothing can be learnt of it
            return ()
        if self._settling:  # packets of the size before were still queued
            self._settling = False
            return ()
        before, after = self._climber.value, self._climber.reconsider(rate)
        if after == before:
            return ()
        self._settling = True
        self.rows = max(1, round(self._first_rows * 2.0**after))
        return (SetPacketRows(self.rows),)
