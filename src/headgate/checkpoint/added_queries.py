"""Queries that join an application under way: where they begin, and what they get for themselves.

A box that is shared runs once, with one state and one cursor.  So a query that joins later shares only what
stands where it starts: a box with state whose cursor is there, and a stateless one that has not passed it.
Of everything else it gets a copy of its own, and keeps that when the application is started again.

The checkpoint keeps rows only until all queries have passed them.  A query that wants the earliest ones after
that reads its sources by itself, from their beginning: files are listed again, a topic is read from its first
offset, a rate computes its rows.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.position import Position
from headgate.checkpoint.storage import Storage
from headgate.errors import RunError
from headgate.graph.network import (
    Arrow,
    Box,
    DeadLetter,
    Network,
    Output,
    Port,
    Source,
    boxes_before,
    sources_before,
)


@dataclass
class Beginning:
    """Where a query begins."""

    serial: int
    private: list[str] = field(default_factory=list)
    """The sources that it reads by itself."""
    memories: dict[str, Any] = field(default_factory=dict)
    """What it is to know of these from the start, by name; the others are read from their beginning."""
    restarts: bool = False
    """Whether those that it read before begin anew."""
    lost: str = ""
    """What is really gone, in words."""


def beginning(output: Output, position: Position, storage: Storage) -> Beginning:
    """Where a query that joins begins; an error if it asks for rows that nothing has any more.

    ``storage`` is the checkpoint's.
    """
    offsets = position.offsets
    if output.start == "now":
        return Beginning(offsets.next_serial)
    if isinstance(output, DeadLetter):  # it reads no source: what boxes refused before was theirs
        return Beginning(min((own.serials[0] for own in offsets.sources if own.serials), default=0))
    sources = {source.name: source for source in sources_before(output.port)}
    read = {n: own for n, own in zip(position.names, offsets.sources, strict=True) if n in sources}
    gone = {name: own.gone(storage) for name, own in read.items()}
    if output.start == "earliest":
        if not any(rows for rows, _ in gone.values()):
            return Beginning(min((own.serials[0] for own in read.values() if own.serials), default=0))
        for name, (rows, _) in gone.items():
            if rows and read[name].turns is not None:
                raise RunError(
                    f"query '{output.name}' asks to start with the earliest tuple, but {rows} of the "
                    f"{read[name].rows} tuples of source '{name}' are gone, and finite sources take turns: "
                    "bring its files back, say start='now', or start with a new checkpoint."
                )
        memories = {name: _again(position.sources.get(name)) for name in sources}
        lost = [_lost(sources[name], position.sources.get(name), read[name].rows) for name in read]
        told = "; ".join(filter(None, lost))
        return Beginning(
            offsets.next_serial,
            list(sources),
            {name: memory for name, memory in memories.items() if memory is not None},
            True,
            f"Query '{output.name}' starts with the earliest tuples that there are: {told}." if told else "",
        )
    assert isinstance(output.start, int)
    whole = min(max((serial for _, serial in gone.values()), default=0), offsets.next_serial)
    if not whole <= output.start <= offsets.next_serial:
        raise RunError(
            f"query '{output.name}' asks to start with tuple {output.start}, but the application has those "
            f"from {whole} to {offsets.next_serial}; use one of these, 'earliest' or 'now'."
        )
    return Beginning(output.start)


def _again(memory: Any) -> Any:
    """What a source is to remember if it is read once more, as far as that is not nothing."""
    return memory.get("again") if isinstance(memory, dict) else None


def _lost(source: Source, memory: Any, rows: int) -> str:
    """Rows that were read and are not in the source any more, as far as the checkpoint knows."""
    if getattr(source.origin, "path", None) is None or not isinstance(memory, dict):
        return ""
    files = memory.get("read", memory)
    sizes = {file: known[0] if isinstance(known, list) else known for file, known in files.items()}
    gone = [file for file in sizes if not os.path.exists(file)]
    if not gone:
        return ""
    lost = sum(sizes[file] for file in gone)
    return (
        f"{lost} of the {rows} tuples of source '{source.name}' are gone with "
        f"{len(gone)} of its files ('{gone[0]}'{', …' if len(gone) > 1 else ''})"
    )


def private_name(source: str, query: str) -> str:
    """What a source is called that a query reads by itself."""
    return f"{source}@{query}"


def copied(
    network: Network,
    nodes: Nodes,
    copies: dict[str, dict[str, str]],
    private: Mapping[str, Collection[str]],
) -> Network:
    """The network with queries' own copies of boxes, by key, and of sources."""
    boxes = list(network.boxes)
    sources = list(network.sources)
    outputs = []
    for output in network.outputs:
        made: dict[Any, Any] = {
            source: replace(source, name=private_name(source.name, output.name), was=None)
            for source in network.sources_by_query[output.name]
            if source.name in private.get(output.name, ())
        }
        sources += made.values()
        own = copies.get(output.name, {})
        for place in sorted(network.queries[output.name]) if own else ():
            box, key = network.boxes[place], own.get(nodes.all[place].key)
            if key is not None:
                ports = tuple(_with(port, made) for port in box.ports)
                made[box] = Box(f"{box.name}@{output.name}", box.operator, ports, key)
                boxes.append(made[box])
        outputs.append(replace(output, port=_with(output.port, made)))
    needed = {box for output in outputs for box in boxes_before(output.port)}
    kept = [box for box in boxes if box in needed]
    read = {source for output in outputs for source in sources_before(output.port)}
    dead = network.dead_letter
    if dead is not None:
        dead = DeadLetter(dead.name, tuple(map(Arrow, kept)), dead.sink)
    return Network([s for s in sources if s in read], kept, outputs, network.name, dead)


def _with(port: Port, made: dict[Any, Any]) -> Port:
    """A port whose arrows come from the copies."""
    return tuple(replace(arrow, node=made.get(arrow.node, arrow.node)) for arrow in port)
