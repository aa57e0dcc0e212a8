"""Boxes and outputs while they run: what they hold, and calls under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.connectors.sink import Writer
from headgate.errors import HeadgateError
from headgate.graph.network import Box, Output, Source
from headgate.graph.operator import Operator
from headgate.graph.packet import Marker, Order, Packet
from headgate.runtime.admission import Group
from headgate.runtime.ordered.buckets import Buckets
from headgate.runtime.ordered.reordering import Reorder
from headgate.runtime.queues import Fifo, Inbox, Round
from headgate.runtime.report import QueryReport
from headgate.runtime.shedding import Gate
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.states import Task

Times = npt.NDArray[np.float64]
NEVER = 1 << 62
"""The frontier of an arrow that brings nothing more."""
NO_TICKET = -1
"""The ticket of a call that works on units of others, and leaves nothing itself."""


@dataclass(eq=False)
class LiveBox:
    """A box while it runs."""

    place: int
    box: Box
    operator: Operator
    state: Any
    task: Task
    inbox: Inbox = field(init=False)
    group: Group = field(init=False)
    """The sources that feed it, which end together."""
    entry: BoxEntry = field(init=False)
    """What the policy knows of it."""
    targets: list[list[Target]] = field(default_factory=list)
    first: bool = False
    """Fed by a source."""
    feeders: list[int] = field(default_factory=list)
    """For every arrow in, the box it comes from; -1 for a source."""
    port_sources: list[list[int]] = field(default_factory=list)
    """For every port, the sources whose tuples can reach it."""
    keyed: bool = False
    holds_time: bool = False
    """A join: inputs that have ended or fallen idle must not hold its time back."""
    frontier: int = NEVER
    """The smallest serial that waits or is worked on here or in a box before it; it may be too small."""
    merges: list[int] = field(default_factory=list)
    """Merging boxes that it feeds, whose input may become available when it holds later serials."""
    merging_outputs: list[LiveOutput] = field(default_factory=list)
    reorder: Reorder[Unit] = field(init=False)
    """Puts into order what its lanes make."""
    next_ticket: int = 0
    open_work: dict[int, Unit] = field(default_factory=dict)
    """By ticket, units that were taken and that the core has not yet seen leave."""
    sent: deque[Unit] = field(default_factory=deque)
    """Units that have left, in order, and that the policy has not yet heard of."""
    stalled: bool = False
    """Tuples wait, but the ring had no place for their results when the policy was last told of them."""
    processor: float = 0.0
    """Processor time of the calls of a keyed box, as long as one worker at a time is inside."""
    buckets: Buckets[Unit] | None = None
    """A keyed box whose state is kept by bucket, so that several workers can be inside."""
    end_due: bool = False
    finished: bool = False
    removed: bool = False
    gate: Gate | None = None
    """Drops tuples before its queue; None: nothing was ever dropped."""
    since: int = 0
    """The version of what is read of sources that it needs at least."""
    begins: int = 0
    """The first serial for it if it has joined (``since_it_joined``); NEVER: that has not come yet."""
    broken: bool = False
    """A call has failed; later results are not sent on."""

    @property
    def late(self) -> int:
        """Rows that came after their window had closed."""
        states = [self.state] if self.buckets is None else self.buckets.states
        return sum([state.late for state in states if state is not None])

    @property
    def idle(self) -> bool:
        """No call on it is under way."""
        return not self.open_work

    @property
    def held(self) -> int:
        """Tuples that have come to it and whose results have not left it."""
        sent = {unit.ticket for unit in list(self.sent)}
        units = [unit for ticket, unit in list(self.open_work.items()) if ticket not in sent]
        return self.inbox.rows + sum([unit.taken for unit in units])

    @property
    def waiting(self) -> int:
        """Tuples that a call could take now."""
        held = 0 if self.buckets is None else self.buckets.waiting
        return held + (self.inbox.available() if self.reorder.has_place(self.next_ticket) else 0)


@dataclass(eq=False)
class LiveOutput:
    """A query's output while it runs: what waits for the sink, and what was measured."""

    place: int
    output: Output
    inbox: Inbox
    report: QueryReport
    writer: Writer | None = None
    times: dict[int, Times] = field(default_factory=dict)
    """In simulation: when the rows of a packet, known by its id, left their box."""
    failed: bool = False
    removed: bool = False
    """The query was removed; its sink must be closed."""
    undelivered: int = 0
    """Rows that were taken for the sink and not handed over, because the run was stopped."""
    handing: bool = False
    """Its sink is at work."""
    abandoned: bool = False
    """Its sink did not come back before the run ended; what it does now is ignored."""
    since: int = 0
    """The version of what is read of sources that it needs at least."""
    begins: int = 0
    """The first serial for it if it has joined (``since_it_joined``); NEVER: that has not come yet."""
    missed: dict[str, int] = field(default_factory=dict)
    """For a query that joined, by source: the tuples that came before."""
    shed_before: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """What had been dropped at boxes that it shares, by reason and box."""
    group: Group = field(init=False)
    """The sources that feed it, which end together."""
    markers: list[Marker] = field(default_factory=list)

    def given(self, rows: Mapping[str, int], sources: Iterable[Source]) -> int:
        """How many tuples of these sources were for it; ``rows``: those that each has had, by its name."""
        if self.begins == NEVER:
            return 0
        return sum([rows[source.name] - self.missed.get(source.name, 0) for source in sources])

    @property
    def waiting(self) -> bool:
        """Whether there is something to hand over now."""
        return bool(self.inbox.loose) or (self.inbox.rows > 0 and self.inbox.available() > 0)

    def take(self) -> list[tuple[Packet, Times | None]]:
        """Everything that can be handed over now, with the times at which rows left, if exact."""
        passed = self.inbox.take_loose()
        if isinstance(self.inbox, Fifo):
            queued = self.inbox.take_exactly(self.inbox.rows)
        else:
            queued = [packet for (packet,) in self.inbox.take(self.inbox.rows)]
        taken = [(packet, self.times.pop(id(packet), None)) for packet in queued]
        if passed:
            taken.append((Packet.empty(self.output.schema, passed), None))
        return taken

    def forget(self) -> None:
        """Drop what waits: the query has failed."""
        self.inbox.clear()
        self.times.clear()

    def hand_over(self, packet: Packet, times: Times | None, clock: Callable[[], float]) -> None:
        """Give results to the sink and measure their latency.  One caller per output at a time."""
        if self.failed:
            return
        rows = len(packet)
        if rows:
            assert self.writer is not None
            self.handing, begin = True, clock()
            try:
                self.writer.write(packet.batch)
            finally:
                self.handing = False
            if self.abandoned:
                return
            self.report.sink_seconds += clock() - begin
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
"""The box or output that an arrow leads to, and the number of the arrow there."""


def since_it_joined(target: LiveBox | LiveOutput, packet: Packet) -> Packet | None:
    """What of a packet is for a box or query that joined; None: all of it came before.

    It may be fed by a box that ran before, and whose results of earlier tuples are not for it.
    """
    if not len(packet):
        markers = tuple([marker for marker in packet.markers if marker.serial >= target.begins])
        return packet if len(markers) == len(packet.markers) else Packet.empty(packet.schema, markers)
    before, end = packet.order.span(target.begins, NEVER)
    if before == end:
        return None
    if not before and type(target.inbox) is Fifo:
        target.begins = 0  # one arrow brings everything, and later packets are later still
    return packet.slice(before, end - before)


@dataclass(eq=False)
class Unit:
    """What is taken from a box's queue at once, and leaves at once: in the order of its tickets."""

    live: LiveBox
    ticket: int
    rounds: list[Round]
    head: list[Order]
    """Order of its first packets, from which the first serial is found if it is needed."""
    end: bool = False
    taken: int = 0
    """Rows that it took from the queue."""
    results: list[list[Packet]] = field(default_factory=list)
    markers: tuple[Marker, ...] = ()
    """Markers that came without a tuple and leave after the results."""
    promised: list[tuple[Inbox, int, int]] = field(default_factory=list)
    """Where results go, by which arrow, and how many rows are kept free for them there."""
    promised_for: int = 0
    """The tuples whose results these are."""
    error: HeadgateError | None = None
    inputs: tuple[dict[int, int], set[int]] | None = None
    """For a join: its inputs that have ended, and those that are idle."""
    passed_on: tuple[LiveBox, ...] = ()
    """Boxes that have had the results already."""
    leaves: Callable[[Packet], Times] | None = None
    """In simulation: when each row of a result leaves the call."""

    @property
    def first_serial(self) -> int:
        return min(order.first_serial for order in self.head)


@dataclass(eq=False)
class Work(Unit):
    """One box call under way.

    A superbox is a tree of them: results of one are passed on to the next packet by packet, while they
    are in the cache, without going through the queue between them.
    """

    worker: int = 0
    tuples: int = 0
    expected: int = 0
    """Tuples that come to it at the most, if it is part of a superbox."""
    limit: int = 0
    """Where the state is kept by bucket: how many tuples to work on."""
    start: float = 0.0
    begun: float = 0.0
    """When its operators began, after the train was taken."""
    onward: list[list[tuple[Work, int]]] = field(default_factory=list)
    """For every output, the calls that its packets are passed on to, and on which arrow."""
    gathered: list[list[Packet]] | None = None
    """Where arrows meet in a superbox: by arrow, the packets that have come.  They are merged at last."""
    not_before: int = 0
    """The serial that merged rows have at least."""
    members: dict[int, Work] = field(default_factory=dict)
    """The calls of the whole superbox by box; all of them share this."""
    keeps: bool = True
    """Some results go to a queue or an output."""
    inside: bool = False
    """Its operator is at work."""
    tuples_out: int = 0
    ended: float = 0.0
    seconds: float = 0.0
    overhead: float = 0.0
    sending: float = 0.0
    """Seconds of it that went into passing results on."""
    packets: int = 0
    """How often its operator was called."""
    processor: float = 0.0
    """Processor time of its operator, where that is weighed."""
