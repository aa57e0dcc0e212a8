"""A pipeline meets the checkpoint of an earlier run: what may have changed, and what may not.

Queries may come and go.  A query that is still there must compute what it computed before, since its state
and its cursors were made by that; a stateless one may change, as nothing remembers how it was.
"""

from __future__ import annotations

from typing import Any

from headgate.checkpoint.added_queries import first_serial
from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.position import Position
from headgate.errors import RunError


def carry_over(nodes: Nodes, position: Position, start: dict[str, Any] | None, root: str) -> None:
    """Fit what an earlier run left to this pipeline; an error if that cannot be."""
    if start is None:
        return
    before = start["pipeline"]
    _check_sources(nodes, position, before, root)
    now = nodes.describe()["queries"]
    for query, old in before["queries"].items():
        if query in now:
            _check_query(query, old, now[query], root)
    for query in [q for q in position.failed if q not in now]:
        del position.failed[query]
    _place_new(nodes, position, before, now, root)
    position.forget_others()


def _check_sources(nodes: Nodes, position: Position, before: dict[str, Any], root: str) -> None:
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


def _check_query(query: str, old: dict[str, Any], new: dict[str, Any], root: str) -> None:
    keys = {box["key"] for box in new["boxes"]}
    gone = [box for box in old["boxes"] if box["key"] not in keys]
    if not gone:
        return
    stateful = any(box["stateful"] for box in (*old["boxes"], *new["boxes"]))
    if not stateful:
        return
    known = {box["key"] for box in old["boxes"]}
    fresh = [box for box in new["boxes"] if box["key"] not in known]
    change = f"box '{gone[0]['name']}' ({gone[0]['does']}) is not there any more"
    if fresh:
        change = f"'{gone[0]['name']}' was {gone[0]['does']}, now '{fresh[0]['name']}' is {fresh[0]['does']}"
    raise RunError(
        f"checkpoint '{root}': query '{query}' has changed ({change}), and its state was made by the old "
        "one. Give the changed query another name, or start with a new checkpoint."
    )


def _place_new(
    nodes: Nodes, position: Position, before: dict[str, Any], now: dict[str, Any], root: str
) -> None:
    """A changed stateless query goes on where it was; a new one starts where it was told to."""
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
            start = first_serial(outlet.output, position)
        else:
            start = position.nodes[old["outlet"]].cursor
            _check_nothing_between(outlet.name, position, old, start, root)
        for node in fresh:
            own = position.nodes[node.key]
            own.cursor = max(own.cursor, start)


def _check_nothing_between(
    query: str, position: Position, old: dict[str, Any], start: int, root: str
) -> None:
    """Rows half-way through a changed query are neither the old one's nor the new one's."""
    keys = [old["outlet"], *(box["key"] for box in old["boxes"])]
    waiting = any(file for key in keys for queue in position.nodes[key].queues for file in queue)
    if waiting or any(position.nodes[key].cursor != start for key in keys):
        raise RunError(
            f"checkpoint '{root}': query '{query}' has changed while rows were half-way through it. Let the "
            "old one run until it is done, give the changed query another name, or start with a new "
            "checkpoint."
        )


def _columns(schema: list[list[str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in schema)
