"""Drops before a live box, and how they are counted."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping, Sequence

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
Held = Mapping[str, int]
"""By box, how many tuples wait for it or in it."""


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
        """The rows of a packet that are let through, with all its markers."""
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
    """Note in the catalog where tuples can be told apart by importance.  Returns the expressions, by box."""
    found = importances(network)
    for entry, stated in zip(entries, found, strict=True):
        entry.importance = None if stated is None else bool(stated)
    return [stated if isinstance(stated, str) else None for stated in found]


def report_shed(
    network: Network,
    entries: Sequence[BoxEntry],
    reports: Mapping[str, QueryReport],
    dropped: Dropped,
    held: Held,
    delivering: Held,
) -> None:
    """Account for every tuple that led to no result: it was dropped, or it waits.

    A drop before a box counts for every query that the box works for, and so does a tuple that waits there;
    ``delivering``: results that wait for a query's sink, by query.
    """
    index = {box.name: place for place, box in enumerate(network.boxes)}
    for name, report in reports.items():
        boxes = network.queries.get(name, frozenset())
        report.shed_by = {(why, box): n for (why, box), n in dropped.items() if index[box] in boxes}
        report.shed = sum(report.shed_by.values())
        waiting = {box: n for box, n in held.items() if index[box] in boxes}
        report.waiting = sum(waiting.values()) + delivering.get(name, 0)
        lost = Tally(waiting)
        for (_, box), tuples in report.shed_by.items():
            lost[box] += tuples
        report.unanswered = float(delivering.get(name, 0))
        if lost:
            leads_to = _results(network, entries, name)
            report.unanswered += sum(tuples * leads_to[index[box]] for box, tuples in lost.items())


def _results(network: Network, entries: Sequence[BoxEntry], query: str) -> dict[int, float]:
    """By box of a query, the results that a tuple before the box leads to, as measured in this run."""
    output = next(output for output in network.outputs if output.name == query)
    direct = Tally(network.index[arrow.node] for arrow in output.port if isinstance(arrow.node, Box))
    boxes = network.queries[query]
    found: dict[int, float] = {}
    for place in sorted(boxes, reverse=True):  # those that a box feeds have higher numbers
        entry = entries[place]
        ratio = entry.tuples_out / entry.tuples_in if entry.tuples_in else entry.selectivity
        behind = sum([found[down] for down in network.downstream[place] if down in boxes])
        found[place] = ratio * (direct[place] + behind)
    return found
