"""Bounded queues for any selectivity (Haren, section 3): a call takes only what its results find room for.

A train is cut by the most results that a tuple of the box has had lately.  If several workers can be inside
the box, each call also keeps the room for its results free, so that others do not count on it.  A call takes
one tuple at least, whatever it makes of it; and if the results per tuple rise all at once, one call is over
the bound before the next ones know.  Calls that are under way then keep more room from those that follow.
"""

from __future__ import annotations

import math

from headgate.graph.operator import Kind
from headgate.runtime.boxes import LiveBox, Unit
from headgate.runtime.queues import Inbox

FIRST = 16
"""A box's first calls take that part of a packet, so that their results find room whatever they are."""


def results_per_tuple(live: LiveBox) -> float:
    """The most that a call is expected to make of a tuple, at least one.

    A box with state makes many results of the tuple that closes a window, however short the train is: there
    the mean counts.
    """
    entry = live.entry
    if entry.stated_selectivity is not None:
        return max(1.0, math.ceil(entry.stated_selectivity))
    return max(1.0, entry.most_out if live.operator.kind is Kind.STATELESS else entry.selectivity)


def fitting(live: LiveBox, rows: int, at_first: int) -> int:
    """So many of a train's tuples that their results find room; one at least.

    ``at_first``: the most that it takes while nobody knows what comes of a tuple.
    """
    entry = live.entry
    if not entry.calls and entry.stated_selectivity is None:
        rows = min(rows, at_first)
    room = min([inbox.room(arrow) for inbox, arrow in _queues(live)], default=rows)
    return max(1, min(rows, int(room / results_per_tuple(live))))


def keep_free(live: LiveBox, unit: Unit, rows: int) -> list[int]:
    """Keep room for the results of so many tuples; the boxes whose queues have none left now."""
    if live.task.lanes == 1:
        return []  # no other call can bring anything there
    wanted = math.ceil(rows * results_per_tuple(live))
    unit.promised_for = rows
    unit.promised = [(inbox, arrow, wanted) for inbox, arrow in _queues(live)]
    for inbox, arrow, _ in unit.promised:
        inbox.coming[arrow] = inbox.coming.get(arrow, 0) + wanted
    reached = [target for targets in live.targets for target in targets]
    return [t.place for t, arrow in reached if isinstance(t, LiveBox) and t.inbox.full(arrow)]


def keep_more(live: LiveBox) -> None:
    """A call has shown that more comes of a tuple: the calls under way keep that much room.

    Several may have begun before the first one was over, when nobody knew what comes of a tuple.
    """
    ratio = results_per_tuple(live)
    for unit in live.open_work.values():
        wanted = math.ceil(unit.promised_for * ratio)
        for place, (inbox, arrow, kept) in enumerate(unit.promised):
            if wanted > kept:
                inbox.coming[arrow] += wanted - kept
                unit.promised[place] = (inbox, arrow, wanted)


def give_back(unit: Unit, at: Inbox | None = None) -> None:
    """The results of a unit have left; or those for one queue will not come there."""
    for inbox, arrow, rows in unit.promised:
        if at is None or inbox is at:
            inbox.coming[arrow] -= rows
    unit.promised = [] if at is None else [one for one in unit.promised if one[0] is not at]


def _queues(live: LiveBox) -> list[tuple[Inbox, int]]:
    return [
        (target.inbox, arrow)
        for targets in live.targets
        for target, arrow in targets
        if isinstance(target, LiveBox) and not target.removed
    ]
