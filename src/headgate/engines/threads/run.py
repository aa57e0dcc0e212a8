"""A run in real time: a feeder, the workers, and the thread that called, which waits and keeps timers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headgate.connectors.source import Wait
from headgate.control.commands import handlers
from headgate.engines.base import Progress, Until, deadline, packets, refitted
from headgate.engines.clock import WallClock
from headgate.engines.realtime import Attended, terminated_like_interrupted
from headgate.engines.threads.barrier import Meeting
from headgate.engines.threads.ending import Ending
from headgate.engines.threads.workers import Workers
from headgate.graph.network import Network, Output
from headgate.graph.packet import Packet
from headgate.memory import use as memory
from headgate.runtime.boxes import LiveOutput
from headgate.runtime.change import Change, Line
from headgate.runtime.core import Runtime
from headgate.runtime.report import Report
from headgate.scheduling.interface import Phase, Policy

if TYPE_CHECKING:
    from headgate.engines.threads.engine import Threads

FEED_PACKETS = 8
"""Packets that the feeder admits per visit to the scheduler, if they fit."""


class ThreadsRun(Attended):
    """One run: feeder, workers and the thread that called, which waits, keeps timers and shows progress."""

    runtime: Runtime
    workers: Workers

    def __init__(
        self,
        engine: Threads,
        network: Network,
        policy: Policy,
        workers: int,
        until: Until,
        progress: Progress | None,
        seed: int,
        use: memory.Use,
    ) -> None:
        super().__init__(threading.Lock(), deadline(until), progress)
        self.engine = engine
        self.memory = use
        self.clock = WallClock()
        self.room = threading.Condition(self.lock)
        self.held: frozenset[int] = frozenset()
        """Sources that the feeder cannot read for want of room."""
        self.meeting: Meeting | None = None
        """A scheduling task that workers take part in before they go on."""
        self.doors: dict[int, threading.Lock] = {}
        """By output, held by the thread that hands its results over."""
        self._removed: list[LiveOutput] = []
        """Outputs of queries that were removed, whose sinks are open."""
        self.workers = Workers(self, workers, policy.one_semaphore)
        policy, packet_rows = packets(policy, engine.packet_rows)
        with self.lock:  # a policy may set timers when it starts
            self.runtime = Runtime(
                network,
                policy,
                self,
                workers=workers,
                packet_rows=packet_rows,
                drain=until == "drained",
                seed=seed,
                reorder=engine.reorder,
                partitioning=engine.partitioning,
                buckets=engine.buckets,
                split=engine.split,
                topology=engine.topology,
                timer=time.perf_counter,
                processor=time.thread_time,
            )
        self.doors = {output.place: threading.Lock() for output in self.runtime.outputs}
        self._sources = frozenset(range(len(network.sources)))
        self._feeder = threading.Thread(
            target=self.guard, args=(self._feed,), name="headgate-feeder", daemon=True
        )
        self._ending = Ending(
            self, self.runtime, self._feeder, self.workers.under_way, self.doors, engine.grace
        )

    # --- the run ------------------------------------------------------------------------------------

    def run(self, line: Line | None) -> Report:
        with terminated_like_interrupted():
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
        self.runtime.open_sinks()
        self._feeder.start()
        self.workers.start()
        with self.on(line), self.control(self.runtime.network.name, handlers(self, self.runtime)):
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
        report = self.runtime.report("threads", seconds)
        report.semaphores = self.workers.semaphores
        return report

    def stop(self) -> None:
        super().stop()
        with self.lock:
            self.room.notify_all()

    def check_over(self) -> None:
        """Notice that nothing is left to do."""
        if self.runtime.sources_ended or self.runtime.failed:
            with self.lock:
                if self.runtime.done:
                    self.over.set()
                    self.alarm.notify()

    def reschedule(self, phases: Sequence[Phase]) -> None:
        """Lock held: whoever comes by takes part, and whoever sleeps is woken for it."""
        meeting = Meeting(phases, lambda: self._rescheduled(meeting))
        self.meeting = meeting
        self.workers.wake_sleepers()

    def _rescheduled(self, meeting: Meeting) -> None:
        with self.lock:
            if self.meeting is meeting:  # else another policy has taken over, and it is void
                self.meeting = None
                self.runtime.rescheduled(self.clock.now())

    def new_term(self, workers: int) -> None:
        if self.meeting is not None:
            self.meeting.dissolve()
            self.meeting = None
        super().new_term(workers)

    def fit(self, policy: Policy) -> Policy:
        return refitted(policy, self.engine.packet_rows, self.runtime.admission.packet_rows)

    def change_queries(self, change: Change, outputs: Sequence[Output]) -> None:
        now = self.clock.now()
        if outputs:
            for live in self.runtime.add_queries(outputs, now):
                self.doors[live.place] = threading.Lock()
        self._removed += [self.runtime.remove_query(name, now) for name in change.remove]
        self.made_room(urgent=True)
        if self.runtime.done:  # the others may have been waiting for nothing but a query that was removed
            self.over.set()

    def aside(self) -> None:
        """Close the sinks of queries that were removed, once nobody hands anything over."""
        for output in list(self._removed):
            door = self.doors[output.place]
            if door.acquire(blocking=False):  # else later: whoever waited here could not keep the time
                try:
                    self._removed.remove(output)
                    self.runtime.close_sink(output)
                finally:
                    door.release()

    # --- feeding ------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Admit packets while there is room; when queues are full wait, so that sources feel the pressure."""
        runtime = self.runtime
        while True:
            with self.lock:
                held = runtime.admission.held(runtime.live.room)
                while not self.stopping and held is None:
                    self.held = self._sources
                    self.room.wait()
                    held = runtime.admission.held(runtime.live.room)
                self.held = frozenset()
                if self.stopping or held is None:
                    return
                room = min([runtime.live.room(place) for place in self._sources - held], default=0)
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
            with self.lock:
                outputs = runtime.admit(found, self.clock.now())
            for output in outputs:
                self.drain(output)
            self.check_over()
            if runtime.sources_ended:
                return

    def _poll(self, room: int, held: frozenset[int]) -> tuple[list[tuple[int, Packet]], Wait | None]:
        """A few packets at a time if they fit: every visit to the scheduler makes the workers wait."""
        admission = self.runtime.admission
        packets: list[tuple[int, Packet]] = []
        while len(packets) < FEED_PACKETS:
            fit = max(1, min(FEED_PACKETS, room // admission.packet_rows))
            found = admission.poll(self.clock.now(), fit, held)
            if isinstance(found, Wait):
                return packets, None if packets else found
            packets += found
            room -= sum(len(packet) for _, packet in found)
            if admission.ended or room < admission.packet_rows:
                break
        return packets, None

    def made_room(self, *, urgent: bool = False) -> None:
        """Lock held: a queue got shorter.

        Unless a worker waits for it the feeder is woken only for as much as it admits at a time: whenever it
        comes, it takes the interpreter from a worker.
        """
        least = 1 if urgent else FEED_PACKETS * self.runtime.admission.packet_rows
        if self.held and any(self.runtime.live.room(place) >= least for place in self.held):
            self.room.notify()

    # --- sinks --------------------------------------------------------------------------------------

    def drain(self, output: LiveOutput) -> None:
        """Hand results over, in order, one thread at a time; who finds the door closed leaves it.

        A queue that has grown too long is waited for: that is back-pressure from a slow sink.
        """
        runtime, door = self.runtime, self.doors[output.place]
        while True:
            if not door.acquire(blocking=output.inbox.rows >= output.inbox.capacity):
                return
            try:
                with self.lock:
                    taken = output.take()
                    self.made_room()
                for packet, times in taken:
                    if self.halted:  # only what a sink has begun with is waited for
                        output.undelivered += len(packet)
                        continue
                    try:
                        output.hand_over(packet, times, self.clock.now)
                    except Exception as error:
                        with self.lock:
                            if self.closed:
                                return
                            runtime.fail_output(output, error, self.clock.now())
                            self.made_room(urgent=True)
            finally:
                door.release()
            with self.lock:
                if output.failed or self.halted or not output.waiting:
                    return
