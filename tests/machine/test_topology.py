"""Machines as descriptions: groups, distances, places of workers, and the text that describes them."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import PipelineError
from headgate.machine import host as machines
from headgate.machine.topology import Cache, Node, Topology, flat
from headgate.machine.topology_format import parse, spell

# --- the papers' machines -------------------------------------------------------------------------------


def test_two_e5310_are_four_pairs_that_share_l2() -> None:
    machine = machines.get("e5310")
    assert machine.groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert len(machine.nodes) == 1
    assert machine.cache_distance(0, 1) == 2
    assert machine.cache_distance(1, 2) == math.inf
    assert machine.cache_distance(3, 3) == 1
    assert machine.numa_distance(0, 7) == 0
    assert machine.cache(5, 2) == Cache(2, 4 << 20, (4, 5))


@pytest.mark.parametrize(("name", "cores"), [("e7-4820", 16), ("e7540", 12)])
def test_the_numa_machines_are_a_group_per_node(name: str, cores: int) -> None:
    machine = machines.get(name)
    assert machine.workers == 4 * cores
    assert [len(group) for group in machine.groups] == [cores] * 4
    assert [node.memory for node in machine.nodes] == [32 << 30] * 4
    assert machine.cache_distance(0, 1) == 1  # threads of one core
    assert machine.cache_distance(0, 2) == 3
    assert machine.cache_distance(0, cores) == math.inf
    assert [machine.numa_distance(0, cores * node) for node in range(4)] == [0, 1, 1, 1]
    third = machine.cache(0, 3)
    assert third is not None
    assert third.size == 18 << 20


def test_the_factors_of_the_e7540_are_those_of_the_papers_table() -> None:
    machine = machines.get("e7540")
    assert machine.factors == (
        (1.0, 1.4, 1.5, 1.4),
        (1.5, 1.0, 1.4, 1.4),
        (1.4, 1.5, 1.0, 1.5),
        (1.5, 1.5, 1.5, 1.0),
    )
    assert machine.numa_factor(12, 0) == 1.5
    assert machine.numa_factor(0, 1) == 1.4


# --- places of workers ----------------------------------------------------------------------------------


def test_workers_get_cores_of_their_own_before_second_threads() -> None:
    machine = machines.get("e7540")
    assert machine.placed(8) == (0, 2, 4, 6, 8, 10, 12, 14)
    assert machine.placed(48) == machine.cores
    assert set(machine.placed(25)) == {*range(0, 48, 2), 1}
    assert flat(2).placed(5) == (0, 1, 0, 1, 0)


def test_a_limit_is_the_number_of_workers() -> None:
    assert Topology("small", (Node(0, (0, 1, 2, 3)),), limit=2).workers == 2
    assert Topology("small", (Node(0, (0, 1)),), limit=9).workers == 2


def test_caches_that_overlap_in_a_chain_are_one_group() -> None:
    machine = Topology(
        "chain", (Node(0, tuple(range(5))),), (Cache(2, 1, (0, 1)), Cache(3, 1, (1, 2)), Cache(2, 1, (3,)))
    )
    assert machine.groups == ((0, 1, 2), (3,), (4,))


# --- the text -------------------------------------------------------------------------------------------


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Any machine: nodes with any cores, caches of any levels on parts of them, any distances."""
    count = draw(st.integers(1, 4))
    numbers = draw(st.lists(st.integers(0, 90), min_size=count, max_size=24, unique=True))
    cuts = sorted(draw(st.permutations(range(1, len(numbers))))[: count - 1])
    parts = [numbers[a:b] for a, b in zip([0, *cuts], [*cuts, len(numbers)], strict=True)]
    sizes = st.integers(1, 1 << 40)
    places = sorted(draw(st.sets(st.integers(0, 50), min_size=count, max_size=count)))
    nodes = tuple(
        Node(place, tuple(sorted(part)), draw(st.one_of(st.just(0), sizes)))
        for place, part in zip(places, parts, strict=True)
    )
    caches: list[Cache] = []
    for level in draw(st.sets(st.integers(1, 4))):
        width, size = draw(st.integers(1, 8)), draw(sizes)
        for node in nodes:
            shared = [node.cores[at : at + width] for at in range(0, len(node.cores), width)]
            caches += [Cache(level, size, cores) for cores in shared if draw(st.integers(0, 9))]
    caches.sort(key=lambda cache: (cache.level, cache.cores))
    hops = tuple(tuple(0 if i == j else draw(st.integers(1, 9)) for j in range(count)) for i in range(count))
    factor = st.floats(0.01, 100)
    factors = tuple(tuple(draw(factor) for _ in range(count)) for _ in range(count))
    notes = draw(
        st.lists(st.text(st.characters(codec="utf-8")).map(lambda t: " ".join(t.split())), max_size=2)
    )
    name = draw(st.from_regex(r"[^\s#]+", fullmatch=True))
    limit = draw(st.one_of(st.none(), st.integers(1, 99)))
    line = draw(st.sampled_from([32, 64, 128]))
    return Topology(name, nodes, tuple(caches), hops, factors, line, limit, tuple(notes))


@given(topologies())
def test_what_is_spelt_is_read_back(machine: Topology) -> None:
    assert parse(spell(machine)) == machine


@given(topologies())
def test_groups_are_disjoint_within_nodes_and_hold_all_cores_that_share_a_cache(machine: Topology) -> None:
    assert sorted(core for group in machine.groups for core in group) == list(machine.cores)
    for group in machine.groups:
        assert len({machine.node_of(core) for core in group}) == 1
    for cache in machine.caches:
        assert len({machine.group_of(core) for core in cache.cores}) == 1
    for one in machine.cores:
        for other in machine.cores:
            if machine.cache_distance(one, other) < math.inf:
                assert machine.group_of(one) == machine.group_of(other)
            assert machine.cache_distance(one, other) == machine.cache_distance(other, one)


GOOD = """
name = "small"
node = [{cores = "0-3", memory = "8 GB"}]
cache = [{level = 1, size = "32 kB", cores = "each"}, {level = 2, size = "1 MB", cores = "by 2"}, CACHE]
"""


def described(cache: str = "", more: str = "", node: str = "") -> str:
    """The small machine with one cache more, further lines, or more said of its node."""
    text = GOOD.replace("CACHE", cache) + more
    return text.replace('memory = "8 GB"', f'memory = "8 GB", {node}') if node else text


def test_the_short_forms() -> None:
    machine = parse(described('{level = 3, size = "9 MB", cores = ["0,2-3", "1"]}', "# the end"))
    assert [cache.cores for cache in machine.caches if cache.level == 1] == [(0,), (1,), (2,), (3,)]
    assert [cache.cores for cache in machine.caches if cache.level == 2] == [(0, 1), (2, 3)]
    assert [cache.cores for cache in machine.caches if cache.level == 3] == [(0, 2, 3), (1,)]


def third(cores: str, size: str = '"9 MB"') -> str:
    return described(f"{{level = 3, size = {size}, cores = {cores}}}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (third('"each"', '"9"'), "small.topology, cache 2: '9' is no size; write for instance '32 kB'"),
        (described('{level = 3, size = "9 MB"}'), "cache 2: whose L3 cache is it?"),
        (third('"by 3"'), "cache 2: 'by 3' does not divide the cores of every node"),
        (third('"by 0"'), "cache 2: 'by 0' does not divide the cores of every node"),
        (third('["0-x"]'), "cache 2: '0-x' names no cores"),
        (third('["0-3", "3"]'), "core 3 has two L3 caches"),
        (third('["7"]'), "core 7, which no node has"),
        (described('{level = 0, size = "9 MB", cores = "each"}'), "'level' needs a number of at least 1"),
        (described(more="speed = 9"), "'speed' means nothing here"),
        (described(more='limit = "no"'), "'limit' needs a number of at least 1, not 'no'"),
        (described(more="["), "'small.topology' cannot be read as TOML"),
        (described(node='number = 0}, {number = 0, cores = "8-9"'), "two nodes have the same number"),
        (described(node='number = 0}, {cores = "3-4"'), "core 3 is in two nodes"),
        (described(node="hops = [1]"), "hops from node 0: 0 to itself"),
        (described(node="factors = [1, 2]"), "'factor' needs a row of 1 numbers"),
        (described(node='factors = [1]}, {cores = "6-7"'), "it has 'factors' for some nodes only"),
        (described(node="factors = [-1]"), "they must be positive"),
        (described(node='factors = ["far"]'), "'factors' must be a list of numbers"),
        ('name = "x"\nnode = [{cores = 3}]', "node 0: 3 names no cores"),
        ('name = "x"\n[node]\ncores = "0"', "write [[node]] before the lines of each node"),
        ('name = "x"', "it has no node"),
        (GOOD.replace('name = "small"', "").replace("CACHE", ""), "it has no name"),
    ],
)
def test_mistakes_are_told_with_the_part_that_they_are_in(text: str, said: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(said)):
        parse(text, "small.topology")


def test_a_cache_across_nodes_cannot_be() -> None:
    with pytest.raises(PipelineError, match="shared by cores of several nodes"):
        Topology("x", (Node(0, (0,)), Node(1, (1,))), (Cache(3, 1, (0, 1)),))
