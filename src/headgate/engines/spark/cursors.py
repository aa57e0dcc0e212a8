"""What waits before every node: how far its inputs have come, and how many rows that is.

A step of ten queries must not cost the driver more because a thousand others are there.  So nothing here
looks at all nodes again and again: whatever moves a cursor says which node it was (``touch``), and only nodes
that were touched, and those that they feed, are looked at.  The few things that may change every node (the
sources' end, a query that comes back) touch them all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

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


class Cursors:
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
        self.has_finish = [
            node.operator is not None and type(node.operator).finish is not Operator.finish
            for node in nodes.all
        ]
        self._only_source = [
            node.feeds[0].place if len(node.feeds) == 1 and node.feeds[0].source else None
            for node in nodes.all
        ]
        self.followers = [tuple({t.place for t, _ in nodes.following(node)}) for node in nodes.all]
        self._fed_by: list[list[int]] = [[] for _ in position.offsets.sources]
        """The nodes that each source feeds."""
        for node in nodes.all:
            for place in {feed.place for feed in node.feeds if feed.source}:
                self._fed_by[place].append(node.place)
        self._at_horizon = [
            node.place
            for node in nodes.outlets
            if node.output is nodes.network.dead_letter or any(feed.source for feed in node.feeds)
        ]
        """Outlets that come further whatever source brings something."""
        self.of_query: dict[str, list[LiveNode]] = {}
        for live in self.live:
            for query in live.node.queries:
                self.of_query.setdefault(query, []).append(live)
        self.outlet_of = {live.node.name: live for live in self.live[len(nodes.boxes) :]}
        self.stale: set[int] = set()
        """Nodes before which something may have changed since it was last measured."""
        self.unsettled: set[int] = set()
        """Nodes that the final punctuation may be able to pass."""
        self._behind: set[int] = set()
        """Outlets that have not taken all that has come to them, as far as they are not stale."""
        self.alive = len(self.live)
        self.open = set(range(len(self.live)))
        """Nodes that are not stopped and have not passed the final punctuation."""
        self._seen_rows = [-1] * len(position.offsets.sources)
        self._seen_serial = -1
        self._seen_end = False
        self.touch_all()

    # --- what has changed ---------------------------------------------------------------------------

    def touch(self, places: Iterable[int]) -> None:
        """Cursors of these nodes, or what they have taken, have changed."""
        for place in places:
            self.stale.add(place)
            self.stale.update(self.followers[place])
            self.unsettled.add(place)
            self.unsettled.update(self.followers[place])

    def touch_all(self) -> None:
        everything = range(len(self.live))
        self.stale.update(everything)
        self.unsettled.update(everything)
        alive = [live for live in self.live if not live.stopped]
        self.alive = len(alive)
        self.open = {live.node.place for live in alive if not self.passed(live)}

    def passed(self, live: LiveNode) -> bool:
        return self.position.nodes[live.node.key].cursor > self.end

    def moved(self, places: Iterable[int]) -> None:
        """These nodes have committed something."""
        places = list(places)
        self.touch(places)
        self.open.difference_update([place for place in places if self.passed(self.live[place])])

    def notice(self) -> None:
        """Touch what sources have brought since the last look."""
        offsets = self.position.offsets
        end = offsets.ended and self.drain
        if end != self._seen_end:
            self._seen_end = end
            self.touch_all()
        if offsets.next_serial == self._seen_serial:
            return
        self._seen_serial = offsets.next_serial
        self.stale.update(self._at_horizon)
        for place, own in enumerate(offsets.sources):
            if own.rows != self._seen_rows[place]:
                self._seen_rows[place] = own.rows
                self.stale.update(self._fed_by[place])

    def stale_boxes(self) -> list[int]:
        """The boxes to measure again, in order; they are no longer stale."""
        self.notice()
        count = len(self.nodes.boxes)
        found = sorted([place for place in self.stale if place < count])
        self.stale.difference_update(found)
        return found

    def outlets_behind(self) -> list[int]:
        """Outlets that have not taken all that has come to them, in order."""
        self.notice()
        count = len(self.nodes.boxes)
        for place in [place for place in self.stale if place >= count]:
            self.stale.discard(place)
            live = self.live[place]
            if not live.stopped and live.taken < self.frontier(live.node, {}):
                self._behind.add(place)
            else:
                self._behind.discard(place)
        return sorted(self._behind)

    def mark_stopped(self, query: str) -> None:
        """A query was stopped or goes on: so do the nodes that no other one needs."""
        failed = self.position.failed
        for live in self.of_query.get(query, ()):
            stopped = all(q in failed for q in live.node.queries)
            if stopped != live.stopped:
                live.stopped = stopped
                self.alive += -1 if stopped else 1
            if stopped or self.passed(live):
                self.open.discard(live.node.place)
            else:
                self.open.add(live.node.place)
        self.touch([live.node.place for live in self.of_query.get(query, ())])

    @property
    def end(self) -> int:
        """The serial of the final punctuation, should it come now."""
        return self.position.offsets.next_serial

    @property
    def horizon(self) -> int:
        """Sources have brought everything below this; past the punctuation once they have ended."""
        offsets = self.position.offsets
        return offsets.next_serial + 1 if offsets.ended and self.drain else offsets.next_serial

    def frontier(self, node: Node, members: dict[int, Member]) -> int:
        """The serial below which everything for a node is there, with what this step brings."""
        bound = self.horizon
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

    def count(self, node: Node, low: int, high: int) -> int:
        """Rows between two serials that are known to wait: in sources, and in committed files."""
        only = self._only_source[node.place]
        if only is not None:
            admitted = self.position.offsets.sources[only]
            return admitted.below(high) - admitted.below(low)
        rows = 0
        own = self.position.nodes[node.key]
        for arrow, feed in enumerate(node.feeds):
            if feed.source:
                admitted = self.position.offsets.sources[feed.place]
                rows += admitted.below(high) - admitted.below(low)
            elif own.queues[arrow]:
                rows += sum(file.below(high) - file.below(low) for file in own.queues[arrow])
        return rows

    def cut(self, node: Node, low: int, high: int, rows: int) -> int:
        """The highest serial up to which a node finds at most ``rows``, but one tuple at least."""
        if self.count(node, low, high) <= rows:
            return high
        only = self._only_source[node.place]
        if only is not None and rows:
            admitted = self.position.offsets.sources[only]
            return admitted.serial(admitted.below(low) + rows)
        below, above = low, high  # rows up to ``below`` fit, up to ``above`` do not
        while above - below > 1:
            middle = (below + above) // 2
            if self.count(node, low, middle) <= rows:
                below = middle
            else:
                above = middle
        return below if self.count(node, low, below) else above

    def measure(self, node: Node) -> QueueState:
        live = self.live[node.place]
        if live.stopped:
            return QueueState(0)
        frontier = self.frontier(node, {})
        if frontier <= live.taken:
            return QueueState(0, self._full(node))
        rows = self.shedding.left(node.place, self.count(node, live.taken, frontier))
        if frontier == self.end + 1 and (rows or self.has_finish[node.place]):
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
        for place in self.outlets_behind():
            live = self.live[place]
            if live.steps:
                continue
            if self.count(live.node, live.taken, self.frontier(live.node, {})) > 0:
                return True
        return False

    def queued(self) -> list[int]:
        """By node, the tuples that wait before it, also before one that is stopped: it may go on."""
        return [self.count(own.node, own.taken, self.end) for own in self.live]

    def settle(self) -> None:
        """Let the punctuation pass nodes that have nothing to close."""
        if not (self.position.offsets.ended and self.drain):
            return
        self.notice()
        todo = sorted(self.unsettled)  # those that feed a node come before it
        self.unsettled.clear()
        while todo:
            place = heappop(todo)
            while todo and todo[0] == place:
                heappop(todo)
            live = self.live[place]
            own = self.position.nodes[live.node.key]
            if live.stopped or live.steps or own.cursor != live.taken or own.cursor > self.end:
                continue
            if self.has_finish[place] or self.frontier(live.node, {}) <= self.end:
                continue
            if self.count(live.node, live.taken, self.end + 1) == 0:
                own.cursor = live.taken = self.end + 1
                self.moved([place])
                self.unsettled.clear()
                for follower in self.followers[place]:
                    heappush(todo, follower)
