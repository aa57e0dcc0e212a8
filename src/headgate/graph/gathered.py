"""What a range of rows comes to, before the state that it belongs to is known.

Tasks that read different ranges of a stream can aggregate their rows at once.  Only the groups travel to the
shards that hold the state, which are few where rows are many, so rows are not sent at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headgate.graph.packet import Ticks


@dataclass(slots=True)
class Gathered:
    """The groups of a range, and how event time moved in it.

    ``groups`` has the key columns first.  ``rows`` and ``late`` are the rows of the range that count and
    those that are late whatever came before it.
    """

    groups: pa.RecordBatch
    ticks: Ticks
    rows: int
    late: int

    def parted(self, groups: Sequence[pa.RecordBatch]) -> list[Gathered]:
        """The same for several shards; the first one counts the rows."""
        first = replace(self, groups=groups[0])
        return [first, *(replace(self, groups=own, rows=0, late=0) for own in groups[1:])]
