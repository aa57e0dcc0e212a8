"""Boxes and outputs while they run: what they hold, and calls under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.engines.inbox import Fifo, Inbox, Round
from headgate.engines.report import QueryReport
from headgate.engines.sinks.base import Writer
from headgate.graph.network import Box, Output
from headgate.graph.operator import Operator
from headgate.graph.packet import Marker, Order, Packet
from headgate.scheduling.states import Task

Times = npt.NDArray[np.float64]


@dataclass(eq=False)
class LiveBox:
    """A box while it runs."""

    place: int
    box: Box
    operator: Operator
    state: Any
    task: Task
    inbox: Inbox = field(init=False)
    targets: list[list[Target]] = field(default_factory=list)
    first: bool = False
    """Fed by a source."""
    feeders: list[int] = field(default_factory=list)
    """For every arrow in, the box it comes from; -1 for a source."""
    port_sources: list[list[int]] = field(default_factory=list)
    """For every port, the sources whose tuples can reach it."""
    holds_time: bool = False
    """A join: inputs that have ended or fallen idle must not hold its time back."""
    merges: list[int] = field(default_factory=list)
    """Merging boxes downstream, whose input may become available when this one has run."""
    merging_outputs: list[int] = field(default_factory=list)
    next_ticket: int = 0
    next_delivery: int = 0
    open_work: dict[int, Work] = field(default_factory=dict)
    end_due: bool = False
    finished: bool = False
    removed: bool = False

    @property
    def crowded(self) -> bool:
        """So many calls wait to deliver behind an overtaken one that no further may begin."""
        return len(self.open_work) >= 4 * self.task.lanes > 4


@dataclass(eq=False)
class LiveOutput:
    """A query's output while it runs: what waits for the sink, and what was measured."""

    place: int
    output: Output
    inbox: Inbox
    report: QueryReport
    writer: Writer | None = None
    times: list[Times | None] = field(default_factory=list)
    failed: bool = False
    passed: tuple[Marker, ...] = ()
    """Markers that came without a tuple."""
    markers: list[Marker] = field(default_factory=list)

    @property
    def waiting(self) -> bool:
        """Whether there is something to hand over now."""
        return bool(self.passed) or (self.inbox.rows > 0 and self.inbox.available() > 0)

    def take(self) -> list[tuple[Packet, Times | None]]:
        """Everything that can be handed over now, with the times at which rows left, if exact."""
        times, self.times = self.times, []
        if isinstance(self.inbox, Fifo):
            queued = self.inbox.packets()
            self.inbox.clear()
            taken = list(zip(queued, times, strict=True))
        else:
            taken = [(packet, None) for (packet,) in self.inbox.take(self.inbox.rows)]
        if self.passed:
            taken.append((Packet.empty(self.output.schema, self.passed), None))
            self.passed = ()
        return taken

    def forget(self) -> None:
        """Drop what waits: the query has failed."""
        self.inbox.clear()
        self.times, self.passed = [], ()

    def hand_over(self, packet: Packet, times: Times | None, clock: Callable[[], float]) -> None:
        """Give results to the sink and measure their latency.  One caller per output at a time."""
        if self.failed:
            return
        rows = len(packet)
        if rows:
            assert self.writer is not None
            self.writer.write(packet.batch)
        now = clock()
        if rows:
            arrivals = packet.order.arrivals
            if times is None and isinstance(arrivals, float):
                self.report.delivered(now - arrivals, rows, self.output.qos)
            else:
                left = now if times is None else times
                self.report.delivered(left - packet.order.arrival_array(), rows, self.output.qos)
        for marker in packet.markers:
            marker.exits[self.output.name] = now
            self.markers.append(marker)


Target = tuple[LiveBox | LiveOutput, int]
"""Where an arrow leads, and which of the arrows there it is."""


@dataclass(eq=False)
class Work:
    """One box call under way.

    A superbox is a tree of them: results of one are passed on to the next packet by packet, while they
    are in the cache, without going through the queue between them.
    """

    live: LiveBox
    worker: int
    rounds: list[Round]
    head: list[Order]
    """Order of its first packets, from which the first serial is found if somebody asks."""
    end: bool
    ticket: int
    tuples: int
    start: float
    onward: list[list[Work]] = field(default_factory=list)
    """For every output, the calls that its packets are passed on to."""
    members: dict[int, Work] = field(default_factory=dict)
    """The calls of the whole superbox by box; all of them share this."""
    keeps: bool = True
    """Some results go to a queue or an output."""
    tuples_out: int = 0
    results: list[list[Packet]] = field(default_factory=list)
    ended: float = 0.0
    seconds: float = 0.0
    overhead: float = 0.0
    over: bool = False
    markers: tuple[Marker, ...] = ()
    """Markers that came without a tuple and leave after the results."""
    error: BaseException | None = None
    leaves: Callable[[Packet], Times] | None = None
    """In simulation: when each row of a result leaves the call."""

    @property
    def first_serial(self) -> int:
        return min(order.first_serial for order in self.head)
