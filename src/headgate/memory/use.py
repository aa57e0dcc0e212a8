"""Which allocator a run uses: ours, or Arrow's pools for what Arrow allocates."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from headgate.graph import arrays
from headgate.machine.topology import Topology
from headgate.memory.allocator import Allocator
from headgate.memory.statistics import Statistics

DEFAULT = "default"
LOCAL = "local"


def names() -> list[str]:
    """The names that ``allocator=`` takes."""
    return [DEFAULT, LOCAL, *pa.supported_memory_backends()]


class Use:
    """A run's memory; ``statistics`` when it is over."""

    def __init__(self, name: str, topology: Topology) -> None:
        self.name = name
        self.allocator = Allocator(topology) if name == LOCAL else None
        self.statistics = Statistics(name)

    def recollect(self) -> None:
        """For a thread between two tasks."""
        if self.allocator is not None:
            self.allocator.recollect()

    def _close(self, faults: int, pool: pa.MemoryPool, arrow_bytes: int) -> None:
        if self.allocator is not None:
            if self.allocator.recollected().outstanding:
                gc.collect()  # what the run itself held may lie in circles
            self.statistics = self.allocator.close()
            return
        self.statistics = Statistics(
            self.name,
            page_faults=resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults,
            arrow_bytes=pool.total_bytes_allocated() - arrow_bytes,
        )


@contextmanager
def in_use(name: str, topology: Topology) -> Iterator[Use]:
    """Let packets' memory come from there; ask for the statistics after the end."""
    before = pa.default_memory_pool()
    pool = before if name in (DEFAULT, LOCAL) else getattr(pa, f"{name}_memory_pool")()
    faults, arrow_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, pool.total_bytes_allocated()
    use = Use(name, topology)
    pa.set_memory_pool(pool)
    try:
        if use.allocator is not None:
            with arrays.provided(use.allocator.array):
                yield use
        else:
            yield use
    finally:
        pa.set_memory_pool(before)
        use._close(faults, pool, arrow_bytes)
