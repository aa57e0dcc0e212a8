"""Memory for packets that our own code builds (locality-aware scheduling, section 5).

Every thread has a pool of its own, from which it allocates without a lock; a block that another thread
frees goes back through a bin of that pair of threads; pools get superblocks from the allocator of their
memory node.  Callers get numpy arrays, which Arrow takes without a copy; a block returns when the last
reference to it is gone.  Arrow's own kernels allocate from Arrow's pools, which Python cannot replace.
"""

from headgate.memory.allocator import Allocator
from headgate.memory.statistics import Statistics

__all__ = ["Allocator", "Statistics"]
