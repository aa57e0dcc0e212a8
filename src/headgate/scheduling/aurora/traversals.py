"""In which order the boxes of a superbox are called (Aurora, section 4.1.2): for cost, latency or memory.

A superbox is a set of boxes that a query needs.  A traversal is a sequence of calls; boxes may come several
times, and a call for which nothing is there when its turn comes is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from headgate.scheduling.catalog import NOT_MEASURED, BoxEntry

Traversal = Callable[[Sequence[BoxEntry], Collection[int]], list[int]]
"""The calls for a superbox, given all boxes and the numbers of those that are in it."""

LEAST = 1e-9
"""A selectivity of nothing, where it is divided by, and tuples so few that none is expected."""


def min_cost(boxes: Sequence[BoxEntry], superbox: Collection[int]) -> list[int]:
    """Every box once, after those that feed it: post order from the outputs."""
    inside = frozenset(superbox)
    found: list[int] = []
    seen: set[int] = set()

    def visit(box: int) -> None:
        if box not in seen:
            seen.add(box)
            for up in boxes[box].upstream:
                if up in inside:
                    visit(up)
            found.append(box)

    for box in superbox:
        if not inside.intersection(boxes[box].downstream):
            visit(box)
    return found


def min_latency(boxes: Sequence[BoxEntry], superbox: Collection[int]) -> list[int]:
    """From the box whose tuples are soonest at the output to the furthest, each with all that follows it."""
    post_order = min_cost(boxes, superbox)
    below = {box: _downstream(boxes, box, post_order) for box in post_order}
    passing = {box: max(math.prod([boxes[k].selectivity for k in below[box]]), LEAST) for box in post_order}
    output_cost = {box: sum([boxes[k].cost / passing[k] for k in below[box]]) for box in post_order}
    return [k for box in sorted(post_order, key=lambda box: output_cost[box]) for k in below[box]]


def min_memory(boxes: Sequence[BoxEntry], superbox: Collection[int]) -> list[int]:
    """Again and again the box with waiting tuples that frees most memory in a second."""
    post_order = min_cost(boxes, superbox)
    sizes: dict[int, float] = {}
    for box in post_order:
        known = [sizes[up] for up in boxes[box].upstream if up in sizes]
        # Tuples that no box has passed on yet are taken to be as large as those before it.
        unseen = known and boxes[box].tuple_bytes == NOT_MEASURED
        sizes[box] = sum(known) / len(known) if unseen else boxes[box].tuple_bytes
    rank = {box: (-memory_freed(boxes[box], sizes[box]), place) for place, box in enumerate(post_order)}
    waiting = {box: float(boxes[box].queue.tuples) for box in post_order}
    found: list[int] = []
    while len(found) < len(post_order) ** 2:
        left = [box for box in post_order if waiting[box] > LEAST]
        if not left:
            return found
        box = min(left, key=lambda box: rank[box])
        found.append(box)
        passed, waiting[box] = waiting[box] * boxes[box].selectivity, 0.0
        for down in boxes[box].downstream:
            if down in waiting:
                waiting[down] += passed
    return found + post_order  # where paths part and meet again and again, the sequence would have no end


def mean_latency(boxes: Sequence[BoxEntry], superbox: Collection[int], order: Sequence[int]) -> float:
    """The mean time at which results of what is queued now are expected to leave a superbox, traversed so.

    A call takes its overhead and its tuples' costs; its results come evenly over the latter.
    """
    waiting = {box: float(boxes[box].queue.tuples) for box in superbox}
    now = results = weighted = 0.0
    for place in order:
        tuples = waiting[place]
        if tuples <= LEAST:
            continue
        box = boxes[place]
        waiting[place] = 0.0
        seconds, made = tuples * box.cost, tuples * box.selectivity
        now += box.call_overhead + seconds
        inside = [down for down in box.downstream if down in waiting]
        for down in inside:
            waiting[down] += made
        if not inside:
            results += made
            weighted += made * (now - seconds * (1 - 1 / max(tuples, 1.0)) / 2)
    return weighted / results if results > LEAST else 0.0


def memory_freed(box: BoxEntry, tuple_bytes: float) -> float:
    """Bytes per second by which a box's work shortens the queues."""
    return tuple_bytes * (1 - box.selectivity) / max(box.cost, LEAST)


def _downstream(boxes: Sequence[BoxEntry], box: int, post_order: Sequence[int]) -> list[int]:
    """A box and all of the superbox that follows it, in the order in which tuples reach them."""
    reached = {box}
    found = []
    for each in post_order:
        if each == box or reached.intersection(boxes[each].upstream):
            reached.add(each)
            found.append(each)
    return found
