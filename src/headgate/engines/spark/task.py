"""What runs in a Spark task: the function of ``mapInArrow``, for every step of a slot and level the same.

The task finds its work order by a name that stays the same from step to step, so the DataFrame that runs it
is planned once and run many times.
"""

from __future__ import annotations

import gc
import hashlib
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.storage import Storage
from headgate.engines.spark import holders
from headgate.engines.spark.exchange import row
from headgate.engines.spark.messages import Framed, Packed, TaskResult, WorkOrder
from headgate.engines.spark.stages import perform
from headgate.errors import RunError

_pipelines: dict[tuple[str, str], Nodes] = {}


def orders(slot: str) -> str:
    """Where a slot's tasks find their work order."""
    return f"slots/{slot}"


class StepTask:
    """A task of a level.  It works on rows that are addressed to this level, and passes the others on."""

    def __init__(self, storage: Storage, slot: str, level: int = 0, framed: bool = False) -> None:
        self.storage, self.slot, self.level, self.framed = storage, slot, level, framed

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pa.set_cpu_count(1)
        if self.level == 0 and not self.framed:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from self.run(number, [])
            return
        mine: list[bytes] = []
        for batch in batches:
            tasks, levels, payloads = (column.to_pylist() for column in batch.columns)
            for task, level, payload in zip(tasks, levels, payloads, strict=True):
                if level == self.level:
                    mine.append(payload)
                else:
                    yield row(task, level, payload)
        yield from self.run(_task_number(), mine)

    def run(self, number: int, payloads: list[bytes]) -> Iterator[pa.RecordBatch]:
        order = self.order()
        request = (self.level, self.framed, order, number, payloads)
        wanted = order.holders.get((self.level, number))
        own = holders.own_address(order.exchange, order.secret, _serve) if order.holders else None
        found = None
        if wanted is not None and wanted != own:
            found = holders.ask(wanted, order.secret, request)
        for task, level, payload in _serve(request) if found is None else found:
            yield row(task, level, payload)

    def order(self) -> WorkOrder:
        """The step at hand."""
        name = orders(self.slot)
        self.storage.require_private("slots", name)
        try:
            order: WorkOrder = pickle.loads(self.storage.read(name))
        except FileNotFoundError:
            raise RunError(
                f"checkpoint '{self.storage}' cannot be reached from this executor; it must be a folder "
                "that the driver and all executors share, or a place in a store."
            ) from None
        return order


def _serve(request: Any) -> list[holders.Row]:
    """Do a task's work in this process, for this task or for another worker's."""
    level, framed, order, number, payloads = request
    packed: dict[int, Framed] = {}
    if framed:
        packed, payloads = _unpacked(payloads), []
    nodes = pipeline(order.storage, order.pipeline)
    return holders.rows_of(
        perform(
            order,
            nodes,
            level,
            number,
            payloads,
            packed,
            lambda: holders.own_address(order.exchange, order.secret, _serve),
        )
    )


def _unpacked(payloads: Sequence[bytes]) -> dict[int, Framed]:
    """What connectors have read, by source."""
    packed: dict[int, Framed] = {}
    for payload in payloads:
        found: Packed = pickle.loads(payload)
        packed.setdefault(found.source, Framed()).add(found)
    for framed in packed.values():
        framed.sort()
    return packed


def _task_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def packed_row(packed: Packed) -> pa.RecordBatch:
    """What a connector has read, addressed to the slice that it belongs to."""
    return row(packed.slice, 0, pickle.dumps(packed, protocol=5))


def load_pipelines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Nothing but what calling it brings along: a Python worker that has imported all that steps need."""
    yield from (batch for batch in batches if batch.num_rows < 0)


def pipeline_name(data: bytes) -> str:
    """A pipeline is known by its hash."""
    return hashlib.sha256(data).hexdigest()[:32]


def pipeline(storage: Storage, name: str) -> Nodes:
    """The pipeline of that hash, read once per worker."""
    known = (storage.root, name.rpartition("-")[2])
    found = _pipelines.get(known)
    if found is None:
        storage.require_private("pipelines", f"pipelines/{name}")
        data = storage.read(f"pipelines/{name}")
        if pipeline_name(data) != known[1]:
            raise RunError(
                f"checkpoint '{storage}': pipeline file pipelines/{name} is damaged; start the application "
                "again, which writes it anew."
            )
        _, found = pickle.loads(data)
        _pipelines[known] = found
        # Compiled expressions are many objects that stay: looking through them again and again for garbage
        # takes longer than a step.
        gc.freeze()
    return found


def collect(rows: Sequence[bytes]) -> list[TaskResult]:
    """What the tasks answered, by slice; of two attempts at one slice, the first that answered."""
    results: dict[int, TaskResult] = {}
    for payload in rows:
        result: TaskResult = pickle.loads(payload)
        results.setdefault(result.slice, result)
    return [results[number] for number in sorted(results)]
