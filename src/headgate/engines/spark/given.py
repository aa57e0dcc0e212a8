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
        self._keys: dict[str, dict[str, list[str]]] = {}
        """By query and source, the keys of the nodes that read it."""
        for node in nodes.all:
            for place in {feed.place for feed in node.feeds if feed.source}:
                for query in node.queries:
                    by_source = self._keys.setdefault(query, {})
                    by_source.setdefault(self._names[place], []).append(node.key)
        self._outlets = {node.name: node.key for node in nodes.outlets}
        known: Rows = {} if before is None else before._begun
        now = self._reached(position)
        self._begun: Rows = {
            query: {name: known.get(query, {}).get(name, rows) for name, rows in own.items()}
            for query, own in now.items()
        }
        """Where every query stood in each of its sources when it began to run."""
        rows = {name: own.rows for name, own in zip(self._names, position.offsets.sources, strict=True)}
        if before is not None:
            rows |= {name: count for name, count in before._rows.items() if name in rows}
        self._rows: dict[str, int] = rows

    def _reached(self, position: Position) -> Rows:
        sources = dict(zip(self._names, position.offsets.sources, strict=True))
        return {
            query: {
                # A box that it shares may stand before the row with which it begins.
                name: sources[name].below(
                    max(
                        min([position.nodes[key].cursor for key in keys]),
                        position.nodes[self._outlets[query]].cursor,
                    )
                )
                for name, keys in by_source.items()
            }
            for query, by_source in self._keys.items()
        }

    def rows(self, position: Position) -> tuple[list[int], Rows]:
        """What each source has brought in this run; and by query, what each gave it."""
        came = [
            own.rows - self._rows[name]
            for name, own in zip(self._names, position.offsets.sources, strict=True)
        ]
        admitted = {name: own.rows for name, own in zip(self._names, position.offsets.sources, strict=True)}
        return came, {
            query: {name: admitted[name] - rows for name, rows in own.items()}
            for query, own in self._begun.items()
        }
