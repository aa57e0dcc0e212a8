"""Drops before a live box, and how they are counted."""

from __future__ import annotations

from collections import Counter as Tally
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
Held = Mapping[str, int]
"""By box, how many tuples wait for it or in it."""


class Gate:
    """Stands before a box's queue and lets through what is not dropped.

    Packets come to it without a lock, on several arrows at once: what is in force is one value, and what was
    seen of importance is only ever a sample.
    """

    def __init__(self, box: Box, ports: Sequence[int]) -> None:
        self._box, self._ports = box, ports
        self._importance: str | None = None
        self._in_force = (RANDOM, 0.0, Dropper(box.name, None), Recent())
        self.dropped = {RANDOM: Counter(), SEMANTIC: Counter()}

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """By reason and box, how many tuples were dropped; only where there are some."""
        found = {(reason, self._box.name): count.load() for reason, count in self.dropped.items()}
        return {what: tuples for what, tuples in found.items() if tuples}

    @property
    def shut(self) -> bool:
        """Whether anything is being dropped."""
        return self._in_force[1] > 0

    def set(self, decision: Shed, importance: str | None) -> None:
        """Drop that share from now on.  ``importance`` is another expression when a query has joined."""
        _, _, dropper, recent = self._in_force
        if importance != self._importance:
            self._importance = importance
            found = None if importance is None else importance_at(self._box, importance)
            dropper, recent = Dropper(self._box.name, found), Recent()
        self._in_force = (decision.reason, decision.share, dropper, recent)

    def open(self) -> None:
        """Drop nothing from now on."""
        self._in_force = (RANDOM, 0.0, *self._in_force[2:])

    def keep(self, packet: Packet, arrow: int) -> Packet:
        """The rows of a packet that are let through, with all its markers."""
        reason, share, dropper, recent = self._in_force
        if not share:
            return packet
        if reason == RANDOM:
            kept = dropper.keep(packet, Drop(RANDOM, share))
        else:
            assert dropper.importance is not None
            values = dropper.importance.of(packet.batch, self._ports[arrow])
            recent.add(values)
            kept = dropper.keep(packet, recent.drop(share), values)
        self.dropped[reason].fetch_add(len(packet) - len(kept))
        return kept


def dropped_at(gates: Iterable[Gate | None]) -> dict[tuple[str, str], int]:
    """What these gates have dropped."""
    return {what: tuples for gate in gates if gate is not None for what, tuples in gate.counts.items()}


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
    before: Mapping[str, Dropped] | None = None,
) -> None:
    """Account for every tuple that led to no result: it was dropped, or it waits.

    A drop before a box counts for every query that the box works for, and so does a tuple that waits there;
    ``delivering``: results that wait for a query's sink, by query.  ``before``: what had been dropped when a
    query joined.
    """
    index = {box.name: place for place, box in enumerate(network.boxes)}
    for name, report in reports.items():
        boxes = network.queries.get(name, frozenset())
        gone = {} if before is None else before[name]
        counted = {what: n - gone.get(what, 0) for what, n in dropped.items() if index[what[1]] in boxes}
        report.shed_by = {what: n for what, n in counted.items() if n}
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
