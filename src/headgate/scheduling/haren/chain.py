"""The progress chart and its lower envelope (Babcock et al. 2003, sections 3 and 4: Chain scheduling).

A tuple on its way through the boxes takes time and shrinks: its progress chart is the size left over the time
spent.  The lower envelope is the steepest way down: from each point the segment to whichever later point
frees memory fastest.  All boxes of a segment have its slope as priority, so that a box which frees nothing is
run for the sake of the one behind it.

The paper has chains; here a chart is a tree, and where it branches the steepest of the branches' segments is
joined first (Horn's rule), which on a chain is the envelope.  Where arrows meet a new chart begins: there
tuples wait for the other arrow, whatever is scheduled.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from headgate.scheduling.haren.features import ship

if TYPE_CHECKING:
    from headgate.scheduling.haren.feature_table import BoxView


class Segment(NamedTuple):
    """Boxes run together: what they take and free for each tuple at the head of the chart."""

    seconds: float
    freed: float
    boxes: tuple[int, ...]

    @property
    def slope(self) -> float:
        """Bytes freed per second."""
        if self.seconds > 0:
            return self.freed / self.seconds
        return math.copysign(math.inf, self.freed) if self.freed else 0.0

    def join(self, other: Segment) -> Segment:
        return Segment(self.seconds + other.seconds, self.freed + other.freed, self.boxes + other.boxes)


def begins_chart(box: BoxView) -> bool:
    """A box whose input comes along one arrow continues the chart of the box before it."""
    return len(box.upstream) != 1 or bool(box.entry.fed_by)


@ship("downstream")
def chain_segments(box: BoxView, downstream: list[BoxView]) -> tuple[Segment, ...]:
    """The lower envelope of what begins with this box, steepest first."""
    through = box.selectivity
    made = through * sum([down.tuple_bytes for down in downstream])
    first = Segment(box.cost, box.tuple_bytes - made, (box.number,))
    rest = [
        Segment(through * s.seconds, through * s.freed, s.boxes)
        for down in downstream
        if not begins_chart(down)
        for s in down.chain_segments
    ]
    rest.sort(key=lambda segment: -segment.slope)
    joined = 0
    while joined < len(rest) and rest[joined].slope >= first.slope:
        first = first.join(rest[joined])
        joined += 1
    return (first, *rest[joined:])


@ship("upstream")
def chain_slopes(box: BoxView, upstream: list[BoxView]) -> dict[int, float]:
    """The slopes of all boxes of its chart, by box; one table for the whole chart."""
    if not begins_chart(box):
        slopes: dict[int, float] = upstream[0].chain_slopes
        return slopes
    return {number: segment.slope for segment in box.chain_segments for number in segment.boxes}
