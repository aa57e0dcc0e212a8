"""The machine that a scheduler sees: cores, the caches they share, and memory nodes.

Cores that share at least one level of cache form a *group*, which lies within one NUMA node (locality-aware
scheduling, section 4.1).  The *cache distance* of two cores is the lowest level of cache that they share, and
infinite if there is none; the *NUMA distance* is the length of the shortest path between their nodes (section
4.2).  The *NUMA factor* says how many times slower the memory of another node is (Bobox, section 4.2).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from headgate.errors import PipelineError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Cache:
    """A cache for data: its level, its bytes, and the cores that use it."""

    level: int
    size: int
    cores: tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """Cores with memory of their own; ``memory`` in bytes, 0 if it is not known."""

    number: int
    cores: tuple[int, ...]
    memory: int = 0


@dataclass(frozen=True)
class Topology:
    """A machine.

    ``hops[i][j]`` is the NUMA distance from the i-th node to the j-th, ``factors[i][j]`` how many times
    slower than its own a core of the i-th node finds the memory of the j-th.  ``limit`` is how many cores may
    be busy at once, where something allows fewer than there are.  ``notes`` say what was assumed.
    """

    name: str
    nodes: tuple[Node, ...]
    caches: tuple[Cache, ...] = ()
    hops: tuple[tuple[int, ...], ...] = ()
    factors: tuple[tuple[float, ...], ...] = ()
    line: int = 64
    limit: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = range(len(self.nodes))
        if not self.hops:
            object.__setattr__(self, "hops", tuple(tuple(int(i != j) for j in count) for i in count))
        if not self.factors:
            object.__setattr__(self, "factors", tuple((1.0,) * len(count) for _ in count))
        mistake = _mistake(self)
        if mistake is not None:
            raise PipelineError(f"Topology '{self.name}': {mistake}")

    @cached_property
    def cores(self) -> tuple[int, ...]:
        """All cores, by number."""
        return tuple(sorted(core for node in self.nodes for core in node.cores))

    @property
    def workers(self) -> int:
        """How many workers it has work for."""
        return len(self.cores) if self.limit is None else min(self.limit, len(self.cores))

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Cores that share a cache, directly or by others; a pool of threads is pinned to each."""
        of = {core: {core} for core in self.cores}
        for cache in self.caches:
            joined = set().union(*(of[core] for core in cache.cores))
            for core in joined:
                of[core] = joined
        return tuple(sorted({tuple(sorted(group)) for group in of.values()}))

    @cached_property
    def _node_of(self) -> dict[int, int]:
        return {core: place for place, node in enumerate(self.nodes) for core in node.cores}

    @cached_property
    def _group_of(self) -> dict[int, int]:
        return {core: place for place, group in enumerate(self.groups) for core in group}

    def node_of(self, core: int) -> int:
        """The place of a core's node among the nodes."""
        return self._node_of[core]

    def group_of(self, core: int) -> int:
        """The place of a core's group among the groups."""
        return self._group_of[core]

    def cache_distance(self, one: int, other: int) -> float:
        """The lowest level of cache that two cores share; infinite if they share none."""
        shared = [cache.level for cache in self.caches if one in cache.cores and other in cache.cores]
        return min(shared, default=math.inf)

    def numa_distance(self, one: int, other: int) -> int:
        """Steps between the nodes of two cores."""
        return self.hops[self._node_of[one]][self._node_of[other]]

    def numa_factor(self, core: int, node: int) -> float:
        """How many times slower than its own node's a core finds the memory of a node."""
        return self.factors[self._node_of[core]][node]

    def cache(self, core: int, level: int) -> Cache | None:
        """A core's cache of a level."""
        return next((c for c in self.caches if c.level == level and core in c.cores), None)

    def placed(self, workers: int) -> tuple[int, ...]:
        """The core of each worker: second threads of a core come last; in turns if there are too few."""
        twin = dict.fromkeys(self.cores, 0)
        for cache in self.caches:
            if cache.level == 1:
                twin |= {core: place for place, core in enumerate(cache.cores)}
        first = sorted(self.cores, key=lambda core: (twin[core], self._group_of[core], core))
        chosen = sorted(first[:workers], key=lambda core: (self._group_of[core], core))
        return tuple(chosen[worker % len(chosen)] for worker in range(workers))


def flat(cores: int) -> Topology:
    """A machine without a description: one node, whose cores share a cache."""
    numbers = tuple(range(cores))
    return Topology("flat", (Node(0, numbers),), (Cache(3, 32 * MIB, numbers),))


def _mistake(topology: Topology) -> str | None:
    """What is wrong with a topology, in words; None: nothing."""
    if not re.fullmatch(r"[^\s#]+", topology.name):
        return "its name must be one word."
    if any("\n" in note or note != note.strip() for note in topology.notes):
        return "a note is one line."
    seen: set[int] = set()
    for node in topology.nodes:
        if not node.cores:
            return f"node {node.number} has no cores."
        if again := seen.intersection(node.cores):
            return f"core {min(again)} is in two nodes."
        seen.update(node.cores)
    if not seen:
        return "it has no node."
    if len({node.number for node in topology.nodes}) < len(topology.nodes):
        return "two nodes have the same number."
    for level in sorted({cache.level for cache in topology.caches}):
        if mistake := _level_mistake(topology, level, seen):
            return mistake
    square = len(topology.nodes)
    for what, rows in (("hops", topology.hops), ("factor", topology.factors)):
        if len(rows) != square or any(len(row) != square for row in rows):
            return f"'{what}' needs a row of {square} numbers for each of the {square} nodes."
    for i in range(square):
        if topology.hops[i][i] != 0 or any(topology.hops[i][j] < 1 for j in range(square) if j != i):
            return f"hops from node {topology.nodes[i].number}: 0 to itself, at least 1 to others."
        if any(not 0 < factor < math.inf for factor in topology.factors[i]):
            return f"factors from node {topology.nodes[i].number}: they must be positive."
    if topology.limit is not None and topology.limit < 1:
        return f"a limit of {topology.limit} cores leaves none to work."
    return None


def _level_mistake(topology: Topology, level: int, known: Iterable[int]) -> str | None:
    found: set[int] = set()
    for cache in topology.caches:
        if cache.level != level:
            continue
        if level < 1 or cache.size < 1 or not cache.cores:
            return f"a cache of level {level} with {cache.size} bytes for {len(cache.cores)} cores cannot be."
        if unknown := set(cache.cores).difference(known):
            return f"an L{level} cache belongs to core {min(unknown)}, which no node has."
        if again := found.intersection(cache.cores):
            return f"core {min(again)} has two L{level} caches."
        if len({topology._node_of[core] for core in cache.cores}) > 1:
            return f"an L{level} cache is shared by cores of several nodes ({list(cache.cores)[:4]} …)."
        found.update(cache.cores)
    return None
