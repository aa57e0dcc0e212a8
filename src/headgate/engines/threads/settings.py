"""Settings of a run on threads."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.machine.topology import Topology


@dataclass
class Settings:
    """See ``Threads`` for what each of them means."""

    packet_rows: int | str | None
    reorder: str
    partitioning: str
    buckets: int
    split: bool | None
    topology: Topology
    grace: float
