"""``Threads``: a few worker threads, one scheduler state, real time (Aurora, section 3).

All scheduling state sits behind one lock, which no thread holds while an operator, a source or a sink works;
Arrow's kernels release the GIL, so workers run in parallel where it matters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.control.line import Line
from headgate.engines.base import (
    Engine,
    Progress,
    Until,
    check_packet_rows,
    check_ring,
    check_scheme,
)
from headgate.engines.spool import LIMIT, check_spool
from headgate.engines.threads.run import ThreadsRun
from headgate.engines.threads.settings import Settings
from headgate.errors import PipelineError
from headgate.graph.network import Network
from headgate.machine import host as machines
from headgate.machine.topology import Topology
from headgate.memory import use as memory
from headgate.runtime.limits import MOST_GRACE, check_workers
from headgate.runtime.ordered import reordering
from headgate.runtime.ordered.partitioning import SCHEMES as PARTITIONING
from headgate.runtime.report import Report
from headgate.scheduling.interface import Policy


class Threads(Engine):
    """Runs a network on worker threads of this process.

    ``packet_rows``: rows of a packet; by default half of L2, and "auto" finds the best while running.
    ``reorder``: how results of several workers on one box are put in order, "nonblocking" or "lock".
    ``ring``: calls of one box that may be under way or wait for an earlier one; by default 32, or four for
    each worker.  A box whose ring is full is left alone, and its workers go on elsewhere.
    ``partitioning``: how workers share a keyed box, "hybrid", "partitioned" or "shared", by ``buckets`` of
    its keys; ``split`` says whether they do: True always, False never, None where its tuples are so dear
    that it pays.  ``allocator``: where packets' memory comes from: "default" is numpy's allocator and Arrow's
    own pool, "local" a pool per thread for what our own code builds, and the names of Arrow's pools
    ("system", "mimalloc", …) choose one of these.  ``grace``: seconds that a call, a source or a sink has to
    come back when the run is stopped; it is then left behind, and its queries get an error.  ``history``: the
    folder for what queries with ``keep=`` keep; by default a temporary one, which goes with the run.
    ``spool``: bytes in the system's temporary folder for queries with goals that are behind, so that they do
    not hold up others over the same live source; 0 for none.
    """

    name = "threads"

    def __init__(
        self,
        workers: int | None = None,
        packet_rows: int | str | None = None,
        reorder: str = "nonblocking",
        partitioning: str = "hybrid",
        buckets: int = 100,
        *,
        ring: int | None = None,
        split: bool | None = None,
        allocator: str = memory.DEFAULT,
        grace: float = 5.0,
        history: str | Path | None = None,
        spool: int = LIMIT,
    ) -> None:
        if workers is not None:
            check_workers(workers, "Threads")
        if buckets < 1:
            raise PipelineError(f"Threads(buckets={buckets}): it must be at least 1.")
        check_packet_rows("Threads", packet_rows)
        check_scheme("Threads", "reorder", reorder, reordering.SCHEMES)
        check_ring("Threads", ring)
        check_scheme("Threads", "partitioning", partitioning, PARTITIONING)
        check_scheme("Threads", "allocator", allocator, memory.names())
        if isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace <= MOST_GRACE:
            raise PipelineError(f"Threads(grace={grace!r}): it must be a number of seconds, at most a day.")
        check_spool("Threads", spool)
        self.workers, self.allocator = workers, allocator
        folder = None if history is None else str(history)
        self.settings = Settings(
            packet_rows, reorder, partitioning, buckets, split, float(grace), ring, spool, folder
        )

    @property
    def topology(self) -> Topology:
        """This machine."""
        return machines.host()

    def described(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self.settings).items() if name != "grace"}

    def run(
        self,
        network: Network,
        policy: Policy,
        *,
        workers: int | None = None,
        until: Until = "drained",
        progress: Progress | None = None,
        seed: int = 0,
        line: Line | None = None,
    ) -> Report:
        asked = workers or self.workers or self.topology.workers
        with _one_arrow_thread(), memory.in_use(self.allocator, self.topology) as use:
            # The run is gone when the memory is counted, and what its queues held with it.
            run = ThreadsRun(self.settings, self.topology, network, policy, asked, until, progress, seed, use)
            report = run.run(line)
            del run
        report.memory = use.statistics
        return report


@contextmanager
def _one_arrow_thread() -> Iterator[None]:
    """Our workers are the parallelism; and the GIL changes hands sooner than by default."""
    threads, interval = pa.cpu_count(), sys.getswitchinterval()
    pa.set_cpu_count(1)
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        pa.set_cpu_count(threads)
        sys.setswitchinterval(interval)
