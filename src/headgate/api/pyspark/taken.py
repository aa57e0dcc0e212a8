"""A part of a plan that has been taken over."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headgate.api.pyspark.catalyst import Columns
from headgate.api.streams import Stream
from headgate.graph.windows import Window


@dataclass(frozen=True)
class Taken:
    """A part of a plan as a stream."""

    stream: Stream
    columns: Columns
    """By attribute, its column."""
    watermarks: dict[str, int] = field(default_factory=dict)
    """By column, its allowed lateness in microseconds."""
    windows: dict[int, Window] = field(default_factory=dict)
    """By attribute, the windows that an aggregate above will group by."""

    def passed(self, stream: Stream) -> Taken:
        """The same columns after another box."""
        return replace(self, stream=stream)
