"""What workers and commands need of a run on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.log import Log
from headgate.checkpoint.position import Data, Position
from headgate.checkpoint.storage import Storage
from headgate.control.line import Line
from headgate.engines.spark.core import SparkCore
from headgate.engines.spark.jobs import Jobs
from headgate.engines.spark.messages import Delivery
from headgate.engines.spark.sinks import Outlet
from headgate.engines.spark.sources import OffsetSource
from headgate.engines.worker_pool import Body
from headgate.errors import HeadgateError
from headgate.graph.network import Network, Output
from headgate.runtime.change import Change
from headgate.runtime.instructions import Instruction
from headgate.runtime.observing import Observation
from headgate.runtime.report import Report
from headgate.runtime.stimuli import Stimulus


class Shell(Protocol):
    """A run: its lock, its core, its log, and how its steps reach Spark and its sinks."""

    lock: Any
    alarm: Any
    begin: float
    crash: BaseException | None
    stopping: bool
    retries: int
    line: Line | None
    core: SparkCore
    network: Network
    nodes: Nodes
    position: Position
    storage: Storage
    log: Log
    jobs: Jobs
    sources: list[OffsetSource]
    outlets: dict[int, Outlet]
    deliveries: dict[int, Delivery]

    def now(self) -> float: ...
    def guard(self, work: Body, worker: int, /) -> None: ...
    def tell(self, stimulus: Stimulus, now: float | None = None) -> list[Instruction]: ...
    def report(self, seconds: float) -> Report: ...
    def snapshot(self) -> Report: ...
    def observe(self, calls_seen: int) -> Observation: ...
    def change(self, change: Change, outputs: Sequence[Output] = ()) -> None: ...
    def log_record(self, record: Data) -> int: ...
    def committed(self, record: Data) -> None: ...
    def check_over(self) -> None: ...
    def stop_query(self, query: str, error: HeadgateError) -> None: ...
    def restart_query(self, query: str) -> None: ...
    def fail_source(self, place: int, error: HeadgateError) -> None: ...
