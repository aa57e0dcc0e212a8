"""A step that several tasks share: slices, then shards of split boxes, then the groups behind them.

Between the stages Spark moves parcels of packets, each addressed to a task; a stage works on its own parcels
and passes the others on, with what tasks before it have said.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headgate.checkpoint.graph import Feed, Node
from headgate.engines.spark.messages import BoxCost, Lanes, Member, Parcel, TaskResult, WorkOrder
from headgate.engines.spark.task import ROWS, Pass, StepTask, between, located, rounds_of
from headgate.errors import HeadgateError
from headgate.graph.packet import Order, Packet, empty_batch
from headgate.graph.shards import merge, split

END = (1 << 30, 0)
"""The call at the end of the stream."""


def _row(thing: TaskResult | Parcel, task: int) -> pa.RecordBatch:
    payload = pickle.dumps(thing, protocol=5)
    return pa.RecordBatch.from_arrays([pa.array([task], pa.int32()), pa.array([payload])], schema=ROWS)


def _task_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


class SliceStage(StepTask):
    """The boxes that no state stands before; what others need of a slice is sent to them."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                order = self.order()
                places = [p for p in order.members if p not in _lanes(order).task]
                work = Pass(order, number, {}, places)
                result = work.run()
                if not result.errors:
                    for parcel in _sent(work):
                        yield _row(parcel, parcel.task)
                    work.weigh()
                yield _row(result, 0)


def _lanes(order: WorkOrder) -> Lanes:
    assert order.lanes is not None
    return order.lanes


def _sent(work: Pass) -> Iterator[Parcel]:
    """What the nodes behind the slices get of this one."""
    order, lanes = work.order, _lanes(work.order)
    for place, task in lanes.task.items():
        node, member = work.nodes.all[place], order.members[place]
        low, high = max(member.low, work.low), min(member.high, work.high)
        if low >= high:
            continue
        if place in lanes.split:
            try:
                arrows = [work.arrow(node, member, arrow, low, high) for arrow in range(len(node.feeds))]
            except HeadgateError as error:  # a file that it needs is damaged
                work.result.errors[place] = error
                continue
            for number, packets in enumerate(rounds_of(node, arrows, order.packet_rows)):
                assert node.operator is not None
                parts = split(node.operator, packets, member.shards, member.buckets)
                for shard, part in enumerate(parts):
                    yield Parcel(shard, 1, place, (work.number, number), part, shard=shard)
            continue
        for arrow, feed in enumerate(node.feeds):
            made = [p for packet in work.made.get(feed, []) if len(p := between(packet, low, high))]
            if made:
                yield Parcel(task, 2, place, (work.number, 0), made, arrow)


class _Stage(StepTask):
    """A stage behind the slices."""

    level = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine: list[Parcel] = []
        for batch in batches:
            for task, payload in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                thing = pickle.loads(payload)
                if isinstance(thing, Parcel) and thing.level == self.level:
                    mine.append(thing)
                else:
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([task], pa.int32()), pa.array([payload])], schema=ROWS
                    )
        mine.sort(key=lambda parcel: (parcel.node, parcel.call, parcel.shard))
        yield from self.work(_task_number(), mine)

    def work(self, task: int, parcels: list[Parcel]) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError


class _Part(Pass):
    """A pass over the whole step of what one task behind the slices has."""

    def __init__(self, order: WorkOrder, task: int, level: int, places: Sequence[int]) -> None:
        super().__init__(order, len(order.slices) - 1, {}, places)
        self.low = min(low for low, _ in order.slices)
        self.result.slice = level * 1000 + task
        self.unique = f"{self.unique}-{level}"
        self.task = task

    def read(self) -> None:
        """What it works on has been read by the slices."""


class ShardStage(_Stage):
    """A shard of each box that is split."""

    level = 1

    def work(self, task: int, parcels: list[Parcel]) -> Iterator[pa.RecordBatch]:
        order = self.order()
        lanes = _lanes(order)
        part = _Shards(order, task, 1, ())
        begin = time.perf_counter()
        for place in sorted(lanes.split):
            node = part.nodes.all[place]
            if task >= len(order.members[place].shards):
                continue
            own = [parcel for parcel in parcels if parcel.node == place]
            try:
                for call, packets in part.shard(node, order.members[place], own):
                    target = lanes.task[place]
                    yield _row(Parcel(target, 2, place, call, packets, shard=task), target)
            except Exception as error:
                part.result.errors[place] = located(node, error, order.members[place].low)
        if not part.result.errors:
            part.write_states()
        part.result.seconds["all"] = time.perf_counter() - begin
        yield _row(part.result, 0)


class _Shards(_Part):
    def shard(
        self, node: Node, member: Member, parcels: Sequence[Parcel]
    ) -> Iterator[tuple[tuple[int, int], list[Packet]]]:
        """The calls of this task's shard of a box, and their results."""
        operator = node.operator
        assert operator is not None
        if not parcels and not member.end:
            return
        [state] = self.states(node, member, self.shards(member))
        late, cost = getattr(state, "late", 0), BoxCost()
        for parcel in parcels:
            begin = time.perf_counter()
            results = self.process(node, parcel.packets, state)
            cost.seconds += time.perf_counter() - begin
            cost.tuples_in += sum(map(len, parcel.packets))
            cost.tuples_out += len(results[0])
            cost.calls += 1
            yield parcel.call, results + self._bad(node)
        if member.end:
            last = Packet(empty_batch(operator.inputs[0]), Order(member.high - 1, time.time(), 1))
            yield END, operator.finish(state, last)
        cost.late = getattr(state, "late", 0) - late
        self.result.costs[node.place] = cost
        self.changed[node.place] = [state]

    def _bad(self, node: Node) -> list[Packet]:
        """The bad rows of a call leave with its results."""
        return self.made.pop(node.outputs[-1], []) if self.order.letters else []

    def shards(self, member: Member) -> Sequence[tuple[int, int]]:
        return member.shards[self.task : self.task + 1]


class GroupStage(_Stage):
    """The groups of nodes behind slices and shards."""

    level = 2

    def work(self, task: int, parcels: list[Parcel]) -> Iterator[pa.RecordBatch]:
        order = self.order()
        lanes = _lanes(order)
        mine = [place for place, owner in lanes.task.items() if owner == task]
        part = _Part(order, task, 2, [place for place in mine if place not in lanes.split])
        calls: dict[int, dict[tuple[int, int], list[list[Packet]]]] = {}
        for parcel in parcels:
            if parcel.node in lanes.split:
                calls.setdefault(parcel.node, {}).setdefault(parcel.call, []).append(parcel.packets)
            else:
                part.arrived.setdefault((parcel.node, parcel.arrow), []).extend(parcel.packets)
        for place, found in calls.items():
            _put_together(part, part.nodes.all[place], found)
        yield _row(part.run(), 0)


def _put_together(part: _Part, node: Node, calls: dict[tuple[int, int], Any]) -> None:
    """What the shards of a box gave, call by call, as the whole box gives it."""
    operator = node.operator
    assert operator is not None
    count = len(operator.outputs)
    for call in sorted(calls):
        shards = calls[call]
        for output, packet in enumerate(merge(operator, [results[:count] for results in shards])):
            if len(packet):
                part.made.setdefault(Feed(False, node.place, output), []).append(packet)
        bad = [packet for results in shards for packet in results[count:] if len(packet)]
        if bad:
            part.made.setdefault(node.outputs[-1], []).append(Packet.merge(bad))
