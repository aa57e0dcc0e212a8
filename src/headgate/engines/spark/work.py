"""What the driver and its tasks tell each other: a step's work order, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.engines.spark.offsets import Piece
from headgate.engines.spark.position import QueueFile, StatePart
from headgate.graph.packet import Packet


@dataclass
class Member:
    """One node's part in a step: the serials from ``low`` up to ``high``."""

    low: int
    high: int
    end: bool = False
    """The final punctuation is among them: close what is open."""
    queues: dict[int, list[str]] = field(default_factory=dict)
    """For arrows with committed files, which to read."""
    state: list[StatePart] = field(default_factory=list)
    version: str = ""
    full: bool = False
    """Write the state as a whole, not its changes."""
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


@dataclass
class WorkOrder:
    """A step, as its tasks get it."""

    step: int
    attempt: str
    root: str
    durable: bool
    pipeline: str
    clock: float
    members: dict[int, Member]
    slices: list[tuple[int, int]]
    """Ranges of serials; a task works on one of them."""
    pieces: list[dict[int, list[Piece]]]
    """For every slice, what to read of every source."""
    deliveries: dict[int, Delivery] = field(default_factory=dict)
    letters: bool = False
    """Take bad rows out instead of failing on them."""
    framed: frozenset[int] = frozenset()
    """Sources that connectors of Spark's read."""
    packet_rows: int = 32_768

    @property
    def name(self) -> str:
        return f"{self.step:09d}-{self.attempt}"


@dataclass
class OutputPart:
    """What one task made for one query."""

    rows: int
    payload: bytes = b""
    file: str = ""
    kept: str = ""
    arrivals: float | npt.NDArray[np.float64] = 0.0
    first: int = 0
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
    states: dict[int, tuple[str, list[StatePart]]] = field(default_factory=dict)
    """New version and parts of every state that changed."""
    errors: dict[int, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time went: read, state, python, write."""


@dataclass
class Packed:
    """Rows that a connector of Spark's read, on their way to the task of a slice."""

    slice: int
    source: int
    packet: Packet
