"""Passing results on where that takes time: one worker after the other for each box."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from headgate.engines.simulated.cores import Cores
from headgate.engines.simulated.kernel import Process, Resume
from headgate.runtime.boxes import LiveBox, Unit, Work
from headgate.runtime.network import LiveNetwork
from headgate.runtime.ordered.reordering import Reorder
from headgate.runtime.report import Overhead


class _Door:
    """In place of a box's reordering: units wait here until there was time to send them."""

    def __init__(self, reorder: Reorder[Unit]) -> None:
        self.reorder = reorder
        self.has_place = reorder.has_place
        self.fresh: list[Unit] = []
        """What a worker has just brought."""
        self.units: dict[int, Unit] = {}
        """By ticket, what waits for earlier ones or for the worker that sends."""
        self.sending = False
        self.queue: list[Resume] = []
        """Workers that wait until they may send."""

    @property
    def next(self) -> int:
        return self.reorder.next

    def send(self, number: int, unit: Unit) -> bool:
        self.fresh.append(unit)
        return True


class Doors:
    """Every box has a door, if sending a result costs ``send_cost`` seconds; none has if it costs nothing.

    ``sent(box, worker)`` is called after each unit that has left.
    """

    def __init__(
        self,
        live: LiveNetwork,
        cores: Cores,
        overhead: Overhead,
        send_cost: float,
        reorder: str,
        sent: Callable[[LiveBox, int], None],
    ) -> None:
        self._live, self._cores, self._overhead, self._sent = live, cores, overhead, sent
        self._send_cost = send_cost
        self._lock = reorder == "lock"
        self._doors: dict[int, _Door] = {}
        self.make()

    def make(self) -> None:
        """For boxes that have none yet."""
        if self._send_cost:
            for live in [live for live in self._live.boxes if not isinstance(live.reorder, _Door)]:
                self._doors[live.place] = live.reorder = _Door(live.reorder)  # type: ignore[assignment]

    def pass_on(self, work: Work) -> Process:
        """Let the time pass that a worker's results take to leave."""
        door = self._doors.get(work.live.place)
        if door is None:
            return
        units, door.fresh = door.fresh, []
        while door.sending and self._lock:
            yield door.queue.append
        door.units |= {unit.ticket: unit for unit in units}
        if door.sending:
            return  # the worker that is sending sends these too
        door.sending = True
        while (unit := door.units.pop(door.next, None)) is not None:
            seconds = self._send_cost * sum([len(packet) for made in unit.results for packet in made])
            self._overhead.storage += seconds
            yield partial(self._cores.run, work.worker, seconds)
            unit.leaves = None
            door.reorder.send(unit.ticket, unit)
            self._sent(unit.live, work.worker)
        door.sending = False
        waiting, door.queue = door.queue, []
        for resume in waiting:
            resume()
