"""The network with its queues: what feeds what, how packets travel, and how far every arrow has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Protocol

from headgate.graph.network import Arrow, Box, Network, Output, Source, came_by_arrival, is_vacant
from headgate.graph.operator import Kind, Operator
from headgate.graph.packet import Marker, Packet
from headgate.runtime.admission import Group
from headgate.runtime.boxes import NEVER, LiveBox, LiveOutput, Target, Times, Unit, since_it_joined
from headgate.runtime.ordered.reordering import SCHEMES
from headgate.runtime.queues import Arrivals, Fifo, Inbox, Merge, Spooling
from headgate.runtime.report import QueryReport
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.events import QueueState
from headgate.scheduling.states import Task

NONE: frozenset[int] = frozenset()
RING = 32
RING_OF_LANE = 4
"""Places in the ring in which results wait for earlier ones: so many, or so many for each lane."""


class Observer(Protocol):
    """Follows packets through the network: a simulation of caches and memory."""

    def queued(self, target: LiveBox, arrow: int, packet: Packet, rows: int) -> None:
        """So many rows of a packet now wait before a box."""

    def sent(self, unit: Unit) -> None:
        """All results of a unit have been queued."""


def box_entry(network: Network, place: int, lanes: int) -> BoxEntry:
    """What a policy knows of a box before it has run, on any engine."""
    box, sources = network.boxes[place], network.sources
    return BoxEntry(
        box.name,
        lanes,
        tuple(network.upstream[place]),
        tuple(network.downstream[place]),
        network.queries_of[place],
        box.operator.cost,
        tuple([sources.index(a.node) for port in box.ports for a in port if isinstance(a.node, Source)]),
        request=network.requests[place],
        stated_selectivity=box.operator.selectivity,
        outlets=network.outlets[place],
        query_class=network.classes[place],
        merges=sum(map(len, box.ports)) > 1 and box.ports[0][0].in_order,
    )


def _stopped(target: LiveBox | LiveOutput) -> bool:
    return target.failed if isinstance(target, LiveOutput) else target.removed


class LiveNetwork:
    """Live boxes and outputs, joined by their inboxes."""

    def __init__(
        self,
        network: Network,
        *,
        lanes: int,
        packet_rows: int,
        queue_rows: int,
        reorder: str,
        ring: int | None,
        prepare: Callable[[Operator], Operator],
        own: Group,
        spool: Spooling | None = None,
    ) -> None:
        self.network = network
        self.spool = spool
        self.ring = ring or max(RING, RING_OF_LANE * lanes)
        self.ring_full = 0
        """How often tuples waited because the ring had no place for their results."""
        self._reorder, self._prepare = reorder, prepare
        self.admitted = 0
        """Below this serial, every tuple has been queued."""
        self.own = own
        self.packet_rows = packet_rows
        self.queue_rows = queue_rows
        self.needs: frozenset[str] = frozenset()
        """Measurements that the policy uses and that cost something."""
        self.memory: Observer | None = None
        self.boxes: list[LiveBox] = []
        self.outputs: list[LiveOutput] = []
        self.merging: list[LiveBox] = []
        self.joining: list[LiveBox | LiveOutput] = []
        """What has joined and waits for the first tuples that are for it."""
        self._standing: dict[Box, LiveBox] = {}
        """By box of the application, the one that runs for it since last."""
        self.source_places: dict[Source, int] = {}
        self.source_targets: list[list[Target]] = []
        self.groups: dict[Source, Group] = {}
        """By source, those that it ends with."""
        self._numbered = 0
        """Outputs that there have been."""
        self.extend(network, network.outputs, lanes, own)

    @property
    def sources_ended(self) -> bool:
        """The application's own sources have ended; those of requests may not have."""
        return self.own.noticed

    # --- building -----------------------------------------------------------------------------------

    def extend(
        self, network: Network, outputs: Sequence[Output], lanes: int, group: Group
    ) -> tuple[list[LiveBox], list[LiveOutput]]:
        """Add the boxes that ``network`` has in addition, and these outputs; returns the new ones.

        ``group``: the sources that all of it reads, which may be new too.
        """
        there, self.network = {live.box for live in self.boxes}, network
        for place, source in enumerate(network.sources):
            if source not in self.groups and source.request is group.request and not is_vacant(source):
                self.source_places[source], self.groups[source] = place, group
                self.source_targets[place : place + 1] = [[]]
        boxes = [
            self._box(place, box, lanes, group)
            for place, box in enumerate(network.boxes)
            if box not in there and not is_vacant(box)
        ]
        made = [self._output(output, group) for output in outputs]
        for live in boxes:
            self.boxes[live.place : live.place + 1] = [live]
            if group is self.own:
                self._standing[live.box.original or live.box] = live
        self.outputs += made
        self._connect(boxes, made)
        self.merging += [live for live in boxes if isinstance(live.inbox, Merge)]
        for live in boxes:
            live.frontier = self._held(live)  # a box that it shares may hold tuples
        return boxes, made

    def standing(self, box: Box) -> Box | None:
        """The running box that a query which joins may share: one that makes the same of a tuple at any time.

        Behind a union in the order of arrival a serial does not tell what came before.
        """
        live = self._standing.get(box)
        if live is None or live.operator.kind is not Kind.STATELESS or live.removed or live.broken:
            return None
        return None if any(map(came_by_arrival, live.box.ports)) else live.box

    def share(self, place: int) -> LiveBox:
        """Note in the catalog that a box feeds others and works for other queries too."""
        live = self.boxes[place]
        new = box_entry(self.network, place, live.task.lanes)
        live.entry.downstream, live.entry.outlets = new.downstream, new.outlets
        live.entry.queries, live.entry.query_class = new.queries, new.query_class
        return live

    def numbered(self) -> int:
        """The number of the next output."""
        self._numbered += 1
        return self._numbered - 1

    def _output(self, output: Output, group: Group) -> LiveOutput:
        report = QueryReport(output.name, has_qos=output.qos is not None)
        made = LiveOutput(self.numbered(), output, self._inbox((output.port,)), report)
        made.group = group
        return made

    def release(self, network: Network, group: Group) -> list[int]:
        """Forget everything of a request that has ended; returns the numbers that its boxes had."""
        places = [live.place for live in self.boxes if live.group is group]
        self.network = network
        for place in places:
            self.boxes[place] = vacant = self._box(place, network.boxes[place], 1, self.own)
            vacant.removed = vacant.finished = True
        self.outputs = [live for live in self.outputs if live.group is not group]
        self.merging = [live for live in self.merging if live.group is not group]
        for source in [source for source, own in self.groups.items() if own is group]:
            del self.groups[source]
            self.source_targets[self.source_places.pop(source)] = []
        return places

    def _box(self, place: int, box: Box, lanes: int, group: Group) -> LiveBox:
        """A stateless box may hold any number of workers, one with state a single one."""
        operator = self._prepare(box.operator)
        task = Task(lanes if operator.kind is Kind.STATELESS else 1)
        live = LiveBox(place, box, operator, operator.open(), task)
        live.group = group
        live.reorder = SCHEMES[self._reorder](self.send_downstream, self.ring)
        live.holds_time, live.keyed = operator.holds_time, operator.kind is Kind.KEYED
        live.inbox = self._inbox(box.ports)
        live.targets = [[] for _ in operator.outputs]
        live.feeders = [
            -1 if isinstance(a.node, Source) else self.network.index[a.node]
            for port in box.ports
            for a in port
        ]
        live.first = -1 in live.feeders
        return live

    def _inbox(self, ports: Sequence[Sequence[Arrow]]) -> Inbox:
        arrows = [arrow for port in ports for arrow in port]
        if len(arrows) == 1:
            return Fifo(self.queue_rows, self.packet_rows)
        if len(ports) == 1 and not arrows[0].in_order:
            return Arrivals(len(arrows), self.queue_rows, self.packet_rows)
        of_port = [place for place, port in enumerate(ports) for _ in port]
        schemas = [port[0].schema for port in ports]
        inbox = Merge(of_port, schemas, lambda: self.bound(arrows), self.queue_rows, self.packet_rows)
        inbox.unbounded = frozenset(i for i, arrow in enumerate(arrows) if came_by_arrival((arrow,)))
        return inbox

    def _connect(self, boxes: Sequence[LiveBox], outputs: Sequence[LiveOutput]) -> None:
        for live in boxes:
            for place, arrow in enumerate(a for port in live.box.ports for a in port):
                self._targets(arrow).append((live, place))
        for output in outputs:
            for place, arrow in enumerate(output.output.port):
                self._targets(arrow).append((output, place))
        for live in boxes:
            live.port_sources = [
                [self.source_places[source] for source in self.network.sources_of(port)]
                for port in live.box.ports
            ]
        ports = [*(port for live in boxes for port in live.box.ports), *(o.output.port for o in outputs)]
        feeding = {self.network.index[a.node] for port in ports for a in port if isinstance(a.node, Box)}
        for live in {*boxes, *(self.boxes[place] for place in feeding)}:
            fed = dict.fromkeys(target for targets in live.targets for target, _ in targets)
            merging = [target for target in fed if isinstance(target.inbox, Merge)]
            live.merges = [target.place for target in merging if isinstance(target, LiveBox)]
            live.merging_outputs = [target for target in merging if isinstance(target, LiveOutput)]
        self.let_spool()

    def let_spool(self) -> None:
        """A query that is behind must not hold back a stream that keeps coming and that others need too.

        So where such a stream divides, queues may outgrow their bound.  Everywhere else, and where no query
        has a goal, a full queue holds back what feeds it.
        """
        if self.spool is None or not self.network.goals:
            return
        network = self.network
        streams = [(t, {s}) for t, s in zip(self.source_targets, network.sources, strict=False)]
        for live in self.boxes:
            for targets in live.targets:
                if len(targets) > 1 and not live.removed:
                    streams.append((targets, network.sources_of(sum(live.box.ports, ()))))
        for targets, sources in streams:
            if len(targets) > 1 and any(source.origin.live for source in sources):
                for target, _ in targets:
                    if isinstance(target, LiveBox):
                        target.inbox.spool = self.spool

    def _targets(self, arrow: Arrow) -> list[Target]:
        """Where an arrow leads, without what has stopped.

        A new list: a worker may be going through the one before, with results that are not for what joins.
        """
        if isinstance(arrow.node, Source):
            every, place = self.source_targets, self.source_places[arrow.node]
        else:
            every, place = self.boxes[self.network.index[arrow.node]].targets, arrow.output
        every[place] = [(target, number) for target, number in every[place] if not _stopped(target)]
        return every[place]

    def entry(self, live: LiveBox) -> BoxEntry:
        live.entry = box_entry(self.network, live.place, live.task.lanes)
        return live.entry

    # --- packets ------------------------------------------------------------------------------------

    def resize(self, packet_rows: int, queue_rows: int) -> None:
        """Packets and queues of another size; what is queued stays as it is."""
        self.packet_rows, self.queue_rows = packet_rows, queue_rows
        for inbox in [target.inbox for target in self.boxes] + [target.inbox for target in self.outputs]:
            inbox.packet_rows, inbox.capacity = packet_rows, queue_rows

    def room(self, source: int) -> int:
        """Back-pressure: rows that every queue which a source feeds can take."""
        room = self.queue_rows
        for target, arrow in self.source_targets[source]:
            if not _stopped(target):
                room = min(room, target.inbox.room(arrow))
        return room

    def spooled(self, targets: Sequence[Target], packet: Packet) -> Packet:
        """A packet as it is to be queued: out of the way if one of its queues is beyond its bound."""
        if self.spool is not None and len(targets) > 1:
            for target, _ in targets:
                inbox = target.inbox
                if inbox.spool is not None and inbox.rows + len(packet) > inbox.capacity:
                    return self.spool.keep(packet)
        return packet

    def send_downstream(self, unit: Unit) -> None:
        """Pass on the results of a unit.

        Units of a box come here one at a time, in the order of their tickets, while others are at work: what
        is done here must hold without the scheduler's lock.
        """
        live = unit.live
        live.broken = live.broken or unit.error is not None
        if not live.broken and not live.removed:
            for results in unit.results:
                for port, made in enumerate(results):
                    times = unit.leaves(made) if unit.leaves is not None and len(made) else None
                    packet = self.spooled(live.targets[port], made)
                    for target, arrow in live.targets[port]:
                        if target not in unit.passed_on:
                            self.put(target, arrow, packet, times)
            if unit.markers:
                self.forward(live, unit.markers)
        if self.memory is not None:
            self.memory.sent(unit)
        live.sent.append(unit)

    def forward(self, live: LiveBox, markers: tuple[Marker, ...]) -> None:
        """Let markers without tuples leave a box."""
        for target, _ in live.targets[0]:
            target.inbox.loose.extend([marker for marker in markers if marker.serial >= target.begins])

    def put(
        self, target: LiveBox | LiveOutput, arrow: int, packet: Packet, times: Times | None = None
    ) -> None:
        """Queue a packet, unless its target has stopped."""
        if _stopped(target):
            return
        if target.begins:
            own = since_it_joined(target, packet)
            if own is None:
                return
            packet, times = own, None if times is None else times[len(packet) - len(own) :]
        if not len(packet):
            target.inbox.loose.extend(packet.markers)
            return
        whole = packet
        if isinstance(target, LiveBox) and target.gate is not None and target.gate.shut:
            packet = target.gate.keep(packet, arrow)
            if not len(packet):
                target.inbox.loose.extend(packet.markers)
                return
        if times is not None and isinstance(target, LiveOutput) and isinstance(target.inbox, Fifo):
            target.times[id(packet)] = times
        elif "bytes" in self.needs and isinstance(target, LiveBox):
            target.entry.tuple_bytes = packet.batch.nbytes / len(packet)
        target.inbox.put(arrow, packet)
        if self.memory is not None and isinstance(target, LiveBox):
            self.memory.queued(target, arrow, whole, len(packet))

    def has_place(self, live: LiveBox) -> bool:
        """Whether the ring has a place for one more unit that waits for earlier ones to leave."""
        return live.reorder.has_place(live.next_ticket)

    def measure(self, live: LiveBox) -> QueueState:
        if live.end_due:
            return QueueState(1)
        inbox = live.inbox
        full = NONE
        if inbox.coming or inbox.rows >= inbox.capacity - inbox.packet_rows:
            full = frozenset(up for arrow, up in enumerate(live.feeders) if inbox.full(arrow))
        queue = inbox.measure("latency" in self.needs, full, "head" in self.needs)
        live.stalled = queue.tuples > 0 and not self.has_place(live)
        if live.stalled:
            self.ring_full += 1
            queue.tuples = 0  # its results would have to wait, and their worker with them
        if live.buckets is not None:
            queue.tuples += live.buckets.waiting
        return queue

    # --- order --------------------------------------------------------------------------------------

    def bound(self, arrows: Sequence[Arrow]) -> int:
        """The serial below which none of the arrows can bring anything new."""
        # First what was admitted, then what is held: a tuple is held before it counts as admitted.  A box
        # that holds nothing can still close what is open, and those results have the last serial.
        admitted, bound = self.admitted, NEVER
        for arrow in arrows:
            if isinstance(arrow.node, Source):
                frontier = NEVER if self.has_ended(arrow) else admitted
            else:
                live = self.boxes[self.network.index[arrow.node]]
                last = live.group.last if live.group.noticed else admitted
                frontier = NEVER if live.finished or live.removed else min(live.frontier, last)
            bound = min(bound, frontier)
        return bound

    def hold(self, live: LiveBox) -> None:
        """A box has got tuples from a source: it holds their serials, and so do the boxes after it."""
        first = live.inbox.first_serial()
        if first is None:  # all of them were shed
            return
        todo = [live.place]
        while todo:
            place = todo.pop()
            if self.boxes[place].frontier > first:
                self.boxes[place].frontier = first
                todo += self.network.downstream[place]

    def advance(self, live: LiveBox) -> list[LiveBox]:
        """Results have left a box: look again at what it and the boxes after it hold; those that changed.

        Most often the oldest tuples are furthest downstream, and the first look is the last.
        """
        boxes, downstream = self.boxes, self.network.downstream
        changed: list[LiveBox] = []
        todo, waiting = [live.place], {live.place}
        while todo:  # by their numbers, so that most come after all that feed them, and only once
            each = boxes[heappop(todo)]
            waiting.remove(each.place)
            held = self._held(each)
            if held != each.frontier:
                each.frontier = held
                changed.append(each)
                for place in downstream[each.place]:
                    if place not in waiting:
                        waiting.add(place)
                        heappush(todo, place)
        return changed

    def _held(self, live: LiveBox) -> int:
        if live.finished or live.removed:
            return NEVER
        queued = live.inbox.first_serial()
        held = NEVER if queued is None else queued
        for work in live.open_work.values():
            held = min(held, work.first_serial)
        for place in live.feeders:
            if place >= 0:
                held = min(held, self.boxes[place].frontier)
        return held

    def has_ended(self, arrow: Arrow) -> bool:
        """Whether an arrow brings nothing more, not even what is closed at the end."""
        if isinstance(arrow.node, Source):
            group = self.groups.get(arrow.node)  # None: of a request that is gone
            return group is None or group.noticed
        live = self.boxes[self.network.index[arrow.node]]
        return live.finished or live.removed
