"""The boxes-and-arrows network (Aurora, section 2): sources, boxes, outputs, and the arrows between them.

A port is where a box takes its input: one arrow, or several that were united, whose rows meet in the order of
their serials or in that of their arrival.
Sources, unions and outputs are not boxes: they cost no call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa

from headgate.errors import CycleError, PipelineError
from headgate.graph.operator import Kind, Operator
from headgate.graph.qos import QoS


@dataclass(eq=False)
class Request:
    """Queries that join a run together, with sources of their own, and end with these (Bobox, section 3)."""

    name: str
    sources: Sequence[Source]
    """In the order of their declaration."""
    ended: Callable[[dict[str, Any]], None] = lambda reports: None
    """Called once, when nothing is left of it, with the reports of its queries by name."""


@dataclass(eq=False)
class Source:
    """Where tuples come from.  ``origin`` says how an engine reads it."""

    name: str
    schema: pa.Schema
    origin: Any = None
    idle_after: float | None = None
    request: Request | None = None
    """The request that it belongs to; None: it is the application's."""
    was: str | None = None
    """Its name in an earlier version of the application."""


@dataclass(eq=False)
class Box:
    """An operator in the network, with a queue before each of its ports."""

    name: str
    operator: Operator
    ports: tuple[Port, ...] = ()
    key: str | None = None
    """The key, in a checkpoint, of one query's own copy of a box; None: it follows from the box."""
    original: Box | None = None
    """The application's box that this one runs for, if it is a copy."""


@dataclass(frozen=True)
class Arrow:
    """From one output of a node."""

    node: Source | Box
    output: int = 0
    in_order: bool = field(default=True, compare=False)
    """Into a port of several arrows: rows wait for earlier ones of the others; else they leave on arrival."""

    @property
    def schema(self) -> pa.Schema:
        return self.node.schema if isinstance(self.node, Source) else self.node.operator.outputs[self.output]


Port = tuple[Arrow, ...]
Node = TypeVar("Node", Source, Box)


@dataclass(eq=False)
class Output:
    """Where a query's results leave: its name is the query's name."""

    name: str
    port: Port
    sink: Any = None
    qos: QoS | None = None
    keep: str | None = None
    start: str | int = "earliest"
    """Where a query begins that joins an application under way: "earliest", "now" or a serial."""
    importance: str | None = None
    """What a tuple is worth to the query when tuples are shed, as an expression; None: all the same."""
    query_class: int = 0
    """Queries of a higher class go first, where the policy knows classes."""
    request: Request | None = None
    """The request that it belongs to; None: it is the application's."""
    was: str | None = None
    """The query's name in an earlier version of the application."""

    @property
    def schema(self) -> pa.Schema:
        return self.port[0].schema


DEAD_LETTER = "dead_letter"
"""The dead-letter output's name among the queries."""

LETTERS = pa.schema(
    [
        ("box", pa.string()),
        ("queries", pa.string()),
        ("serial", pa.int64()),
        ("reason", pa.string()),
        ("row", pa.string()),
    ]
)
"""A bad row: the box that refused it, the queries that box works for, the tuple, why, and the row as JSON."""


@dataclass(eq=False)
class DeadLetter(Output):
    """Where rows go on which a box raised; ``port`` has one arrow for every box.  Not a query."""

    @property
    def schema(self) -> pa.Schema:
        return LETTERS


@dataclass
class Network:
    """A loop-free graph of boxes, checked; boxes stand in topological order."""

    sources: Sequence[Source]
    boxes: Sequence[Box]
    outputs: Sequence[Output]
    name: str = "app"
    dead_letter: DeadLetter | None = None
    """Where bad rows go; None: they fail their queries."""
    index: dict[Box, int] = field(init=False)

    def __post_init__(self) -> None:
        for what, names in (
            ("sources", [s.name for s in self.sources]),
            ("boxes", [b.name for b in self.boxes]),
            ("queries", [o.name for o in (*self.outputs, *filter(None, [self.dead_letter]))]),
        ):
            twice = [name for name, times in Counter(names).items() if times > 1]
            if twice:
                raise PipelineError(f"Two {what} are called '{twice[0]}'; give each a name of its own.")
        self.boxes = self.in_order(self.boxes)
        self.index = {box: place for place, box in enumerate(self.boxes)}

    @staticmethod
    def of(name: str, outputs: Sequence[Output]) -> Network:
        """The network that the outputs need, in the order in which its parts were declared upstream."""
        sources: dict[Source, None] = {}
        boxes: dict[Box, None] = {}
        on_path: list[Box] = []

        def visit(port: Port) -> None:
            for arrow in port:
                node = arrow.node
                if isinstance(node, Source):
                    sources[node] = None
                elif node not in boxes:
                    if node in on_path:
                        raise CycleError(_circle(on_path[on_path.index(node) :][::-1]))
                    on_path.append(node)
                    for upstream in node.ports:
                        visit(upstream)
                    on_path.pop()
                    boxes[node] = None

        for output in outputs:
            visit(output.port)
        return Network(list(sources), list(boxes), list(outputs), name)

    def joined(
        self, boxes: Sequence[Box], outputs: Sequence[Output], sources: Sequence[Source] = ()
    ) -> Network:
        """The network with more boxes and queries; existing ones keep their numbers, vacant ones are reused.

        Vacant numbers are given in ascending order.  So boxes of a request, which no other box feeds, still
        have higher numbers than those that feed them.
        """
        every = _filled(self.boxes, boxes) if sources else [*self.boxes, *boxes]
        return self._with(_filled(self.sources, sources), every, [*self.outputs, *outputs])

    def without(self, request: Request) -> Network:
        """The network without a request, whose numbers are vacant until another one comes."""
        sources = [_vacant_source(p) if s.request is request else s for p, s in enumerate(self.sources)]
        ending = {o.name for o in self.outputs if o.request is request}
        gone = {box for name in ending for box in self.queries[name]}
        boxes = [_vacant_box(place) if place in gone else box for place, box in enumerate(self.boxes)]
        return self._with(sources, boxes, [o for o in self.outputs if o.name not in ending])

    def _with(self, sources: Sequence[Source], boxes: Sequence[Box], outputs: Sequence[Output]) -> Network:
        """The same application with other parts, whose numbers are their places here."""
        letters = self.dead_letter
        if letters is not None:
            letters = replace(letters, port=tuple(map(Arrow, boxes)))
        made = Network(sources, boxes, outputs, self.name, letters)
        made.boxes, made.index = boxes, {box: place for place, box in enumerate(boxes)}
        return made

    @staticmethod
    def in_order(boxes: Sequence[Box]) -> list[Box]:
        """Topological order, stable in the given one; a cycle is an error that names its boxes."""
        placed: dict[Box, None] = {}
        waiting = list(boxes)
        while waiting:
            ready = [b for b in waiting if all(up in placed for up in upstream_boxes(b))]
            if not ready:
                raise CycleError(_circle(_find_circle(waiting)))
            for box in ready:
                placed[box] = None
            waiting = [b for b in waiting if b not in placed]
        return list(placed)

    @cached_property
    def upstream(self) -> list[list[int]]:
        """For every box, the boxes that feed it, in the order of its arrows."""
        return [list(dict.fromkeys(self.index[up] for up in upstream_boxes(box))) for box in self.boxes]

    @cached_property
    def downstream(self) -> list[list[int]]:
        """For every box, the boxes that it feeds."""
        down: list[list[int]] = [[] for _ in self.boxes]
        for place, ups in enumerate(self.upstream):
            for up in ups:
                down[up].append(place)
        return down

    @cached_property
    def queries(self) -> dict[str, frozenset[int]]:
        """For every query, the boxes that work for it."""
        return {o.name: frozenset(self._reaching(o.port)) for o in self.outputs}

    @cached_property
    def sources_by_query(self) -> dict[str, set[Source]]:
        """For every query, the sources whose tuples can reach it."""
        return {o.name: sources_before(o.port) for o in self.outputs}

    @cached_property
    def goals(self) -> dict[str, QoS]:
        """The QoS graphs of the queries that have one."""
        return {output.name: output.qos for output in self.outputs if output.qos is not None}

    @cached_property
    def queries_of(self) -> list[tuple[str, ...]]:
        """For every box, the queries that it works for."""
        found: list[list[str]] = [[] for _ in self.boxes]
        for query, boxes in self.queries.items():
            for box in boxes:
                found[box].append(query)
        return [tuple(queries) for queries in found]

    @cached_property
    def requests(self) -> list[int]:
        """For every box, the number of the oldest query that needs it, in the order of declaration."""
        numbers = {output.name: number for number, output in enumerate(self.outputs)}
        return [min((numbers[query] for query in queries), default=0) for queries in self.queries_of]

    @cached_property
    def classes(self) -> list[int]:
        """For every box, the highest class of the queries that it works for."""
        of = {output.name: output.query_class for output in self.outputs}
        return [max((of[query] for query in queries), default=0) for queries in self.queries_of]

    @cached_property
    def outlets(self) -> list[int]:
        """For every box, how many queries take its results as they are."""
        taken = Counter(arrow.node for output in self.outputs for arrow in output.port)
        return [taken[box] for box in self.boxes]

    def sources_of(self, port: Port) -> set[Source]:
        """The sources whose tuples can reach a port."""
        return sources_before(port)

    def _reaching(self, port: Port) -> set[int]:
        return {self.index[box] for box in boxes_before(port)}

    def to_data(self) -> dict[str, Any]:
        """The network as plain data, to print, store or compare."""

        def arrows(port: Port) -> list[str]:
            return [a.node.name if a.output == 0 else f"{a.node.name}:{a.output}" for a in port]

        def columns(schema: pa.Schema) -> dict[str, str]:
            return {f.name: str(f.type) for f in schema}

        return {
            "name": self.name,
            "sources": [{"name": s.name, "schema": columns(s.schema)} for s in self.sources],
            "boxes": [
                {
                    "name": b.name,
                    "does": b.operator.label,
                    "kind": b.operator.kind.value,
                    "inputs": [arrows(p) for p in b.ports],
                    "schema": columns(b.operator.outputs[0]),
                }
                for b in self.boxes
            ],
            "queries": [
                {"name": o.name, "input": arrows(o.port), "qos": list(o.qos.points) if o.qos else None}
                for o in self.outputs
            ],
        }

    def to_mermaid(self) -> str:
        """The network as a Mermaid flow chart: sources, boxes by kind, outputs."""
        shape = {Kind.STATELESS: ("[", "]"), Kind.KEYED: ("[[", "]]"), Kind.STATEFUL: ("[/", "/]")}
        ids: dict[Any, str] = {}
        lines = ["flowchart LR"]

        def node(thing: Any, text: str, left: str, right: str) -> None:
            ids[thing] = f"n{len(ids)}"
            quoted = text.replace('"', "'")
            lines.append(f'    {ids[thing]}{left}"{quoted}"{right}')

        def join(port: Port, target: str) -> None:
            for arrow in port:
                mark = f"|output {arrow.output}|" if arrow.output else ""
                lines.append(f"    {ids[arrow.node]} -->{mark} {target}")

        for source in self.sources:
            node(source, source.name, "([", "])")
        for box in self.boxes:
            node(box, f"{box.name}: {box.operator.label}", *shape[box.operator.kind])
        for output in self.outputs:
            node(output, output.name, "{{", "}}")
        for box in self.boxes:
            for port in box.ports:
                join(port, ids[box])
        for output in self.outputs:
            join(output.port, ids[output])
        return "\n".join(lines)


_VACANT = "(vacant "
"""How the names of vacant numbers begin."""


def is_vacant(node: Source | Box) -> bool:
    """Whether a number has no source or box: that of a request which has ended, until another one comes."""
    return node.name.startswith(_VACANT)


def _vacant_source(place: int) -> Source:
    return Source(f"{_VACANT}{place})", pa.schema([]))


def _vacant_box(place: int) -> Box:
    return Box(f"{_VACANT}{place})", Operator([], []))


def _filled(nodes: Sequence[Node], new: Sequence[Node]) -> list[Node]:
    """New nodes in the vacant places, and behind the last one."""
    made, left = list(nodes), list(new)
    for place, node in enumerate(made):
        if left and is_vacant(node):
            made[place] = left.pop(0)
    return made + left


def upstream_boxes(box: Box) -> list[Box]:
    """The boxes that feed a box, over all its ports."""
    return [arrow.node for port in box.ports for arrow in port if isinstance(arrow.node, Box)]


def boxes_before(port: Port) -> list[Box]:
    """The boxes whose results can reach a port."""
    found: dict[Box, None] = {}
    todo = [arrow.node for arrow in port if isinstance(arrow.node, Box)]
    while todo:
        box = todo.pop()
        if box not in found:
            found[box] = None
            todo += upstream_boxes(box)
    return list(found)


def came_by_arrival(port: Port) -> bool:
    """Whether rows of a port came through a union in the order of arrival, here or upstream."""
    ports = [port, *(upstream for box in boxes_before(port) for upstream in box.ports)]
    return any(not arrow.in_order for each in ports for arrow in each)


def sources_before(port: Port) -> set[Source]:
    """The sources whose tuples can reach a port."""
    ports = [port, *(upstream for box in boxes_before(port) for upstream in box.ports)]
    return {arrow.node for each in ports for arrow in each if isinstance(arrow.node, Source)}


def _find_circle(boxes: Iterable[Box]) -> list[Box]:
    among = set(boxes)
    path = [next(iter(boxes))]
    while True:
        path.append(next(up for up in upstream_boxes(path[-1]) if up in among))
        if path[-1] in path[:-1]:
            return path[path.index(path[-1]) + 1 :][::-1]


def _circle(boxes: Sequence[Box]) -> str:
    names = [b.name for b in boxes]
    return (
        f"These boxes feed each other in a circle: {' -> '.join([*names, names[0]])}. "
        "A network must be loop-free; cut one of these arrows."
    )
