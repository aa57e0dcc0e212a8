"""A plan as a step: what each of its boxes takes, how it is cut, and what the tasks are told."""

from __future__ import annotations

import uuid
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.checkpoint.graph import Node, Nodes
from headgate.checkpoint.offsets import REFUSED
from headgate.checkpoint.position import Position, QueueFile
from headgate.checkpoint.state_store import covers
from headgate.engines.spark.cursors import Waiting
from headgate.engines.spark.messages import Lanes, Member, WorkOrder
from headgate.engines.spark.placement import ranges, share_out, share_queries
from headgate.engines.spark.task import between, read_queue
from headgate.graph.network import DEAD_LETTER
from headgate.graph.schema import row_bytes
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.interface import Call, Plan

BUDGET = 0.25
"""Seconds that a step is predicted to take at most: jobs are not preempted."""
SLICE = 0.06
"""Seconds of work for which another task pays."""
EVEN = 0.75
"""Whole queries are given to tasks if none then has more than that share of all the work."""
SHUFFLE = 0.15
"""Seconds that it takes to bring packets to other tasks, beside starting the job."""
FIRST_ROWS = 65_536
"""Rows of a box's first call, whose cost is not known."""
LONGEST_CHAIN = 24
"""Changes of a state before it is written as a whole again."""


class Planner(Waiting):
    """Makes work orders."""

    def __init__(
        self,
        nodes: Nodes,
        position: Position,
        *,
        start: float,
        drain: bool,
        workers: int,
        cores: int,
        root: str,
        durable: bool,
        pipeline: str,
        framed: frozenset[int],
        buckets: int,
    ) -> None:
        super().__init__(nodes, position, drain, start)
        self.workers, self.cores = workers, cores
        self.catalog = Catalog([self._entry(node) for node in nodes.boxes], nodes.network.goals)
        for entry, stated in zip(self.catalog.boxes, nodes.importance, strict=True):
            entry.importance = None if stated is None else bool(stated)
        self.catalog.plan_limit = BUDGET
        self.idle_sources: set[int] = set()
        self._root, self._durable, self._pipeline = root, durable, pipeline
        self._framed, self._buckets = framed, buckets
        self._predicted = 0.0

    def _entry(self, node: Node) -> BoxEntry:
        network = self.nodes.network
        return BoxEntry(
            node.name,
            self.workers if self.nodes.overlaps[node.place] else 1,
            tuple(network.upstream[node.place]),
            tuple(network.downstream[node.place]),
            node.queries,
            node.operator.cost if node.operator is not None else None,
            tuple([feed.place for feed in node.feeds if feed.source]),
            request=network.requests[node.place],
            stated_selectivity=node.operator.selectivity if node.operator is not None else None,
            tuple_bytes=row_bytes(node.operator.inputs[0]) if node.operator is not None else 1.0,
            outlets=network.outlets[node.place],
            query_class=network.classes[node.place],
        )

    def _taken_by(self, plan: Plan) -> dict[int, Member]:
        """What the boxes of a plan take."""
        calls: dict[int, Call] = {}
        for call in plan:
            known = calls.get(call.box)
            entry = self.catalog.boxes[call.box]
            if known is None or call.train.size(entry) > known.train.size(entry):
                calls[call.box] = call
        rows = self._bounded({place: self._wanted(call) for place, call in calls.items()})
        members: dict[int, Member] = {}
        for place in sorted(calls):
            member = self._member(self.nodes.all[place], members, rows[place])
            if member is not None:
                members[place] = member
        return members

    def _order(self, members: dict[int, Member], number: int | None = None) -> WorkOrder:
        """What the tasks are told; ``number``: of a step that was announced before."""
        count, shares, lanes = self._lanes(members)
        for place, member in members.items():
            self._fill(self.nodes.all[place], member)
        low = min(m.low for m in members.values())
        high = max(m.high for m in members.values())
        slices = self._slices(members, low, high, count)
        if number is None:
            self.position.step += 1
            number = self.position.step
        return WorkOrder(
            number,
            uuid.uuid4().hex[:8],
            self._root,
            self._durable,
            self._pipeline,
            self.position.clock,
            members,
            slices,
            self._reading(members, slices, shares),
            framed=self._framed,
            shares=shares,
            lanes=lanes if len(slices) > 1 else None,
            letters=self.nodes.network.dead_letter is not None and DEAD_LETTER not in self.position.failed,
            drops={place: drop for place, drop in self.shedding.drops().items() if place in members},
            weighed=frozenset(self.shedding.weighed).intersection(members),
        )

    def held(self, node: Node) -> int:
        """Rows that have come to a node and are not yet committed to have been processed."""
        own = self.position.nodes[node.key]
        rows = 0
        for arrow, feed in enumerate(node.feeds):
            if feed.source:
                admitted = self.position.offsets.sources[feed.place]
                rows += admitted.below(self._end) - admitted.below(own.cursor)
            else:
                port = next(p for p, arrows in enumerate(node.ports) if arrow in arrows)
                rows += sum(
                    [self._rows_left(file, own.cursor, node.schemas[port]) for file in own.queues[arrow]]
                )
        return rows

    def _rows_left(self, file: QueueFile, cursor: int, schema: pa.Schema) -> int:
        """Rows of a queue file from a serial on.  Its cuts tell that nearly; the file itself knows."""
        if file.first >= cursor:
            return file.rows
        packets = read_queue(self._root, file.name, file.check, schema)
        return sum([len(between(packet, cursor, 1 << 62)) for packet in packets])

    def _wanted(self, call: Call) -> int:
        entry = self.catalog.boxes[call.box]
        return max(1, call.train.size(entry))

    def _bounded(self, wanted: dict[int, int]) -> dict[int, int]:
        """Fewer rows where all of them would take too long."""
        known: dict[int, float] = {}
        total = fixed = 0.0
        bounded = {}
        for place, rows in wanted.items():
            entry = self.catalog.boxes[place]
            rows = min(rows, max(entry.queue.tuples, 1))
            if not entry.calls:
                rows = min(rows, FIRST_ROWS)
            bounded[place] = rows
            alone = not any(down in wanted for down in entry.downstream)
            total += rows * (entry.cost if alone else self.catalog.through(place, known))
            fixed += entry.fixed
        budget = BUDGET * (self.cores if all(self.nodes.all[p].slices for p in wanted) else 1)
        # What calls take whatever they are given cannot be saved by giving them less.
        budget = max(budget - fixed, fixed, budget / 4)
        self._predicted = min(total, budget) + fixed
        if total <= budget:
            return bounded
        return {place: max(1, int(rows * budget / total)) for place, rows in bounded.items()}

    def _member(self, node: Node, members: dict[int, Member], rows: int | None) -> Member | None:
        live = self.live[node.place]
        if live.stopped or (live.steps and not self.nodes.overlaps[node.place]):
            return None
        low, high = live.taken, self._frontier(node, members)
        if high <= low:
            return None
        if rows is not None and not self.catalog.has_room(node.place):
            return None
        if not any(not f.source and f.place in members for f in node.feeds):
            waiting = self._count(node, low, high)
            if rows is None:
                high = self._cut(node, low, high, FIRST_ROWS)
            elif rows < self.shedding.left(node.place, waiting):
                high = self._cut(node, low, high, self.shedding.rows(node.place, rows))
        return Member(low, high, end=self.drain and high == self._end + 1)

    def _fill(self, node: Node, member: Member) -> None:
        """What a node's task needs to know beside its range."""
        own = self.position.nodes[node.key]
        for arrow, queue in enumerate(own.queues):
            names = [(f.name, f.check) for f in queue if f.last >= member.low and f.first < member.high]
            if names:
                member.queues[arrow] = names
        if not node.stateful:
            return
        member.state, member.buckets = list(own.state), self._buckets
        member.shards = ranges(self.live[node.place].shards, self._buckets)
        wanted = {(*shard, self._buckets) for shard in member.shards}
        changes = [part.length for part in own.state if not part.full]
        base = sum(part.length for part in own.state if part.full)
        member.full = {covers(part) for part in own.state} != wanted
        member.full |= len(changes) >= LONGEST_CHAIN * len(member.shards) or sum(changes) > 4 * base + 65_536
        if len(node.ports) > 1:
            self._time_holders(node, member)

    def _time_holders(self, node: Node, member: Member) -> None:
        """Inputs of a join whose sources have ended or fallen idle do not hold its time back."""
        for port in range(len(node.ports)):
            places = self._sources_of(node, port)
            ends = [self.position.offsets.sources[p].ended_at for p in places]
            known = [end for end in ends if end is not None]
            if len(known) == len(ends):
                member.ended[port] = max(known, default=0)
            elif all(
                end is not None or place in self.idle_sources for end, place in zip(ends, places, strict=True)
            ):
                member.idle.append(port)

    def _sources_of(self, node: Node, port: int) -> list[int]:
        network = self.nodes.network
        sources = network.sources_of(network.boxes[node.place].ports[port])
        return [place for place, source in enumerate(network.sources) if source in sources]

    def _slices(self, members: dict[int, Member], low: int, high: int, count: int) -> list[tuple[int, int]]:
        cuts = np.linspace(low, high, min(count, high - low) + 1).astype(np.int64).tolist()
        return list(pairwise(cuts))

    def _lanes(self, members: dict[int, Member]) -> tuple[int, list[list[int]], Lanes | None]:
        """How a step is shared out: in how many slices, which queries to which task, and what behind them."""
        nodes = [self.nodes.all[place] for place in members]
        framed = any(f.source and f.place in self._framed for node in nodes for f in node.feeds)
        count = 1 if framed else max(1, min(self.cores, ceil(self._predicted / SLICE)))
        if count == 1:
            return 1, [], None
        weights = {n.place: self._weight(n.place) for n in nodes if n.operator is not None}
        shares = share_queries(self.nodes, sorted(members), weights, count)
        total = sum(weights.values())
        if all(sum(weights.get(p, 0.0) for p in share) < EVEN * total for share in shares):
            return 1, shares, None
        if all(node.slices for node in nodes):
            return count, [], None
        if self._predicted * (1 - 1 / count) < SHUFFLE or self._refused(members):
            return 1, [], None
        lanes = share_out(self.nodes, sorted(members), weights, count)
        for place in lanes.split:
            self.live[place].shards = count
        return count, [], lanes

    def _refused(self, members: dict[int, Member]) -> bool:
        """Whether sources have refused rows of this step: only a task that reads can make letters of them."""
        low, high = min(m.low for m in members.values()), max(m.high for m in members.values())
        pieces = self._pieces(members, low, high).values()
        return any(piece.unit.startswith(f"{REFUSED}:") for found in pieces for piece in found)

    def _weight(self, place: int) -> float:
        entry = self.catalog.boxes[place]
        return entry.busy / max(entry.calls, 1)

    def _reading(
        self, members: dict[int, Member], slices: list[tuple[int, int]], shares: list[list[int]]
    ) -> list[dict[int, Any]]:
        """What each task reads."""
        if shares:
            return [self._pieces({place: members[place] for place in share}, *slices[0]) for share in shares]
        return [self._pieces(members, *part) for part in slices]

    def _pieces(self, members: dict[int, Member], low: int, high: int) -> dict[int, Any]:
        """What nodes need of every source, and nothing that lies between those behind and those ahead."""
        spans: dict[int, list[tuple[int, int]]] = {}
        for place, member in members.items():
            start, end = max(member.low, low), min(member.high, high)
            if start < end:
                for feed in self.nodes.all[place].feeds:
                    if feed.source:
                        spans.setdefault(feed.place, []).append((start, end))
        sources = self.position.offsets.sources
        return {
            place: [piece for span in _united(found) for piece in sources[place].pieces(*span)]
            for place, found in spans.items()
        }


def _united(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers in spans that do not touch, in order."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found
