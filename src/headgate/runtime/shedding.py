"""Drops before a live box, and how they are counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headgate.atomics import Counter
from headgate.graph.drops import RANDOM, SEMANTIC, Drop, Dropper, Recent
from headgate.graph.importance import importance_at, importances
from headgate.graph.network import Box, Network
from headgate.graph.packet import Packet
from headgate.runtime.report import QueryReport
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.interface import Shed

Dropped = Mapping[tuple[str, str], int]
"""By reason and box, how many tuples were dropped."""


class Gate:
    """Stands before a box's queue and lets through what is not dropped.

    Packets come to it without a lock, on several arrows at once: what is in force is one value, and what was
    seen of importance is only ever a sample.
    """

    def __init__(self, box: Box, importance: str | None, ports: Sequence[int]) -> None:
        found = None if importance is None else importance_at(box, importance)
        self._dropper = Dropper(box.name, found)
        self._ports = ports
        self._recent = Recent()
        self._shed: tuple[str, float] = (RANDOM, 0.0)
        self.dropped = {RANDOM: Counter(), SEMANTIC: Counter()}

    @property
    def shut(self) -> bool:
        """Whether anything is being dropped."""
        return self._shed[1] > 0

    def set(self, decision: Shed) -> None:
        self._shed = (decision.reason, decision.share)

    def keep(self, packet: Packet, arrow: int) -> Packet:
        """What is let through of a packet, with all its markers."""
        reason, share = self._shed
        if not share:
            return packet
        if reason == RANDOM:
            kept = self._dropper.keep(packet, Drop(RANDOM, share))
        else:
            assert self._dropper.importance is not None
            values = self._dropper.importance.of(packet.batch, self._ports[arrow])
            self._recent.add(values)
            kept = self._dropper.keep(packet, self._recent.drop(share), values)
        self.dropped[reason].fetch_add(len(packet) - len(kept))
        return kept


def tell_importance(network: Network, entries: Sequence[BoxEntry]) -> list[str | None]:
    """Let the catalog know where tuples can be told apart by importance; the expressions, by box."""
    found = importances(network)
    for entry, stated in zip(entries, found, strict=True):
        entry.importance = None if stated is None else bool(stated)
    return [stated if isinstance(stated, str) else None for stated in found]


def report_shed(network: Network, reports: Iterable[QueryReport], dropped: Dropped) -> None:
    """A drop before a box counts for every query that the box works for."""
    index = {box.name: place for place, box in enumerate(network.boxes)}
    for report in reports:
        boxes = network.queries.get(report.name, frozenset())
        report.shed_by = {(why, box): n for (why, box), n in dropped.items() if index[box] in boxes}
        report.shed = sum(report.shed_by.values())
