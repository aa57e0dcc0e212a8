"""Topologies as TOML, a few lines that people can read and write.

    name = "e5310"
    notes = ["Two Intel Xeon E5310, 1.6 GHz"]

    [[node]]
    cores = "0-7"
    memory = "8 GB"

    [[cache]]
    level = 2
    size = "4 MB"
    cores = "by 2"

A cache's ``cores`` are ``"each"``: a cache for every core; ``"by n"``: one for every n of a node's cores, in
order; or lists of cores, ``["0-3", "4-7"]``.  ``line`` is the bytes of a cache line, ``limit`` how many cores
may be busy at once.  A node's ``number`` is its place unless given; its ``hops`` and ``factors`` are its
distances to all nodes, and how many times slower their memory is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headgate.errors import PipelineError
from headgate.machine import toml
from headgate.machine.topology import GIB, KIB, MIB, Cache, Node, Topology

UNITS = {"B": 1, "kB": KIB, "MB": MIB, "GB": GIB}
_SIZE = re.compile(r"(\d+)\s*(B|kB|MB|GB)")
_WORDS = ("name", "notes", "line", "limit", "node", "cache")
_NODE = ("number", "cores", "memory", "hops", "factors")
_CACHE = ("level", "size", "cores")


def parse(text: str, where: str = "topology") -> Topology:
    """A description; an error names ``where`` and the node or cache with the mistake."""
    data = toml.loads(text, where)
    toml.check_words(data, _WORDS, where)
    if not isinstance(data.get("name"), str):
        raise PipelineError(f"{where}: it has no name; write for instance name = 'mine'.")
    described = _tables(data, "node", where)
    nodes = tuple(_node(one, place, f"{where}, node {place}") for place, one in enumerate(described))
    caches: list[Cache] = []
    for place, one in enumerate(_tables(data, "cache", where)):
        caches += _caches(one, nodes, f"{where}, cache {place}")
    limit = data.get("limit")
    try:
        return Topology(
            data["name"],
            nodes,
            tuple(sorted(caches, key=lambda cache: (cache.level, cache.cores))),
            _rows(described, "hops", int),
            _rows(described, "factors", float),
            _whole(data.get("line", 64), "line", where),
            None if limit is None else _whole(limit, "limit", where),
            tuple(map(str, data.get("notes", ()))),
        )
    except PipelineError as error:
        raise PipelineError(f"{where}: {error}") from None


def spell(topology: Topology) -> str:
    """A topology as a description, which ``parse`` gives back."""
    data: dict[str, Any] = {"name": topology.name, "notes": topology.notes, "line": topology.line}
    if topology.limit is not None:
        data["limit"] = topology.limit
    data["node"] = [
        {"number": node.number, "cores": spell_cores(node.cores)}
        | ({"memory": spell_size(node.memory)} if node.memory else {})
        | {"hops": hops, "factors": factors}
        for node, hops, factors in zip(topology.nodes, topology.hops, topology.factors, strict=True)
    ]
    by_kind: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for cache in topology.caches:
        by_kind.setdefault((cache.level, cache.size), []).append(cache.cores)
    data["cache"] = [
        {"level": level, "size": spell_size(size), "cores": _shared(topology.nodes, cores)}
        for (level, size), cores in sorted(by_kind.items())
    ]
    return toml.dumps(data)


def spell_size(size: int) -> str:
    """Bytes in the largest unit that divides them."""
    unit = max((unit for unit in UNITS if size % UNITS[unit] == 0), key=lambda unit: UNITS[unit])
    return f"{size // UNITS[unit]} {unit}"


def spell_cores(cores: Iterable[int]) -> str:
    """``0-3,8`` for 0, 1, 2, 3 and 8."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def parse_cores(text: str) -> tuple[int, ...]:
    """The cores of ``0-3,8``; raises ``ValueError``."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        low, high = int(first), int(last) if dash else int(first)
        if low > high:
            raise ValueError(f"'{part.strip()}' runs backwards")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def _tables(data: Mapping[str, Any], word: str, where: str) -> list[Mapping[str, Any]]:
    found = data.get(word, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise PipelineError(f"{where}: write [[{word}]] before the lines of each {word}.")
    return found


def _node(data: Mapping[str, Any], place: int, where: str) -> Node:
    toml.check_words(data, _NODE, where)
    number = _whole(data.get("number", place), "number", where, least=0)
    memory = _size(data["memory"], where) if "memory" in data else 0
    return Node(number, _read_cores(data.get("cores"), where), memory)


def _caches(data: Mapping[str, Any], nodes: Sequence[Node], where: str) -> list[Cache]:
    toml.check_words(data, _CACHE, where)
    level, size = _whole(data.get("level"), "level", where), _size(data.get("size"), where)
    given = data.get("cores")
    shared = re.fullmatch(r"each|by (\d+)", given) if isinstance(given, str) else None
    if shared is not None:
        cores = _by(nodes, int(shared[1] or 1))
        if cores is None:
            raise PipelineError(f"{where}: '{given}' does not divide the cores of every node.")
    elif isinstance(given, list):
        cores = [_read_cores(part, where) for part in given]
    else:
        raise PipelineError(
            f"{where}: whose L{level} cache is it? Write cores = 'each', 'by 2', or lists of cores: "
            "['0-3', '4-7']."
        )
    return [Cache(level, size, mine) for mine in cores]


def _shared(nodes: Sequence[Node], cores: list[tuple[int, ...]]) -> str | list[str]:
    """Which cores share caches of one kind: in the short form, if there is one."""
    count = len(cores[0])
    regular = _by(nodes, count)
    if regular is not None and set(cores) == set(regular):
        return "each" if count == 1 else f"by {count}"
    return [spell_cores(mine) for mine in cores]


def _by(nodes: Sequence[Node], count: int) -> list[tuple[int, ...]] | None:
    """Every ``count`` cores of every node; None if a node's cores do not divide into these."""
    if not count or any(len(node.cores) % count for node in nodes):
        return None
    return [
        tuple(sorted(node.cores)[at : at + count])
        for node in nodes
        for at in range(0, len(node.cores), count)
    ]


def _rows(nodes: Sequence[Mapping[str, Any]], word: str, kind: type) -> tuple[tuple[Any, ...], ...]:
    """A row of numbers for each node; none at all if no node has one."""
    if not any(word in node for node in nodes):
        return ()
    try:
        return tuple(tuple(kind(value) for value in node[word]) for node in nodes)
    except KeyError:
        raise PipelineError(f"it has '{word}' for some nodes only.") from None
    except (TypeError, ValueError):
        raise PipelineError(f"'{word}' must be a list of numbers.") from None


def _read_cores(text: Any, where: str) -> tuple[int, ...]:
    try:
        return parse_cores(text)
    except (AttributeError, ValueError):
        raise PipelineError(f"{where}: {text!r} names no cores; write for instance '0-3,8'.") from None


def _size(text: Any, where: str) -> int:
    found = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or int(found[1]) == 0:
        raise PipelineError(f"{where}: {text!r} is no size; write for instance '32 kB', '4 MB' or '8 GB'.")
    return int(found[1]) * UNITS[found[2]]


def _whole(value: Any, word: str, where: str, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PipelineError(f"{where}: '{word}' needs a number of at least {least}, not {value!r}.")
    return value
