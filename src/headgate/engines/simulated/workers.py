"""Simulated workers: generators that mirror the loop of ``threads/workers.py`` in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from headgate.engines.simulated.barrier import Barrier
from headgate.engines.simulated.cores import Cores
from headgate.engines.simulated.doors import Doors
from headgate.engines.simulated.interpreter import Interpreter
from headgate.engines.simulated.kernel import Kernel, Process, Resume
from headgate.engines.simulated.memory import Memory
from headgate.engines.simulated.settings import Settings
from headgate.graph.packet import Packet
from headgate.runtime.boxes import NO_TICKET, Work
from headgate.runtime.core import Core
from headgate.runtime.instructions import Instruction, Park, RunCall
from headgate.runtime.stimuli import CallEnded, CallProgressed, Free
from headgate.scheduling.interface import ANYONE

_NO_MORE = -1
"""In place of rows: nothing is left that a worker could do in a box."""
Obey = Callable[[list[Instruction]], None]


class Workers:
    """The workers of a run: each asks for a call, lets its time pass, and parks when there is none.

    ``obey`` carries instructions out that are not for the worker which got them; ``made_room`` is called when
    a queue got shorter.
    """

    def __init__(
        self,
        kernel: Kernel,
        core: Core,
        settings: Settings,
        cores: Cores,
        interpreter: Interpreter,
        barrier: Barrier,
        doors: Doors,
        memory: Memory | None,
        obey: Obey,
        made_room: Callable[[], None],
    ) -> None:
        self._kernel, self._core, self._settings = kernel, core, settings
        self._cores, self._interpreter = cores, interpreter
        self._barrier, self._doors, self._memory = barrier, doors, memory
        self._obey, self._made_room = obey, made_room
        self._seats = 0
        """So many workers there have been."""
        self._woken: set[int] = set()
        """Workers that are about to go on."""
        self._waiting: list[Resume] = []
        """How workers go on that wait for a bucket which another one has."""
        self._gone: set[int] = set()
        """Workers that were too many and have gone."""
        self.grow(core.driver.workers)

    def grow(self, count: int) -> None:
        """So many from now on: those that are too many go, new ones come and are parked."""
        asleep, seats = self._barrier.asleep, range(count)
        self._gone |= {worker for worker in asleep if worker not in seats}
        for worker in self._gone.difference(seats):
            asleep.pop(worker, None)
        for worker in [*self._gone.intersection(seats), *range(self._seats, count)]:
            self._gone.discard(worker)
            self._kernel.go_on(self._loop(worker))
        self._seats = max(self._seats, count)

    def wake_all(self) -> None:
        for worker in sorted(self._barrier.asleep):
            self.wake(worker)

    def wake(self, worker: int) -> None:
        """Let a parked worker go on; ``ANYONE`` of them."""
        if worker == ANYONE:
            sleeper = next((one for one in self._barrier.asleep if one not in self._woken), None)
            if sleeper is None:
                return  # the next worker that asks finds the task
            worker = sleeper
        if worker not in self._woken:
            self._woken.add(worker)
            delay = self._settings.costs.waking()
            self._kernel.at(self._kernel.now() + delay, partial(self._wake_up, worker))

    def _wake_up(self, worker: int) -> None:
        self._woken.discard(worker)
        resume = self._barrier.asleep.pop(worker, None)
        if resume is not None:  # else it takes part in a scheduling task by now, or was not asleep
            resume()

    # --- the loop -----------------------------------------------------------------------------------

    def _loop(self, worker: int) -> Process:
        core, barrier, now = self._core, self._barrier, self._kernel.now
        yield partial(barrier.asleep.__setitem__, worker)
        while True:
            if barrier.open:
                yield barrier.join
            if worker >= core.driver.workers:
                self._gone.add(worker)
                return
            follows = bool(core.driver.plans.get(worker))
            work, parked = self._own(core.handle(Free(worker), now()))
            if work is not None:
                self._made_room()
                yield from self._call(work, follows)
            elif parked:
                yield partial(barrier.asleep.__setitem__, worker)
            else:
                yield from self._decided(worker)

    def _own(self, instructions: list[Instruction]) -> tuple[Work | None, bool]:
        """What the asking worker is told: a call to run, or that it is parked; the rest is carried out."""
        work, parked = None, False
        for instruction in instructions:
            if isinstance(instruction, RunCall):
                work = instruction.work
            elif isinstance(instruction, Park):
                parked = True
        self._obey(instructions)
        return work, parked

    def _decided(self, worker: int) -> Process:
        """The time that the worker waits for its plan."""
        cost = self._settings.decision_cost
        seconds = cost(self._core.driver.policy) if callable(cost) else cost
        if seconds:
            self._core.driver.overhead.scheduler += seconds
            yield partial(self._cores.run, worker, seconds)

    # --- calls --------------------------------------------------------------------------------------

    def _call(self, work: Work, follows: bool) -> Process:
        """The operator works at once; its time passes; then its results leave."""
        if work.ticket == NO_TICKET:
            yield from self._consume(work)
        else:
            yield from self._execute(work, follows)
            for member in work.members.values():
                if member.ticket != NO_TICKET:
                    self._core.calls.send(member)
            yield from self._doors.pass_on(work)
        now = self._kernel.now()
        if self._settings.send_cost:
            work.overhead += now - work.ended
        self._obey(self._core.handle(CallEnded(work), now))
        self._made_room()

    def _execute(self, work: Work, follows: bool) -> Process:
        core, settings, costs = self._core, self._settings, self._settings.costs
        causes, places = _causes(work)
        packets, keys = len(work.rounds), costs.keys(work)
        core.calls.execute(work)
        if costs.threads:
            yield from self._on_a_thread(work)
            return
        results = sum([len(made[0]) for made in work.results])
        work.seconds = costs.seconds(work.live, packets, work.tuples, results, keys)
        if self._memory is not None:
            work.seconds = self._memory.call(work, work.seconds, self._kernel.now())
        plain = self._memory is None and costs.calibration is None
        cost = costs.per_tuple(work.live) if plain else work.seconds / max(work.tuples, 1)
        work.overhead = costs.overhead(work, settings.call_overhead, follows=follows)
        core.driver.overhead.worker += work.overhead
        yield partial(self._cores.run, work.worker, work.overhead + work.seconds)
        end = work.ended = self._kernel.now()
        if cost and costs.exact:
            work.leaves = lambda packet: _leave_times(packet, causes, places, end, cost)

    def _on_a_thread(self, work: Work) -> Process:
        """A whole superbox: what needs the interpreter's lock, then what does not."""
        core, costs, now = self._core, self._settings.costs, self._kernel.now
        held = computing = 0.0
        for member in work.members.values():
            packets = max(1, member.packets)
            member.seconds = costs.seconds(member.live, packets, member.tuples, member.tuples_out)
            part = min(costs.held(member.live, packets), member.seconds)
            held, computing = held + part, computing + member.seconds - part
        work.overhead = costs.overhead(work, 0.0)
        core.driver.overhead.worker += work.overhead
        slower = costs.slower(now())
        yield partial(self._interpreter.run, work.worker, (work.overhead + held) * slower)
        if computing:
            yield partial(self._cores.run, work.worker, computing * slower)
        aside = costs.aside(work)
        if aside:
            yield lambda resume: self._kernel.at(now() + aside, resume)
        work.ended = now()

    def _consume(self, work: Work) -> Process:
        """A call on a box whose state is by bucket: time passes after each bucket's rows."""
        core, costs = self._core, self._settings.costs
        overhead = costs.overhead(work, self._settings.call_overhead)
        core.calls.split(work)
        parts = core.calls.consume(work)
        count = results = 0
        carrying, went_on = 0.0, False
        while True:
            if self._memory is not None:
                self._memory.worker = work.worker  # what leaves now is what its parts have become
            rows = next(parts, _NO_MORE)
            if self._memory is not None:
                self._memory.worker = None
            if rows is not None or went_on:
                while self._waiting:
                    self._kernel.soon(self._waiting.pop(0))
            went_on = rows is not None
            if rows is None:
                yield self._waiting.append
                continue
            work.ended = self._kernel.now()
            self._obey(core.handle(CallProgressed(work.live, work.worker), work.ended))
            yield from self._doors.pass_on(work)
            if rows == _NO_MORE:
                break
            work.overhead += self._kernel.now() - work.ended + overhead
            core.driver.overhead.worker += overhead
            seconds = costs.seconds(work.live, 1, rows, work.tuples_out - results)
            count, results = count + 1, work.tuples_out
            if self._memory is not None:
                computing, seconds = seconds, self._memory.part(work, seconds, self._kernel.now())
                carrying += seconds - computing
            slower = costs.slower(self._kernel.now())
            held = overhead + costs.held(work.live, 1) if costs.threads else 0.0
            if held:
                yield partial(self._interpreter.run, work.worker, held * slower)
            yield partial(self._cores.run, work.worker, max(0.0, overhead + seconds - held) * slower)
        work.seconds = costs.seconds(work.live, count, work.tuples, results) + carrying


def _causes(work: Work) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The tuples of a call by the serials of their sources, and each one's place in the call."""
    orders = [packet.order for round_ in work.rounds for packet in round_ if len(packet)]
    if not orders:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    in_turn = np.argsort(np.concatenate([order.serials for order in orders]), kind="stable")
    origins = np.concatenate([order.origins for order in orders])[in_turn]
    places = np.argsort(origins, kind="stable")
    return origins[places], places


def _leave_times(
    packet: Packet, causes: npt.NDArray[np.int64], places: npt.NDArray[np.int64], end: float, cost: float
) -> npt.NDArray[np.float64]:
    """When each result leaves: its cause, the k-th tuple of the call, is done k costs into it."""
    found = np.searchsorted(causes, packet.order.origins, side="right")
    done = np.concatenate([[0], places + 1])[found]
    return (end - (len(causes) - done) * cost).astype(np.float64)
