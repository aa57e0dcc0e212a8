"""How many rows each query was given: those from the serial where it stood when the run began.

Counted by query and source.  What was admitted and the query has not reached yet waits, and counts: a row
that was given is answered, shed or waits.  What a query reads again counts, because an earlier run has lost
it or it begins anew.  Rows before those with which a query begins do not.
"""

from __future__ import annotations

from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.position import Position

Rows = dict[str, dict[str, int]]


class Given:
    """The rows of one run, and of those that it goes on from with other queries."""

    def __init__(self, nodes: Nodes, position: Position, before: Given | None) -> None:
        self._names = nodes.source_names
        known: Rows = {} if before is None else before._begun
        self._begun: Rows = {
            query: {name: known.get(query, {}).get(name, rows) for name, rows in own.items()}
            for query, own in _reached(nodes, position).items()
        }
        """Where every query stood in each of its sources when it began to run."""
        self._rows = self._admitted(position)
        if before is not None:
            self._rows |= {name: rows for name, rows in before._rows.items() if name in self._rows}

    def _admitted(self, position: Position) -> dict[str, int]:
        return {name: own.rows for name, own in zip(self._names, position.offsets.sources, strict=True)}

    def rows(self, position: Position) -> tuple[list[int], Rows]:
        """What each source has brought in this run; and by query, what each gave it."""
        admitted = self._admitted(position)
        return [rows - self._rows[name] for name, rows in admitted.items()], {
            query: {name: admitted[name] - rows for name, rows in own.items()}
            for query, own in self._begun.items()
        }


def _reached(nodes: Nodes, position: Position) -> Rows:
    """Where every query stands in each of its sources."""
    names = nodes.source_names
    keys: dict[str, dict[str, list[str]]] = {}
    for node in nodes.all:
        for place in {feed.place for feed in node.feeds if feed.source}:
            for query in node.queries:
                keys.setdefault(query, {}).setdefault(names[place], []).append(node.key)
    outlets = {node.name: position.nodes[node.key].cursor for node in nodes.outlets}
    sources = dict(zip(names, position.offsets.sources, strict=True))
    return {
        query: {
            # A box that it shares may stand before the row with which it begins.
            name: sources[name].below(max(min([position.nodes[key].cursor for key in own]), outlets[query]))
            for name, own in by_source.items()
        }
        for query, by_source in keys.items()
    }
