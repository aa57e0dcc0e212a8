"""A pipeline meets the checkpoint of an earlier run: what may have changed, and what may not.

Queries may come and go.  Of a query that is still there, boxes with state must be the same and read the same,
since their state was made by that: none may go, and none may come, as it would not have seen the rows before.
Stateless boxes behind them may come, go and change, as nothing remembers how they were, unless rows wait
half-way through the part that changes.
"""

from __future__ import annotations

from typing import Any

from headgate.checkpoint.added_queries import first_serial
from headgate.checkpoint.differences import difference
from headgate.checkpoint.graph import Node, Nodes
from headgate.checkpoint.position import Position
from headgate.checkpoint.storage import Storage
from headgate.errors import RunError


def carry_over(nodes: Nodes, position: Position, start: dict[str, Any] | None, root: Storage) -> list[str]:
    """Fit what an earlier run left to this pipeline; an error if that cannot be.

    Returns what the user may not expect: queries that ran when the earlier run ended, and are not there now.
    """
    if start is None:
        return []
    before = start["pipeline"]
    _check_sources(nodes, position, before, root)
    now = nodes.describe()["queries"]
    for query, old in before["queries"].items():
        if query in now:
            _check_query(query, old, now[query], root)
    for query in [q for q in position.failed if q not in now]:
        del position.failed[query]
    _place_new(nodes, position, before, now, root)
    gone = [
        f"Query '{query}' ran on this checkpoint, and the application does not have it any more. If it was "
        f"added while the application ran, add it again with start={position.nodes[old['outlet']].cursor}: "
        "there it ended."
        for query, old in before["queries"].items()
        if query not in now and old["outlet"] in position.nodes
    ]
    position.forget_others()
    return gone


def _check_sources(nodes: Nodes, position: Position, before: dict[str, Any], root: Storage) -> None:
    """Sources are numbered; bring the old numbers to the new, and refuse other columns."""
    names = [source["name"] for source in before["sources"]]
    schemas = {source["name"]: source["schema"] for source in before["sources"]}
    for source in nodes.describe()["sources"]:
        known = schemas.get(source["name"])
        if known is not None and known != source["schema"]:
            raise RunError(
                f"checkpoint '{root}': source '{source['name']}' had the columns {_columns(known)} and has "
                f"{_columns(source['schema'])} now. Start with a new checkpoint, or give the source its old "
                "schema with schema=."
            )
    current = [source.name for source in nodes.network.sources]
    old = position.offsets
    turns = any(own.turns is not None for own in old.sources)
    live = [source.name for source in nodes.network.sources if source.origin.live]
    if old.next_serial and turns == bool(live):
        was = "were all finite" if turns else "were followed as they grew"
        now = f"'{live[0]}' is followed" if live else "all are finite"
        raise RunError(
            f"checkpoint '{root}': its sources {was}, and now {now}; their rows had another order. Give "
            "them their old follow=, or start with a new checkpoint."
        )
    added = [name for name in current if name not in names]
    if turns and added:
        raise RunError(
            f"checkpoint '{root}': its finite sources take turns ({', '.join(names)}), so '{added[0]}' "
            "cannot join them now. Start with a new checkpoint."
        )
    position.renumber(current)


def _check_query(query: str, old: dict[str, Any], new: dict[str, Any], root: Storage) -> None:
    """Refuse a query whose boxes with state are others than before, or read something else."""
    before, now = ({box["key"]: box for box in side["boxes"]} for side in (old, new))
    gone = [box for key, box in before.items() if key not in now]
    fresh = [box for key, box in now.items() if key not in before]
    if not any(box["stateful"] for box in (*gone, *fresh)):
        return
    # In the order of the network: the first that differs is what people have changed.
    if gone and fresh:
        change = difference(gone[0], fresh[0])
        why = "its state was made by the old one"
    elif gone:
        lost = next(box for box in gone if box["stateful"])
        change = f"box '{lost['name']}' ({lost['does']}) is not there any more"
        why = "its state would be lost"
    else:
        added = next(box for box in fresh if box["stateful"])
        change = f"box '{added['name']}' ({added['does']}) is new"
        why = "it has not seen the rows before"
    raise RunError(
        f"checkpoint '{root}': query '{query}' has changed ({change}), and {why}. Give the changed query "
        "another name, or start with a new checkpoint."
    )


def _place_new(
    nodes: Nodes, position: Position, before: dict[str, Any], now: dict[str, Any], root: Storage
) -> None:
    """What has changed of a query goes on where its results were; a new query starts where it was told to."""
    known = {box["key"] for old in before["queries"].values() for box in old["boxes"]}
    known |= {old["outlet"] for old in before["queries"].values()}
    for outlet in nodes.outlets:
        old = before["queries"].get(outlet.name)
        mine = [node for node in nodes.all if outlet.name in node.queries]
        fresh = [node for node in mine if node.key not in known]
        if not fresh:
            continue
        if old is None:
            assert outlet.output is not None
            start = first_serial(outlet.output, position, root)
        else:
            start = position.nodes[old["outlet"]].cursor
            _check_nothing_between(outlet.name, mine, position, old, start, root)
        for node in fresh:
            own = position.nodes[node.key]
            own.cursor = max(own.cursor, start)


def _check_nothing_between(
    query: str,
    mine: list[Node],
    position: Position,
    old: dict[str, Any],
    start: int,
    root: Storage,
) -> None:
    """Rows half-way through the part of a query that changes are neither the old one's nor the new one's.

    Rows that wait elsewhere do so before boxes that stay, which will take them.
    """
    before = {old["outlet"], *(box["key"] for box in old["boxes"])}
    gone = sorted(before - {node.key for node in mine})
    waiting = any(file for key in gone for queue in position.nodes[key].queues for file in queue)
    passed = any(position.nodes[key].cursor != start for key in gone)
    # A box of other queries that this one now shares must not be further: what it has made is gone.
    shared = [node for node in mine if node.key not in before and position.nodes[node.key].cursor > start]
    if waiting or passed or shared:
        raise RunError(
            f"checkpoint '{root}': query '{query}' has changed while rows were half-way through it. Let the "
            "old one run until it is done, give the changed query another name, or start with a new "
            "checkpoint."
        )


def _columns(schema: list[list[str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in schema)
