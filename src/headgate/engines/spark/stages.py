"""A step that several tasks share, level by level.

Even levels are cut by ranges of serials: level 0 scans and runs the boxes that no state stands before; later
even levels put the results of shards together again, run the stateless boxes behind them, and hand over what
leaves.  Odd levels hold state: every task has one shard of each split box, and any other box with state is
whole, in its home task.  A box whose rows leave in the order of their keys alone *rides* with its shard.

A task knows its level, its number and the parcels that were sent to it.  How parcels travel is the business
of ``exchange``; where a shard's state is kept, that of ``holders``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headgate.checkpoint.graph import Feed, Node, Nodes
from headgate.engines.spark.exchange import Outbox, Parcel, answer, parcels_of
from headgate.engines.spark.messages import Address, BoxCost, Framed, Member, Stages, WorkOrder
from headgate.engines.spark.passes import Pass, located, rounds_of
from headgate.engines.spark.queue_files import between
from headgate.errors import HeadgateError
from headgate.graph.extended import Added, added, bare, extended
from headgate.graph.gathered import Gathered
from headgate.graph.packet import Order, Packet, empty_batch
from headgate.graph.shards import merge, split, split_gathered

END = (1 << 30, 0)
"""The call at the end of the stream."""
_LEVEL = 100_000
"""Results of tasks are sorted by level, then by task."""


def perform(
    order: WorkOrder,
    nodes: Nodes,
    level: int,
    task: int,
    payloads: Sequence[bytes],
    packed: dict[int, Framed],
    holder: Callable[[], Address | None],
) -> Iterator[pa.RecordBatch]:
    """One task of a step: parcels for later levels, and what the driver has to know.

    ``holder`` is this worker's address, should it have states at the end.
    """
    stages = order.stages
    if stages is None:
        result = _alone(order, nodes, task, packed).run()
        result.holder = holder() if result.states else None
        yield answer(result)
        return
    kind = _Shards if level % 2 else _Ranges
    work = kind(order, nodes, stages, level, task, parcels_of(payloads), packed)
    result = work.run()
    if not result.errors:
        try:
            yield from work.send()
        except HeadgateError as error:  # a file that a box needs is damaged
            result.errors[work.sending] = error
    result.holder = holder() if result.states else None
    yield answer(result)


def _alone(order: WorkOrder, nodes: Nodes, task: int, packed: dict[int, Framed]) -> Pass:
    """A slice of the step, or some of its queries, that needs no other task."""
    if not order.shares:
        return Pass(order, nodes, task, packed)
    work = Pass(order, nodes, 0, packed, order.shares[task])
    work.pieces = order.pieces[task]
    work.unique = f"{work.unique}-{task}"
    work.result.slice = task
    work.repeated = {place for earlier in order.shares[:task] for place in earlier}
    return work


class _Staged(Pass):
    """A task of a step with stages."""

    def __init__(
        self,
        order: WorkOrder,
        nodes: Nodes,
        stages: Stages,
        level: int,
        task: int,
        parcels: Sequence[Parcel],
        packed: dict[int, Framed],
    ) -> None:
        alone = level % 2 == 0 and stages.tasks[level] == len(order.slices)
        super().__init__(order, nodes, task if alone else len(order.slices) - 1, packed, ())
        if not alone:
            self.low = order.slices[0][0]
        self.stages, self.level, self.task, self.parcels = stages, level, task, parcels
        self.places = [place for place in order.members if self._mine(place)]
        self.unique = f"{self.unique}-{level}-{task}"
        self.result.slice, self.result.level = level * _LEVEL + task, level
        self.outbox = Outbox(os.path.join(order.exchange, f"{self.unique}.packets") if order.exchange else "")
        self.gathered: dict[int, Gathered | None] = {}
        self.calls: dict[int, list[list[Packet]]] = {}
        """Of the boxes that the next level has in shards: what goes there."""
        self.sending = -1
        """The node whose parcels are being made."""

    def _mine(self, place: int) -> bool:
        raise NotImplementedError

    def read(self) -> None:
        if self.level == 0:
            super().read()

    def send(self) -> Iterator[pa.RecordBatch]:
        """What later levels get of this task."""
        begin = time.perf_counter()
        for place, member in self.order.members.items():
            node = self.nodes.all[place]
            low, high = max(member.low, self.low), min(member.high, self.high)
            self.sending = place
            for arrow, feed in enumerate(node.feeds):
                if low < high and self.stages.made_at(feed) == self.here:
                    self._pass_on(node, arrow, feed, low, high)
            self._split(node, member, low, high)
        rows = list(self.outbox.rows())
        spent = time.perf_counter() - begin
        self.result.seconds["exchange"] = spent
        self.result.seconds["all"] = self.result.seconds.get("all", 0.0) + spent
        yield from rows

    @property
    def here(self) -> tuple[int, bool]:
        """Where this task's packets are made: the level, and whether by ranges of serials."""
        return self.level, self.level % 2 == 0

    def _split(self, node: Node, member: Member, low: int, high: int) -> None:
        """Give a split box's shards their parts of this range."""

    def extends(self, node: Node) -> bool:
        """Whether a split box's rows go round its shards, which only tell what is added to them."""
        assert node.operator is not None
        return node.operator.extends and not self.order.letters and not self.stages.rides_on(node.place)

    def _pass_on(self, node: Node, arrow: int, feed: Feed, low: int, high: int) -> None:
        """Bring what an arrow has to the task that works on it."""
        stages, target = self.stages, self.stages.needed_at(node.place)
        if target == self.here:
            return
        made = [part for packet in self.made.get(feed, ()) if len(part := between(packet, low, high))]
        if not made:
            return
        level, ranged = target
        if not ranged:
            parcel = Parcel(node.place, (self.task, 0), made, arrow)
            self.outbox.add(level, stages.home[node.place], parcel)
            return
        if self.level % 2 == 0:
            parcel = Parcel(node.place, (self.task, 0), made, arrow)
            self.outbox.add(level, stages.range_of(level, self.task), parcel)
            return
        for task, (start, end) in enumerate(stages.ranges(level, self.order.slices)):
            own = [piece for packet in made if len(piece := between(packet, start, end))]
            if own:
                self.outbox.add(level, task, Parcel(node.place, (self.task, 0), own, arrow))


class _Ranges(_Staged):
    """A range of serials: of the sources, or of what shards have made."""

    def _mine(self, place: int) -> bool:
        return self.stages.level[place] == self.level

    def work(self) -> None:
        calls: dict[int, dict[tuple[int, int], list[list[Any]]]] = {}
        for parcel in self.parcels:
            if self.stages.level.get(parcel.node) == self.level - 1 and parcel.node in self.stages.split:
                calls.setdefault(parcel.node, {}).setdefault(parcel.call, []).append(parcel.packets)
            else:
                self.arrived.setdefault((parcel.node, parcel.arrow), []).extend(parcel.packets)
        for place, found in calls.items():
            self._put_together(self.nodes.all[place], found)
        super().work()
        for place in self.stages.split:
            if self.stages.level[place] == self.level + 1:
                self._prepare(self.nodes.all[place], self.order.members[place])

    def _prepare(self, node: Node, member: Member) -> None:
        """The calls of a split box in this range, or what they come to where that is less."""
        low, high = max(member.low, self.low), min(member.high, self.high)
        if low >= high:
            return
        operator = node.operator
        assert operator is not None
        begin = time.perf_counter()
        try:
            arrows = [self.arrow(node, member, arrow, low, high) for arrow in range(len(node.feeds))]
            calls = rounds_of(node, arrows, self.order.packet_rows)
            others = [feed for feed in node.outputs[1:] if self.nodes.targets.get(feed)]
            if calls and operator.gathers and not others and not self.order.letters:
                self.gathered[node.place] = operator.gather([packet for [packet] in calls])
        except Exception as error:
            self.result.errors[node.place] = located(node, error, low)
            return
        if self.gathered.get(node.place) is None:
            self.calls[node.place] = rounds_of(node, arrows, self.order.packet_rows * len(member.shards))
            return
        rows = sum(len(packet) for [packet] in calls)
        spent = time.perf_counter() - begin
        self.result.costs[node.place] = BoxCost(tuples_in=rows, seconds=spent, calls=len(calls))

    def _put_together(self, node: Node, calls: dict[tuple[int, int], list[list[Any]]]) -> None:
        """What the shards of a box gave, call by call, as the whole box gives it."""
        operator = node.operator
        assert operator is not None
        count = len(operator.outputs)
        for call in sorted(calls):
            shards = calls[call]
            if shards[-1] and isinstance(shards[-1][0], Added):
                [rows], *parts = shards
                made = extended(rows, [part for [part] in parts], operator.outputs[0])
                self.made.setdefault(Feed(False, node.place, 0), []).append(made)
                continue
            for output, packet in enumerate(merge(operator, [results[:count] for results in shards])):
                if len(packet):
                    self.made.setdefault(Feed(False, node.place, output), []).append(packet)
            bad = [packet for results in shards for packet in results[count:] if len(packet)]
            if bad:
                self.made.setdefault(node.outputs[-1], []).append(Packet.merge(bad))

    def _split(self, node: Node, member: Member, low: int, high: int) -> None:
        here = node.place in self.stages.split and self.stages.level[node.place] == self.level + 1
        if not here or low >= high:
            return
        operator = node.operator
        assert operator is not None
        gathered = self.gathered.get(node.place)
        if gathered is not None:
            for shard, own in enumerate(split_gathered(operator, gathered, member.shards, member.buckets)):
                self.outbox.add(self.level + 1, shard, Parcel(node.place, (self.task, 0), [own], shard=shard))
            return
        extends = self.extends(node)
        for number, packets in enumerate(self.calls.pop(node.place, ())):
            if extends:
                rest = Parcel(node.place, (self.task, number), packets, shard=-1)  # comes before the shards'
                self.outbox.add(self.level + 2, self.stages.range_of(self.level + 2, self.task), rest)
                packets = [bare(packets[0], operator)]
            for shard, part in enumerate(split(operator, packets, member.shards, member.buckets)):
                parcel = Parcel(node.place, (self.task, number), part, shard=shard)
                self.outbox.add(self.level + 1, shard, parcel)


class _Shards(_Staged):
    """A shard of each split box, and the boxes with state that are whole here."""

    def _mine(self, place: int) -> bool:
        if self.stages.level[place] != self.level or place in self.stages.split:
            return False
        return place in self.stages.riders or self.stages.home[place] == self.task

    def work(self) -> None:
        own: dict[int, list[Parcel]] = {}
        for parcel in self.parcels:
            if parcel.node in self.stages.split:
                own.setdefault(parcel.node, []).append(parcel)
            else:
                self.arrived.setdefault((parcel.node, parcel.arrow), []).extend(parcel.packets)
        for place in sorted(self.stages.split):
            member = self.order.members[place]
            if self.stages.level[place] != self.level or self.task >= len(member.shards):
                continue
            node = self.nodes.all[place]
            try:
                self._shard(node, member, own.get(place, ()))
            except Exception as error:
                self.result.errors[place] = located(node, error, member.low)
        super().work()

    def _shard(self, node: Node, member: Member, parcels: Sequence[Parcel]) -> None:
        """The calls of this task's shard of a box; results go to the ranges that they belong to."""
        operator = node.operator
        assert operator is not None
        if not parcels and not member.end:
            return
        [state] = self.states(node, member, self.shards(member))
        late, cost = state.late, BoxCost()
        begin = time.perf_counter()
        for parcel in parcels:
            if isinstance(parcel.packets[0], Gathered):
                results = operator.absorb(parcel.packets[0], state)
            else:
                results = self.process(node, parcel.packets, state)
                cost.tuples_in += sum(map(len, parcel.packets))
            cost.tuples_out += len(results[0])
            cost.calls += 1
            self._results(node, parcel.call, results)
        if member.end:
            last = Packet(empty_batch(operator.inputs[0]), Order(member.high - 1, time.time(), 1))
            self._results(node, END, operator.finish(state, last))
        cost.seconds = time.perf_counter() - begin
        cost.late = state.late - late
        self.result.costs[node.place] = cost
        self.changed[node.place] = [state]

    def _results(self, node: Node, call: tuple[int, int], results: list[Packet]) -> None:
        if self.stages.rides_on(node.place):
            for output, packet in enumerate(results):
                if len(packet):
                    self.made.setdefault(Feed(False, node.place, output), []).append(packet)
            return
        # Bad rows leave with the results of their call.
        bad = self.made.pop(node.outputs[-1], []) if self.order.letters else []
        target = self.stages.range_of(self.level + 1, min(call[0], len(self.order.slices) - 1))
        sent: list[Any] = results + bad
        if call != END and self.extends(node):
            assert node.operator is not None
            sent = [added(results[0], node.operator)]
        self.outbox.add(self.level + 1, target, Parcel(node.place, call, sent, shard=self.task))

    def shards(self, member: Member) -> Sequence[tuple[int, int]]:
        if len(member.shards) == 1:
            return member.shards
        return member.shards[self.task : self.task + 1]
