"""What operators cost when each runs alone, on a sample of the rows that reach it.

The first rows of every source go through the network box by box.  Then every operator works on its share of
them again, by itself, in packets that follow from source packets of several sizes; the line through the times
is its cost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.cli.calibration.yardstick import Yardstick
from headgate.connectors.source import Wait
from headgate.engines.base import default_packet_rows
from headgate.errors import PipelineError
from headgate.graph.network import Box, Network, Source
from headgate.graph.packet import Order, Packet, empty_batch
from headgate.machine.calibration import OperatorCost, keys_of

Floats = npt.NDArray[np.float64]
Call = tuple[tuple[float, ...], float]
"""Packets, tuples, results and keys of calls, and their seconds."""
Weighed = tuple[tuple[float, ...], float, float]
"""The same, and the weight of its error."""

PATIENCE = 3.0
"""Seconds to wait for a source's rows."""
SAMPLE = 9
"""Packets of rows from each source: what an operator costs depends on how much it has to remember."""
SMALLER = (1, 4, 64)
"""Into how many parts a usual packet is cut: small packets show the fixed cost of a call."""
USUAL = 4.0
"""How many times more the errors of usual packets count, since most rows come in them: where a row costs
more in larger packets, as when sorting, no line is right for all sizes."""
CALLS = 64
"""At most, in a pass: small packets are of rows in the middle, when state is as large as it usually is."""
PARTS = 4
"""A pass is timed in so many parts."""
ALIKE, EXACT = 1.03, 1e-4
"""A fit counts as equally good if its error is within this factor of the least, or below this bound."""


class Share(NamedTuple):
    """The rows of a sample that reach a box."""

    box: Box
    rows: list[Packet]
    """All of an input's in one packet."""
    each: int
    """Rows of each source."""
    end: int
    """Serial of the stream's end; what is closed there has it too."""


def inputs(network: Network) -> Iterator[Share]:
    """Every box's share."""
    made: dict[tuple[Source | Box, int], Packet] = {}
    count = len(network.sources)
    batches = [sample(source, SAMPLE * default_packet_rows()) for source in network.sources]
    each = max(batch.num_rows for batch in batches)
    for place, (source, batch) in enumerate(zip(network.sources, batches, strict=True)):
        serials = np.arange(batch.num_rows, dtype=np.int64) * count + place  # sources take turns
        made[source, 0] = Packet(batch, Order(serials, 0.0, batch.num_rows))
    end = Order(each * count, 0.0, 1)
    for box in network.boxes:
        packets = [Packet.merge([made[arrow.node, arrow.output] for arrow in port]) for port in box.ports]
        yield Share(box, packets, each, each * count)
        state = box.operator.open()
        results = box.operator.process(packets, state)
        last = box.operator.finish(state, Packet(empty_batch(box.operator.inputs[0]), end))
        for output, packet in enumerate(results):
            made[box, output] = Packet.concat([packet, last[output]] if last else [packet])


def sample(source: Source, rows: int) -> pa.RecordBatch:
    """The first rows of a source; those that come at a rate need not be waited for."""
    reader = source.origin.open()
    found: list[pa.RecordBatch] = []
    now, left, deadline = 0.0, rows, time.monotonic() + PATIENCE
    try:
        while left > 0 and time.monotonic() < deadline:
            chunk = reader.poll(now, left)
            if chunk is None:
                break
            if isinstance(chunk, Wait):
                if chunk.until is None:
                    time.sleep(0.01)
                else:
                    now = chunk.until
                continue
            found.append(chunk.batch)
            left -= chunk.batch.num_rows
    finally:
        reader.close()
    if not any(batch.num_rows for batch in found):
        raise PipelineError(
            f"Source '{source.name}' has given no row within {PATIENCE:g} seconds, so what its boxes cost "
            "cannot be measured; calibrate when it has some."
        )
    return pa.concat_batches(found)


class OperatorCalls:
    """An operator alone on its rows, in packets of several sizes, again and again."""

    def __init__(self, share: Share, yardstick: Yardstick) -> None:
        self._operator = share.box.operator
        self.label = self._operator.label
        self._yardstick = yardstick
        self._share = share
        sizes = [max(1, default_packet_rows() // part) for part in SMALLER]
        self._counts = sorted({-(-share.each // size) for size in sizes})
        """Into how many packets the sources' rows, and the rows that follow from them, are cut."""
        self._passes: dict[int, list[list[Call]]] = {count: [] for count in self._counts}
        """By count, in yards."""

    def again(self) -> None:
        """One round of it."""
        self._pass(self._counts[0])  # so that memory is mapped and warm
        for count in self._counts:
            with self._yardstick:
                calls = self._pass(count)
            self._passes[count].append([(about, self._yardstick.yards(seconds)) for about, seconds in calls])

    @property
    def calls(self) -> list[Weighed]:
        """Those of the median pass of each count: what is dear now here, now there, as collecting garbage is,
        is part of it; a pass that was disturbed is not."""
        found: list[Weighed] = []
        for count, passes in self._passes.items():
            by_length = sorted(passes, key=lambda calls: sum(yards for _, yards in calls))
            median = by_length[len(passes) // 2] if passes else []
            for about, yards in median:
                weight = USUAL if count == self._counts[0] and about[0] else 1.0
                found.append((about, self._yardstick.seconds(yards), weight))
        return found

    def _pass(self, count: int) -> list[Call]:
        """So many packets of the sources, or some of them, and the end: a few parts of it, each added up.

        Results stay where they are until the end, as they do in a queue: memory that is new to the
        processor costs more than that which the last call gave back.
        """
        operator, state = self._operator, self._operator.open()
        borders, usual = (_borders(self._share, into) for into in (count, self._counts[0]))
        first = max(count - CALLS, 0) // 2
        before = [border for border in usual if border < borders[first]]
        for packets in _cut(self._share, [*before, borders[first]]):
            operator.process(packets, state)
        cut = _cut(self._share, borders[first : first + CALLS + 1])
        pieces = [packets for packets in cut if any(map(len, packets))]
        parts: list[list[Call]] = [[] for _ in range(min(PARTS, len(pieces)))]
        queue: list[list[Packet]] = []
        for place, packets in enumerate(pieces):
            tuples = sum(len(packet) for packet in packets)
            keys = keys_of(operator, packets)
            begin = time.thread_time()
            queue.append(operator.process(packets, state))
            spent = time.thread_time() - begin
            at = place * len(parts) // len(pieces)
            parts[at].append(((1.0, tuples, len(queue[-1][0]), keys), spent))
        end = Packet(empty_batch(operator.inputs[0]), Order(1 << 60, 0.0, 1))
        begin = time.thread_time()
        last = operator.finish(state, end)
        spent = time.thread_time() - begin
        if last and len(last[0]):
            parts.append([((0.0, 0.0, len(last[0]), 0.0), spent)])
        return [_together(part) for part in parts]


def cost(measured: Iterable[OperatorCalls]) -> OperatorCost:
    """The line through the times of an operator, whose boxes may be several, each with rows of its own."""
    calls = zip(*(call for alone in measured for call in alone.calls), strict=True)
    return OperatorCost(*line(*map(np.array, calls)))


def costs_by_label(measured: Iterable[OperatorCalls]) -> dict[str, OperatorCost]:
    """What operators cost, each by what it does."""
    by_label: dict[str, list[OperatorCalls]] = {}
    for alone in measured:
        by_label.setdefault(alone.label, []).append(alone)
    return {label: cost(boxes) for label, boxes in by_label.items()}


def _together(calls: Sequence[Call]) -> Call:
    about, seconds = zip(*calls, strict=True)
    return tuple(map(sum, zip(*about, strict=True))), sum(seconds)


def _borders(share: Share, count: int) -> list[int]:
    """Serials between which so many packets of the sources are."""
    return [share.end * place // count for place in range(count + 1)]


def _cut(share: Share, borders: Sequence[int]) -> Iterator[list[Packet]]:
    """What comes of the sources' rows from each border to the next; at the end also what is closed there."""
    for low, high in pairwise(borders):
        spans = [packet.order.span(low, high + (high == share.end)) for packet in share.rows]
        yield [packet.slice(at, end - at) for packet, (at, end) in zip(share.rows, spans, strict=True)]


def line(made: Floats, seconds: Floats, weights: Floats) -> list[float]:
    """Costs of a call, a tuple, a result and a key, none of them negative, that explain the times best.

    Errors count relative to what such calls take, so that small packets tell what a call costs.  Of
    explanations as good as each other the one by the fewest parts is taken, by tuples rather than by
    results: where every tuple gives as many results, times do not tell which of them costs something.
    """
    kinds, kind = np.unique(np.column_stack([made, weights]), axis=0, return_inverse=True)
    usual = np.maximum(np.bincount(kind, seconds) / np.bincount(kind), 1e-7)
    made, weights = kinds[:, :-1], kinds[:, -1]
    relative = made / usual[:, None]
    used = [part for part in range(made.shape[1]) if made[:, part].any()]
    _, least = _explained(relative, weights, used)
    for size in range(1, len(used) + 1):
        for parts in combinations(used, size):
            costs, error = _explained(relative, weights, parts)
            if error <= max(ALIKE * least, EXACT):
                return costs
    raise AssertionError("all parts together explain as much as all parts together")


def _explained(relative: Floats, weights: Floats, parts: Sequence[int]) -> tuple[list[float], float]:
    """Costs of these parts, none negative, and how far from the times they are, as a share of them."""
    kept = list(parts)
    while kept:
        found, *_ = np.linalg.lstsq(relative[:, kept] * weights[:, None], weights, rcond=None)
        worst = int(np.argmin(found))
        if found[worst] >= 0:
            break
        del kept[worst]
    costs = np.zeros(relative.shape[1])
    if kept:
        costs[kept] = found
    return costs.tolist(), float(np.sqrt(np.average((relative @ costs - 1) ** 2, weights=weights**2)))
