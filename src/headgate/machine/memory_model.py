"""What caches and memory cost: the prices of a machine, from a small file.

    name = "e7540"
    notes = ["where the prices come from"]

    [read]                # nanoseconds per byte
    L1 = 0.0
    L2 = 0.05
    L3 = 0.1
    memory = 0.25

    [share]               # GB/s that all cores of a node have together, and that pass between two nodes
    memory = 17.0
    link = 9.0

A price is the time that a core waits in addition to computing on data in its first cache.  How a simulation
uses them is in ``engines/simulated/memory.py``; the topology says which caches there are, and how many times
dearer another node's memory is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from headgate.errors import PipelineError, nearest
from headgate.machine import toml
from headgate.machine.topology import Topology

FIRST_TOUCH = "first touch"
INTERLEAVED = "interleaved"
_NANO = 1e-9
_GIGA = 1e9


@dataclass(frozen=True)
class MemoryModel:
    """Prices of reading and writing, and where packets' memory comes from.

    ``levels`` are seconds per byte by level of cache, ``memory`` of the own node's memory.  ``bandwidth`` is
    the bytes per second that a node's memory gives to all cores, ``link`` what passes from one node to
    another; None: any number of cores can read at once.

    ``placement`` is the node that a packet's memory is on: "first touch", that of the worker which makes it;
    "interleaved", all in turns; or the place of one node among the topology's.  ``recycles``: memory is used
    again at once, the last freed first, so that a new packet is written where the caches are warm (as the
    allocator of locality-aware scheduling does); otherwise every packet is written to cold memory.

    ``dirty``: how many times dearer than memory is what only another core's cache has, which then goes to
    memory too; None: it costs what memory costs.
    """

    name: str
    levels: Mapping[int, float]
    memory: float
    bandwidth: float | None = None
    link: float | None = None
    placement: str | int = FIRST_TOUCH
    recycles: bool = True
    dirty: float | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        prices = [*self.levels.values(), self.memory]
        if any(not 0 <= price < math.inf for price in prices):
            raise PipelineError(f"Memory model '{self.name}': prices per byte cannot be negative.")
        dearer = [price for _, price in sorted(self.levels.items())] + [self.memory]
        if dearer != sorted(dearer):
            raise PipelineError(
                f"Memory model '{self.name}': a level of cache costs more than the one behind it."
            )
        for what, rate in (("bandwidth", self.bandwidth), ("link", self.link)):
            if rate is not None and not 0 < rate < math.inf:
                raise PipelineError(f"Memory model '{self.name}': {what} must be positive, or None.")
        if self.dirty is not None and not 1 <= self.dirty < math.inf:
            raise PipelineError(
                f"Memory model '{self.name}': dirty={self.dirty:g} must be at least 1, or None."
            )
        known = isinstance(self.placement, int) or self.placement in (FIRST_TOUCH, INTERLEAVED)
        if isinstance(self.placement, bool) or not known:
            raise PipelineError(
                f"Memory model '{self.name}': placement={self.placement!r}; use '{FIRST_TOUCH}', "
                f"'{INTERLEAVED}' or the number of a node."
            )

    def check(self, topology: Topology) -> None:
        """Raise unless it has prices for all of a machine's caches."""
        missing = sorted({cache.level for cache in topology.caches} - set(self.levels))
        if missing:
            raise PipelineError(
                f"Memory model '{self.name}' has no price for L{missing[0]}, which topology "
                f"'{topology.name}' has."
            )
        if isinstance(self.placement, int) and not 0 <= self.placement < len(topology.nodes):
            raise PipelineError(
                f"Memory model '{self.name}': placement={self.placement}, but topology '{topology.name}' has "
                f"{len(topology.nodes)} nodes, from 0 on."
            )

    def to_data(self) -> dict[str, Any]:
        """The two tables of its file."""
        read = {f"L{level}": price / _NANO for level, price in sorted(self.levels.items())}
        read["memory"] = self.memory / _NANO
        share = {"memory": self.bandwidth, "link": self.link}
        return {"read": read, "share": {what: rate / _GIGA for what, rate in share.items() if rate}}


def names() -> list[str]:
    """Machines whose prices are shipped."""
    shipped = resources.files("headgate.machine") / "topologies"
    return sorted(p.name.removesuffix(".memory") for p in shipped.iterdir() if p.name.endswith(".memory"))


def get(model: str | Path | MemoryModel | bool, topology: Topology | None) -> MemoryModel:
    """A model by name or from a file; True: the one of that topology.  It must fit the topology."""
    if topology is None:
        raise PipelineError("Simulated(memory=…) needs a machine whose memory it is: give topology= too.")
    if isinstance(model, bool):
        if topology.name not in names():
            raise PipelineError(
                f"Simulated(memory=True): the prices of topology '{topology.name}' are not known; give a "
                "file as 'headgate calibrate' writes one, or hg.MemoryModel(…)."
            )
        model = topology.name
    if not isinstance(model, MemoryModel):
        model = _shipped(str(model)) if str(model) in names() else load(model)
    model.check(topology)
    return model


def _shipped(name: str) -> MemoryModel:
    text = (resources.files("headgate.machine") / "topologies" / f"{name}.memory").read_text("utf-8")
    return parse(toml.loads(text, name), name)


def load(path: str | Path) -> MemoryModel:
    """The model of a file, such as 'headgate calibrate' writes."""
    return parse(read_file(path), str(path))


def read_file(path: str | Path) -> dict[str, Any]:
    """The tables of a file of prices, not checked yet."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(
            f"'{path}': no prices can be read from it ({type(error).__name__}).{nearest(str(path), names())} "
            f"Shipped are those of {', '.join(names())}; 'headgate calibrate' measures the host's."
        ) from None
    return toml.loads(text, str(path))


def parse(data: Mapping[str, Any], where: str) -> MemoryModel:
    """A model from a file's tables; an error names ``where``."""
    read, share = toml.table(data, "read", where), toml.table(data, "share", where) if "share" in data else {}
    levels: dict[int, float] = {}
    for word in read:
        if word != "memory":
            if not (word.startswith("L") and word[1:].isdigit()):
                raise PipelineError(f"'{where}': [read] has '{word}'; it takes L1, L2 … and memory.")
            levels[int(word[1:])] = toml.number(read, word, where) * _NANO
    if "memory" not in read:
        raise PipelineError(f"'{where}': [read] does not say what 'memory' costs.")
    if unknown := sorted(set(share) - {"memory", "link"}):
        raise PipelineError(f"'{where}': [share] has '{unknown[0]}'; it takes memory and link.")
    return MemoryModel(
        str(data.get("name", where)),
        levels,
        toml.number(read, "memory", where) * _NANO,
        toml.number(share, "memory", where) * _GIGA if "memory" in share else None,
        toml.number(share, "link", where) * _GIGA if "link" in share else None,
        notes=tuple(map(str, data.get("notes", ()))),
    )
