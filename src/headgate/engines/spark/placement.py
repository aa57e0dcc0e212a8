"""Which task runs what in a step that is large enough for several.

Many queries are given to tasks as they are.  A few heavy ones are cut: slices of the source run the boxes
that no state stands before, what follows falls into groups that share nothing, and each group goes to one
task; a group that outweighs the others has its keyed boxes split by key, each task taking a shard of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.checkpoint.graph import Node, Nodes
from headgate.engines.spark.messages import Lanes
from headgate.graph.operator import Kind

HEAVY = 1.2
"""A group with more than this many times its fair share is split."""
SHARE = 0.5
"""… at the boxes that make up at least this much of it."""


def ranges(shards: int, buckets: int) -> list[tuple[int, int]]:
    """The buckets of each shard."""
    shards = min(shards, buckets)
    return [(buckets * i // shards, buckets * (i + 1) // shards) for i in range(shards)]


def share_out(nodes: Nodes, places: Sequence[int], weights: Mapping[int, float], count: int) -> Lanes:
    """Give the nodes behind the slices to ``count`` tasks, the heaviest group first."""
    groups = _groups(nodes, [nodes.all[place] for place in places if not nodes.all[place].slices])
    loads = [0.0] * count
    task: dict[int, int] = {}
    split: set[int] = set()
    total = sum(weights.get(place, 0.0) for group in groups for place in group)
    for group in sorted(groups, key=lambda group: -sum(weights.get(p, 0.0) for p in group)):
        weight = sum(weights.get(place, 0.0) for place in group)
        if weight > HEAVY * total / count:
            heavy = [
                p for p in group if _splits(nodes.all[p], nodes) and weights.get(p, 0.0) > SHARE * weight
            ]
            split.update(heavy)
            for lane in range(count):
                loads[lane] += sum(weights[p] for p in heavy) / count
            weight -= sum(weights[p] for p in heavy)
        lane = loads.index(min(loads))
        loads[lane] += weight
        task |= dict.fromkeys(group, lane)
    return Lanes(count, task, frozenset(split))


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


def _splits(node: Node, nodes: Nodes) -> bool:
    """Whether a box can be split by key: keyed, and fed by slices alone."""
    keyed = node.operator is not None and node.operator.kind is Kind.KEYED
    return keyed and all(feed.source or nodes.all[feed.place].slices for feed in node.feeds)


def _groups(nodes: Nodes, behind: Sequence[Node]) -> list[list[int]]:
    """Nodes behind the slices that feed each other belong together."""
    group = {node.place: node.place for node in behind}

    def root(place: int) -> int:
        while group[place] != place:
            group[place] = group[group[place]]
            place = group[place]
        return place

    for node in behind:
        for feed in node.feeds:
            if not feed.source and feed.place in group:
                group[root(node.place)] = root(feed.place)
    found: dict[int, list[int]] = {}
    for node in behind:
        found.setdefault(root(node.place), []).append(node.place)
    return list(found.values())
