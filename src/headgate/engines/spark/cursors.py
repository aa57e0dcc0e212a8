"""What waits before every node: how far its inputs have come, and how many rows that is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from headgate.checkpoint.graph import Node, Nodes
from headgate.checkpoint.position import Position
from headgate.checkpoint.state_store import covers
from headgate.engines.spark.messages import Address, Member, WorkOrder
from headgate.engines.spark.sharing import ALONE, Shape
from headgate.engines.spark.shedding import Shedder
from headgate.graph.operator import Operator
from headgate.graph.packet import Marker
from headgate.runtime.report import QueryReport
from headgate.scheduling.events import QueueState

MARKERS = 10_000
"""Steps of a query whose times are kept for the report."""
NOBODY: frozenset[int] = frozenset()
QUEUE_ROWS = 1 << 20
"""Rows that may wait in files before a box; whoever feeds it then waits too."""


@dataclass(eq=False)
class LiveNode:
    """A node while it runs."""

    node: Node
    taken: int = 0
    """Up to here steps under way have taken what waits."""
    steps: deque[Step] = field(default_factory=deque)
    """Steps under way, in the order in which they must commit."""
    stopped: bool = False
    shards: int = 1
    """How many shards its state is kept in."""
    held: dict[tuple[int, int, int], Address] = field(default_factory=dict)
    """By shard, the Python worker that has its state in memory."""
    report: QueryReport | None = None
    markers: deque[Marker] = field(default_factory=lambda: deque(maxlen=MARKERS))
    restarts: int = 0


@dataclass(eq=False)
class Step:
    """A plan under way."""

    order: WorkOrder
    worker: int
    start: float
    members: dict[int, Member]
    tuples: dict[int, int] = field(default_factory=dict)
    shape: Shape = ALONE
    work: float = 0.0
    """Predicted seconds of box work."""
    void: bool = False
    """A step before it failed, so what this one was given never was."""

    @property
    def number(self) -> int:
        return self.order.step


class Waiting:
    """The nodes with their cursors, and what is there for them to take."""

    def __init__(self, nodes: Nodes, position: Position, drain: bool, start: float) -> None:
        self.nodes, self.position, self.drain = nodes, position, drain
        self._start = start
        self.shedding = Shedder()
        self.latency = False
        """Whether the policy wants to know how old queued tuples are."""
        self.live = [LiveNode(node, position.nodes[node.key].cursor) for node in nodes.all]
        for live in self.live:
            live.shards = max(1, len({covers(part) for part in position.nodes[live.node.key].state}))
        self._feeders = [
            [
                (f.place, self.live[f.place], position.nodes[nodes.all[f.place].key])
                for f in node.feeds
                if not f.source
            ]
            for node in nodes.all
        ]
        self._has_finish = [
            node.operator is not None and type(node.operator).finish is not Operator.finish
            for node in nodes.all
        ]

    @property
    def _end(self) -> int:
        """The serial of the final punctuation, should it come now."""
        return self.position.offsets.next_serial

    @property
    def _horizon(self) -> int:
        """Sources have brought everything below this; past the punctuation once they have ended."""
        offsets = self.position.offsets
        return offsets.next_serial + 1 if offsets.ended and self.drain else offsets.next_serial

    def _frontier(self, node: Node, members: dict[int, Member]) -> int:
        """The serial below which everything for a node is there, with what this step brings."""
        bound = self._horizon
        live = self.live[node.place]
        for place, feeder, own in self._feeders[node.place]:
            if feeder.stopped:
                continue  # a box that stands still brings nothing, and holds nobody back but its own query
            cursor = own.cursor
            member = members.get(place)
            if member is not None and (cursor >= member.low or live.taken >= member.low):
                cursor = member.high
            if cursor < bound:
                bound = cursor
        return bound

    def _count(self, node: Node, low: int, high: int) -> int:
        """Rows between two serials that are known to wait: in sources, and in committed files."""
        rows = 0
        own = self.position.nodes[node.key]
        for arrow, feed in enumerate(node.feeds):
            if feed.source:
                admitted = self.position.offsets.sources[feed.place]
                rows += admitted.below(high) - admitted.below(low)
            elif own.queues[arrow]:
                rows += sum(file.below(high) - file.below(low) for file in own.queues[arrow])
        return rows

    def _cut(self, node: Node, low: int, high: int, rows: int) -> int:
        """The highest serial up to which a node finds at most ``rows``, but one tuple at least."""
        if self._count(node, low, high) <= rows:
            return high
        below, above = low, high  # rows up to ``below`` fit, up to ``above`` do not
        while above - below > 1:
            middle = (below + above) // 2
            if self._count(node, low, middle) <= rows:
                below = middle
            else:
                above = middle
        return below if self._count(node, low, below) else above

    def measure(self, node: Node) -> QueueState:
        live = self.live[node.place]
        if live.stopped:
            return QueueState(0)
        frontier = self._frontier(node, {})
        if frontier <= live.taken:
            return QueueState(0, self._full(node))
        rows = self.shedding.left(node.place, self._count(node, live.taken, frontier))
        if frontier == self._end + 1 and (rows or self._has_finish[node.place]):
            rows = max(rows, 1)
        oldest = mean = 0.0
        if self.latency and rows:
            oldest, mean = self._ages(node, live.taken, frontier)
        return QueueState(rows, self._full(node), oldest, mean)

    def _full(self, node: Node) -> frozenset[int]:
        own = self.position.nodes[node.key]
        if not any(own.queues):
            return NOBODY
        return frozenset(
            feed.place
            for feed, queue in zip(node.feeds, own.queues, strict=True)
            if not feed.source and sum(file.rows for file in queue) >= QUEUE_ROWS
        )

    def _ages(self, node: Node, low: int, high: int) -> tuple[float, float]:
        """Oldest and mean arrival of what waits, in seconds of the run."""
        found = []
        own = self.position.nodes[node.key]
        for arrow, feed in enumerate(node.feeds):
            if feed.source:
                admitted = self.position.offsets.sources[feed.place]
                ages = admitted.arrivals(low, high)
                found += [(*ages, admitted.below(high) - admitted.below(low))] if ages else []
            else:
                found += [(f.arrival, f.arrival, f.rows) for f in own.queues[arrow]]
        if not found:
            return 0.0, 0.0
        oldest, mean = min(f[0] for f in found), sum(f[1] * f[2] for f in found) / sum(f[2] for f in found)
        return oldest - self._start, mean - self._start

    @property
    def outlets_wait(self) -> bool:
        """Whether an outlet has something to hand over that no box call will bring along."""
        return any(
            not live.stopped
            and not live.steps
            and live.taken < (frontier := self._frontier(live.node, {}))
            and self._count(live.node, live.taken, frontier) > 0
            for live in self.live[len(self.nodes.boxes) :]
        )

    def backlog(self, outlet: Node) -> int:
        """Tuples that wait anywhere for a query."""
        boxes = [node for node in self.nodes.boxes if outlet.name in node.queries]
        return sum(self._count(n, self.live[n.place].taken, self._end) for n in (*boxes, outlet))
