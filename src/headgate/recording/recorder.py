"""The recorder: an observer of a run that writes what happened to a file.

It sees what every engine tells its core, so no engine knows of it.  On threads it is called with the
scheduler's lock held: it takes a few numbers and leaves the rest to the writer's thread.  There it also takes
processor time: what a call lasts includes waiting for the interpreter's lock and for a core, and that is
another one under another policy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.errors import PipelineError
from headgate.graph.operator import Kind
from headgate.graph.packet import Order, Packet
from headgate.machine.host import host
from headgate.machine.topology_format import spell
from headgate.recording import format as file
from headgate.recording.description import described
from headgate.runtime.boxes import Work
from headgate.runtime.core import Core
from headgate.runtime.instructions import Instruction, Park, RunCall, Wake
from headgate.runtime.report import Report
from headgate.runtime.stimuli import Admitted, Asked, CallEnded, Stimulus
from headgate.scheduling.interface import ANYONE

SAMPLE_EVERY = 0.5
"""Seconds of the run between two looks at its queues."""
FEW = 4
"""A call with fewer results than one in so many tuples says where in it they came about."""
FEEDER = -1
WEIGH_EVERY = 64
"""Calls of a box between two looks at how large its tuples are."""


class Recorder:
    """Records one run.  ``exact``: also which tuple has which results, which only a simulation can afford."""

    def __init__(self, path: str | Path, about: Mapping[str, Any], *, exact: bool = False) -> None:
        if not Path(path).absolute().parent.is_dir():
            raise PipelineError(f"The recording '{path}': there is no folder {Path(path).parent}.")
        self._path, self._about, self._exact = path, dict(about), exact
        self._writer: file.Writer | None = None
        self._core: Any = None
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            Admitted: self._admitted,
            CallEnded: self._ended,
            Asked: self._changed,
        }
        self._parked: set[int] = set()
        self._woken: dict[int, float] = {}
        self._left: dict[int, float] = {}
        """By worker, when its last call had ended."""
        self._begun: dict[int, tuple[float, list[list[Order]]]] = {}
        """By worker with a call under way: seconds since its last, and the orders of its rows."""
        self._weighs = self._about.get("engine") == "threads"
        self._spent: dict[int, float] = {}
        """By worker (and ``FEEDER``), the processor time of its thread when its last call had ended."""
        self._calls: dict[int, int] = {}
        self._bytes: dict[int, float] = {}
        self._sampled = 0.0

    def begin(self, core: Any) -> None:
        """Record what this core decides from now on."""
        again, self._core = self._core is not None, core
        if not again:
            driver = core.driver
            machine = core.catalog.topology or host()
            self._writer = file.Writer(
                self._path,
                self._about
                | {
                    "app": core.network.name,
                    "network": described(core.network),
                    "policy_name": driver.policy.name,
                    "requested": driver.requested,
                    "workers": driver.workers,
                    "packet_rows": core.catalog.packet_rows,
                    "machine": spell(machine),
                    "cores": os.cpu_count() or 1,
                    "exact": self._exact,
                },
            )
        else:
            self._network(0.0)
        if not isinstance(core, Core):
            from headgate.recording.steps import Steps  # here: others need not import Spark's modules

            assert self._writer is not None
            self._handlers |= Steps(core, self._writer).handlers()
        if self._weighs:
            core.calls.weigh = time.thread_time
        self._sample(0.0)
        core.observers.add(self)

    def end(self, report: Report | None) -> None:
        """The run is over; without a report it failed."""
        writer = self._writer
        if writer is None:
            return
        if report is not None:
            self._sample(report.seconds)
            writer.note(file.END, report.seconds, measured(report))
        writer.close()
        if writer.error is not None and report is not None:
            report.problems.append(f"The recording '{self._path}' is not complete: {writer.error}")

    # --- what is observed ---------------------------------------------------------------------------

    def __call__(self, stimulus: Stimulus, instructions: Sequence[Instruction], now: float) -> None:
        handler = self._handlers.get(type(stimulus))
        if handler is not None:
            handler(stimulus, now)
        for instruction in instructions:
            if isinstance(instruction, RunCall):
                self._started(instruction, now)
            elif isinstance(instruction, Wake):
                if instruction.worker == ANYONE or instruction.worker in self._parked:
                    self._woken.setdefault(instruction.worker, now)
            elif isinstance(instruction, Park):
                self._parked.add(instruction.worker)
                self._woken.pop(instruction.worker, None)
        if now - self._sampled >= SAMPLE_EVERY:
            self._sample(now)

    def _add(self, *numbers: float, values: Any = None) -> None:
        assert self._writer is not None
        self._writer.add(numbers, values)

    def _weighed(self, thread: int) -> float:
        """Processor time of the calling thread since the last time."""
        if not self._weighs:
            return 0.0
        before, spent = self._spent.get(thread, 0.0), time.thread_time()
        self._spent[thread] = spent
        return spent - before if spent >= before else spent  # another thread has that number now

    def _admitted(self, stimulus: Admitted, now: float) -> None:
        spent, read = self._weighed(FEEDER), self._core.admission.read
        for source, packet in stimulus.packets:
            arrivals = packet.order.arrivals
            if isinstance(arrivals, float):
                first, last, values = arrivals, arrivals, None
            elif not len(arrivals):
                continue
            else:
                first, last = float(arrivals[0]), float(arrivals[-1])
                values = arrivals if self._exact else None
            size = packet.batch.nbytes
            numbers = (len(packet), size, 0, 1, first, last, spent, read)
            self._add(file.ARRIVAL, now, source, -1, *numbers, values=values)
            spent = 0.0

    def _started(self, instruction: RunCall, now: float) -> None:
        worker, work = instruction.worker, instruction.work
        gap = 0.0
        if worker in self._parked:
            self._parked.discard(worker)
            woken = self._woken.pop(worker, None) or self._woken.pop(ANYONE, None)
            if woken is not None:
                self._add(file.WAKE, now, -1, worker, 0, 0, 0, 0, now - woken, 0.0, 0.0, 0.0)
        else:
            gap = now - self._left.get(worker, now)
        orders = [[packet.order for packet in round_] for round_ in work.rounds]
        self._begun[worker] = gap, orders

    def _ended(self, stimulus: CallEnded, now: float) -> None:
        work = stimulus.work
        gap, orders = self._begun.pop(work.worker, (0.0, []))
        members = list(work.members.values())
        self._left[work.worker] = now
        inside = sum([member.seconds for member in members])
        apart = max(0.0, gap + now - work.start - inside)
        own = max(0.0, self._weighed(work.worker) - sum([member.processor for member in members]))
        for member in members:
            live, made = member.live, member.results
            out, rows = member.tuples_out, member.tuples
            if member.end:
                rows, out = -1, sum([len(results[0]) for results in made])
            more = sum([len(results[1]) for results in made]) if len(live.targets) > 1 else 0
            counts = None
            if orders and not member.end:
                counts = _counts(orders, made) if self._exact else _where(orders, member)
            self._add(
                *(file.CALL, work.start, live.place, work.worker, rows, out, more, max(1, member.packets)),
                *(member.seconds, apart if member is work else 0.0),
                *(member.processor, own if member is work else 0.0),
                values=counts,
            )
            self._weigh(live.place, member)

    def _weigh(self, place: int, work: Work) -> None:
        count = self._calls[place] = self._calls.get(place, -1) + 1
        if count % WEIGH_EVERY == 0 and work.results and len(work.results[-1][0]):
            batch = work.results[-1][0].batch
            self._bytes[place] = batch.nbytes / batch.num_rows

    def _changed(self, stimulus: Asked, now: float) -> None:
        change = stimulus.change
        told = {
            "policy": None if change.chosen is None else change.chosen.name,
            "workers": change.workers,
            "add": [output.name for output in stimulus.outputs],
            "remove": list(change.remove),
            "qos": {name: list(qos.points) for name, qos in change.qos.items()},
        }
        assert self._writer is not None
        self._writer.note(file.CHANGE, now, {what: value for what, value in told.items() if value})
        if stimulus.outputs or change.qos:
            self._network(now)

    def _network(self, now: float) -> None:
        assert self._writer is not None
        self._writer.note(file.NETWORK, now, described(self._core.network))

    def _sample(self, now: float) -> None:
        self._sampled = now
        queued = [entry.queue.tuples for entry in self._core.catalog.boxes]
        assert self._writer is not None
        told = {"queued": sum(queued), "bytes": self._bytes}
        self._writer.note(file.SAMPLE, now, told | (_ran_and_waited() if self._weighs else {}))


def _ran_and_waited() -> dict[str, float]:
    """Seconds that threads of this process ran and waited for a core so far; empty if the system says not.

    The processor time of threads and what they last tell that apart neither from waiting for each other.
    """
    ran = waited = 0
    try:
        for task in os.scandir("/proc/self/task"):
            with open(f"{task.path}/schedstat", encoding="ascii") as told:
                one, other = told.read().split()[:2]
            ran, waited = ran + int(one), waited + int(other)
    except (OSError, ValueError):
        return {}
    return {"ran": ran / 1e9, "waited": waited / 1e9}


def _where(orders: Sequence[Sequence[Order]], work: Work) -> tuple[float, float] | None:
    """Where in a call the causes of its results lie, if these are few, such as those of closed windows."""
    if not 0 < work.tuples_out * FEW < work.tuples or work.live.operator.kind is Kind.STATELESS:
        return None
    inputs = [order for round_ in orders for order in round_ if order.length]
    causes = [results[0].order for results in work.results if len(results[0])]
    if not inputs or not causes:
        return None
    low, high = min(o.first_serial for o in inputs), max(o.last_serial for o in inputs)
    first, last = min(o.first_serial for o in causes), max(o.last_serial for o in causes)
    span = high - low + 1
    return max(0.0, (first - low) / span), min(1.0, (last - low + 1) / span)


def _counts(orders: Sequence[Sequence[Order]], made: Sequence[Sequence[Packet]]) -> Any:
    """By tuple of a call how many results it has; None if all have the same number."""
    if len(orders) != len(made):
        return None
    parts = [_of_round(round_, results[0]) for round_, results in zip(orders, made, strict=True)]
    counts = np.concatenate(parts)
    return None if len(counts) and bool(np.all(counts == counts[0])) else counts


def _of_round(orders: Sequence[Order], results: Packet) -> npt.NDArray[np.int64]:
    """Tuples of several inputs are counted in the order of their serials; equal causes share evenly."""
    origins = np.concatenate([order.origins for order in orders if order.length] or [np.empty(0, np.int64)])
    if len(orders) > 1:
        serials = np.concatenate([o.serials for o in orders if o.length] or [np.empty(0, np.int64)])
        origins = origins[np.argsort(serials, kind="stable")]
    causes, which, each = np.unique(origins, return_inverse=True, return_counts=True)
    made = np.zeros(len(causes), dtype=np.int64)
    if len(results) and len(causes):
        places = np.searchsorted(causes, results.order.origins, side="right") - 1
        made = np.bincount(np.maximum(places, 0), minlength=len(causes))
    in_turn = np.argsort(which, kind="stable")
    nth = np.empty(len(origins), dtype=np.int64)
    nth[in_turn] = np.arange(len(origins)) - np.repeat(np.cumsum(each) - each, each)
    share, total = made[which], each[which]
    return (nth + 1) * share // total - nth * share // total


def measured(report: Report) -> dict[str, Any]:
    """A report as plain data: what predictions are compared with."""
    return {
        "seconds": report.seconds,
        "tuples": report.tuples,
        "policy": report.policy,
        "workers": report.workers,
        "problems": report.problems,
        "queries": {
            name: {
                "tuples_in": one.tuples_in,
                "tuples_out": one.tuples_out,
                "p50": one.latency.p50 if one.latency.count else None,
                "p99": one.latency.p99 if one.latency.count else None,
                "mean": one.latency.mean if one.latency.count else None,
                "utility": one.utility,
                "shed": one.shed,
                "late": one.late,
                "failed": one.error is not None,
                "sink": one.sink_seconds,
            }
            for name, one in report.queries.items()
        },
    }
