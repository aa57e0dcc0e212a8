"""What a network needs of its sources: the columns that some box or query looks at, and the first filters.

An engine that reads less must give the same answers.  So a source's batches keep their whole schema.  A
column that is not needed is null, and so is a row that no filter lets pass.  Boxes are compiled against whole
schemas, a checkpoint knows boxes by them, and rows that are not read still have serials and count as
admitted.  Narrower schemas would save the null columns, which cost nearly nothing, and would make a box
another box whenever a query that needs more joins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headgate.graph.importance import Importance, importances
from headgate.graph.network import Arrow, Box, Network, Port, Source
from headgate.graph.operators.filter import Filter
from headgate.sql.ranges import Ranges, compile_ranges


@dataclass(frozen=True)
class Needs:
    """What must be read of a source."""

    schema: pa.Schema
    columns: frozenset[str]
    """The columns that are looked at."""
    filters: tuple[Ranges, ...] = ()
    """If there are any, a row that can satisfy none of them need not be read."""

    @property
    def names(self) -> list[str]:
        """The columns in the order of the schema."""
        return [name for name in self.schema.names if name in self.columns]

    def covers(self, other: Needs) -> bool:
        """Whether what is read for these needs is enough for ``other``."""
        kept = not self.filters or (bool(other.filters) and set(other.filters) <= set(self.filters))
        return self.columns >= other.columns and kept

    def together_with(self, other: Needs) -> Needs:
        """What must be read for both."""
        filters: tuple[Ranges, ...] = ()
        if self.filters and other.filters:
            filters = tuple(dict.fromkeys([*self.filters, *other.filters]))
        if len(filters) > _MOST_FILTERS:
            filters = ()
        return Needs(self.schema, self.columns | other.columns, filters)


_MOST_FILTERS = 64
"""Filters behind one source that together may still leave out some of its blocks."""


def everything(schema: pa.Schema) -> Needs:
    """All columns of all rows."""
    return Needs(schema, frozenset(schema.names))


def needs(network: Network) -> list[Needs]:
    """For every source what must be read of it.

    Dead letters print whole rows as they came to a box, so with them everything is needed.
    """
    if network.dead_letter is not None:
        return [everything(source.schema) for source in network.sources]
    wanted = _wanted(network)
    filters = _filters(network)
    return [Needs(s.schema, wanted.get(Arrow(s), frozenset()), filters.get(s, ())) for s in network.sources]


def _wanted(network: Network) -> dict[Arrow, frozenset[str]]:
    """By arrow, the columns that the boxes and queries behind it look at."""
    wanted: dict[Arrow, frozenset[str]] = {}

    def want(port: Port, columns: frozenset[str]) -> None:
        for arrow in port:
            wanted[arrow] = wanted.get(arrow, frozenset()) | columns

    for output in network.outputs:
        want(output.port, frozenset(output.schema.names))
    stated = importances(network)
    for box in reversed(Network.in_order(network.boxes)):
        outputs = [wanted.get(Arrow(box, place), frozenset()) for place in range(len(box.operator.outputs))]
        text = stated[network.index[box]]
        for place, (port, columns) in enumerate(zip(box.ports, box.operator.needed(outputs), strict=True)):
            want(port, columns | (_weighed(box, text, place) if isinstance(text, str) else frozenset()))
    return wanted


def _weighed(box: Box, text: str, port: int) -> frozenset[str]:
    """The columns by which load shedding tells which tuples are more important."""
    return Importance(text, box.operator.inputs).columns(port)


def _filters(network: Network) -> dict[Source, tuple[Ranges, ...]]:
    """For every source the filters right behind it; none if another box or a query stands there too."""
    found: dict[Source, list[Ranges] | None] = {}

    def add(port: Port, operator: Any) -> None:
        for arrow in port:
            if not isinstance(arrow.node, Source):
                continue
            ranges = None
            if type(operator) is Filter and found.get(arrow.node, ()) is not None:
                ranges = compile_ranges(operator.predicate, operator.inputs[0])
            known = found.setdefault(arrow.node, [])
            if known is None or ranges is None:
                found[arrow.node] = None
            elif ranges not in known:
                known.append(ranges)
                if len(known) > _MOST_FILTERS:
                    found[arrow.node] = None

    for box in network.boxes:
        for port in box.ports:
            add(port, box.operator)
    for output in network.outputs:
        add(output.port, None)
    return {source: tuple(ranges) for source, ranges in found.items() if ranges}
