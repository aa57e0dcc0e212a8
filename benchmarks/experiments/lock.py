"""What the one lock around scheduling costs, and what could be gained without it.

The papers' task queues are concurrent structures; here one lock guards all scheduling state.  Every visit to
it is measured on threads: how long the worker waited, how long it held the lock, how long it was away.  Then
2, 4 and 16 workers take turns with these very times in virtual time, each on a core of its own: without an
interpreter's lock, and on cores that this machine lacks.  The same without holding the lock at all is the
most that a path around it (a worker that takes its own immediate task) could ever gain.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

from benchmarks.findings import checked
from benchmarks.result import Result
from benchmarks.workloads import requests
from headgate.engines.realtime import RealtimeRun
from headgate.engines.threads import Threads
from headgate.engines.worker_pool import WorkerPool

POLICIES = ("las", "bobox")
PACKETS = (1_024, 32_768)
WORKERS = (2, 4, 16)
REQUESTS = 16
PAYS = 1.05
"""A path around the lock is worth having if it could gain that much with the usual packets."""


@dataclass
class Visits:
    """Seconds of every visit of a worker to the lock."""

    away: list[float] = field(default_factory=list)
    """Since its last visit."""
    waited: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    mine: threading.local = field(default_factory=threading.local)
    """Of each thread, when it left the lock; nothing if it slept since."""


class Watched:
    """A lock that writes down the visits of workers; the feeder and the sinks are no workers."""

    def __init__(self, lock: Any, visits: Visits) -> None:
        self._lock, self._visits = lock, visits
        self._since = 0.0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        asked = time.perf_counter()
        if not self._lock.acquire(blocking, timeout):
            return False
        self._since = now = time.perf_counter()
        if threading.current_thread().name.startswith("headgate-worker"):
            left = getattr(self._visits.mine, "left", None)
            if left is not None:
                self._visits.away.append(asked - left)
                self._visits.waited.append(now - asked)
        return True

    def release(self) -> None:
        now, since = time.perf_counter(), self._since
        if threading.current_thread().name.startswith("headgate-worker"):
            if getattr(self._visits.mine, "left", None) is not None:
                self._visits.held.append(now - since)
            self._visits.mine.left = now
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def watching() -> Iterator[Visits]:
    """The visits of workers to the locks of runs meanwhile."""
    visits, init, sleep = Visits(), RealtimeRun.__init__, WorkerPool.sleep

    def watched(self: RealtimeRun, lock: Any, *given: Any, **options: Any) -> None:
        init(self, Watched(lock, visits), *given, **options)

    def asleep(self: WorkerPool, *given: Any) -> None:
        sleep(self, *given)
        visits.mine.left = None

    with mock.patch.object(RealtimeRun, "__init__", watched), mock.patch.object(WorkerPool, "sleep", asleep):
        yield visits


def passes(away: Sequence[float], held: Sequence[float], workers: int, visits: int, seed: int = 0) -> float:
    """Visits a second of so many workers, each on its own core: away, in line for the lock, then in it."""
    draw = random.Random(seed)
    ready = sorted((draw.choice(away), worker) for worker in range(workers))
    free = 0.0
    for _ in range(visits):
        at, worker = ready.pop(0)
        free = max(free, at) + draw.choice(held)
        ready.append((free + draw.choice(away), worker))
        ready.sort()
    return visits / free


def run(quick: bool, console: Console) -> list[Result]:
    """By policy and packet size: shares of workers' time, and speedups with the lock and without."""
    rows, visits = (20_000, 5_000) if quick else (400_000, 200_000)
    table = Table(title="the scheduler's lock", title_justify="left")
    heads = ("policy", "packet rows", "workers", "visits", "held µs", "away µs", "waited, share of time")
    for column in (*heads, *(f"speedup on {n} cores, with : without" for n in WORKERS)):
        table.add_column(column, justify="right")
    results: list[Result] = []
    for policy in POLICIES:
        for packet_rows in PACKETS:
            for workers in WORKERS:
                app = requests.pipelines(REQUESTS, rows)
                with watching() as found:
                    checked(app.run(Threads(workers, packet_rows), policy))
                waited, held, away = sum(found.waited), sum(found.held), sum(found.away)
                share = waited / (waited + held + away)
                cells = [policy, f"{packet_rows:,}", f"{workers}", f"{len(found.held):,}"]
                cells += [f"{held / len(found.held) * 1e6:,.0f}", f"{away / len(found.away) * 1e6:,.0f}"]
                cells.append(f"{share:.1%}")
                if (
                    workers == WORKERS[0]
                ):  # with more threads than cores, being away is mostly waiting for one
                    one = passes(found.away, found.held, 1, visits)
                    for cores in WORKERS:
                        pair = [passes(found.away, hold, cores, visits) / one for hold in (found.held, [0.0])]
                        cells.append(f"{pair[0]:.2f} : {pair[1]:.2f}")
                        results.append(_claim(policy, packet_rows, cores, *pair))
                table.add_row(*cells)
    console.print(table)
    return results


def _claim(policy: str, packet_rows: int, cores: int, with_: float, without: float) -> Result:
    return Result(
        f"lock, {policy}, packets of {packet_rows:,}, {cores} cores, simulated",
        "locality-aware scheduling, section 4; Bobox, section 3",
        f"speedup with one lock: less than {PAYS - 1:.0%} below that without any",
        with_,
        without,
        without < PAYS * with_,
    )
