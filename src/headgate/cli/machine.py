"""A machine as boxes: nodes, groups of cores that share a cache, caches, cores."""

from __future__ import annotations

from collections.abc import Sequence

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headgate.scheduling.topology import Cache, Topology
from headgate.scheduling.topology_format import spell_cores, spell_size


def draw(topology: Topology) -> RenderableType:
    """What ``headgate topology`` shows."""
    parts: list[RenderableType] = [Text(summary(topology), style="bold")]
    parts += [Text(f"  {note}", style="dim") for note in topology.notes]
    numbers = {group: place for place, group in enumerate(topology.groups)}
    for node in topology.nodes:
        inside: list[RenderableType] = []
        for group in (group for group in topology.groups if set(group) <= set(node.cores)):
            box = _box(group, [c for c in topology.caches if set(c.cores) <= set(group)])
            inside.append(Panel(box, title=f"group {numbers[group]}", title_align="left", expand=False))
        memory = f", memory {_memory(node.memory)}" if node.memory else ""
        title = f"node {node.number}{memory}"
        parts.append(
            Panel(Group(*inside) if len(inside) == 1 else Columns(inside), title=title, expand=False)
        )
    if len(topology.nodes) > 1:
        parts.append(_factors(topology))
    return Group(*parts)


def summary(topology: Topology) -> str:
    """One line."""
    counts = (
        (len(topology.nodes), "node"),
        (len(topology.groups), "group"),
        (len(topology.cores), "core"),
    )
    said = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
    limit = f"; {topology.limit} may be busy at once" if topology.limit is not None else ""
    return f"{topology.name}: {said}{limit}"


def _memory(size: int) -> str:
    """To three digits: what a machine tells is no round number."""
    return spell_size(size) if size % (1 << 30) == 0 else f"{size / (1 << 30):.3g} GB"


def _box(cores: Sequence[int], caches: Sequence[Cache]) -> RenderableType:
    """The largest caches of these cores; inside each, what it contains."""
    whole = sorted((c for c in caches if set(c.cores) == set(cores)), key=lambda c: -c.level)
    rest = [c for c in caches if c not in whole]
    lines: list[RenderableType] = [Text(f"L{cache.level} {spell_size(cache.size)}") for cache in whole]
    if not rest:
        word = "core" if len(cores) == 1 else "cores"
        return Group(*lines, Text(f"{word} {spell_cores(cores)}", style="cyan"))
    cells, left = [], list(cores)
    while left:
        widest = max((c for c in rest if left[0] in c.cores), key=lambda c: len(c.cores), default=None)
        mine = (left[0],) if widest is None else widest.cores
        cells.append(Panel(_box(mine, [c for c in rest if set(c.cores) <= set(mine)]), expand=False))
        left = [core for core in left if core not in mine]
    return Group(*lines, Columns(cells))


def _factors(topology: Topology) -> Table:
    table = Table(title="memory of other nodes: times slower (steps)", title_justify="left")
    table.add_column("from \\ to")
    for node in topology.nodes:
        table.add_column(escape(f"node {node.number}"), justify="right")
    for node, factors, hops in zip(topology.nodes, topology.factors, topology.hops, strict=True):
        cells = [f"{factor:.3g} ({hop})" for factor, hop in zip(factors, hops, strict=True)]
        table.add_row(f"node {node.number}", *cells)
    return table
