"""A plan as a step: what each of its boxes takes, how it is cut, and what the tasks are told."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from headgate.checkpoint.graph import Node
from headgate.checkpoint.offsets import REFUSED
from headgate.checkpoint.position import QueueFile, StatePart
from headgate.checkpoint.state_store import covers
from headgate.checkpoint.storage import Storage
from headgate.engines.spark import cuts
from headgate.engines.spark.cursors import Cursors
from headgate.engines.spark.messages import Address, Member, Stages, WorkOrder
from headgate.engines.spark.placement import ranges, share_queries, stages
from headgate.engines.spark.queue_files import between, read_queue
from headgate.engines.spark.sharing import ALONE, LONGEST, ONE, SHARES, SLICED, STAGED, Shape, Sharing
from headgate.errors import RunError
from headgate.graph.network import DEAD_LETTER
from headgate.runtime.idle_inputs import idle_inputs
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.interface import Call, Plan

BUDGET = 0.25
"""Seconds that a step is predicted to take at most where a query has a goal: jobs are not preempted."""
BULK = 0.5
"""… and where none has: then only the rate counts, and steps that several tasks share may take longer."""
EVEN = 0.75
"""Whole queries are given to tasks if none then has more than that share of all the work."""
LEAST_SHARED = 0.03
"""Seconds of box work below which a step stays in one task."""
FIRST_ROWS = 65_536
"""Rows of a box's first call, whose cost is not known."""
COMPACT_BYTES = 1 << 20
"""Changes of a shard that are kept beside its snapshot, however small that is."""
PART_BYTES = COMPACT_BYTES // 16
"""What a part counts for beside its own bytes: every work order names it, and a restart opens it."""
LONGEST_CHAIN = 512
"""Parts of a shard's state, however large its snapshot is."""


class Planner:
    """Makes work orders of what waits before the nodes."""

    def __init__(
        self,
        cursors: Cursors,
        catalog: Catalog,
        *,
        cores: int,
        storage: Storage,
        pipeline: str,
        framed: frozenset[int],
        buckets: int,
        exchange: str = "",
        secret: bytes = b"",
    ) -> None:
        self.cursors, self.catalog, self.cores = cursors, catalog, cores
        self.nodes, self.position, self.live = cursors.nodes, cursors.position, cursors.live
        bulk = all(goal is None for goal in self.nodes.network.goals.values())
        self.catalog.plan_limit = LONGEST if bulk else BUDGET
        self.sharing = Sharing(cores, BULK if bulk else BUDGET, bulk)
        self.exchange, self.secret = exchange, secret
        self.idle_sources: set[int] = set()
        self._storage, self._pipeline = storage, pipeline
        self._framed, self._buckets = framed, buckets
        self._shares: Shape | None = None
        """How the last step was shared out, if by whole queries: the next one will be, too."""
        self.work = 0.0
        """Predicted seconds of box work of the plan at hand."""

    def resize(self, cores: int) -> None:
        """So many tasks can run at once from now on."""
        self.cores = cores
        self.sharing.resize(cores)

    def taken_by(self, plan: Plan) -> dict[int, Member]:
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
            member = self.member(self.nodes.all[place], members, rows[place])
            if member is not None:
                members[place] = member
        return members

    def order(self, members: dict[int, Member], number: int | None = None) -> tuple[WorkOrder, Shape]:
        """What the tasks are told; ``number``: of a step that was announced before."""
        low = min(m.low for m in members.values())
        high = max(m.high for m in members.values())
        shape, shares, staged = self._shape(members, low, high)
        slices = self._slices(members, low, high, shape.tasks if not shares else 1)
        for place, member in members.items():
            self._fill(self.nodes.all[place], member)
        if number is None:
            self.position.step += 1
            number = self.position.step
        order = WorkOrder(
            number,
            uuid.uuid4().hex[:8],
            self._storage,
            self._pipeline,
            self.position.clock,
            members,
            slices,
            self._reading(members, slices, shares),
            framed=self._framed,
            shares=shares,
            stages=staged,
            exchange=self.exchange,
            holders=self._holders(members, shares, staged),
            secret=self.secret,
            letters=self.nodes.network.dead_letter is not None and DEAD_LETTER not in self.position.failed,
            drops={place: drop for place, drop in self.cursors.shedding.drops().items() if place in members},
            weighed=frozenset(self.cursors.shedding.weighed).intersection(members),
        )
        return order, shape

    def held(self, node: Node) -> int:
        """Rows that have come to a node and are not yet committed to have been processed."""
        own = self.position.nodes[node.key]
        rows = 0
        for arrow, feed in enumerate(node.feeds):
            if feed.source:
                admitted = self.position.offsets.sources[feed.place]
                rows += admitted.below(self.cursors.end) - admitted.below(own.cursor)
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
        try:
            packets = list(read_queue(self._storage, file.name, file.check, schema))
        except RunError:  # it is damaged or gone, and the query that needs it says so
            return file.rows - file.below(cursor)
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
        shape = self._shares or self.sharing.best(self._shapes(wanted), total + fixed)
        room = self.sharing.room(shape)
        # What calls take whatever they are given cannot be saved by giving them less.
        room = max(room - fixed, fixed, room / 4)
        self.work = min(total, room) + fixed
        if total <= room:
            return bounded
        return {place: max(1, int(rows * room / total)) for place, rows in bounded.items()}

    def _shapes(self, places: Collection[int]) -> list[Shape]:
        """The ways in which a step of these boxes could be shared out."""
        nodes = [self.nodes.all[place] for place in places]
        kind = SLICED if all(node.slices for node in nodes) else STAGED
        return [ALONE, *(Shape(kind, count) for count in self.sharing.counts)]

    def member(self, node: Node, members: dict[int, Member], rows: int | None) -> Member | None:
        live = self.live[node.place]
        if live.stopped or (live.steps and not self.nodes.overlaps[node.place]):
            return None
        low, high = live.taken, self.cursors.frontier(node, members)
        if high <= low:
            return None
        if rows is not None and not self.catalog.has_room(node.place):
            return None
        if not any(not f.source and f.place in members for f in node.feeds):
            waiting = self.cursors.count(node, low, high)
            if rows is None:
                high = self.cursors.cut(node, low, high, FIRST_ROWS)
            elif rows < self.cursors.shedding.left(node.place, waiting):
                high = self.cursors.cut(node, low, high, self.cursors.shedding.rows(node.place, rows))
                high = self._aligned(node, low, high)
        return Member(low, high, end=self.cursors.drain and high == self.cursors.end + 1)

    def _aligned(self, node: Node, low: int, high: int) -> int:
        """The end of a range that is a little longer or shorter and ends with a row group."""
        if len(node.feeds) != 1 or not node.feeds[0].source:
            return high
        slack = int(cuts.SLACK * (high - low))
        upto = min(high + slack, self.cursors.end)
        pieces = self.position.offsets.sources[node.feeds[0].place].pieces(high - slack, upto)
        found = cuts.moved(high, cuts.natural_cuts(pieces), slack)
        return found if low < found <= self.cursors.frontier(node, {}) else high

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
        member.full = self._compacted(own.state, member.shards)
        if len(node.ports) > 1:
            self._time_holders(node, member)

    def _time_holders(self, node: Node, member: Member) -> None:
        """Inputs of a join whose sources have ended or fallen idle do not hold its time back."""
        sources = self.position.offsets.sources
        ports = [self._sources_of(node, port) for port in range(len(node.ports))]
        member.ended, idle = idle_inputs(ports, lambda p: sources[p].ended_at, self.idle_sources.__contains__)
        member.idle = sorted(idle)

    def _sources_of(self, node: Node, port: int) -> list[int]:
        network = self.nodes.network
        sources = network.sources_of(network.boxes[node.place].ports[port])
        return [place for place, source in enumerate(network.sources) if source in sources]

    def _compacted(
        self, parts: Sequence[StatePart], shards: Sequence[tuple[int, int]]
    ) -> frozenset[tuple[int, int]]:
        """The shards to write as a whole: those whose changes have outgrown their snapshots.

        So a state is written about twice in all, and a restart reads at most twice its size, whatever the
        size.  Shards reach that point one by one, so they are not all written in one step.
        """
        by_shard: dict[tuple[int, int, int], list[StatePart]] = {}
        for part in parts:
            by_shard.setdefault(covers(part), []).append(part)
        if by_shard.keys() != {(*shard, self._buckets) for shard in shards}:
            return frozenset(shards)
        full = []
        for shard in shards:
            own = by_shard[*shard, self._buckets]
            base = sum(part.length for part in own if part.full)
            changes = sum(part.length for part in own if not part.full)
            if changes + PART_BYTES * len(own) > max(base, COMPACT_BYTES) or len(own) > LONGEST_CHAIN:
                full.append(shard)
        return frozenset(full)

    def _slices(self, members: dict[int, Member], low: int, high: int, count: int) -> list[tuple[int, int]]:
        if count == 1:
            return [(low, high)]
        return cuts.slices(low, high, count, self._natural_cuts(members, low, high))

    def _natural_cuts(self, members: dict[int, Member], low: int, high: int) -> list[int]:
        """Where the sources of a step would be cut; only one of them can decide."""
        pieces = list(self._pieces(members, low, high).values())
        return cuts.natural_cuts(pieces[0]) if len(pieces) == 1 else []

    def _shape(
        self, members: dict[int, Member], low: int, high: int
    ) -> tuple[Shape, list[list[int]], Stages | None]:
        """How a step is shared out: which queries to which task, or in stages."""
        if self.work < LEAST_SHARED or high - low < 2 or self.cores == 1:
            return ALONE, [], None
        places = sorted(members)
        nodes = [self.nodes.all[place] for place in places]
        framed = any(f.source and f.place in self._framed for node in nodes for f in node.feeds)
        weights = {n.place: self._weight(n.place) for n in nodes if n.operator is not None}
        shapes = self._shapes(places)
        if not framed:
            shares = share_queries(self.nodes, places, weights, self.cores)
            total = sum(weights.values())
            if all(sum(weights.get(p, 0.0) for p in share) < EVEN * total for share in shares):
                self._shares = Shape(SHARES, len(shares))
                return self._shares, shares, None
        self._shares = None
        shape = self.sharing.best(shapes, self.work)
        if high - low < shape.tasks or (shape.kind != ONE and self._refused(members)):
            return ALONE, [], None
        if shape.kind != STAGED:
            return shape, [], None
        letters = self.nodes.network.dead_letter is not None
        staged = stages(
            self.nodes,
            places,
            shape.tasks,
            buckets=self._buckets,
            weights=weights,
            made={n.place: self._made(n, members[n.place]) for n in nodes},
            riding=not letters,
        )
        for place in staged.split:
            self.live[place].shards = shape.tasks
        return shape, [], staged

    def _made(self, node: Node, member: Member) -> float:
        """How many rows a node is expected to give."""
        if node.operator is None:
            return 0.0
        rows = self.cursors.count(node, member.low, member.high) or (member.high - member.low)
        return rows * self.catalog.boxes[node.place].selectivity

    def _holders(
        self, members: dict[int, Member], shares: list[list[int]], staged: Stages | None
    ) -> dict[tuple[int, int], Address]:
        """The workers that have the states, by level and task: that of the largest state decides."""
        found: dict[tuple[int, int], tuple[int, Address]] = {}
        for place, member in members.items():
            if not self.nodes.all[place].stateful:
                continue
            held = self.live[place].held
            sizes = Counter[tuple[int, int]]()
            for part in member.state:
                sizes[covers(part)[:2]] += part.length
            if staged is not None and place in staged.split:
                tasks = [(staged.level[place], number) for number in range(len(member.shards))]
            elif staged is not None:
                tasks = [(staged.level[place], staged.home[place])]
            else:
                tasks = [(0, next((number for number, share in enumerate(shares) if place in share), 0))]
            for task, shard in zip(tasks, member.shards, strict=False):
                address = held.get((*shard, self._buckets))
                if address is not None and sizes[shard] >= found.get(task, (-1, ""))[0]:
                    found[task] = (sizes[shard], address)
        return {where: address for where, (_, address) in found.items()}

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
