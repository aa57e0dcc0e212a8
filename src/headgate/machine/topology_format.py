"""Topologies as text: a few lines that people can read and write.

    topology e5310
    note Two Intel Xeon E5310, 1.6 GHz
    node 0: cores 0-7, memory 8 GB
    L1 32 kB: each
    L2 4 MB: by 2

``each``: a cache for every core; ``by n``: one for every n of a node's cores, in order; otherwise lists of
cores, ``0-3 | 4-7``.  ``line 64`` is the bytes of a cache line, ``limit 4`` how many cores may be busy at
once, ``hops 0: 0 1`` and ``factor 0: 1.0 1.4`` a node's distances to all nodes, and how many times slower
their memory is.  What follows a ``#`` is for the reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from headgate.errors import PipelineError
from headgate.machine.topology import GIB, KIB, MIB, Cache, Node, Topology

T = TypeVar("T")

UNITS = {"B": 1, "kB": KIB, "MB": MIB, "GB": GIB}
_SIZE = re.compile(r"(\d+)\s*(B|kB|MB|GB)")


def parse(text: str, where: str = "topology") -> Topology:
    """A description; a mistake is told with ``where`` and the line."""
    return _Parser(where).parse(text)


def spell(topology: Topology) -> str:
    """A topology as a description, which ``parse`` gives back."""
    lines = [f"topology {topology.name}"]
    lines += [f"note {note}" for note in topology.notes]
    lines.append(f"line {topology.line}")
    if topology.limit is not None:
        lines.append(f"limit {topology.limit}")
    for node in topology.nodes:
        memory = f", memory {spell_size(node.memory)}" if node.memory else ""
        lines.append(f"node {node.number}: cores {spell_cores(node.cores)}{memory}")
    lines += _spell_caches(topology)
    for node, hops in zip(topology.nodes, topology.hops, strict=True):
        lines.append(f"hops {node.number}: {' '.join(map(str, hops))}")
    for node, factors in zip(topology.nodes, topology.factors, strict=True):
        lines.append(f"factor {node.number}: {' '.join(map(repr, factors))}")
    return "\n".join(lines) + "\n"


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


def _spell_caches(topology: Topology) -> list[str]:
    lines: list[str] = []
    by_kind: dict[tuple[int, int], list[Cache]] = {}
    for cache in topology.caches:
        by_kind.setdefault((cache.level, cache.size), []).append(cache)
    for (level, size), caches in sorted(by_kind.items()):
        count = len(caches[0].cores)
        regular = _by(topology.nodes, count)
        if regular is not None and {c.cores for c in caches} == set(regular):
            shared = "each" if count == 1 else f"by {count}"
        else:
            shared = " | ".join(spell_cores(cache.cores) for cache in caches)
        lines.append(f"L{level} {spell_size(size)}: {shared}")
    return lines


def _by(nodes: Sequence[Node], count: int) -> list[tuple[int, ...]] | None:
    """Every ``count`` cores of every node; None if a node's cores do not divide into these."""
    if any(len(node.cores) % count for node in nodes):
        return None
    return [
        tuple(sorted(node.cores)[at : at + count])
        for node in nodes
        for at in range(0, len(node.cores), count)
    ]


class _Mistake(ValueError):
    """Said without where; the parser adds the line."""


class _Parser:
    def __init__(self, where: str) -> None:
        self.where = where
        self.name = ""
        self.line = 64
        self.limit: int | None = None
        self.notes: list[str] = []
        self.nodes: dict[int, Node] = {}
        self.caches: list[tuple[int, int, str, int]] = []
        """Level, size, who shares, and the line: nodes may come later."""
        self.hops: dict[int, tuple[int, ...]] = {}
        self.factors: dict[int, tuple[float, ...]] = {}

    def parse(self, text: str) -> Topology:
        for number, raw in enumerate(text.split("\n"), 1):
            stripped = raw.strip() if raw.lstrip().startswith("note ") else raw.partition("#")[0].strip()
            if stripped:
                with self._at(number):
                    self._read(stripped, number)
        if not self.name:
            raise PipelineError(f"{self.where}: it does not begin with 'topology NAME'.")
        nodes = tuple(self.nodes[number] for number in sorted(self.nodes))
        caches: list[Cache] = []
        for level, size, shared, number in self.caches:
            with self._at(number):
                caches += _shared(level, size, shared, nodes)
        try:
            return Topology(
                self.name,
                nodes,
                tuple(sorted(caches, key=lambda cache: (cache.level, cache.cores))),
                self._rows(self.hops, "hops"),
                self._rows(self.factors, "factor"),
                self.line,
                self.limit,
                tuple(self.notes),
            )
        except PipelineError as error:
            raise PipelineError(f"{self.where}: {error}") from None

    @contextmanager
    def _at(self, number: int) -> Iterator[None]:
        """Mistakes in here are in that line."""
        try:
            yield
        except ValueError as error:
            said = str(error) if isinstance(error, _Mistake) else f"this cannot be read ({error})."
            raise PipelineError(f"{self.where}, line {number}: {said}") from None

    def _read(self, text: str, number: int) -> None:
        word, _, rest = text.partition(" ")
        rest = rest.strip()
        if word == "topology":
            if not rest:
                raise _Mistake("'topology' needs a name.")
            self.name = rest
        elif word == "note":
            self.notes.append(rest)
        elif word == "line":
            self.line = _positive(rest, "line")
        elif word == "limit":
            self.limit = _positive(rest, "limit")
        elif word == "node":
            self._read_node(rest)
        elif re.fullmatch(r"L\d+", word):
            size, _, shared = rest.partition(":")
            self.caches.append((int(word[1:]), _size(size), shared.strip(), number))
        elif word in ("hops", "factor"):
            node, _, values = rest.partition(":")
            if not node.strip().isdigit():
                raise _Mistake(f"'{word}' needs a node's number and a colon: {word} 0: …")
            if word == "hops":
                self.hops[int(node)] = tuple(int(value) for value in values.split())
            else:
                self.factors[int(node)] = tuple(float(value) for value in values.split())
        else:
            raise _Mistake(
                f"'{word}' means nothing here; a line begins with topology, note, line, limit, node, "
                "L1, L2 …, hops or factor."
            )

    def _read_node(self, rest: str) -> None:
        found = re.fullmatch(r"(\d+)\s*:\s*cores\s+([\d,\-\s]+?)(?:,\s*memory\s+(.+))?", rest)
        if found is None:
            raise _Mistake("a node is written 'node 0: cores 0-7, memory 8 GB'.")
        number = int(found[1])
        if number in self.nodes:
            raise _Mistake(f"node {number} was there before.")
        self.nodes[number] = Node(number, parse_cores(found[2]), _size(found[3]) if found[3] else 0)

    def _rows(self, rows: dict[int, tuple[T, ...]], what: str) -> tuple[tuple[T, ...], ...]:
        if not rows:
            return ()
        if set(rows) != set(self.nodes):
            raise PipelineError(f"it has '{what}' for some nodes only, or for one that is not there.")
        return tuple(rows[number] for number in sorted(rows))


def _shared(level: int, size: int, shared: str, nodes: Sequence[Node]) -> list[Cache]:
    if shared == "each":
        cores = [(core,) for node in nodes for core in node.cores]
    elif shared.startswith("by "):
        regular = _by(nodes, _positive(shared[3:], "by"))
        if regular is None:
            raise _Mistake(f"'{shared}' does not divide the cores of every node.")
        cores = regular  # type: ignore[assignment]
    elif shared:
        cores = [parse_cores(part) for part in shared.split("|")]  # type: ignore[misc]
    else:
        raise _Mistake(f"whose L{level} cache is it? Write 'each', 'by 2', or lists of cores: 0-3 | 4-7.")
    return [Cache(level, size, mine) for mine in cores]


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise _Mistake(f"'{text.strip()}' is no size; write for instance 32 kB, 4 MB or 8 GB.")
    return int(found[1]) * UNITS[found[2]]


def _positive(text: str, what: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise _Mistake(f"'{what}' needs a number of at least 1, not '{text.strip()}'.")
    return int(text)
