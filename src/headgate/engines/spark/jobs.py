"""Steps as Spark jobs.

Planning a DataFrame costs more than running it here, so the one that runs a slot's steps is made once; what
a step has to do is in the slot's work order, which its tasks read.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headgate.checkpoint.offsets import Piece
from headgate.checkpoint.storage import Storage
from headgate.engines.spark.exchange import SCHEMA
from headgate.engines.spark.messages import TaskResult, WorkOrder
from headgate.engines.spark.session import first_line, is_connect
from headgate.engines.spark.sources import OffsetSource
from headgate.engines.spark.task import StepTask, collect, load_pipelines, orders
from headgate.errors import HeadgateError, RunError

REHEARSALS = 25
"""Jobs per worker after which Spark's own part of a step takes a third of what it takes at first."""
QUIET = 15.0
"""Seconds without a job after which an empty one keeps Spark's Python workers alive."""
SHUFFLE_ROWS = 100_000
"""Rows from which on reading partitions in parallel pays for bringing them together."""

Pieces = dict[int, list[tuple[int, Piece]]]
"""By source, what connectors read: each piece with the slice that it belongs to."""


class SourceFailed(HeadgateError):
    """A step failed because a connector cannot read a source, ``place``; ``why`` says it to the user."""

    def __init__(self, place: int, why: HeadgateError) -> None:
        super().__init__(str(why))
        self.place, self.why = place, why


class Jobs:
    """Runs work orders on a session; each slot has one at a time."""

    def __init__(self, session: Any, storage: Storage, app: str, exchange: str) -> None:
        self._session = session
        self._exchange = exchange
        self._storage = storage
        self._app = app
        self._frames: dict[tuple[int, tuple[int, ...]], Any] = {}
        self._connect = is_connect(session)
        self._busy = time.monotonic()
        """When a job last began or ended."""
        self._warming: threading.Thread | None = None

    def run(
        self, slot: int, order: WorkOrder, description: str, sources: Sequence[OffsetSource]
    ) -> list[TaskResult]:
        """Run a step's tasks; what they say, by slice."""
        self._busy = time.monotonic()
        self._storage.replace(orders(self._slot(slot)), pickle.dumps(order, protocol=5))
        pieces: Pieces = {}
        for number, own in enumerate(order.pieces):
            for place in order.framed.intersection(own):
                pieces.setdefault(place, []).extend([(number, piece) for piece in own[place]])
        pieces = {place: found for place, found in pieces.items() if found}
        with self._named(order, description):
            try:
                frame = self._frame(slot, order, pieces, sources)
                rows = frame.toArrow().column("payload").to_pylist()
            except Exception as error:
                for place, found in pieces.items():
                    why = sources[place].explain([piece for _, piece in found], error)
                    if why is not None:
                        raise SourceFailed(place, why) from error
                raise
            finally:
                if order.stages is not None and self._exchange:
                    for file in Path(self._exchange).glob(f"{order.name}-*"):
                        file.unlink(missing_ok=True)
        self._busy = time.monotonic()
        results = collect(rows)
        if len(results) != _answers(order) or any(r.attempt != order.attempt for r in results):
            raise RunError(f"{len(results)} of {_answers(order)} tasks of step {order.step} answered.")
        return results

    def _slot(self, slot: int) -> str:
        """Each owner's slots have their own names: no task reads an order of one that was replaced."""
        return f"{self._storage.fence}-{slot}"

    def keep_warm(self, tasks: int) -> None:
        """Run an empty job if there has been none for a while.

        After a minute without one Spark closes the sockets of its Python workers.  The next tuple would then
        wait for new ones and for the state that they have to read, and each worker would leave a traceback in
        the log: it answers the end of its input with an error, on the socket that is closed
        (``BrokenPipeError``).
        """
        if time.monotonic() - self._busy < QUIET or (self._warming is not None and self._warming.is_alive()):
            return
        self._busy = time.monotonic()
        self._warming = threading.Thread(target=self._warm, args=(tasks,), name="headgate-warm", daemon=True)
        self._warming.start()

    def _warm(self, tasks: int) -> None:
        with contextlib.suppress(Exception):  # the session may be stopped meanwhile; a step would say so
            _start_workers(self._session, tasks)

    def rehearse(self, pipeline: str, slots: int, tasks: int) -> None:
        """Before tuples arrive and wait: let workers load the pipeline, and Spark learn to run steps fast."""
        orders = [
            WorkOrder(0, "rehearsal", self._storage, pipeline, 0.0, {}, [(0, 0)] * n, [{}] * n)
            for n in (tasks, *[1] * REHEARSALS)
        ]
        with ThreadPoolExecutor(min(slots, tasks)) as threads:
            for order in orders:
                list(
                    threads.map(
                        lambda slot, o=order: self.run(slot, o, "headgate rehearsal", ()), range(slots)
                    )
                )

    @contextmanager
    def _named(self, order: WorkOrder, description: str) -> Iterator[None]:
        """Name the jobs of this thread: Spark's UI shows the description, Connect's the tag."""
        if not self._connect:
            self._session.sparkContext.setJobDescription(description)
            yield
            return
        tag = f"headgate {self._app} step {order.step}".replace(",", " ")
        self._session.addTag(tag)
        try:
            yield
        finally:
            self._session.removeTag(tag)

    def _frame(self, slot: int, order: WorkOrder, pieces: Pieces, sources: Any) -> Any:
        """The DataFrame whose collected rows are what the tasks answer."""
        given = (self._storage, self._slot(slot))
        slices = len(order.shares) or len(order.slices)
        levels = tuple(order.stages.tasks) if order.stages is not None else (slices,)
        known = None if pieces else self._frames.get((slot, levels))
        if known is None:
            if pieces:
                known = self._read(pieces, sources, order)
            else:
                known = self._session.range(0, slices, 1, slices)
            known = known.mapInArrow(StepTask(*given, framed=bool(pieces)), SCHEMA)
            for level, tasks in enumerate(levels[1:], start=1):
                known = known.repartitionById(tasks, "task").mapInArrow(StepTask(*given, level), SCHEMA)
            if not pieces:
                self._frames[slot, levels] = known
        # A frame that is run twice would take what it shuffled the first time for the answer.
        return known.select("*") if len(levels) > 1 else known

    def _read(self, pieces: Pieces, sources: Any, order: WorkOrder) -> Any:
        """What connectors read, brought to the slices' tasks."""
        frame: Any = None
        for place, found in pieces.items():
            own = sources[place].frame(self._session, found)
            frame = own if frame is None else frame.union(own)
        count = len(order.slices)
        if count > 1:
            return frame.repartitionById(count, "task")
        rows = sum(piece.rows for found in pieces.values() for _, piece in found)
        return frame.repartition(1) if rows > SHUFFLE_ROWS else frame.coalesce(1)


_warm: weakref.WeakSet[Any] = weakref.WeakSet()


def warm_up(session: Any, tasks: int) -> None:
    """Start the Python workers before the first tuple waits for them; they stay for the session."""
    if session not in _warm:
        try:
            _start_workers(session, tasks)
        except Exception as error:
            raise RunError(
                f"Spark's Python workers cannot start: {first_line(error)}. Their Python needs the packages "
                "that this one has (pyspark, pyarrow, numpy, pandas, sqlglot); set PYSPARK_PYTHON to one "
                "that has them before the session is made."
            ) from error
        _warm.add(session)


def _start_workers(session: Any, tasks: int) -> None:
    session.range(0, tasks, 1, tasks).mapInArrow(load_pipelines, SCHEMA).toArrow()


def _answers(order: WorkOrder) -> int:
    """How many tasks answer."""
    if order.stages is None:
        return len(order.shares) or len(order.slices)
    return sum(order.stages.tasks)
