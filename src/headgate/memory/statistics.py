"""What an allocator did in a run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Statistics:
    """Of all threads together.

    ``passed`` counts what was too small or too large for the size classes and came from the system's
    allocator; ``arrow_bytes`` is what Arrow's kernels allocated meanwhile, from Arrow's pool.
    """

    allocator: str
    threads: int = 0
    allocations: int = 0
    requested_bytes: int = 0
    block_bytes: int = 0
    by_class: dict[int, int] = field(default_factory=dict)
    """Allocations by size of the block."""
    passed: int = 0
    passed_bytes: int = 0
    superblocks: int = 0
    """Superblocks that the operating system gave, and how often one was used again."""
    superblocks_reused: int = 0
    freed: int = 0
    recollected: int = 0
    """Blocks that came back from other threads than their owners."""
    outstanding: int = 0
    """Blocks that were still in use; after a run: in what its sinks have kept, or leaked."""
    page_faults: int = 0
    arrow_bytes: int = 0

    live_bytes: int = 0
    """Bytes that were asked for and are in use, now and at most."""
    live_bytes_most: int = 0
    claimed_bytes: int = 0
    """Bytes that the operating system has given and not got back, now and at most."""
    claimed_bytes_most: int = 0

    @property
    def fragmentation(self) -> float:
        """Most memory claimed from the system by most memory handed out, as the paper and Hoard count it."""
        return self.claimed_bytes_most / self.live_bytes_most if self.live_bytes_most else 0.0

    @property
    def rounding(self) -> float:
        """Share of the blocks' bytes that were not requested."""
        return 1 - self.requested_bytes / self.block_bytes if self.block_bytes else 0.0

    @property
    def share(self) -> float:
        """Share of all bytes allocated for packets that our own code built."""
        ours = self.requested_bytes + self.passed_bytes
        return ours / (ours + self.arrow_bytes) if ours else 0.0
