"""Settings of a simulation: the machine, the costs, and options of the core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headgate.engines.simulated.costs import Costs
from headgate.machine.memory_model import MemoryModel
from headgate.machine.topology import Topology
from headgate.scheduling.interface import Policy


@dataclass
class Settings:
    """See ``Simulated`` for what each of them means."""

    topology: Topology | None
    memory: MemoryModel | None
    workers: int | None
    cores: int | None
    costs: Costs
    call_overhead: float
    seed: int
    spool: int
    packet_rows: int | str | None
    reorder: str
    ring: int | None
    partitioning: str
    buckets: int
    split: bool | None
    quantum: float
    switch_cost: float
    send_cost: float
    decision_cost: float | Callable[[Policy], float]
    reschedule_cost: float
