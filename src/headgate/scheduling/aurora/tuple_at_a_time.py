"""Tuple at a time (Aurora, section 5.5: TAAT), the baseline that batching is measured against."""

from __future__ import annotations

from headgate.scheduling.aurora.round_robin import RoundRobin
from headgate.scheduling.trains import Count


class TupleAtATime(RoundRobin):
    """Each box that can run in its turn, one tuple per call: the baseline without trains."""

    name = "tuple_at_a_time"
    settings = frozenset()

    def __init__(self) -> None:
        super().__init__(Count(1))
