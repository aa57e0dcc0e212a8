"""Which task runs what in a step that is large enough for several.

Many queries are given to tasks as they are.  A few heavy ones are cut into stages: ``stages`` says at which
level each node runs, which keyed boxes are split into shards, and where the other boxes with state are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.checkpoint.graph import Node, Nodes
from headgate.engines.spark.messages import Stages
from headgate.graph.operator import Kind

SMALL_MERGE = 100_000
"""Rows that one task puts together faster than several."""


def ranges(shards: int, buckets: int) -> list[tuple[int, int]]:
    """The buckets of each shard."""
    shards = min(shards, buckets)
    return [(buckets * i // shards, buckets * (i + 1) // shards) for i in range(shards)]


def stages(
    nodes: Nodes,
    places: Sequence[int],
    count: int,
    *,
    buckets: int,
    weights: Mapping[int, float],
    made: Mapping[int, float],
    riding: bool,
) -> Stages:
    """The levels of a step on ``count`` tasks; ``made``: how many rows each node is expected to give.

    ``riding``: boxes behind a split one may stay in its shards if the sink asks for the order of keys alone.
    """
    split = frozenset(place for place in places if _keyed(nodes.all[place]) and min(count, buckets) > 1)
    riders, carriers = _riders(nodes, places, split) if riding else (frozenset(), frozenset())
    level: dict[int, int] = {}
    for place in sorted(places):  # a box comes after those that feed it
        node = nodes.all[place]
        feeds = [feed.place for feed in node.feeds if not feed.source and feed.place in level]
        if place in riders:
            level[place] = level[feeds[0]]
        else:
            whole = max([level[feed] + level[feed] % 2 for feed in feeds], default=0)
            level[place] = whole + 1 if node.stateful else whole
    home: dict[int, int] = {}
    loads = [0.0] * count
    whole_boxes = [place for place in places if nodes.all[place].stateful and place not in split]
    for place in sorted(whole_boxes, key=lambda place: -weights.get(place, 0.0)):
        home[place] = loads.index(min(loads))
        loads[home[place]] += weights.get(place, 0.0) + 1e-9
    return Stages(level, split, home, _tasks(level, split - carriers, home, made, count), riders, carriers)


def _tasks(
    level: Mapping[int, int],
    merged: frozenset[int],
    home: Mapping[int, int],
    made: Mapping[int, float],
    count: int,
) -> list[int]:
    """How many tasks each level has.  What shards of the last level made is put together one level later."""
    top = max(level.values(), default=0)
    if any(level[place] == top for place in merged):
        top += 1
    tasks = [count]
    for number in range(1, top + 1):
        own = [place for place, at in level.items() if at == number]
        if number % 2:
            only_whole = own and all(place in home for place in own)
            tasks.append(max([home[place] for place in own]) + 1 if only_whole else count)
        else:
            rows = sum(made.get(place, 0.0) for place, at in level.items() if at == number - 1)
            tasks.append(count if rows > SMALL_MERGE and tasks[-2] > 1 else 1)
    return tasks


def _keyed(node: Node) -> bool:
    return node.operator is not None and node.operator.kind is Kind.KEYED


def _riders(
    nodes: Nodes, places: Sequence[int], split: frozenset[int]
) -> tuple[frozenset[int], frozenset[int]]:
    """The nodes that can stay in the shards of the box before them, and the split boxes that have such."""
    riders: set[int] = set()
    for place in sorted(places, reverse=True):
        node = nodes.all[place]
        if node.stateful or len(node.feeds) != 1 or node.feeds[0].source:
            continue
        if node.output is not None:
            rides = node.output.sink.order == "key"
        else:
            behind = [target.place for target, _ in nodes.following(node)]
            rides = bool(behind) and riders.issuperset(behind)
        if rides:
            riders.add(place)
    carriers = frozenset(
        place
        for place in split
        if (behind := [target.place for target, _ in nodes.following(nodes.all[place])])
        and riders.issuperset(behind)
    )
    kept: set[int] = set()
    for place in sorted(riders):
        if nodes.all[place].feeds[0].place in carriers | kept:
            kept.add(place)
    return frozenset(kept), carriers


def share_queries(
    nodes: Nodes, places: Sequence[int], weights: Mapping[int, float], count: int
) -> list[list[int]]:
    """Give whole queries to ``count`` tasks, none of which then needs anything of another.

    Stateless boxes that queries share run in every task that has one of these queries, which costs less than
    bringing their results elsewhere; queries that share state stay together.
    """
    among = set(places)
    needs = {place: {place} for place in places}
    for place in sorted(places):  # boxes come after those that feed them, outlets after all boxes
        for feed in nodes.all[place].feeds:
            if not feed.source and feed.place in among:
                needs[place] |= needs[feed.place]
    fed = {feed.place for place in places for feed in nodes.all[place].feeds if not feed.source}
    units: list[set[int]] = []
    for place in places:
        if place in fed:
            continue
        unit = set(needs[place])
        with_state = {p for p in unit if nodes.all[p].stateful}
        for other in [u for u in units if with_state & u] if with_state else ():
            units.remove(other)
            unit |= other
        units.append(unit)
    tasks: list[set[int]] = [set() for _ in range(count)]
    loads = [0.0] * count
    by_weight = sorted(units, key=lambda unit: -sum(weights.get(p, 0.0) for p in unit))
    for unit in by_weight:
        lane = loads.index(min(loads))
        loads[lane] += sum(weights.get(p, 0.0) for p in unit - tasks[lane])
        tasks[lane] |= unit
    return [sorted(task) for task in tasks if task]
