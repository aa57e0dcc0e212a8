"""What the driver and its tasks tell each other: a step's work order, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.checkpoint.graph import Feed
from headgate.checkpoint.offsets import Piece
from headgate.checkpoint.position import QueueFile, StatePart
from headgate.checkpoint.storage import Storage
from headgate.errors import HeadgateError
from headgate.graph.drops import Drop
from headgate.graph.packet import Packet
from headgate.runtime.dead_letters import Letter

Address = str | tuple[str, int]
"""Of a Python worker that holds state: a Unix socket, or a host and a port."""


@dataclass(slots=True)
class Member:
    """One node's part in a step: the serials from ``low`` up to ``high``."""

    low: int
    high: int
    end: bool = False
    """The final punctuation is among them: close what is open."""
    queues: dict[int, list[tuple[str, int | None]]] = field(default_factory=dict)
    """For arrows with committed files, which to read, and their checksums."""
    state: list[StatePart] = field(default_factory=list)
    shards: list[tuple[int, int]] = field(default_factory=lambda: [(0, 1)])
    """The buckets of each shard of its state, out of ``buckets``."""
    buckets: int = 1
    full: frozenset[tuple[int, int]] = frozenset()
    """The shards whose state is written as a whole, not as changes."""
    ended: dict[int, int] = field(default_factory=dict)
    idle: list[int] = field(default_factory=list)
    """Inputs of a join that do not hold its time back."""


@dataclass
class Delivery:
    """How an outlet's rows leave a task: inline to the driver, as a parquet file, or as a staged one."""

    kind: str
    folder: str = ""
    keep: str = ""
    """Folder of the query's history, if it keeps one."""
    tag: str = ""
    """Of a parquet file: whose it is."""


@dataclass
class Stages:
    """How a step is shared out over tasks that exchange packets (``stages`` explains the levels)."""

    level: dict[int, int]
    """The level of every node of the step."""
    split: frozenset[int]
    """Keyed boxes with a shard in every task of their level."""
    home: dict[int, int]
    """The tasks of the other boxes with state."""
    tasks: list[int]
    """How many tasks each level has: on an even level one for each slice, or a single one."""
    riders: frozenset[int] = frozenset()
    """Nodes without state that run in the shards of the box before them."""

    def made_at(self, feed: Feed) -> tuple[int, bool] | None:
        """The level at which an arrow's packets are there, and whether by ranges of serials."""
        if feed.source:
            return 0, True
        level = self.level.get(feed.place)
        if level is None:
            return None  # only committed files bring something
        if feed.place in self.split:
            return (level, False) if self.rides_on(feed.place) else (level + 1, True)
        return level, level % 2 == 0

    def needed_at(self, place: int) -> tuple[int, bool]:
        """The level at which a node's input must be there, and whether by ranges of serials."""
        level = self.level[place]
        return (level - 1, True) if place in self.split else (level, level % 2 == 0)

    def rides_on(self, place: int) -> bool:
        """Whether what a split box makes stays in its shard."""
        return place in self.carriers

    carriers: frozenset[int] = frozenset()
    """Split boxes with riders."""

    def range_of(self, level: int, number: int) -> int:
        """The task of an even level that works on a slice."""
        return number if self.tasks[level] > 1 else 0

    def ranges(self, level: int, slices: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The serials of each task of an even level."""
        return slices if self.tasks[level] > 1 else [(slices[0][0], slices[-1][1])]


@dataclass
class WorkOrder:
    """A step, as its tasks get it."""

    step: int
    attempt: str
    storage: Storage
    pipeline: str
    clock: float
    members: dict[int, Member]
    slices: list[tuple[int, int]]
    """Ranges of serials; a task works on one of them."""
    pieces: list[dict[int, list[Piece]]]
    """For every slice or share, what to read of every source."""
    deliveries: dict[int, Delivery] = field(default_factory=dict)
    shares: list[list[int]] = field(default_factory=list)
    """For each of several tasks, the nodes that it runs on the whole range; stateless ones may be in many."""
    stages: Stages | None = None
    """None: a slice's task runs everything."""
    exchange: str = ""
    """The folder through which tasks send each other packets; empty: Spark's shuffle carries them."""
    holders: dict[tuple[int, int], Address] = field(default_factory=dict)
    """By level and task, the Python worker that has the state."""
    secret: bytes = b""
    """What workers of this run know each other by."""
    letters: bool = False
    """Take bad rows out instead of failing on them."""
    framed: frozenset[int] = frozenset()
    """Sources that connectors of Spark's read."""
    drops: dict[int, Drop] = field(default_factory=dict)
    """Load shedding: before these boxes."""
    weighed: frozenset[int] = frozenset()
    """Boxes that must report how important their tuples are, for the drops of later steps."""
    packet_rows: int = 32_768

    def __getstate__(self) -> dict[str, Any]:
        """Orders lie in the checkpoint and go from worker to worker: none has the keys of the store."""
        return self.__dict__ | {"storage": self.storage.bare()}

    @property
    def name(self) -> str:
        """What its files begin with: an owner that was replaced must know those of the next from its own."""
        return f"{self.step:09d}-{self.storage.fence}.{self.attempt}"


@dataclass
class OutputPart:
    """What one task made for one query."""

    rows: int
    payload: bytes = b""
    file: str = ""
    kept: str = ""
    arrivals: float | npt.NDArray[np.float64] = 0.0
    first: int = 0
    queue: QueueFile | None = None
    """The staged file, as one that waits before the outlet."""
    serials: Any = None
    """Of every row, if the driver hands them over: should the sink refuse them, they wait in order."""


@dataclass
class BoxCost:
    tuples_in: int = 0
    tuples_out: int = 0
    seconds: float = 0.0
    calls: int = 0
    late: int = 0


@dataclass
class TaskResult:
    """What a task did."""

    slice: int
    attempt: str
    costs: dict[int, BoxCost] = field(default_factory=dict)
    outputs: dict[int, OutputPart] = field(default_factory=dict)
    queued: dict[tuple[int, int], QueueFile] = field(default_factory=dict)
    states: dict[int, list[StatePart]] = field(default_factory=dict)
    """New parts of every state that changed."""
    level: int = 0
    states_found: int = 0
    """States that were in memory where the task ran."""
    states_loaded: int = 0
    """States that were read from files."""
    holder: Address | None = None
    """The worker that has the states now."""
    errors: dict[int, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time went: scan, state, write, all."""
    shed: dict[int, dict[str, int]] = field(default_factory=dict)
    """By box and reason, tuples dropped before it."""
    weighed: dict[int, npt.NDArray[np.float64]] = field(default_factory=dict)
    """By box, the importance of some of its tuples."""

    def __getstate__(self) -> dict[str, Any]:
        """Hundreds of outputs as a few large values: many small arrays take far longer to copy."""
        parts = list(self.outputs.values())
        times = [np.atleast_1d(part.arrivals) for part in parts]
        serials = [np.zeros(0, np.int64) if part.serials is None else part.serials for part in parts]
        packed = (
            list(self.outputs),
            [(part.rows, part.file, part.kept, part.first, part.queue) for part in parts],
            b"".join([part.payload for part in parts]),
            [len(part.payload) for part in parts],
            np.concatenate(times) if times else None,
            [len(own) for own in times],
            np.concatenate(serials) if serials else None,
            [len(own) for own in serials],
        )
        return self.__dict__ | {"outputs": packed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        places, fixed, payload, lengths, times, counts, serials, numbers = state["outputs"]
        self.__dict__ |= state
        self.outputs = {}
        at = time = serial = 0
        for place, own, length, count, number in zip(places, fixed, lengths, counts, numbers, strict=True):
            rows, file, kept, first, queue = own
            arrivals = times[time : time + count]
            self.outputs[place] = OutputPart(
                rows,
                payload[at : at + length],
                file,
                kept,
                float(arrivals[0]) if count == 1 else arrivals,
                first,
                queue,
                serials[serial : serial + number] if number else None,
            )
            at, time, serial = at + length, time + count, serial + number


def longest_tasks(results: Sequence[TaskResult]) -> list[dict[str, float]]:
    """Where the time of the longest task of each level went."""
    longest: dict[int, dict[str, float]] = {}
    for result in results:
        known = longest.get(result.level)
        if known is None or known.get("all", 0.0) < result.seconds.get("all", 0.0):
            longest[result.level] = result.seconds
    return list(longest.values())


@dataclass
class Packed:
    """Rows that a connector of Spark's read, on their way to the task of a slice."""

    slice: int
    source: int
    packet: Packet | None = None
    bad: list[Letter] = field(default_factory=list)
    """Rows that are none: what a source refuses whom they concern decides."""
    error: HeadgateError | None = None
    """Why the source cannot be read, however often one tries."""


@dataclass
class Framed:
    """All that connectors have read of a source for a step."""

    packets: list[Packet] = field(default_factory=list)
    bad: list[Letter] = field(default_factory=list)
    error: HeadgateError | None = None

    def add(self, packed: Packed) -> None:
        if packed.packet is not None:
            self.packets.append(packed.packet)
        self.bad += packed.bad
        self.error = self.error or packed.error

    def sort(self) -> None:
        """Connectors read in any order."""
        self.packets.sort(key=lambda packet: packet.order.first_serial)
        self.bad.sort()
