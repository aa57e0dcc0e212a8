"""Settings of a run on threads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Settings:
    """See ``Threads`` for what each of them means."""

    packet_rows: int | str | None
    reorder: str
    partitioning: str
    buckets: int
    split: bool | None
    grace: float
    ring: int | None = None
    spool: int = 0
    history: str | None = None
