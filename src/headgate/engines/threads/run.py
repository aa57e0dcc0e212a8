"""A run in real time: a feeder, the workers, and the calling thread, which waits and keeps timers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing

from headgate.connectors.source import Wait
from headgate.control.commands import handlers
from headgate.control.line import Line
from headgate.engines.base import Progress, Until, deadline, packets, refitted
from headgate.engines.clock import WallClock
from headgate.engines.delivery import Delivery, make_change
from headgate.engines.kept import History
from headgate.engines.realtime import RealtimeRun, terminated_like_interrupted
from headgate.engines.spool import Spool
from headgate.engines.threads.barrier import Meeting
from headgate.engines.threads.ending import Ending
from headgate.engines.threads.settings import Settings
from headgate.engines.threads.workers import Workers
from headgate.graph.network import Network, Output, Request
from headgate.graph.packet import Packet
from headgate.machine.topology import Topology
from headgate.memory import use as memory
from headgate.runtime.admission import Group
from headgate.runtime.boxes import LiveOutput
from headgate.runtime.change import Change
from headgate.runtime.core import Core
from headgate.runtime.instructions import CloseSink, Deliver, Instruction, Meet
from headgate.runtime.observing import Observation, observe
from headgate.runtime.report import Report
from headgate.runtime.stimuli import (
    Admitted,
    Asked,
    RequestCancelled,
    RequestOver,
    Rescheduled,
    SinkFailed,
)
from headgate.scheduling.interface import Policy

FEED_PACKETS = 8
"""Packets that the feeder admits per visit to the scheduler, if they fit."""


class ThreadsRun(RealtimeRun):
    """One run."""

    core: Core
    workers: Workers

    def __init__(
        self,
        settings: Settings,
        topology: Topology,
        network: Network,
        policy: Policy,
        requested: int,
        until: Until,
        progress: Progress | None,
        seed: int,
        use: memory.Use,
    ) -> None:
        super().__init__(threading.Lock(), deadline(until), progress)
        self.clock = WallClock()
        self.memory = use
        self.room = threading.Condition(self.lock)
        self.held: frozenset[int] = frozenset()
        """Sources that the feeder cannot read for want of room."""
        self._ending_requests: list[Group] = []
        """Requests whose sinks the calling thread has to close."""
        self.meeting: Meeting | None = None
        """A scheduling task that workers take part in before they go on."""
        self._left: list[Instruction] = []
        """What the calling thread has to do, without the lock."""
        self._packet_rows = settings.packet_rows
        workers = policy.workers(len(network.boxes), requested)
        policy, packet_rows = packets(policy, settings.packet_rows, network)
        self._usual_rows = packet_rows
        self.core = Core(
            network,
            policy,
            workers=workers,
            requested=requested,
            packet_rows=packet_rows,
            drain=until == "drained",
            seed=seed,
            reorder=settings.reorder,
            ring=settings.ring,
            partitioning=settings.partitioning,
            buckets=settings.buckets,
            split=settings.split,
            spool=Spool(settings.spool) if settings.spool else None,
            topology=topology,
            timer=time.perf_counter,
            processor=time.thread_time,
        )
        self._history = History(settings.history)
        self._delivery = Delivery(self.core, self.clock.now, self._sink_failed, self._history.open)
        self._doors: dict[int, threading.Lock] = {}
        """By output, held by the thread that hands its results over."""
        self._make_doors()
        self.workers = Workers(self, workers, policy.one_semaphore)
        self._feeder = threading.Thread(
            target=self.guard, args=(self._feed,), name="headgate-feeder", daemon=True
        )
        self._ending = Ending(
            self,
            self.core,
            self._delivery,
            self._feeder,
            self.workers.under_way,
            self._doors,
            settings.grace,
        )

    # --- the run ------------------------------------------------------------------------------------

    def run(self, line: Line | None) -> Report:
        with terminated_like_interrupted(), closing(self._history):
            try:
                self._work(line)
            except KeyboardInterrupt:
                if self.halted:  # a second time: at once
                    self.stop()
                    raise
                self.halted = True
            except BaseException:
                self.halted = True
                self.stop()
                self._ending.close()
                raise
            self.stop()
            seconds = self._ending.close()
        if self.crash is not None:
            raise self.crash
        return self.report(seconds)

    def _work(self, line: Line | None) -> None:
        if line is not None:
            line.begin(self.core)
        with self.lock:
            self.leave(self.obey(self.core.start()))
        self._delivery.open_all()
        self._feeder.start()
        self.workers.start()
        answers = {**handlers(self), "history": lambda _: self._history.outputs()}
        with self.on(line), self.control(self.core.live.network.name, answers):
            try:
                self.wait()
                self._ending.hand_over()
            except KeyboardInterrupt:
                # A run that is stopped by hand still reports what it did.  Noted here, since the way out
                # takes a moment: an interrupt that comes meanwhile is the second.
                self.halted = True

    def now(self) -> float:
        return self.clock.now()

    def report(self, seconds: float) -> Report:
        report = self.core.report("threads", seconds)
        report.semaphores = self.workers.semaphores
        return report

    def observe(self, calls_seen: int) -> Observation:
        with self.lock:
            return observe(self.core, "threads", self.now(), calls_seen)

    def stop(self) -> None:
        super().stop()
        with self.lock:
            self.room.notify_all()

    def check_over(self) -> None:
        """Notice that nothing is left to do."""
        if self.core.may_be_done or len(self.core.admission.groups) > 1:
            with self.lock:
                self._end_requests()
                if self.core.done:
                    self.over.set()
                    self.alarm.notify()

    # --- scheduling tasks ---------------------------------------------------------------------------

    def meet(self, task: Meet) -> None:
        """Workers that come by take part, and those that sleep are woken for it."""
        meeting = Meeting(task.phases, lambda: self._rescheduled(meeting))
        self.meeting = meeting
        self.workers.wake_sleepers()

    def _rescheduled(self, meeting: Meeting) -> None:
        with self.lock:
            if self.meeting is meeting:  # else another policy has taken over, and it is void
                self.meeting = None
                self.leave(self.tell(Rescheduled()))

    def new_term(self, workers: int) -> None:
        if self.meeting is not None:
            self.meeting.dissolve()
            self.meeting = None
        super().new_term(workers)

    # --- changes ------------------------------------------------------------------------------------

    def carry_out(self, change: Change, outputs: Sequence[Output]) -> None:
        left = make_change(self.core, Asked(change, outputs, fit=self._fit), self.now(), self._history.open)
        self._make_doors()
        self.leave(self.obey(left))
        self.made_room(urgent=True)
        self.room.notify()  # a source may have joined
        if self.core.done:  # the others may have been waiting for nothing but a query that was removed
            self.over.set()

    def cancel(self, request: Request) -> None:
        """End a request now."""
        with self.lock:
            self.leave(self.tell(RequestCancelled(request)))
            self.room.notify()
        self.check_over()

    def _end_requests(self) -> None:
        """Lock held: have the sinks of requests closed that have nothing left to do."""
        if any(group.void and not group.ended for group in self.core.admission.groups):
            self.room.notify()  # the feeder ends its sources
        for group in self.core.requests_over():
            outputs = [output for output in self.core.live.outputs if output.group is group]
            if not group.closing and not any(self._doors[o.place].locked() for o in outputs):
                group.closing = True
                self._ending_requests.append(group)
                self.alarm.notify_all()

    def _close_request(self, group: Group) -> None:
        """No lock: close the sinks of a request, which may take time, and give everything back."""
        for output in [output for output in self.core.live.outputs if output.group is group]:
            self._delivery.close(output)
        with self.lock:
            for output in self.core.live.outputs:
                if output.group is group:
                    del self._doors[output.place]
            self.leave(self.tell(RequestOver(group)))
        self.check_over()

    def _make_doors(self) -> None:
        for output in self.core.live.outputs:
            self._doors.setdefault(output.place, threading.Lock())

    def _fit(self, policy: Policy) -> Policy:
        return refitted(policy, self._packet_rows, self._usual_rows, self.core.admission.packet_rows)

    def leave(self, left: Sequence[Instruction]) -> None:
        self._left += left

    def aside(self) -> None:
        """Hand over, and close the sinks of removed queries, which may take time."""
        with self.lock:
            left, self._left = self._left, []
        for instruction in left:
            if isinstance(instruction, Deliver):
                self.drain(instruction.output)
            elif isinstance(instruction, CloseSink):
                self._close_sink(instruction)
        with self.lock:
            groups, self._ending_requests = self._ending_requests, []
        for group in groups:
            self._close_request(group)

    def _close_sink(self, instruction: CloseSink) -> None:
        """Later, if a thread uses the sink: if the calling thread waited here, it would miss timers."""
        door = self._doors[instruction.output.place]
        if not door.acquire(blocking=False):
            self._left.append(instruction)
            return
        try:
            self._delivery.close(instruction.output)
        finally:
            door.release()

    # --- feeding ------------------------------------------------------------------------------------

    @property
    def _sources(self) -> frozenset[int]:
        return frozenset(range(len(self.core.admission.entries)))

    def _feed(self) -> None:
        """Admit packets while there is room; when queues are full wait, so that sources feel the pressure."""
        admission, live = self.core.admission, self.core.live
        while True:
            with self.lock:
                held = admission.held(live.room)
                while not self.stopping and held is None:
                    self.held = self._sources
                    self.room.wait()
                    held = admission.held(live.room)
                self.held = frozenset()
                if self.stopping or held is None:
                    return
                if admission.ended and not admission.news:  # until a request comes, or the run is over
                    self.room.wait()
                    continue
                room = min([live.room(place) for place in self._sources - held], default=0)
            found, wait = self._poll(room, held)
            if self.closed:
                return
            if wait is not None:
                with self.lock:
                    self.held = held
                    delay = 0.01 if wait.until is None else wait.until - self.clock.now()
                    if not self.stopping and delay > 0:
                        self.room.wait(delay)
                continue
            found = [(place, live.spooled(live.source_targets[place], packet)) for place, packet in found]
            with self.lock:
                left = self.tell(Admitted(found, admission.version))
            self.deliver(left)
            self.check_over()

    def _poll(self, room: int, held: frozenset[int]) -> tuple[list[tuple[int, Packet]], Wait | None]:
        """A few packets at a time if they fit: every visit to the scheduler makes the workers wait."""
        admission = self.core.admission
        admission.catch_up()
        packets: list[tuple[int, Packet]] = []
        while len(packets) < FEED_PACKETS:
            fit = max(1, min(FEED_PACKETS, room // admission.packet_rows))
            found = admission.poll(self.clock.now(), fit, held)
            if isinstance(found, Wait):
                return packets, None if packets else found
            packets += found
            room -= sum(len(packet) for _, packet in found)
            if admission.news or admission.ended or room < admission.packet_rows:
                break
        return packets, None

    def made_room(self, *, urgent: bool = False) -> None:
        """Lock held: a queue got shorter.

        Unless a worker waits for it the feeder is woken only for as much as it admits at a time: whenever it
        comes, it takes the interpreter from a worker.
        """
        least = (1 if urgent else FEED_PACKETS) * self.core.admission.packet_rows
        if self.held and any(self.core.live.room(place) >= least for place in self.held):
            self.room.notify()

    # --- sinks --------------------------------------------------------------------------------------

    def deliver(self, left: Sequence[Instruction]) -> None:
        """No lock: hand over what instructions name; the calling thread sees to the rest."""
        for instruction in left:
            if isinstance(instruction, Deliver):
                self.drain(instruction.output)
            elif isinstance(instruction, CloseSink):
                with self.lock:
                    self.leave([instruction])

    def drain(self, output: LiveOutput) -> None:
        """Hand results over, in order, one thread at a time; a thread that finds the door closed goes on.

        A queue that has grown too long is waited for: that is back-pressure from a slow sink.
        """
        door = self._doors[output.place]
        while True:
            if not door.acquire(blocking=output.inbox.rows >= output.inbox.capacity):
                return
            try:
                with self.lock:
                    taken = output.take()
                    self.made_room()
                self._delivery.hand_over(output, taken, lambda: self.halted)
            finally:
                door.release()
            with self.lock:
                if output.failed or self.halted or not output.waiting:
                    return

    def _sink_failed(self, output: LiveOutput, error: BaseException) -> None:
        with self.lock:
            if self.closed and output.abandoned:
                return
            self.leave(self.tell(SinkFailed(output, error)))
            self.made_room(urgent=True)
