"""Queries and sources with new names: the application says what they were (``was=``), nothing guesses."""

from __future__ import annotations

from typing import Any

from headgate.graph.network import Network

Data = dict[str, Any]
Names = dict[str, dict[str, str]]
"""Of sources and of queries, the old name by the new one."""


def renamed(before: Data, network: Network) -> tuple[Data, Names]:
    """An earlier pipeline, as a start record describes it, under the names of this one; and what is new.

    A name that is told twice, or was never there, renames nothing: so ``was=`` may stay when it is done.
    """
    known = {source["name"] for source in before["sources"]}
    sources = {s.name: s.was for s in network.sources if s.was in known and s.name not in known}
    queries = {
        o.name: o.was
        for o in network.outputs
        if o.was in before["queries"] and o.name not in before["queries"]
    }
    for new, old in queries.items():  # what a query reads by itself has its name in its own
        mine = [name for name in known if name.endswith(f"@{old}")]
        sources |= {f"{name.removesuffix(f'@{old}')}@{new}": name for name in mine}
    names: Names = {"sources": sources, "queries": queries}  # type: ignore[dict-item]
    if not sources and not queries:
        return before, names
    now = {old: new for new, old in sources.items()}
    moved = {old: new for new, old in queries.items()}
    told = {
        "sources": [
            source | {"name": now.get(source["name"], source["name"])} for source in before["sources"]
        ],
        "queries": {moved.get(query, query): own for query, own in before["queries"].items()},
    }
    return before | told, names
