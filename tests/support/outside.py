"""Sinks outside under faults that a test chooses: a driver's steps, cut short at any call it makes.

``drive`` does with an outlet what a run of the Spark engine does: announce a step, hand it over, commit it.
``Points`` are the calls on the way; a test lets the n-th one crash the driver, or fail, before it is made or
after.  What the log had then is what the next driver starts with.  ``every_point`` tries them all.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.checkpoint.opening import open_storage
from headgate.connectors.sink import Sink
from headgate.engines.spark.messages import OutputPart
from headgate.engines.spark.queue_files import write_queue
from headgate.engines.spark.sinks import Outlet
from headgate.graph.network import Output
from headgate.graph.packet import Order, Packet

TABLE: dict[tuple[str, str], Counter[str]] = {}
"""Of every sink and fault: how often it was injected, and how often the output differed."""


class Crash(BaseException):
    """The driver dies here; nothing handles it."""


class Fault(Exception):
    """A call fails, and the caller may try again."""


class Points:
    """The calls of a run, counted; the ``at``-th one fails, ``after`` it is made or before."""

    def __init__(
        self, at: int = 0, *, after: bool = False, error: Callable[[], BaseException] = Crash
    ) -> None:
        self.at, self.after, self.error = at, after, error
        self.made: list[str] = []
        self.failed = ""

    def call(self, name: str, function: Callable[..., Any], *given: Any, **options: Any) -> Any:
        if isinstance(self.error(), Crash) and self.failed:
            raise Crash  # the dead make no calls
        self.made.append(name)
        due = len(self.made) == self.at
        if due:
            self.failed = f"{'after' if self.after else 'before'} {name}"
        if due and not self.after:
            raise self.error()
        found = function(*given, **options)
        if due:
            raise self.error()
        return found

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **options: self.call(name, function, *given, **options)


@dataclass
class Log:
    """What the checkpoint's log knows."""

    announced: list[int] = field(default_factory=list)
    claim: dict[str, Any] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)


Steps = dict[int, list[OutputPart]]


def output(query: str, sink: Sink, schema: pa.Schema) -> Output:
    """A query whose results leave through ``sink``."""
    return Output(query, (SimpleNamespace(schema=schema), 0), sink)  # type: ignore[arg-type]


DISK = open_storage("/", durable=False)
"""Where tasks leave a step's rows, by their paths."""


def staged(folder: Path, steps: dict[int, list[pa.RecordBatch]]) -> Steps:
    """Rows as the tasks of a step leave them, one file for each task."""
    found: Steps = {}
    for step, batches in steps.items():
        for number, batch in enumerate(batches):
            serials = np.arange(batch.num_rows, dtype=np.int64)
            packet = Packet(batch, Order(serials, 0.0, len(serials)))
            name = str(folder / "queues" / f"{step}-{number}-staged.arrow").lstrip("/")
            queue = write_queue(DISK, name, packet)
            part = OutputPart(batch.num_rows, file=name, queue=queue)
            found.setdefault(step, []).append(part)
    return found


def drive(make: Callable[[], Outlet], log: Log, steps: Steps, points: Points) -> None:
    """One run: what was announced first, then the rest."""
    outlet = make()
    log.claim = outlet.open(log.claim)
    for step in [*log.announced, *steps]:
        if step in log.done:
            continue
        repeated = step in log.announced
        if not repeated:
            points.call("intent", log.announced.append, step)
        outlet.hand_over(steps[step], step, repeated)
        points.call("record", _committed, log, step)
    outlet.close(False, 1)


def _committed(log: Log, step: int) -> None:
    log.announced.remove(step)
    log.done.append(step)


Attempt = Callable[[Points], Callable[[], Outlet]]
"""Makes the outlets of a run whose calls go through these points."""


def every_point(
    sink: str,
    fresh: Callable[[], None],
    attempt: Attempt,
    steps: Steps,
    output: Callable[[], Any],
    *,
    error: Callable[[], BaseException] = Crash,
    pairs: int = 0,
    only: Collection[str] = (),
) -> list[str]:
    """Let each call of a run fail, once before and once after it is made; then run to the end and compare.

    ``fresh`` empties the place outside.  ``pairs``: so many runs more in which the second run crashes too.
    ``only``: these calls, where each costs much.  Returns the faults, in order.
    """
    fresh()
    whole = Points()
    drive(attempt(whole), Log(), steps, whole)
    wanted = output()
    assert wanted
    chance = random.Random(7)
    chosen = [at for at, name in enumerate(whole.made, 1) if not only or name in only]
    plans = [[Points(at, after=after, error=error)] for at in chosen for after in (False, True)]
    plans += [
        [Points(chance.choice(chosen), after=chance.random() < 0.5) for _ in range(2)] for _ in range(pairs)
    ]
    faults = []
    for plan in plans:
        fresh()
        log = Log()
        for points in [*plan, Points()]:
            try:
                drive(attempt(points), log, steps, points)
            except Crash:
                continue
            except Exception:
                if points.error is Crash or not points.failed:
                    raise
        found = output()
        fault = " and ".join(points.failed for points in plan if points.failed)
        kind = "crash" if plan[0].error is Crash else "failure"
        own = TABLE.setdefault((sink, f"{kind} {'twice' if len(plan) > 1 else plan[0].failed}"), Counter())
        own["injected"] += 1
        own["differences"] += found != wanted
        assert found == wanted, f"{sink}, {fault}: {_difference(found, wanted)}"
        faults.append(fault)
    return faults


def _difference(found: Any, wanted: Any) -> str:
    if isinstance(found, Sequence) and isinstance(wanted, Sequence):
        lost = [row for row in wanted if row not in found]
        return f"{len(found)} rows instead of {len(wanted)}; lost: {lost[:3]}"
    return f"{found!r} instead of {wanted!r}"


def summary() -> list[str]:
    """Fault and sink, how often, and differences, a line each."""
    width = max((len(fault) for _, fault in TABLE), default=0)
    return [
        f"{sink:<24} {fault:<{width}} injected {own['injected']:>4}  differences {own['differences']}"
        for (sink, fault), own in sorted(TABLE.items())
    ]
