"""Spark's part: it gives tasks to Python workers, repeats those that fail, and starts some of them twice.

The tasks themselves are Headgate's (``StepTask``), and what they answer goes the way it goes on Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from fault_simulation.world import Died, Process, Thread, World, world
from headgate.engines.spark import holders
from headgate.engines.spark.exchange import ANSWER
from headgate.engines.spark.jobs import Jobs
from headgate.engines.spark.messages import WorkOrder
from headgate.engines.spark.task import StepTask

ATTEMPTS = 4
"""How often Spark tries a task."""


class Cluster:
    """The Python workers of all drivers, and what happens to their messages."""

    def __init__(self, made: World, size: int) -> None:
        self.world, self.size = made, size
        self.workers: dict[str, Process] = {}
        self.twice = made.random.choice((0.0, 0.0, 0.2))
        """How often a task is speculated."""
        self.lost = 0.0
        """How often an answer of a worker is lost."""

    def worker(self) -> Process:
        """One that lives; Spark starts new ones where some have died."""
        alive = [worker for worker in self.workers.values() if worker.alive]
        if len(alive) < self.size:
            made = self.world.process("worker")
            self.workers[made.name] = made
            return made
        return self.world.random.choice(alive)

    def kill_one(self) -> None:
        busy = [w for w in self.workers.values() if w.alive and w.threads]
        alive = busy or [w for w in self.workers.values() if w.alive]
        if alive:
            self.world.random.choice(alive).die()

    def ask(self, address: str, secret: bytes, request: Any) -> Any:
        """``holders.ask``: the worker that has a state does the task's work."""
        worker = self.workers.get(address)
        self.world.point("ask")
        if worker is None or not worker.alive:
            return None
        found: list[Any] = []
        _call(self.world, worker, found, lambda: _serve(request))
        if not found or self.world.random.random() < self.lost:
            return None
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]


def _serve(request: Any) -> Any:
    from headgate.engines.spark import task

    return task._serve(request)


def _call(here: World, process: Process, found: list[Any], work: Any) -> None:
    """Run something in another process and wait for it, or for the end of that process."""
    caller = here.current
    assert caller is not None

    def run() -> None:
        try:
            found.append(work())
        except Died:
            raise
        except Exception as error:
            found.append(error)
        finally:
            here.unblock(caller)

    thread = Thread(process, run, "serve")
    while not found and process.alive and not thread.done:
        here.block()


class SimulatedJobs(Jobs):
    """``run`` is the real one; a DataFrame of it is a list of tasks."""

    cluster: Cluster

    def rehearse(self, pipeline: str, slots: int, tasks: int) -> None: ...

    def keep_warm(self, tasks: int) -> None: ...

    @contextmanager
    def _named(self, order: WorkOrder, description: str) -> Iterator[None]:
        yield

    def _frame(self, slot: int, order: WorkOrder, pieces: Any, sources: Any) -> Any:
        slices = len(order.shares) or len(order.slices)
        levels = tuple(order.stages.tasks) if order.stages is not None else (slices,)
        return _Frame(self._storage, self._slot(slot), levels, self.cluster)


class _Frame:
    def __init__(self, storage: Any, slot: str, levels: tuple[int, ...], cluster: Cluster) -> None:
        self.storage, self.slot, self.levels, self.cluster = storage, slot, levels, cluster

    def toArrow(self) -> Any:  # noqa: N802, Spark's name
        sent: list[tuple[int, int, bytes]] = []
        for level, tasks in enumerate(self.levels):
            by_task: dict[int, list[bytes]] = {}
            for task, to, payload in sent:
                if to == level:
                    by_task.setdefault(task, []).append(payload)
            rows = _Level(self, level, tasks, by_task).run()
            sent = [row for row in sent if row[1] != level] + rows
        payloads = [payload for _, level, payload in sent if level == ANSWER]
        return SimpleNamespace(column=lambda _: SimpleNamespace(to_pylist=lambda: payloads))


class _Level:
    """The tasks of one level of a step: each is tried until one attempt has answered."""

    def __init__(self, frame: _Frame, level: int, tasks: int, given: dict[int, list[bytes]]) -> None:
        self.frame, self.level, self.tasks, self.given = frame, level, tasks, given
        self.answers: dict[int, list[Any]] = {}
        self.failures: dict[int, int] = {}
        self.running: dict[int, int] = {}
        self.error: BaseException | None = None
        self.waiting: Thread | None = None

    def run(self) -> list[Any]:
        here = world()
        self.waiting = here.current
        for task in range(self.tasks):
            self._start(task)
            if here.random.random() < self.frame.cluster.twice:
                self._start(task)
        while len(self.answers) < self.tasks and self.error is None:
            here.block()
        if self.error is not None:
            raise RuntimeError(f"simulated: a task failed {ATTEMPTS} times: {self.error}") from self.error
        return [row for task in range(self.tasks) for row in self.answers[task]]

    def _start(self, task: int) -> None:
        self.running[task] = self.running.get(task, 0) + 1
        worker = self.frame.cluster.worker()
        Thread(worker, lambda: self._attempt(task, worker), f"task-{self.level}-{task}")

    def _attempt(self, task: int, worker: Process) -> None:
        here = world()
        error: BaseException = Died()
        rows: list[Any] | None = None
        try:
            here.block(here.now + here.random.expovariate(200.0))
            step = StepTask(self.frame.storage, self.frame.slot, self.level)
            rows = holders.rows_of(step.run(task, self.given.get(task, [])))
            here.point("answer")
        except Exception as failed:
            error, rows = failed, None
        finally:
            self._over(task, rows, error)

    def _over(self, task: int, rows: list[Any] | None, error: BaseException) -> None:
        here = world()
        self.running[task] -= 1
        lost = here.random.random() < self.frame.cluster.lost
        if rows is not None and not lost:
            self.answers.setdefault(task, rows)
        elif task not in self.answers:
            self.failures[task] = self.failures.get(task, 0) + (not isinstance(error, Died))
            if self.failures[task] >= ATTEMPTS:
                self.error = error
            elif not self.running[task]:
                self._start(task)
        if self.waiting is not None and self.waiting.process.alive:
            here.unblock(self.waiting)
