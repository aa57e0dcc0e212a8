"""Driver threads: each asks the policy for a plan, runs it as a Spark job, and commits it in turn."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from headgate.checkpoint.position import Data
from headgate.connectors import folder
from headgate.engines.spark import sinks
from headgate.engines.spark.cursors import Step
from headgate.engines.spark.jobs import SourceFailed
from headgate.engines.spark.messages import OutputPart, TaskResult, longest_tasks
from headgate.engines.spark.queue_files import keep_for_later
from headgate.engines.spark.session import first_line
from headgate.engines.spark.shell import Shell
from headgate.engines.spark.stimuli import (
    Announced,
    Noticed,
    RunStep,
    StepAbandoned,
    StepCommitted,
    Suspected,
)
from headgate.engines.worker_pool import WorkerPool
from headgate.errors import BadRow, HeadgateError, RunError
from headgate.graph.packet import Marker
from headgate.runtime.instructions import Park
from headgate.runtime.stimuli import Free, Stimulus

WRITERS = 8
"""Jobs of Spark's that write a step's results at the same time."""
SOON = 0.05
"""Seconds after which a worker whose plan could not run asks again."""


class Workers(WorkerPool):
    """The threads of a run."""

    def __init__(self, run: Shell, count: int, one_semaphore: bool) -> None:
        super().__init__(run.guard, self._loop, count, one_semaphore)
        self._run = run
        self._repeats: deque[tuple[Step, Data]] = deque()
        """Announced steps that a query which was restarted has to repeat first, with their announcements."""

    def admitted(self) -> None:
        """Lock held: tuples have come.  If all are busy, the policy hears of it when one asks."""
        if not self.asleep:
            return
        self._run.tell(Noticed())
        if self._run.core.cursors.outlets_wait and self.asleep:  # the policy may have woken them
            self.wake(min(self.asleep))

    # --- the loop -----------------------------------------------------------------------------------

    def _loop(self, worker: int) -> None:
        run = self._run
        overhead = 0.0
        while True:
            with run.lock:
                if run.stopping or self.leaves(worker):
                    return
                begin = time.perf_counter()
                step: Step | None = None
                intent: Data | None = None
                soon = False
                if self._repeats:
                    step, intent = self._repeats.popleft()
                else:
                    for instruction in run.tell(Free(worker, overhead)):
                        if isinstance(instruction, RunStep):
                            step = instruction.step
                        elif isinstance(instruction, Park):
                            soon = instruction.soon
                    overhead = 0.0
                if step is None:
                    self.asleep.add(worker)
                else:
                    run.core.spent("plan", time.perf_counter() - begin)
            if step is not None:
                overhead = self._perform(worker, step, intent)
                continue
            self.sleep(worker, timeout=SOON if soon else None)
            with run.lock:
                self.asleep.discard(worker)

    def repeat(self, intents: Sequence[Data]) -> None:
        """First of all, what an earlier run announced: results of it may have been seen.

        If a query of it fails now, the others still need the very ranges that were announced, so it is
        repeated without that query.  Each round commits something or stops a query.
        """
        for intent in intents:
            for _ in range(1 + len(self._run.nodes.outlets)):
                with self._run.lock:
                    step = self._step(Announced(intent))
                if step is None or self._run.stopping:
                    break
                self._perform(0, step, intent)

    def repeat_soon(self, query: str) -> None:
        """Lock held: a query that was stopped goes on; what was announced of it comes first, as announced."""
        for intent in list(self._run.log.intents.values()):
            step = self._step(Announced(intent, frozenset([query])))
            if step is not None:
                self._repeats.append((step, intent))
                if self.asleep:
                    self.wake(min(self.asleep))

    def _step(self, stimulus: Stimulus) -> Step | None:
        """Lock held: the step that follows from something, if one does."""
        steps = [i.step for i in self._run.tell(stimulus) if isinstance(i, RunStep)]
        return steps[0] if steps else None

    def _perform(self, worker: int, step: Step, intent: Data | None = None) -> float:
        """Run a step and commit it; returns the seconds that did not go into boxes.

        ``intent``: what it repeats.
        """
        begin = time.perf_counter()
        results = self._try(worker, step)
        if isinstance(results, BaseException):
            self._without_culprit(worker, step, results, intent)
            return 0.0
        errors = _errors(results)
        if errors:
            self._stop_queries(step, errors)
            return 0.0
        ran = time.perf_counter()
        self._commit(step, results)
        done = time.perf_counter()
        boxes = sum(seconds.get("boxes", 0.0) for seconds in longest_tasks(results))
        with self._run.lock:
            self._account(results, ran - begin, done - ran)
        return max(done - begin - boxes, 1e-9)

    def _account(self, results: Sequence[TaskResult], job: float, commit: float) -> None:
        """Lock held: where the time of a step went, of each level's tasks in the longest."""
        core = self._run.core
        longest = longest_tasks(results)
        total = sum(seconds["all"] for seconds in longest)
        core.spent("spark", job - total)
        rest = total
        for what in ("boxes", "scan", "state", "write", "exchange"):
            own = sum(seconds.get(what, 0.0) for seconds in longest)
            core.spent(what, own)
            rest -= own
        core.spent("python", max(rest, 0.0))
        core.spent("commit", commit)

    def _try(self, worker: int, step: Step) -> list[TaskResult] | BaseException:
        run = self._run
        step.order.deliveries = {p: d for p, d in run.deliveries.items() if p in step.members}
        failure: BaseException = RunError("not tried")
        for left in range(run.retries, -1, -1):
            try:
                results = run.jobs.run(worker, step.order, self._describe(step), run.sources)
            except Exception as error:
                failure = error
                if run.stopping:
                    return failure
                continue
            if left and any(not _hopeless(error) for error in _errors(results).values()):
                continue
            return results
        return failure

    def _describe(self, step: Step) -> str:
        names = [self._run.nodes.all[place].name for place in sorted(step.members)]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        return f"headgate {self._run.network.name}: step {step.number}: {shown}"

    # --- committing ---------------------------------------------------------------------------------

    def _commit(self, step: Step, results: Sequence[TaskResult]) -> None:
        run, core = self._run, self._run.core
        with run.lock:
            while not step.void and not core.turn(step):
                if run.crash is not None:
                    return  # the step before this one died with the run
                run.alarm.wait(1.0)
            if step.void:
                self._abandon(step)
                return
        record = core.record(step, results)
        parts = {
            place: [r.outputs[place] for r in results if place in r.outputs]
            for place in step.members
            if place in run.outlets
        }
        parts = {place: found for place, found in parts.items() if found}
        visible = [place for place in parts if run.outlets[place].visible]
        repeated = step.number in run.log.intents
        if visible and run.storage.durable and not repeated:
            with run.lock:
                run.log_record(core.intent(step))
        failed = self._hand_over(step, {place: parts[place] for place in visible}, repeated)
        # What a sink did not take comes again, and is kept then.
        record["files"] = [
            pair
            for place, found in parts.items()
            if place not in failed
            for pair in run.outlets[place].files(found, step.number)
        ]
        for place, found in parts.items():
            if place not in failed:
                record["nodes"][run.nodes.all[place].key]["out"] = sum(part.rows for part in found)
        with run.lock:
            for place in failed:
                self._hold_back(step, place, record, parts[place])
            number = run.log_record(record)
            run.committed(record)
        folder.publish(record["files"], durable=run.storage.durable)
        now = time.time()
        with run.lock:
            run.log.published(number)
            for place, found in parts.items():
                if place not in failed:
                    self._delivered(step, place, found, now)
            run.tell(StepCommitted(step, results, frozenset(failed)))
            for place, why in failed.items():
                run.stop_query(run.nodes.all[place].name, why)
            run.check_over()
            run.alarm.notify_all()

    def _hand_over(
        self, step: Step, parts: dict[int, list[OutputPart]], repeated: bool
    ) -> dict[int, HeadgateError]:
        """Give sinks their rows before the commit; which of them failed, and why.

        A sink in this process may be any function, so they have their turns on this thread.  Those that Spark
        writes wait for it, and do so together, but for those of one table or topic.
        """
        failed: dict[int, HeadgateError] = {}
        waiting: dict[str, list[int]] = {}
        for place in parts:
            waiting.setdefault(self._run.outlets[place].target, []).append(place)

        def write(places: Sequence[int]) -> None:
            for place in places:
                try:
                    self._run.outlets[place].hand_over(parts[place], step.number, repeated)
                except Exception as error:
                    failed[place] = sinks.wrapped(self._run.nodes.all[place].name, error)

        here = waiting.pop("", [])
        if len(waiting) == 1 and not here:  # no thread for one
            here = next(iter(waiting.values()))
            waiting.clear()
        left = deque(waiting.values())

        def work() -> None:
            with contextlib.suppress(IndexError):
                while True:
                    write(left.popleft())

        # Daemons, as workers are: a program that was told to end must end, whatever a table does.
        threads = [
            threading.Thread(target=work, name="headgate-writer", daemon=True)
            for _ in range(min(len(left), WRITERS))
        ]
        for thread in threads:
            thread.start()
        write(here)
        for thread in threads:
            thread.join()
        return failed

    def _hold_back(self, step: Step, place: int, record: dict[str, Any], parts: Sequence[Any]) -> None:
        """Rows that a sink did not take wait before it, so that the query can be restarted."""
        node = self._run.nodes.all[place]
        record["nodes"][node.key] = {"cursor": step.members[place].low}
        if not all(feed.source for feed in node.feeds):  # what a source brought it brings again
            record["nodes"][node.key] |= keep_for_later(step.order, place, node.schemas[0], parts)

    def _delivered(self, step: Step, place: int, parts: Sequence[Any], now: float) -> None:
        live = self._run.core.live[place]
        assert live.report is not None
        assert live.node.output is not None
        for part in parts:
            arrivals = part.arrivals
            latency = now - arrivals
            live.report.delivered(latency, part.rows, live.node.output.qos)
            entry = arrivals if isinstance(arrivals, float) else float(np.mean(arrivals))
            begin = self._run.begin
            marker = Marker(part.first, entry - begin, step.start)
            marker.exits[live.node.name] = now - begin
            live.markers.append(marker)

    # --- failing ------------------------------------------------------------------------------------

    def _abandon(self, step: Step) -> None:
        """Lock held: what a step took waits again, for the next free worker."""
        run = self._run
        run.tell(StepAbandoned(step))
        run.check_over()
        self.admitted()
        run.alarm.notify_all()

    def _stop_queries(self, step: Step, errors: dict[int, HeadgateError]) -> None:
        """Boxes have failed: their queries stop, the others' part of the step is planned again."""
        run = self._run
        with run.lock:
            self._abandon(step)
            for place, error in errors.items():
                for query in run.nodes.all[place].queries:
                    if query not in run.position.failed:
                        run.stop_query(query, error)

    def _without_culprit(
        self, worker: int, step: Step, error: BaseException, intent: Data | None = None
    ) -> None:
        """A step died without a known culprit: try its queries in halves until it is found."""
        run = self._run
        with run.lock:
            self._abandon(step)
            if run.stopping:
                return
        if isinstance(error, SourceFailed):
            run.fail_source(error.place, error.why)
            return
        queries = sorted({q for place in step.members for q in run.nodes.all[place].queries})
        guilty = self._bisect(worker, queries, error, intent)
        if len(guilty) == len(queries) and len(run.nodes.outlets) == len(queries):
            raise RunError(
                f"Spark could not run step {step.number}, nor any part of it: {first_line(error)}. Nothing "
                "of it was committed; run the application again to go on."
            ) from error
        for query, why in guilty.items():
            run.stop_query(query, RunError(f"Query '{query}' made its Spark job fail: {first_line(why)}"))

    def _bisect(
        self, worker: int, queries: list[str], error: BaseException, intent: Data | None
    ) -> dict[str, BaseException]:
        if len(queries) == 1:
            return {queries[0]: error}
        guilty: dict[str, BaseException] = {}
        middle = len(queries) // 2
        for half in (queries[:middle], queries[middle:]):
            only = frozenset(half)
            part = Suspected(worker, only) if intent is None else Announced(intent, only)
            with self._run.lock:
                step = self._step(part)
            if step is None:
                continue
            results = self._try(worker, step)
            if isinstance(results, SourceFailed):
                self._without_culprit(worker, step, results)
            elif isinstance(results, BaseException):
                with self._run.lock:
                    self._abandon(step)
                guilty |= self._bisect(worker, half, results, intent)
            elif errors := _errors(results):
                self._stop_queries(step, errors)
            else:
                self._commit(step, results)
        return guilty


def _errors(results: Sequence[TaskResult]) -> dict[int, HeadgateError]:
    return {place: error for result in results for place, error in result.errors.items() if error is not None}


def _hopeless(error: BaseException) -> bool:
    """A bad row is bad however often one looks at it."""
    return isinstance(error, BadRow) or isinstance(error.__cause__, BadRow)
