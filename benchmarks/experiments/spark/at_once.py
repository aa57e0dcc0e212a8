"""The Spark engine's driver with tasks that answer at once: no session, no job, no operator runs.

Everything that the driver does for a step is real: it plans, writes the work order where tasks would find it,
unpickles what tasks would say, appends to a durable log, hands results to sinks and tells the policy.  What
a task would do is made up, truthfully for the order: every box of a task gets its share of the rows, every
shard of a state a new part, every query a few rows.  So whatever time a run takes is the driver's.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import pyarrow as pa

import headgate as hg
from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.position import StatePart
from headgate.checkpoint.storage import Storage
from headgate.engines.spark.jobs import Jobs
from headgate.engines.spark.messages import BoxCost, Member, OutputPart, TaskResult, WorkOrder
from headgate.engines.spark.sources import OffsetSource
from headgate.engines.spark.task import collect
from headgate.graph.network import Network

STATE_BYTES = 4_096
"""Of each part of a state that a task says it has written."""


class AtOnce(Jobs):
    """Answers work orders without running them."""

    def __init__(self, nodes: Nodes, storage: Storage, seconds_per_tuple: float) -> None:
        self._nodes, self._storage = nodes, storage
        self._cost = seconds_per_tuple
        self.steps = self.tasks = 0
        self.made_up = 0.0
        """Seconds of CPU that making the answers up took, which is no time of the driver's."""
        self.spent = {"order": 0.0, "collect": 0.0}

    def rehearse(self, pipeline: str, slots: int, tasks: int) -> None:
        """Nothing has to warm up."""

    def keep_warm(self, tasks: int) -> None:
        """Nothing gets cold."""

    def run(
        self, slot: int, order: WorkOrder, description: str, sources: Sequence[OffsetSource]
    ) -> list[TaskResult]:
        begin = time.thread_time()
        self._storage.replace(f"slots/{slot}", pickle.dumps(order, protocol=5))
        pickled = time.thread_time()
        payloads = [pickle.dumps(result, protocol=5) for result in self._answers(order)]
        answered = time.thread_time()
        results = collect(payloads)
        self.steps, self.tasks = self.steps + 1, self.tasks + len(results)
        self.spent["order"] += pickled - begin
        self.spent["collect"] += time.thread_time() - answered
        self.made_up += answered - pickled
        return results

    def _answers(self, order: WorkOrder) -> list[TaskResult]:
        """What the tasks of an order would answer: its slices or shares, or the tasks of every level."""
        stages = order.stages
        if order.shares:
            return [self._answer(order, number, share, 1.0) for number, share in enumerate(order.shares)]
        if stages is None:
            part = 1.0 / len(order.slices)
            places = list(order.members)
            return [self._answer(order, number, places, part) for number in range(len(order.slices))]
        found: list[TaskResult] = []
        for level, tasks in enumerate(stages.tasks):
            own = [place for place in order.members if stages.level[place] == level]
            for task in range(tasks):
                shared = [p for p in own if p in stages.split or p not in stages.home]
                shard = task if stages.split.intersection(shared) else None
                result = self._answer(order, len(found), shared, 1.0 / tasks, shard)
                whole = [place for place in own if stages.home.get(place) == task]
                alone = self._answer(order, len(found), whole, 1.0)
                result.costs |= alone.costs
                result.states |= alone.states
                result.level = level
                found.append(result)
        return found

    def _answer(
        self, order: WorkOrder, number: int, places: Sequence[int], part: float, shard: int | None = None
    ) -> TaskResult:
        result = TaskResult(number, order.attempt, seconds={"all": 1e-6})
        for place in places:
            node, member = self._nodes.all[place], order.members[place]
            rows = max(1, int((member.high - member.low) * part))
            if node.operator is None:
                payload, serials = _payload(node.schemas[0]), None
                result.outputs[place] = OutputPart(2, payload, first=member.low, serials=serials)
                result.outputs[place].arrivals = time.time()
                continue
            result.costs[place] = BoxCost(rows, rows, rows * self._cost, 1)
            if node.stateful:
                shards = member.shards if shard is None else member.shards[shard : shard + 1]
                result.states[place] = [_part(order, number, member, each) for each in shards]
        return result


@cache
def _payload(schema: pa.Schema) -> bytes:
    """Two rows of a query, as a task sends them to a sink of the driver's."""
    batch = pa.RecordBatch.from_arrays([pa.nulls(2, field.type) for field in schema], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _part(order: WorkOrder, number: int, member: Member, shard: tuple[int, int]) -> StatePart:
    name = f"states/{order.name}-{number}.arrow"
    return StatePart(name, 0, STATE_BYTES, shard in member.full, *shard, member.buckets, order.name, 0)


class DriverAlone(hg.Spark):
    """The Spark engine on a cluster of so many cores that does nothing."""

    def __init__(self, cores: int, checkpoint: str, seconds_per_tuple: float, buckets: int) -> None:
        super().__init__(session=object(), checkpoint=checkpoint, workers=1, buckets=buckets)
        self._cores = cores
        self._cost = seconds_per_tuple
        self.jobs: AtOnce | None = None

    def _ready(self, network: Network) -> tuple[Any, int, bool]:
        self._nodes = Nodes(network)
        return self.session, self._cores, False

    def _jobs(self, session: Any, place: Storage, app: str, exchange: str) -> Jobs:
        self.jobs = AtOnce(self._nodes, place, self._cost)
        return self.jobs
