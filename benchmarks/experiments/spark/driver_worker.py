"""One measurement of ``headgate bench spark-driver``, in a process of its own.

python -m benchmarks.experiments.spark.driver_worker --side together --size 1000 --seconds 10 --settle 1
"""

from __future__ import annotations

import _thread
import argparse
import contextlib
import functools
import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import headgate as hg
from benchmarks.experiments.spark.at_once import AtOnce, DriverAlone
from headgate.checkpoint.log import Log
from headgate.checkpoint.position import Position
from headgate.checkpoint.storage import Storage
from headgate.engines.spark.core import SparkCore
from headgate.engines.spark.sharing import Shape, Sharing
from headgate.errors import HeadgateError
from headgate.runtime.stimuli import Free

TOGETHER = 10
"""Queries of one source where sources take turns."""
COST = {"together": 1e-8, "apart": 1e-8, "slices": 1e-6, "shards": 1e-6}
"""Seconds per tuple and box that tasks say they took, so that a step has all queries, or all cores."""
BURSTS = 100
"""Of all sources together, a second."""
WARM, LEAST = 10, 20
"""Steps before measuring begins, and that are measured at least."""
LIMIT = 120.0


@dataclass
class Cost:
    """Of a step, on average; seconds of CPU."""

    all: float
    nodes: float
    tasks: float
    steps: int
    log_bytes: float
    parts: dict[str, float] = field(default_factory=dict)


def app(kind: str, size: int) -> hg.App:
    """The application of one kind of measurement."""
    made = hg.App("spark-driver")
    nothing = hg.to_function(lambda query, batch: None)
    if kind in ("slices", "shards"):
        rows = made.source("rows", hg.from_rate(1e9)).filter("value >= 0")
        if kind == "shards":
            rows = rows.key_by("value").running("count(*) AS n")
        rows.to("query", nothing)
        return made
    sources = 1 if kind == "together" else max(1, size // TOGETHER)
    for place in range(sources):
        rate = hg.from_rate(BURSTS / sources * 100, burst=100, first=place / BURSTS)
        rows = made.source(f"rows {place}", rate)
        for number in range(size // sources):
            rows.filter(f"value % {size} = {number}").to(f"q{place}-{number}", nothing)
    return made


class AllCores(Sharing):
    """Shares every step out to all cores: what tasks say they took is made up, so it teaches nothing."""

    def best(self, shapes: Sequence[Shape], work: float) -> Shape:
        return max(shapes, key=lambda shape: shape.tasks)


class Stopwatch:
    """CPU seconds inside some methods, by what they are called here."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self.bytes = 0
        self._inside = threading.local()

    @contextlib.contextmanager
    def on(self, owner: type, method: str, name: Callable[..., str]) -> Iterator[None]:
        """Count a method's time, without what others that are watched take inside it."""
        real = getattr(owner, method)

        @functools.wraps(real)
        def timed(*given: Any, **named: Any) -> Any:
            outer = getattr(self._inside, "within", 0.0)
            self._inside.within = 0.0
            begin = time.thread_time()
            try:
                return real(*given, **named)
            finally:
                took = time.thread_time() - begin
                self.spent[name(*given)] += took - self._inside.within
                self._inside.within = outer + took

        setattr(owner, method, timed)
        try:
            yield
        finally:
            setattr(owner, method, real)


def _stimulus(core: SparkCore, stimulus: Any, now: float) -> str:
    return "plan" if isinstance(stimulus, Free) else "tell"


def measure(kind: str, size: int, seconds: float, settle: float) -> Cost:
    """Run the driver for a while, and say what each of its steps took after it had settled."""
    cores = size if kind in ("slices", "shards") else 1
    watch = Stopwatch()
    marks: list[tuple[float, dict[str, float], int, int, int]] = []
    members = 0

    def mark(jobs: AtOnce) -> None:
        parts = dict(watch.spent) | jobs.spent
        marks.append((time.process_time() - jobs.made_up, parts, jobs.steps, jobs.tasks, members))

    def look() -> None:
        try:
            jobs = _until(lambda: engine.jobs if engine.jobs and engine.jobs.steps >= WARM else None)
            time.sleep(settle)
            mark(jobs)
            first, end = jobs.steps, time.monotonic() + seconds
            _until(lambda: jobs if time.monotonic() >= end and jobs.steps >= first + LEAST else None)
            mark(jobs)
        finally:
            _thread.interrupt_main()  # as if Ctrl-C had been pressed: the run ends here

    def create(storage: Storage, name: str, data: bytes) -> str:
        watch.bytes += len(data) if name.startswith("log/") else 0
        return "log"

    def planned(core: SparkCore, step: Any, results: Any) -> str:
        nonlocal members
        members += len(step.members)
        return "record"

    with tempfile.TemporaryDirectory(prefix="headgate-driver-") as folder, contextlib.ExitStack() as stack:
        stack.enter_context(watch.on(SparkCore, "handle", _stimulus))
        stack.enter_context(watch.on(SparkCore, "record", planned))
        stack.enter_context(watch.on(Log, "append", lambda *_: "log"))
        stack.enter_context(watch.on(Position, "apply", lambda *_: "position"))
        stack.enter_context(watch.on(Storage, "create", create))
        stack.enter_context(mock.patch("headgate.engines.spark.planner.Sharing", AllCores))
        engine = DriverAlone(cores, str(Path(folder) / "checkpoint"), COST[kind], max(64, size))
        threading.Thread(target=look, daemon=True).start()
        app(kind, size).run(engine, until=None)
    (begin, before, first, tasks, some), (end, after, last, more, all_) = marks
    steps = last - first
    parts = {part: (spent - before.get(part, 0.0)) / steps for part, spent in after.items()}
    whole = (end - begin) / steps
    parts["rest"] = whole - sum(parts.values())
    return Cost(whole, (all_ - some) / steps, (more - tasks) / steps, steps, watch.bytes / last, parts)


def _until(look: Callable[[], AtOnce | None]) -> AtOnce:
    end = time.monotonic() + LIMIT
    while (found := look()) is None:
        if time.monotonic() > end:
            raise HeadgateError(f"the driver did not make its steps within {LIMIT:g} s")
        time.sleep(0.01)
    return found


def main() -> None:
    """Measure and write what was found as JSON, the last line of the output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("together", "apart", "slices", "shards"), required=True)
    parser.add_argument("--size", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--settle", type=float, default=1.0)
    given = parser.parse_args()
    found = measure(given.side, given.size, given.seconds, given.settle)
    print("\n" + json.dumps(asdict(found)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
