"""A pipeline meets the checkpoint of an earlier run: what may have changed, and what may not.

Queries may come and go.  A query that is still there must compute what it computed before, since its state
and its cursors were made by that; a stateless one may change, as nothing remembers how it was.
"""

from __future__ import annotations

from typing import Any

from headgate.engines.spark.nodes import Nodes
from headgate.engines.spark.offsets import Offsets
from headgate.engines.spark.position import Position
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
    _place_new(nodes, position, before, now)


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
    if current == names:
        return
    old = position.offsets
    if any(own.turns is not None for own in old.sources) and not old.ended:
        raise RunError(
            f"checkpoint '{root}': its finite sources take turns ({', '.join(names)}), so none can be added "
            f"or removed (now: {', '.join(current)}). Start with a new checkpoint."
        )
    offsets = Offsets(len(current))
    offsets.next_serial = old.next_serial
    for place, name in enumerate(current):
        if name in names:
            offsets.sources[place] = old.sources[names.index(name)]
    position.offsets = offsets


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


def _place_new(nodes: Nodes, position: Position, before: dict[str, Any], now: dict[str, Any]) -> None:
    """A changed stateless query goes on where it was; a new one starts where it was told to."""
    known = {box["key"] for old in before["queries"].values() for box in old["boxes"]}
    known |= {old["outlet"] for old in before["queries"].values()}
    earliest = min((own.serials[0] for own in position.offsets.sources if own.serials), default=0)
    for outlet in nodes.outlets:
        start = earliest
        if outlet.name in before["queries"]:
            start = (
                position.nodes[before["queries"][outlet.name]["outlet"]].cursor
                if (before["queries"][outlet.name]["outlet"] in position.nodes)
                else earliest
            )
        for node in nodes.all:
            if outlet.name in node.queries and node.key not in known:
                own = position.nodes[node.key]
                own.cursor = max(own.cursor, start)


def _columns(schema: list[list[str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in schema)
