"""How far a run has come: every node's cursor, queues and state files, and what sources have admitted.

The position is exactly what the commit log says; recovery rebuilds it by applying the records in order, and
a running driver changes it in no other way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.memory import merged
from headgate.checkpoint.offsets import Admitted, Extent, Offsets

Data = dict[str, Any]


@dataclass(slots=True)
class QueueFile:
    """Rows that wait before a node: a committed file, sorted by serial.

    ``cuts`` are pairs (serial, rows with smaller serials) at which it can be divided.
    """

    name: str
    rows: int
    first: int
    last: int
    cuts: list[tuple[int, int]]
    arrival: float = 0.0
    check: int | None = None
    """Its checksum; version 0.3 wrote none."""

    def below(self, serial: int) -> int:
        """How many rows have a smaller serial, as far as the cuts tell."""
        if serial > self.last:
            return self.rows
        place = bisect_left(self.cuts, (serial + 1, -1)) - 1
        return self.cuts[place][1] if place >= 0 else 0


@dataclass(slots=True)
class StatePart:
    """A snapshot or the changes of one shard of a node's state, inside a file that a task wrote."""

    file: str
    offset: int
    length: int
    full: bool
    low: int
    high: int
    """The buckets it covers, out of ``buckets``."""
    buckets: int
    version: str = ""
    """What the state is called once it holds this."""
    check: int | None = None
    """The checksum of the part; version 0.3 wrote none."""
    layout: list[str | None] | None = None
    """An earlier version of the box wrote it, with these aggregates (``checkpoint.layouts``)."""


@dataclass
class NodePosition:
    """One node's."""

    cursor: int = 0
    """Everything with a smaller serial has been processed."""
    queues: list[list[QueueFile]] = field(default_factory=list)
    """For every arrow from a box, the files that wait."""
    state: list[StatePart] = field(default_factory=list)
    late: int = 0
    rows_out: int = 0
    shed: dict[str, int] = field(default_factory=dict)
    """By reason, tuples that load shedding has dropped before it, ever since the application began."""


def noted(part: StatePart, was: list[str | None], now: list[str | None]) -> StatePart:
    """A part of a state that goes over to another version of its box.

    An aggregate that the new one does not have counts no longer, even if a later version has it again: in
    between it missed rows.
    """
    known = was if part.layout is None else part.layout
    return replace(part, layout=[each if each in now else None for each in known])


def _node_data(own: NodePosition) -> Data:
    """By hand: ``asdict`` takes ten times as long, and there may be thousands."""
    return {
        "cursor": own.cursor,
        "queues": [[_slots(file) for file in queue] for queue in own.queues],
        "state": [_slots(part) for part in own.state],
        "late": own.late,
        "rows_out": own.rows_out,
        "shed": dict(own.shed),
    }


def _slots(part: QueueFile | StatePart) -> Data:
    return {name: getattr(part, name) for name in part.__slots__}


def _keys(pipeline: Data) -> set[str]:
    """The nodes of a pipeline, as a start record describes it."""
    queries = pipeline["queries"].values()
    return {query["outlet"] for query in queries} | {box["key"] for own in queries for box in own["boxes"]}


class Position:
    """The whole run's."""

    def __init__(self, nodes: Nodes) -> None:
        self.names = [source.name for source in nodes.network.sources]
        """Offsets of the sources, by number."""
        self.offsets = Offsets(len(self.names))
        self._arrows = {node.key: len(node.feeds) for node in nodes.all}
        self.nodes = {key: self._new(key) for key in self._arrows}
        """By key; during recovery also nodes that only an earlier pipeline had."""
        self.sources: dict[str, Any] = {}
        """What each source remembers, by name."""
        self.step = 0
        """The highest step number used."""
        self.failed: dict[str, str] = {}
        """Queries that were stopped, and why."""
        self.unread: dict[str, str] = {}
        """Finite sources that could not be read when the others began to take turns, and why."""
        self.claims: dict[str, Data] = {}
        """What each query has claimed outside the checkpoint, a folder for instance, by its name."""
        self.buckets = 0
        self.clock = 0.0
        """When the application first started, seconds since the epoch: generated sources count from it."""

    def _new(self, key: str) -> NodePosition:
        return NodePosition(queues=[[] for _ in range(self._arrows.get(key, 0))])

    def forget_others(self) -> None:
        """Drop what is known of nodes that this pipeline does not have."""
        self.nodes = {key: self.nodes[key] for key in self._arrows}

    def forget_claims(self, queries: Collection[str]) -> None:
        """A query that is not there any more has claimed nothing, should it ever come back."""
        self.claims = {query: claim for query, claim in self.claims.items() if query in queries}

    def renumber(self, names: list[str]) -> None:
        """Another pipeline numbers its sources in another way, and may have others.

        A source that goes away is forgotten as a whole.  If it kept what it has read, and comes back, a query
        that asks for its earliest rows would miss those without a word.
        """
        if names == self.names:
            return
        self.sources = {name: memory for name, memory in self.sources.items() if name in names}
        old, offsets = self.offsets, Offsets(len(names))
        offsets.next_serial = old.next_serial
        offsets.ended = old.ended and set(names) <= set(self.names)
        for place, name in enumerate(names):
            if name in self.names:
                offsets.sources[place] = old.sources[self.names.index(name)]
        self.names, self.offsets = names, offsets

    # --- another version of the pipeline ------------------------------------------------------------

    def rename(self, renamed: dict[str, dict[str, str]]) -> None:
        """Sources and queries have new names, told as new to old."""
        old = {old: new for new, old in renamed.get("sources", {}).items()}
        self.names = [old.get(name, name) for name in self.names]
        for table, names in (
            (self.sources, old),
            (self.unread, old),
            (self.failed, queries := {old: new for new, old in renamed.get("queries", {}).items()}),
            (self.claims, queries),
        ):
            told: dict[str, Any] = table
            for was, now in names.items():
                if was in told:
                    told[now] = told.pop(was)

    def restart(self, sources: Collection[str]) -> None:
        """These are read from their beginning, and nothing of them has been."""
        for place, name in enumerate(self.names):
            if name in sources:
                self.offsets.sources[place] = Admitted()
                self.sources.pop(name, None)

    def take_over(self, heirs: dict[str, Data]) -> None:
        """Boxes go on from the states of others; ``heirs`` by key: whose, and the aggregates of both."""
        taken = {}
        for key, told in heirs.items():
            old = self.nodes[told["of"]]
            own = taken[key] = self._new(key)
            own.cursor, own.late, own.rows_out, own.shed = old.cursor, old.late, old.rows_out, dict(old.shed)
            own.state = [noted(part, told["was"], told["now"]) for part in old.state]
        self.nodes |= taken

    def place(self, placed: dict[str, int]) -> None:
        """Nodes begin anew at these serials."""
        for key, serial in placed.items():
            own = self.nodes[key] = self._new(key)
            own.cursor = serial

    # --- records ------------------------------------------------------------------------------------

    def apply(self, record: Data) -> list[str]:
        """Take a record in; returns names of files that nothing refers to any more."""
        garbage: list[str] = []
        if record["kind"] == "start":
            self.rename(record.get("renamed", {}))
            self.restart(record.get("restarted", ()))
            self._start(record["pipeline"], record.get("heirs", {}))
            self.place(record.get("placed", {}))
        for place, extent in record.get("admitted", ()):
            self.offsets.admit(place, Extent(*extent))
        if "offsets" in record:
            self.offsets = Offsets.of_data(record["offsets"])
        for place, serial in record.get("ended", {}).items():
            self.offsets.sources[int(place)].ended_at = serial
        self.offsets.ended = record.get("all_ended", self.offsets.ended)
        self.sources |= record.get("sources", {})
        self.learn(record.get("learned", {}))
        self.claims |= record.get("claims", {})
        self.step = max(self.step, record.get("step", 0))
        self.clock = record.get("clock", self.clock)
        self.buckets = record.get("buckets", self.buckets)
        self.unread = record.get("unread", self.unread)
        self.offsets.next_serial = record.get("next", self.offsets.next_serial)
        if record["kind"] == "step":
            for key, change in record["nodes"].items():
                garbage += self._apply_node(key, change)
        for query, error in record.get("failed", {}).items():
            if error is None:
                self.failed.pop(query, None)
            else:
                self.failed[query] = error
        return garbage

    def learn(self, news: dict[str, Any]) -> None:
        """Sources, by name, remember something more."""
        for name, learned in news.items():
            self.sources[name] = merged(self.sources.get(name), learned)

    def _start(self, pipeline: Data, heirs: dict[str, Data]) -> None:
        """A run begins: a node that it does not have was removed, and begins anew if it ever comes back."""
        self.renumber([source["name"] for source in pipeline["sources"]])
        self.take_over(heirs)
        self.forget_claims(pipeline["queries"])
        known = _keys(pipeline)
        for key in [key for key in self.nodes if key not in known]:
            if key in self._arrows:
                self.nodes[key] = self._new(key)
            else:
                del self.nodes[key]
        for key in known:
            self.nodes.setdefault(key, self._new(key))

    def forget_trimmed(self, pipeline: Data, there: Callable[[Extent], bool]) -> None:
        """Drop extents that cannot be read any more, as the run that trimmed them did.

        The log does not say what was trimmed.  All queries of that run had passed it, so none of them misses
        it; a query that joins now, or one that was removed and comes back, must not ask for it.
        """
        passed = [self.nodes[key].cursor for key in _keys(pipeline) if key in self.nodes]
        for own in self.offsets.sources if passed else ():
            own.forget(min(passed), there)

    def _apply_node(self, key: str, change: Data) -> list[str]:
        own = self.nodes.get(key)
        if own is None:  # of a query that may have been removed or changed since
            own = self.nodes[key] = self._new(key)
        own.cursor = change.get("cursor", own.cursor)
        own.late += change.get("late", 0)
        own.rows_out += change.get("out", 0)
        for reason, tuples in change.get("shed", {}).items():
            own.shed[reason] = own.shed.get(reason, 0) + tuples
        garbage = list(change.get("unqueued", ()))
        if garbage:
            own.queues = [[file for file in queue if file.name not in garbage] for queue in own.queues]
        for arrow, files in change.get("queued", {}).items():
            while len(own.queues) <= int(arrow):
                own.queues.append([])
            own.queues[int(arrow)] += [
                QueueFile(**{**f, "cuts": [tuple(c) for c in f["cuts"]]}) for f in files
            ]
        for queue in own.queues:
            while queue and queue[0].last < own.cursor:
                garbage.append(queue.pop(0).name)
        if "state" in change:
            parts = [StatePart(**given) for given in change["state"]]
            # Of a shard that was written as a whole, nothing from before is needed.  If all were, they may
            # be cut in another way than before.
            whole = {(part.low, part.high, part.buckets) for part in parts if part.full}
            kept = [p for p in own.state if (p.low, p.high, p.buckets) not in whole]
            own.state = parts if all(part.full for part in parts) else kept + parts
        return garbage

    def files(self) -> set[str]:
        """All files that the position refers to."""
        found = set()
        for own in self.nodes.values():
            found |= {part.file for part in own.state}
            found |= {file.name for queue in own.queues for file in queue}
        return found

    # --- as data ------------------------------------------------------------------------------------

    def to_data(self) -> Data:
        return {
            "names": self.names,
            "offsets": self.offsets.to_data(),
            "sources": self.sources,
            "step": self.step,
            "failed": self.failed,
            "unread": self.unread,
            "claims": self.claims,
            "buckets": self.buckets,
            "clock": self.clock,
            "nodes": {key: _node_data(own) for key, own in self.nodes.items()},
        }

    def load(self, data: Data) -> None:
        self.names, self.offsets = data["names"], Offsets.of_data(data["offsets"])
        self.sources, self.step, self.failed = data["sources"], data["step"], data["failed"]
        self.buckets, self.clock, self.unread = data["buckets"], data["clock"], data["unread"]
        self.claims = data.get("claims", {})
        for key, given in data["nodes"].items():
            own = self.nodes.setdefault(key, NodePosition())
            own.cursor, own.late, own.rows_out = given["cursor"], given["late"], given["rows_out"]
            own.shed = given.get("shed", {})
            own.queues = [
                [QueueFile(**{**f, "cuts": [tuple(c) for c in f["cuts"]]}) for f in queue]
                for queue in given["queues"]
            ]
            own.state = [StatePart(**part) for part in given["state"]]
