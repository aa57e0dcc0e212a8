"""Serial execution: what every engine's output is compared with.

One tuple at a time, in the order of admission; each goes through the whole network before the next one
enters, box by box in topological order, in packets of one row.  Nothing here is shared with the engines
but the operators themselves: no queue, no schedule, no merge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa

from headgate.graph.network import Box, Network, Source
from headgate.graph.packet import Order, Packet, empty_batch

Rows = list[dict[str, Any]]


Keep = Callable[[Box, int, Packet], bool]


def serial(network: Network, turn: int = 1024, keep: Keep = lambda box, arrow, row: True) -> dict[str, Rows]:
    """What every query of a network of finite sources emits, in order.

    ``keep`` says of every row that comes to a box, on which of its arrows, whether it is not dropped there.
    """
    return _Serial(network, turn, keep).run()


class _Serial:
    def __init__(self, network: Network, turn: int, keep: Keep) -> None:
        self.network = network
        self.keep = keep
        self.states = {box: box.operator.open() for box in network.boxes}
        self.results: dict[str, Rows] = {output.name: [] for output in network.outputs}
        self.arrows = {box: [(a.node, a.output) for port in box.ports for a in port] for box in network.boxes}
        self.ports: dict[Box, list[range]] = {}
        """Of every box, the arrows of each port."""
        for box in network.boxes:
            ends = list(accumulate(map(len, box.ports), initial=0))
            self.ports[box] = [range(*pair) for pair in pairwise(ends)]
        self.tuples, self.ended = _admission([_rows(s) for s in network.sources], turn)

    def run(self) -> dict[str, Rows]:
        for box in self.network.boxes:
            self._tell_ends(box)
        for number, (place, row) in enumerate(self.tuples):
            self._pass({(self.network.sources[place], 0): [Packet(row, Order(number, 0.0, 1))]}, False)
        self._pass({}, True)
        return self.results

    def _tell_ends(self, box: Box) -> None:
        """A join's input holds time back until its sources have ended."""
        state: Any = self.states[box]
        if box.operator.holds_time:
            places = {source: place for place, source in enumerate(self.network.sources)}
            state.ended = {
                side: max((self.ended[places[s]] for s in self.network.sources_of(port)), default=0)
                for side, port in enumerate(box.ports)
            }

    def _pass(self, made: dict[tuple[Source | Box, int], list[Packet]], end: bool) -> None:
        """One tuple, or the end, through the network; ``made``: the rows on every arrow that has some."""
        for box in self.network.boxes:
            arrows = self.arrows[box]
            if not end and made.keys().isdisjoint(arrows):
                continue
            rows = [
                [row for row in made.get(source, ()) if self.keep(box, arrow, row)]
                for arrow, source in enumerate(arrows)
            ]
            ports = [[row for arrow in port for row in rows[arrow]] for port in self.ports[box]]
            for results in self._calls(box, ports, end):
                for output, packet in enumerate(results):
                    if len(packet):
                        found = made.setdefault((box, output), [])
                        found += [packet.slice(i, 1) for i in range(len(packet))]
        for query in self.network.outputs:
            for arrow in query.port:
                for row in made.get((arrow.node, arrow.output), ()):
                    self.results[query.name] += row.batch.to_pylist()

    def _calls(self, box: Box, ports: list[list[Packet]], end: bool) -> Iterator[list[Packet]]:
        operator, state = box.operator, self.states[box]
        if len(ports) == 1:
            for row in ports[0]:
                yield operator.process([row], state)
        elif any(ports):
            yield operator.process(
                [_together(rows, schema) for rows, schema in zip(ports, operator.inputs, strict=True)], state
            )
        if end:
            last = Order(len(self.tuples), 0.0, 1)
            yield operator.finish(state, Packet(empty_batch(operator.inputs[0]), last))


def _together(rows: list[Packet], schema: pa.Schema) -> Packet:
    return Packet.concat(rows) if rows else Packet(empty_batch(schema), Order(0, 0.0, 0))


def _rows(source: Source) -> list[pa.RecordBatch]:
    reader = source.origin.open()
    rows = []
    while (chunk := reader.poll(0.0, 1 << 20)) is not None:
        rows += [chunk.batch.slice(i, 1) for i in range(chunk.batch.num_rows)]
    return rows


def _admission(
    sources: list[list[pa.RecordBatch]], turn: int
) -> tuple[list[tuple[int, pa.RecordBatch]], list[int]]:
    """All tuples by serial, and for every source the serial from which on it is known to have ended.

    Sources take turns of ``turn`` rows; one that cannot fill its turn has ended.
    """
    tuples: list[tuple[int, pa.RecordBatch]] = []
    left = [list(rows) for rows in sources]
    ended: dict[int, int] = {}
    while len(ended) < len(sources):
        for place, rows in enumerate(left):
            if place in ended:
                continue
            taken, left[place] = rows[:turn], rows[turn:]
            tuples += [(place, row) for row in taken]
            if len(taken) < turn:
                ended[place] = len(tuples)
    return tuples, [ended[place] for place in range(len(sources))]
