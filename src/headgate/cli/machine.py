"""A machine as boxes: nodes, groups of cores that share a cache, caches, cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headgate.cli.display import titled
from headgate.machine.topology import Cache, Topology
from headgate.machine.topology_format import spell_cores, spell_size


def draw(topology: Topology) -> RenderableType:
    """What ``headgate topology`` shows."""
    parts: list[RenderableType] = [Text(summary(topology), style="bold")]
    parts += [Text(f"  {note}", style="dim") for note in topology.notes]
    numbers = {group: place for place, group in enumerate(topology.groups)}
    for node in topology.nodes:
        groups = [group for group in topology.groups if set(group) <= set(node.cores)]
        boxes = [_box(group, [c for c in topology.caches if set(c.cores) <= set(group)]) for group in groups]
        memory = f", memory {_memory(node.memory)}" if node.memory else ""
        title = f"node {node.number}{memory}"
        inside = _Grid(boxes, [f"group {numbers[group]}" for group in groups])
        parts.append(Panel(inside, title=title, title_align="left", expand=False))
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
        cells.append(_box(mine, [c for c in rest if set(c.cores) <= set(mine)]))
        left = [core for core in left if core not in mine]
    return Group(*lines, _Grid(cells))


@dataclass(frozen=True)
class _Grid:
    """Boxes of one width in as few rows as fit, each with as many."""

    cells: Sequence[RenderableType]
    titles: Sequence[str] = ()

    def _table(self, console: Console, options: ConsoleOptions) -> Table:
        titles = self.titles or [""] * len(self.cells)
        inside = options.update(max_width=max(options.max_width - 4, 1))
        widths = [console.measure(cell, options=inside).maximum for cell in self.cells]
        wide = max(*widths, *(len(title) + 2 for title in titles)) + 4
        rows = -(-len(self.cells) // max(1, (options.max_width + 1) // (wide + 1)))
        each = -(-len(self.cells) // rows)
        panels = [
            Panel(cell, title=title or None, title_align="left", width=min(wide, options.max_width))
            for cell, title in zip(self.cells, titles, strict=True)
        ]
        table = Table.grid(padding=(0, 1, 0, 0))
        for begin in range(0, len(panels), each):
            table.add_row(*panels[begin : begin + each])
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._table(console, options))


def _factors(topology: Topology) -> Table:
    nodes = [f"node {node.number}" for node in topology.nodes]
    table = titled("memory of other nodes: times slower (steps)", "from \\ to", right=nodes)
    for node, factors, hops in zip(topology.nodes, topology.factors, topology.hops, strict=True):
        cells = [f"{factor:.3g} ({hop})" for factor, hop in zip(factors, hops, strict=True)]
        table.add_row(f"node {node.number}", *cells)
    return table
