"""Steps as Spark jobs.

Planning a DataFrame costs more than running it here, so the one that runs a slot's steps is made once; what
a step has to do is in the slot's work order, which its tasks read.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from headgate.engines.spark.offsets import Piece
from headgate.engines.spark.sources import OffsetSource
from headgate.engines.spark.storage import Storage
from headgate.engines.spark.task import SCHEMA, FramedTask, StepTask, collect
from headgate.engines.spark.work import TaskResult, WorkOrder
from headgate.errors import RunError

SHUFFLE_ROWS = 100_000
"""Rows from which on reading partitions in parallel pays for bringing them together."""


class Jobs:
    """Runs work orders on a session; each slot has one at a time."""

    def __init__(self, session: Any, storage: Storage, app: str) -> None:
        self._session = session
        self._storage = storage
        self._app = app
        self._frames: dict[tuple[int, int], Any] = {}
        self._context = _context(session)

    def run(
        self, slot: int, order: WorkOrder, description: str, sources: Sequence[OffsetSource]
    ) -> list[TaskResult]:
        """Run a step's tasks; what they say, by slice."""
        self._storage.replace(f"slots/{slot}", pickle.dumps(order, protocol=5))
        tasks = len(order.slices)
        if self._context is not None:
            self._context.setJobDescription(description)
        pieces = {place: found for place, found in order.pieces[0].items() if place in order.framed and found}
        frame = self._framed(slot, pieces, sources) if pieces else self._frame(slot, tasks)
        rows = frame.toArrow().column("payload").to_pylist()
        results = collect(rows)
        if len(results) != tasks or any(r.attempt != order.attempt for r in results):
            raise RunError(f"{len(results)} of {tasks} tasks of step {order.step} answered.")
        return results

    def _frame(self, slot: int, tasks: int) -> Any:
        frame = self._frames.get((slot, tasks))
        if frame is None:
            task = StepTask(self._storage.root, str(slot))
            frame = self._session.range(0, tasks, 1, tasks).mapInArrow(task, SCHEMA)
            self._frames[slot, tasks] = frame
        return frame

    def _framed(self, slot: int, pieces: dict[int, list[Piece]], sources: Sequence[OffsetSource]) -> Any:
        """A step that connectors read for: their packets come together in one task."""
        frame: Any = None
        for place, found in pieces.items():
            own = sources[place].frame(self._session, found)
            frame = own if frame is None else frame.union(own)
        rows = sum(piece.rows for found in pieces.values() for piece in found)
        together = frame.repartition(1) if rows > SHUFFLE_ROWS else frame.coalesce(1)
        return together.mapInArrow(FramedTask(self._storage.root, str(slot)), SCHEMA)


def _context(session: Any) -> Any:
    """The classic session's context, which can name jobs in Spark's UI; Connect has none."""
    try:
        return session.sparkContext
    except Exception:
        return None
