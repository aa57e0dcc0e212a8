"""The network as the Spark engine sees it: boxes and outlets, each with a cursor of its own.

An outlet stands before a query's sink.  It is no box (no policy sees it, no call is counted), but like one it
can stand still when its sink fails while the rest goes on, so like one it has a cursor and a queue.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.graph.drops import Dropper
from headgate.graph.importance import importance_at, importances
from headgate.graph.needs import needs
from headgate.graph.network import Arrow, Network, Output, Source
from headgate.graph.operator import Kind, Operator
from headgate.sql import Expression


@dataclasses.dataclass(frozen=True, slots=True)
class Feed:
    """Where an arrow comes from: a source, or an output of a box."""

    source: bool
    place: int
    output: int = 0


@dataclasses.dataclass(eq=False)
class Node:
    """A box, or the outlet of a query."""

    place: int
    name: str
    key: str
    """Says what the node computes from which sources, whatever its name: what a checkpoint knows it by."""
    operator: Operator | None
    output: Output | None
    schemas: tuple[pa.Schema, ...]
    """By port."""
    feeds: tuple[Feed, ...]
    """All arrows in, port by port."""
    ports: tuple[tuple[int, ...], ...]
    """For each port, the places of its arrows in ``feeds``."""
    queries: tuple[str, ...]
    refuses: bool = False
    """An outlet right behind a source that may have bad rows: these leave it as a box's would."""
    slices: bool = True
    """No state here nor upstream: its work can be cut anywhere, and trains may overlap."""

    dropper: Dropper | None = None
    """Chooses what is dropped before a box."""
    stateful: bool = False

    def __post_init__(self) -> None:
        self.stateful = self.operator is not None and self.operator.kind is not Kind.STATELESS

    @property
    def outputs(self) -> list[Feed]:
        """The arrows out of a box, that of its bad rows last."""
        if self.operator is None and not self.refuses:
            return []
        return [Feed(False, self.place, output) for output in range(letters(self) + 1)]

    def __getstate__(self) -> dict[str, Any]:
        """A task gets no sink: it may hold the user's program."""
        return self.__dict__ | {"output": None}


def letters(node: Node) -> int:
    """The number of the output by which a box's bad rows leave."""
    return len(node.operator.outputs) if node.operator is not None else 0


class Nodes:
    """All nodes: the boxes in the network's order, then the outlets."""

    def __init__(self, network: Network) -> None:
        self.network: Any = network
        self.sources = [(s.schema, s.origin) for s in network.sources]
        self.needs = needs(network)
        """What must be read of every source."""
        self.source_names = [s.name for s in network.sources]
        self._sources: Any = {source: place for place, source in enumerate(network.sources)}
        self.all: list[Node] = []
        seen = {box.key for box in network.boxes if box.key is not None}
        self.importance = importances(network)
        for place, box in enumerate(network.boxes):
            feeds, ports = self._feeds(box.ports)
            what = operator_data(box.operator)
            key = box.key or self._key(what, feeds, ports, seen)
            node = Node(
                place, box.name, key, box.operator, None, box.operator.inputs, feeds, ports,
                network.queries_of[place],
            )  # fmt: skip
            node.slices = not node.stateful and self._cuttable(feeds)
            stated = self.importance[place]
            node.dropper = Dropper(box.name, importance_at(box, stated) if isinstance(stated, str) else None)
            self.all.append(node)
        for output in network.outputs:
            self._outlet(output, *self._feeds((output.port,)), seen)
            refusing = [f for f in self.all[-1].feeds if f.source and self.sources[f.place][1].refuses]
            self.all[-1].refuses = network.dead_letter is not None and bool(refusing)
        if network.dead_letter is not None:
            # Bad rows leave a box by one more output.
            feeds = tuple(node.outputs[-1] for node in self.all if node.outputs)
            self._outlet(network.dead_letter, feeds, (tuple(range(len(feeds))),), seen)
        self.boxes = self.all[: len(network.boxes)]
        self.outlets = self.all[len(network.boxes) :]
        self.by_key = {node.key: node for node in self.all}
        self.targets: dict[Feed, list[tuple[Node, int]]] = {}
        for node in self.all:
            for arrow, feed in enumerate(node.feeds):
                self.targets.setdefault(feed, []).append((node, arrow))
        # Trains of a box may overlap only if nothing behind it must wait for the one before.
        self.overlaps = [self._overlaps(node) for node in self.all]

    def _outlet(self, output: Output, feeds: tuple[Feed, ...], ports: Any, seen: set[str]) -> None:
        key = self._key({"query": output.name}, feeds, ports, seen)
        place, schemas = len(self.all), (output.schema,)
        node = Node(place, output.name, key, None, output, schemas, feeds, ports, (output.name,))
        node.slices = self._cuttable(feeds)
        self.all.append(node)

    def _feeds(
        self, ports: Sequence[Sequence[Arrow]]
    ) -> tuple[tuple[Feed, ...], tuple[tuple[int, ...], ...]]:
        feeds: list[Feed] = []
        places = []
        for port in ports:
            places.append(tuple(range(len(feeds), len(feeds) + len(port))))
            for arrow in port:
                if isinstance(arrow.node, Source):
                    feeds.append(Feed(True, self._sources[arrow.node]))
                else:
                    feeds.append(Feed(False, self.network.index[arrow.node], arrow.output))
        return tuple(feeds), tuple(places)

    def _key(self, what: Any, feeds: Sequence[Feed], ports: Any, seen: set[str]) -> str:
        """A hash of what the node does and of what feeds it; the second of two equal ones is numbered."""
        origins = [
            f"source {self.network.sources[f.place].name}"
            if f.source
            else f"{self.all[f.place].key}:{f.output}"
            for f in feeds
        ]
        text = json.dumps([what, origins, ports], sort_keys=True, default=str)
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        number, found = 1, key
        while found in seen:
            number += 1
            found = f"{key}.{number}"
        seen.add(found)
        return found

    def _cuttable(self, feeds: Sequence[Feed]) -> bool:
        return all(feed.source or self.all[feed.place].slices for feed in feeds)

    def _overlaps(self, node: Node) -> bool:
        return not node.stateful and all(self._overlaps(target) for target, _ in self.following(node))

    def following(self, node: Node) -> list[tuple[Node, int]]:
        """The nodes that a box feeds, and by which of their arrows."""
        return [target for feed in node.outputs for target in self.targets.get(feed, ())]

    def __getstate__(self) -> dict[str, Any]:
        """What a task needs: operators and arrows, and of sources how they are read."""
        sources = [(schema, shippable(origin)) for schema, origin in self.sources]
        return self.__dict__ | {"network": None, "_sources": None, "sources": sources}

    def describe(self) -> dict[str, Any]:
        """What a checkpoint remembers of the pipeline: enough to say later what has changed."""
        return {
            "sources": [{"name": s.name, "schema": _schema_data(s.schema)} for s in self.network.sources],
            "queries": {
                outlet.name: {
                    "outlet": outlet.key,
                    "boxes": [
                        {
                            "key": node.key,
                            "name": node.name,
                            "does": node.operator.label if node.operator else "",
                            "stateful": node.stateful,
                            "what": self._what(node),
                        }
                        for node in self.boxes
                        if outlet.name in node.queries
                    ],
                }
                for outlet in self.outlets
            },
        }

    def _what(self, node: Node) -> dict[str, Any]:
        """All that makes a box's key, but for what those of the boxes before it tell."""
        assert node.operator is not None
        names = [[self._feed_name(node.feeds[arrow]) for arrow in port] for port in node.ports]
        data = operator_data(node.operator)
        del data["label"]
        if not node.stateful:  # what a state was made of counts when another version goes on from it
            del data["inputs"]
        return data | {"reads": names}

    def _feed_name(self, feed: Feed) -> str:
        if feed.source:
            return f"source '{self.source_names[feed.place]}'"
        output = f", output {feed.output}" if feed.output else ""
        return f"'{self.all[feed.place].name}'{output}"


def _schema_data(schema: pa.Schema) -> list[list[str]]:
    return [[field.name, str(field.type)] for field in schema]


def operator_data(operator: Operator) -> dict[str, Any]:
    """An operator as plain data: two that compute the same have the same, in any process."""
    return {
        "type": type(operator).__name__,
        "label": operator.label,
        "inputs": [_schema_data(s) for s in operator.inputs],
        "outputs": [_schema_data(s) for s in operator.outputs],
        "settings": {
            name: _plain(value)
            for name, value in sorted(vars(operator).items())
            if name not in ("inputs", "outputs", "_nothing")  # the last is made when it first runs
        },
    }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Expression):
        return value.text
    if isinstance(value, pa.Schema):
        return _schema_data(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in sorted(value.items(), key=str)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "text") and isinstance(value.text, str):
        return value.text
    # A function or an object of the user's: its name is all that can be compared.
    return getattr(value, "__qualname__", type(value).__name__)


def shippable(origin: Any) -> Any:
    """What a task needs of a source's description: only how to compute the rows of a rate.

    Every other source reaches tasks as files or as a DataFrame.  A source of the user's own may hold a
    connection, which cannot be copied.
    """
    return origin if origin.computed_by_tasks else None
