"""How far a run has come: every node's cursor, queues and state files, and what sources have admitted.

The position is exactly what the commit log says; recovery rebuilds it by applying the records in order, and
a running driver changes it in no other way.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass, field
from typing import Any

from headgate.engines.spark.nodes import Nodes
from headgate.engines.spark.offsets import Extent, Offsets

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


@dataclass
class NodePosition:
    """One node's."""

    cursor: int = 0
    """Everything with a smaller serial has been processed."""
    queues: list[list[QueueFile]] = field(default_factory=list)
    """For every arrow from a box, the files that wait."""
    state: list[StatePart] = field(default_factory=list)
    version: str = ""
    late: int = 0
    rows_in: int = 0
    rows_out: int = 0


class Position:
    """The whole run's."""

    def __init__(self, nodes: Nodes) -> None:
        self.offsets = Offsets(len(nodes.network.sources))
        self.nodes = {node.key: NodePosition(queues=[[] for _ in node.feeds]) for node in nodes.all}
        self.sources: dict[str, Any] = {}
        """What each source remembers, by name."""
        self.step = 0
        """The highest step number used."""
        self.failed: dict[str, str] = {}
        """Queries that were stopped, and why."""
        self.buckets = 0
        self.clock = 0.0
        """When the application first started, seconds since the epoch: generated sources count from it."""

    # --- records ------------------------------------------------------------------------------------

    def apply(self, record: Data) -> list[str]:
        """Take a record in; returns names of files that nothing refers to any more."""
        garbage: list[str] = []
        for place, extent in record.get("admitted", ()):
            self.offsets.admit(place, Extent(*extent))
        if "offsets" in record:
            self.offsets = Offsets.of_data(record["offsets"])
        for place, serial in record.get("ended", {}).items():
            self.offsets.sources[int(place)].ended_at = serial
        self.offsets.ended = record.get("all_ended", self.offsets.ended)
        self.sources |= record.get("sources", {})
        self.step = max(self.step, record.get("step", 0))
        self.clock = record.get("clock", self.clock)
        self.buckets = record.get("buckets", self.buckets)
        if record["kind"] == "step":
            for key, change in record["nodes"].items():
                garbage += self._apply_node(key, change)
        for query, error in record.get("failed", {}).items():
            if error is None:
                self.failed.pop(query, None)
            else:
                self.failed[query] = error
        return garbage

    def _apply_node(self, key: str, change: Data) -> list[str]:
        own = self.nodes.get(key)
        if own is None:  # of a query that has been removed since
            return []
        own.cursor = change.get("cursor", own.cursor)
        own.late += change.get("late", 0)
        own.rows_in += change.get("in", 0)
        own.rows_out += change.get("out", 0)
        garbage = []
        for arrow, files in change.get("queued", {}).items():
            own.queues[int(arrow)] += [
                QueueFile(**{**f, "cuts": [tuple(c) for c in f["cuts"]]}) for f in files
            ]
        for queue in own.queues:
            while queue and queue[0].last < own.cursor:
                garbage.append(queue.pop(0).name)
        if "version" in change:
            own.version = change["version"]
            for given in change["state"]:
                part = StatePart(**given)
                if part.full:
                    own.state = [p for p in own.state if not _inside(p, part)]
                own.state.append(part)
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
            "offsets": self.offsets.to_data(),
            "sources": self.sources,
            "step": self.step,
            "failed": self.failed,
            "buckets": self.buckets,
            "clock": self.clock,
            "nodes": {key: asdict(own) for key, own in self.nodes.items()},
        }

    def load(self, data: Data) -> None:
        self.offsets = Offsets.of_data(data["offsets"])
        self.sources, self.step, self.failed = data["sources"], data["step"], data["failed"]
        self.buckets, self.clock = data["buckets"], data["clock"]
        for key, given in data["nodes"].items():
            own = self.nodes.get(key)
            if own is None:
                continue
            own.cursor, own.version, own.late = given["cursor"], given["version"], given["late"]
            own.rows_in, own.rows_out = given["rows_in"], given["rows_out"]
            own.queues = [
                [QueueFile(**{**f, "cuts": [tuple(c) for c in f["cuts"]]}) for f in queue]
                for queue in given["queues"]
            ]
            own.state = [StatePart(**part) for part in given["state"]]


def _inside(part: StatePart, whole: StatePart) -> bool:
    """Whether all keys of ``part`` are keys of ``whole``."""
    return (
        part.low * whole.buckets >= whole.low * part.buckets
        and part.high * whole.buckets <= whole.high * part.buckets
    )
