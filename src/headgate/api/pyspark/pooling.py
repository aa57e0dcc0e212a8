"""``hg.pooled(writer, goal="500 ms")``: queries of Structured Streaming whose batches wait for their turn.

Each query keeps its own trigger, checkpoint and batches.  Only the function of its ``foreachBatch``, in which
a batch's jobs run, waits until a policy gives it a worker: to the policy a query is a box, a batch a tuple
that waits in its queue, and the function a call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

from headgate.api.pyspark.adopting import Written
from headgate.errors import PipelineError
from headgate.graph.durations import Duration
from headgate.graph.qos import QoS, goal_of
from headgate.runtime.instructions import Instruction, Meet, NewTerm, SetTimer
from headgate.runtime.limits import check_workers
from headgate.runtime.policy_driver import PolicyDriver
from headgate.runtime.report import QueryReport, Report
from headgate.scheduling import policies
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.events import Finished, QueueState, Spawned, Started
from headgate.scheduling.interface import Policy, Shed


class Pool:
    """Queries of one program that take turns: ``at_once`` of their batches are worked on at a time."""

    def __init__(self, policy: str | Policy = "qos", at_once: int = 1) -> None:
        check_workers(at_once)
        self._policy, self._at_once = policies.get(policy), at_once
        self._turns = threading.Condition()
        self._began = time.monotonic()
        self._out: list[Instruction] = []
        self._catalog = Catalog([])
        self._driver: PolicyDriver | None = None
        self._came: dict[int, float] = {}
        """By query, when the batch came that waits."""
        self._given: dict[int, int] = {}
        """By query that has its turn, the worker."""
        self._goals: list[QoS | None] = []
        self._reports: list[QueryReport] = []
        self._timers: list[tuple[float, tuple[int, str]]] = []

    # --- queries ------------------------------------------------------------------------------------

    def join(self, name: str, goal: QoS | None) -> int:
        """The number of a query that joins."""
        with self._turns:
            if any(report.name == name for report in self._reports):
                raise PipelineError(
                    f"pooled: there is already a query '{name}'; give this one another name=."
                )
            place = len(self._reports)
            self._reports.append(QueryReport(name, has_qos=goal is not None))
            self._goals.append(goal)
            if goal is not None:
                self._catalog.goals[name] = goal
            self._catalog.add(BoxEntry(name, 1, (), (), (name,), outlets=1, request=place), place)
            if self._driver is None:
                workers = self._policy.workers(1, self._at_once)
                self._driver = PolicyDriver(
                    self._policy, self._catalog, self, self._out, time.perf_counter, 0
                )
                self._driver.start(workers, self._at_once)
            else:
                self._driver.joined([place], self._now())
            self._obey()
            return place

    def take_turn(self, place: int, work: Callable[[], None]) -> None:
        """Wait until the policy gives a query's batch its turn, and work on it."""
        with self._turns:
            assert self._driver is not None
            came = self._came[place] = self._now()
            self._driver.spawn(place, self._queue(place), came, None)
            self._assign()
            while place not in self._given:
                self._turns.wait(self._until_timer())
                self._assign()
            worker, began = self._given[place], self._now()
        try:
            work()
        finally:
            with self._turns:
                del self._given[place]
                now = self._now()
                self._reports[place].delivered(now - came, 1, self._goals[place])
                self._driver.tell(Finished(now, worker, place, 1, 1, now - began, 0.0))
                self._assign()

    @property
    def queries(self) -> int:
        """How many queries have joined."""
        return len(self._reports)

    @property
    def waiting(self) -> list[str]:
        """The queries whose batches wait for their turn, those that came first before others."""
        with self._turns:
            return [self._reports[place].name for place in sorted(self._came, key=self._came.__getitem__)]

    def report(self) -> Report:
        """Batches as tuples: latency is from when a batch comes until its function has returned."""
        with self._turns:
            if self._driver is None:
                raise PipelineError("pooled: no query has joined this pool.")
            for report in self._reports:
                report.tuples_in = report.tuples_out
            batches = sum([report.tuples_out for report in self._reports])
            queries = {report.name: report for report in self._reports}
            return self._driver.report("pool", self._now(), batches, queries)

    # --- turns, lock held ---------------------------------------------------------------------------

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _queue(self, place: int) -> QueueState:
        came = self._came.get(place)
        return QueueState(0) if came is None else QueueState(1, oldest=came, mean=came)

    def _assign(self) -> None:
        """Give free workers batches as long as the policy has one for them."""
        driver = self._driver
        assert driver is not None
        self._obey()
        for worker in range(driver.workers):
            while worker not in self._given.values() and self._came:
                plan = driver.plans.pop(worker, ())
                if not plan:
                    driver.idle(worker, self._now())
                    self._obey()
                    plan = driver.plans.pop(worker, ())
                if not plan:
                    break
                driver.plans[worker] = plan[1:]
                self._begin(worker, plan[0].box)
        self._turns.notify_all()

    def _begin(self, worker: int, place: int) -> None:
        assert self._driver is not None
        if place in self._came and self._catalog.can_run(place):
            del self._came[place]
            self._given[place] = worker
            self._driver.tell(Started(self._now(), worker, place, 1, QueueState(0)))

    def _obey(self) -> None:
        """Carry out what the policy has asked for besides plans; workers that wait ask anyway."""
        driver = self._driver
        assert driver is not None
        while self._out or (self._timers and self._timers[0][0] <= self._now()):
            if not self._out:
                driver.timer(heappop(self._timers)[1], self._now())
                continue
            instruction = self._out.pop(0)
            if isinstance(instruction, SetTimer):
                heappush(self._timers, (instruction.at, instruction.key))
            elif isinstance(instruction, Meet):
                driver.run_phases(instruction.phases)
                driver.rescheduled(self._now())
            elif isinstance(instruction, NewTerm):
                self._timers.clear()

    def _until_timer(self) -> float | None:
        return max(self._timers[0][0] - self._now(), 0.0) if self._timers else None

    # --- what the policy driver needs ---------------------------------------------------------------

    def measure_for(self, needs: frozenset[str]) -> None:
        """A queue's ages cost nothing here."""

    def measure_all(self) -> list[QueueState]:
        return [self._queue(place) for place in range(len(self._reports))]

    def make_lanes(self, workers: int) -> None:
        """A query's batches come one after the other."""

    def open_gates(self) -> None:
        """No batch is ever dropped."""

    def tasks(self, now: float) -> Iterator[Spawned]:
        for place in self._came:
            yield Spawned(now, place, self._queue(place), immediate=False, request=place)

    def shed(self, decision: Shed) -> None:
        """A batch that Structured Streaming has begun must be worked on."""

    def set_packet_rows(self, rows: int) -> None:
        """Batches are as large as Structured Streaming makes them."""


_POOL = Pool()
"""The one for queries that are given no other."""


def pooled(
    writer: Any, *, goal: Duration | QoS | None = None, name: str | None = None, pool: Pool | None = None
) -> Any:
    """Let a query of Structured Streaming wait for its turn: ``hg.pooled(writer, goal="500 ms").start()``.

    ``writer`` is ``df.writeStream.foreachBatch(…)``.  At most as many batches as the pool has workers are
    worked on at a time; which one is next the policy says, by default by their goals (``qos``).  ``goal``:
    full utility up to that age of a batch, none after ten times as long.
    """
    written = Written.of(writer)
    if not hasattr(writer, "_jwrite"):
        raise PipelineError(
            "pooled: on a session of Spark Connect foreachBatch runs in the server, where it cannot wait for "
            "its turn. Use a classic session, or let Headgate run the query: app.adopt(writer, …)."
        )
    if written.format != "foreachBatch":
        raise PipelineError(
            f"pooled: this query writes format '{written.format}', and only foreachBatch can wait for its "
            "turn. Write in a function: df.writeStream.foreachBatch(lambda batch, number: "
            f"batch.write.format('{written.format}').mode('append').save(…))."
        )
    chosen = pool or _POOL
    own = name or written.options.get("queryname") or f"query-{chosen.queries + 1}"
    function = written.function()
    place = chosen.join(own, goal if isinstance(goal, QoS) else goal_of(goal, own))

    def wait(batch: Any, number: int) -> None:
        chosen.take_turn(place, lambda: function(batch, number))

    return writer.foreachBatch(wait)


__all__: Sequence[str] = ["Pool", "pooled"]
