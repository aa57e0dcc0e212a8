"""The allocator of a run: a pool for every thread that asks, superblocks for every memory node."""

from __future__ import annotations

import resource
import threading
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.machine.host import current_core
from headgate.machine.topology import Topology, flat
from headgate.memory.classes import SIZES, class_of
from headgate.memory.local import Array, Pool
from headgate.memory.statistics import Statistics
from headgate.memory.superblocks import SUPERBLOCK, SuperblockAllocator


class Allocator:
    """Hands out arrays; any thread may ask, and any may be the last to use one."""

    def __init__(self, topology: Topology | None = None, superblock: int = SUPERBLOCK) -> None:
        self._topology = topology or flat(1)
        self._nodes = [SuperblockAllocator(superblock) for _ in self._topology.nodes]
        self._pools: list[Pool] = []
        self._mine = threading.local()
        self._faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self._live = 0
        """Bytes in use, at most, as far as threads between two tasks have seen."""
        self._arrow = pa.default_memory_pool()
        self._arrow_before = self._arrow.total_bytes_allocated()
        self.closed = False

    def array(self, count: int, dtype: Any) -> Array:
        """An array of so many values, which may hold anything."""
        dtype = np.dtype(dtype)
        size = count * dtype.itemsize
        pool = self._pool()
        which = class_of(size)
        if which is not None and not self.closed:
            array = pool.allocate(which, count, dtype)
            if array is not None:
                return array
        pool.passed += 1
        pool.passed_bytes += size
        return np.empty(count, dtype)

    def buffer(self, size: int) -> pa.Buffer:
        """Memory for Arrow: it holds the block as long as anything of it is in use."""
        return pa.py_buffer(self.array(size, np.uint8))

    def recollect(self) -> None:
        """For a thread between two tasks: take back what other threads have freed, let spare memory go."""
        self._seen()
        self._pool().recollect()

    def _seen(self) -> int:
        live = sum([pool.live for pool in self._pools.copy()])
        self._live = max(self._live, live)
        return live

    def _pool(self) -> Pool:
        pool: Pool | None = getattr(self._mine, "pool", None)
        if pool is None:
            core = current_core()
            known = core in self._topology.cores
            source = self._nodes[self._topology.node_of(core) if known else 0]
            pool = self._mine.pool = Pool(source, threading.get_ident())
            self._pools.append(pool)
        return pool

    def close(self) -> Statistics:
        """When all threads have ended: the statistics.  Memory goes back with the last array that uses it."""
        self.closed = True
        statistics = self.recollected()
        for pool in self._pools:
            pool.close()
        for node in self._nodes:
            node.close()
        return statistics

    def recollected(self) -> Statistics:
        """When no thread is at work: take back all that has been freed, and give the statistics."""
        self._seen()
        for pool in self._pools:
            pool.recollect()
        return self.statistics()

    def statistics(self) -> Statistics:
        """So far; exact when no thread is at work."""
        live = self._seen()
        pools = list(self._pools)
        by_class: Counter[int] = Counter()
        for pool in pools:
            by_class.update({SIZES[which]: n for which, n in enumerate(pool.allocations) if n})
        allocations, freed = sum(by_class.values()), sum([pool.freed for pool in pools])
        return Statistics(
            "local",
            threads=len(pools),
            allocations=allocations,
            requested_bytes=sum([pool.requested for pool in pools]),
            block_bytes=sum([pool.given for pool in pools]),
            by_class=dict(sorted(by_class.items())),
            passed=sum([pool.passed for pool in pools]),
            passed_bytes=sum([pool.passed_bytes for pool in pools]),
            live_bytes=live,
            live_bytes_most=self._live,
            claimed_bytes=sum([node.claimed for node in self._nodes]),
            claimed_bytes_most=sum([node.most for node in self._nodes]),
            superblocks=sum([node.mapped for node in self._nodes]),
            superblocks_reused=sum([node.reused for node in self._nodes]),
            freed=freed,
            recollected=sum([pool.recollected for pool in pools]),
            outstanding=allocations - freed,
            page_faults=resource.getrusage(resource.RUSAGE_SELF).ru_minflt - self._faults,
            arrow_bytes=self._arrow.total_bytes_allocated() - self._arrow_before,
        )
