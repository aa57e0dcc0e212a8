"""Passing results on where that takes time: one worker after the other for each box."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.runtime.boxes import Unit, Work
from headgate.runtime.ordered.reordering import Reorder

if TYPE_CHECKING:
    from headgate.engines.simulated.run import SimulatedRun


class _Door:
    """In place of a box's reordering: units wait here until there was time to send them."""

    def __init__(self, reorder: Reorder[Unit], ring: int | None) -> None:
        self.reorder = reorder
        self._ring = ring
        self.fresh: list[Unit] = []
        """What a worker has just brought."""
        self.units: dict[int, Unit] = {}
        """By ticket, what waits for earlier ones or for whoever sends."""
        self.sending = False
        self.queue: list[Callable[[], None]] = []
        """Workers that wait until they may send."""

    @property
    def next(self) -> int:
        return self.reorder.next

    def send(self, number: int, unit: Unit) -> bool:
        if self._ring is not None and number >= self.next + self._ring:
            return False
        self.fresh.append(unit)
        return True


class Doors:
    """Every box has a door, if sending a result costs ``send_cost`` seconds; none has if it costs nothing."""

    def __init__(self, run: SimulatedRun, send_cost: float, reorder: str) -> None:
        self._run = run
        self._send_cost = send_cost
        self._lock = reorder == "lock"
        self._doors: dict[int, _Door] = {}
        self.make()

    def make(self) -> None:
        """For boxes that have none yet."""
        if self._send_cost:
            live_network = self._run.runtime.live
            for live in live_network.boxes[len(self._doors) :]:
                ring = None if self._lock else live_network.ring
                self._doors[live.place] = live.reorder = _Door(live.reorder, ring)  # type: ignore[assignment]

    def pass_on(self, work: Work, then: Callable[[], None]) -> None:
        """Let the time pass that a worker's results take to leave; ``then`` it goes on."""
        door = self._doors.get(work.live.place)
        if door is None:
            then()
            return
        units, door.fresh = door.fresh, []

        def enter() -> None:
            if door.sending and self._lock:
                door.queue.append(enter)
                return
            door.units |= {unit.ticket: unit for unit in units}
            if door.sending:
                then()  # whoever is sending sends these too
                return
            door.sending = True
            self._send_next(door, work.worker, then)

        enter()

    def _send_next(self, door: _Door, worker: int, then: Callable[[], None]) -> None:
        """Send one unit after the other, in order, until the next has not come."""
        run = self._run
        unit = door.units.pop(door.next, None)
        if unit is None:
            door.sending = False
            queue, door.queue = door.queue, []
            then()
            for enter in queue:
                enter()
            return

        def gone() -> None:
            unit.leaves = None
            door.reorder.send(unit.ticket, unit)
            run.drain(run.runtime.settle(unit.live, worker, run.clock.now()))
            self._send_next(door, worker, then)

        seconds = self._send_cost * sum([len(packet) for made in unit.results for packet in made])
        run.runtime.overhead.storage += seconds
        run.cores.run(worker, seconds, gone)
