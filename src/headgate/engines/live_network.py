"""The network with its queues: who feeds whom, how packets travel, and how far every arrow has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.engines.inbox import Fifo, Inbox, Merge
from headgate.engines.live import LiveBox, LiveOutput, Target, Times, Work
from headgate.engines.report import QueryReport
from headgate.graph.network import Arrow, Box, Network, Source
from headgate.graph.operator import Kind, Operator
from headgate.graph.packet import Marker, Packet
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.interface import QueueState
from headgate.scheduling.states import Task

NOBODY: frozenset[int] = frozenset()
NEVER = 1 << 62
"""The frontier of an arrow that brings nothing more."""


class LiveNetwork:
    """Live boxes and outputs, joined by their inboxes."""

    def __init__(
        self,
        network: Network,
        *,
        lanes: int,
        packet_rows: int,
        queue_rows: int,
        latency: bool,
        prepare: Callable[[Operator], Operator],
    ) -> None:
        self.network = network
        self.admitted = 0
        """Below this serial, every tuple has been queued."""
        self.sources_ended = False
        self._packet_rows = packet_rows
        self._queue_rows = queue_rows
        self._latency = latency
        self.boxes = [self._box(place, box, lanes, prepare) for place, box in enumerate(network.boxes)]
        self.outputs = [
            LiveOutput(place, o, self._inbox((o.port,)), QueryReport(o.name, has_qos=o.qos is not None))
            for place, o in enumerate(network.outputs)
        ]
        self.source_places = {source: place for place, source in enumerate(network.sources)}
        self.source_targets: list[list[Target]] = [[] for _ in network.sources]
        self._connect()
        self.merging = [live for live in self.boxes if isinstance(live.inbox, Merge)]

    # --- building -----------------------------------------------------------------------------------

    def _box(self, place: int, box: Box, lanes: int, prepare: Callable[[Operator], Operator]) -> LiveBox:
        """A stateless box may hold any number of workers, one with state a single one."""
        operator = prepare(box.operator)
        task = Task(lanes if operator.kind is Kind.STATELESS else 1)
        live = LiveBox(place, box, operator, operator.open(), task)
        live.holds_time = hasattr(live.state, "idle")
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
            return Fifo(self._queue_rows, self._packet_rows)
        of_port = [place for place, port in enumerate(ports) for _ in port]
        schemas = [port[0].schema for port in ports]
        return Merge(of_port, schemas, lambda: self._bound(arrows), self._queue_rows, self._packet_rows)

    def _connect(self) -> None:
        for live in self.boxes:
            for place, arrow in enumerate(a for port in live.box.ports for a in port):
                self._targets(arrow).append((live, place))
        for output in self.outputs:
            for place, arrow in enumerate(output.output.port):
                self._targets(arrow).append((output, place))
        for live in self.boxes:
            live.port_sources = [
                [self.source_places[source] for source in self.network.sources_of(port)]
                for port in live.box.ports
            ]
            live.merges = [d for d in self._reach(live.place) if isinstance(self.boxes[d].inbox, Merge)]
            live.merging_outputs = [
                o.place
                for o in self.outputs
                if isinstance(o.inbox, Merge) and live.place in self.network.queries[o.output.name]
            ]

    def _targets(self, arrow: Arrow) -> list[Target]:
        if isinstance(arrow.node, Source):
            return self.source_targets[self.source_places[arrow.node]]
        return self.boxes[self.network.index[arrow.node]].targets[arrow.output]

    def _reach(self, place: int) -> list[int]:
        found: set[int] = set()
        todo = list(self.network.downstream[place])
        while todo:
            box = todo.pop()
            if box not in found:
                found.add(box)
                todo += self.network.downstream[box]
        return sorted(found)

    def entry(self, live: LiveBox) -> BoxEntry:
        return BoxEntry(
            live.box.name,
            live.task.lanes,
            tuple(self.network.upstream[live.place]),
            tuple(self.network.downstream[live.place]),
            self.network.queries_of[live.place],
            live.operator.cost,
        )

    # --- packets ------------------------------------------------------------------------------------

    def room(self) -> int:
        """Back-pressure: rows that every queue which a source feeds can take."""
        room = self._queue_rows
        for targets in self.source_targets:
            for target, arrow in targets:
                if not (target.removed if isinstance(target, LiveBox) else target.failed):
                    room = min(room, target.inbox.room(arrow))
        return room

    def deliver(self, work: Work, touched: dict[int, LiveBox], outputs: dict[int, LiveOutput]) -> None:
        passed_on = [w.live for calls in work.onward for w in calls]
        for results in work.results:
            for port, packet in enumerate(results):
                times = work.leaves(packet) if work.leaves is not None and len(packet) else None
                for target, arrow in work.live.targets[port]:
                    if target not in passed_on:
                        self.put(target, arrow, packet, touched, outputs, times)
        if work.markers:
            self._forward(work.live, work.markers, touched, outputs)

    def _forward(
        self,
        live: LiveBox,
        markers: tuple[Marker, ...],
        touched: dict[int, LiveBox],
        outputs: dict[int, LiveOutput],
    ) -> None:
        """Markers without tuples pass a box by: there is nothing to call it for."""
        empty = Packet.empty(live.operator.outputs[0], markers)
        for target, arrow in live.targets[0]:
            self.put(target, arrow, empty, touched, outputs, None)

    def put(
        self,
        target: LiveBox | LiveOutput,
        arrow: int,
        packet: Packet,
        touched: dict[int, LiveBox],
        outputs: dict[int, LiveOutput],
        times: Times | None,
    ) -> None:
        if isinstance(target, LiveOutput):
            if target.failed:
                return
            if len(packet):
                target.inbox.put(arrow, packet)
                target.times.append(times)
            elif packet.markers and not target.inbox.attach(arrow, packet):
                target.passed += packet.markers
            outputs[target.place] = target
        elif target.removed:
            return
        elif len(packet):
            target.inbox.put(arrow, packet)
            touched[target.place] = target
        elif packet.markers and not target.inbox.attach(arrow, packet):
            if target.open_work:
                newest = target.open_work[max(target.open_work)]
                newest.markers += packet.markers
            else:
                self._forward(target, packet.markers, touched, outputs)

    def measure(self, live: LiveBox) -> QueueState:
        if live.end_due:
            return QueueState(1)
        if live.crowded:
            return QueueState(0)
        inbox = live.inbox
        if inbox.rows < inbox.capacity:
            return inbox.measure(self._latency, NOBODY)
        full = frozenset(up for arrow, up in enumerate(live.feeders) if inbox.full(arrow))
        return inbox.measure(self._latency, full)

    # --- order --------------------------------------------------------------------------------------

    def _bound(self, arrows: Sequence[Arrow]) -> int:
        """The serial below which none of the arrows can bring anything new."""
        known: dict[int, int] = {}
        return min(self._frontier(arrow, known) for arrow in arrows)

    def _frontier(self, arrow: Arrow, known: dict[int, int]) -> int:
        node = arrow.node
        if isinstance(node, Source):
            return NEVER if self.sources_ended else self.admitted
        live = self.boxes[self.network.index[node]]
        if live.finished or live.removed:
            return NEVER
        if live.place in known:
            return known[live.place]
        bound = min(self._frontier(a, known) for port in live.box.ports for a in port)
        queued = live.inbox.first_serial()
        if queued is not None:
            bound = min(bound, queued)
        for work in live.open_work.values():
            bound = min(bound, work.first_serial)
        if bound == NEVER:  # only what it closes at the end can still come, and that has the last serial
            bound = self.admitted
        known[live.place] = bound
        return bound

    def has_ended(self, arrow: Arrow) -> bool:
        """Whether an arrow brings nothing more, not even what is closed at the end."""
        if isinstance(arrow.node, Source):
            return self.sources_ended
        live = self.boxes[self.network.index[arrow.node]]
        return live.finished or live.removed
