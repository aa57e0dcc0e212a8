"""Queries that join an application under way: where they begin, and what they can share.

A box that is shared runs once, with one state and one cursor.  So a query that joins later shares only what
stands where it starts: a box with state whose cursor is there, and a stateless one that has not passed it.
Of everything else it gets a copy of its own, and keeps that when the application is started again.
"""

from __future__ import annotations

from dataclasses import replace
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
    boxes_before,
    sources_before,
    upstream_boxes,
)

Copies = dict[str, dict[Box, str]]
"""For every query, the boxes that it has copies of, and what a checkpoint knows those by."""


def with_copies(
    network: Network, nodes: Nodes, position: Position, start: dict[str, Any] | None, root: Storage
) -> Network:
    """The network with copies of boxes for queries that cannot share them."""
    if start is None:
        return network
    before = start["pipeline"]["queries"]
    known = {box["key"] for query in before.values() for box in query["boxes"]}
    copies: Copies = {}
    starts: dict[Box, int] = {}
    for output in network.outputs:
        boxes = [network.boxes[place] for place in sorted(network.queries[output.name])]
        keys = {box: nodes.all[network.index[box]].key for box in boxes}
        if output.name in before:
            recorded = {box["key"] for box in before[output.name]["boxes"]}
            own = {box: f"{keys[box]}@{output.name}" for box in boxes}
            copies[output.name] = {box: key for box, key in own.items() if key in recorded}
            continue
        begin = first_serial(output, position, root)
        own = {}
        for box in boxes:
            stands = position.nodes[keys[box]].cursor if keys[box] in known else starts.setdefault(box, begin)
            stateless = not nodes.all[network.index[box]].stateful
            shares = stands == begin or (stateless and stands < begin)
            if not shares or any(up in own for up in upstream_boxes(box)):
                own[box] = f"{keys[box]}@{output.name}"
        copies[output.name] = own
    copies = {query: boxes for query, boxes in copies.items() if boxes}
    return _copied(network, copies) if copies else network


def first_serial(output: Output, position: Position, root: Storage) -> int:
    """The serial with which a query that joins begins; an error if rows that it asks for are gone.

    ``root`` is the checkpoint's storage.
    """
    offsets = position.offsets
    if output.start == "now":
        return offsets.next_serial
    if isinstance(output, DeadLetter):  # it reads no source: what boxes refused before was theirs
        return min((own.serials[0] for own in offsets.sources if own.serials), default=0)
    names = [source.name for source in sources_before(output.port)]
    read = {name: own for name, own in zip(position.names, offsets.sources, strict=True) if name in names}
    gone = {name: own.gone(root) for name, own in read.items()}
    whole = min(max((serial for _, serial in gone.values()), default=0), offsets.next_serial)
    if output.start == "earliest":
        for name, (rows, _) in gone.items():
            if rows:
                raise RunError(
                    f"query '{output.name}' asks to start with the earliest tuple, but {rows} of the "
                    f"{read[name].rows} tuples of source '{name}' are gone: every query had read them. There "
                    f"are all tuples from {whole} on: say start={whole}, or start='now' for new ones only; "
                    "start with a new checkpoint to read everything again."
                )
        return min((own.serials[0] for own in read.values() if own.serials), default=0)
    assert isinstance(output.start, int)
    if not whole <= output.start <= offsets.next_serial:
        raise RunError(
            f"query '{output.name}' asks to start with tuple {output.start}, but the application has those "
            f"from {whole} to {offsets.next_serial}; use one of these, 'earliest' or 'now'."
        )
    return output.start


def _copied(network: Network, copies: Copies) -> Network:
    boxes = list(network.boxes)
    outputs = []
    for output in network.outputs:
        made: dict[Box, Box] = {}
        for box, key in copies.get(output.name, {}).items():
            ports = tuple(_with(port, made) for port in box.ports)
            made[box] = Box(f"{box.name}@{output.name}", box.operator, ports, key)
        boxes += made.values()
        outputs.append(replace(output, port=_with(output.port, made)))
    needed = {box for output in outputs for box in boxes_before(output.port)}
    kept = [box for box in boxes if box in needed]
    dead = network.dead_letter
    if dead is not None:
        dead = DeadLetter(dead.name, tuple(map(Arrow, kept)), dead.sink)
    return Network(network.sources, kept, outputs, network.name, dead)


def _with(port: Port, made: dict[Box, Box]) -> Port:
    """A port whose arrows come from the copies."""
    return tuple(
        replace(arrow, node=made.get(arrow.node, arrow.node)) if isinstance(arrow.node, Box) else arrow
        for arrow in port
    )
