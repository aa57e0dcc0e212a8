"""A driver without Spark: real sources, upgrades, log and states; a step runs all boxes in this process.

A test says when sources are asked, which queries take a step, when the position is compacted, and when the
driver dies.  What a query gave is what its committed steps gave.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import headgate as hg
from headgate.checkpoint import state_store
from headgate.checkpoint.graph import Node
from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.log import FORMAT, Log
from headgate.checkpoint.memory import merged
from headgate.checkpoint.upgrade import Upgrade
from headgate.checkpoint.verdicts import Choices
from headgate.engines.spark.connectors import way_in
from headgate.engines.spark.given import Given
from headgate.engines.spark.reading import read
from headgate.engines.spark.shipping import pickled
from headgate.engines.spark.task import pipeline_name
from headgate.graph.network import Network
from headgate.graph.packet import Packet

CLOCK = 1_000.0
Rows = list[dict[str, Any]]


class Driver:
    """One run over a checkpoint."""

    def __init__(
        self, app: hg.App | Network, folder: Path, out: dict[str, Rows], choices: Choices | None = None
    ) -> None:
        network = app if isinstance(app, Network) else app.network
        self.storage, self.out = Folder(str(folder)), out
        self.storage.prepare()
        self.log = Log(self.storage)
        self.upgrade = upgrade = Upgrade(network, self.log, choices)
        upgrade.refuse()
        self.network, self.nodes, self.position = upgrade.network, upgrade.nodes, upgrade.position
        self.position.clock = self.clock = self.position.clock or CLOCK
        self.sources = [way_in(source, self.storage, None, False) for source in self.network.sources]
        for source, own in zip(self.sources, self.position.offsets.sources, strict=True):
            source.resume(copy.deepcopy(self.position.sources.get(source.source.name)), own.rows)
        self.given = Given(self.nodes, self.position, None)
        self.start = {
            "kind": "start", "format": FORMAT, "app": self.network.name, "clock": self.clock, "buckets": 1,
            "pipeline": self.nodes.describe(), "next": self.position.offsets.next_serial, "failed": {},
            **upgrade.record,
        }  # fmt: skip
        data = pickled(self.nodes)
        self.storage.replace(f"pipelines/{pipeline_name(data)}", data)
        self.log.append(self.start)
        self.pending: list[Any] = []
        self.memories: dict[str, Any] = {}
        self.learned: dict[str, Any] = {}

    def poll(self, now: float) -> None:
        """Ask every source for what it has at a time; it is logged with the next step."""
        for place, source in enumerate(self.sources):
            for extent in source.poll(self.clock + now, self.clock) if not source.ended else ():
                self.position.offsets.admit(place, extent)
                self.pending.append([place, [extent.unit, extent.first, extent.rows, extent.arrival]])
            news = source.news()
            name = source.source.name
            if news is None:
                self.memories[name] = copy.deepcopy(source.memory)
            else:
                self.learned[name] = merged(self.learned.get(name), copy.deepcopy(news))

    def step(self, queries: list[str] | None = None, upto: int | None = None) -> None:
        """Let queries, and those that share boxes with them, take all rows with smaller serials."""
        horizon = self.position.offsets.next_serial
        end = horizon if upto is None else min(upto, horizon)
        chosen = self._closed(set(queries if queries is not None else self._names()))
        results: dict[int, list[Packet]] = {}
        record: dict[str, Any] = {"kind": "step", "step": self.position.step + 1, "nodes": {}}
        given: dict[str, Rows] = {}
        for node in self.nodes.all:
            own = self.position.nodes[node.key]
            if not chosen.intersection(node.queries) or own.cursor >= end:
                continue
            change: dict[str, Any] = {"cursor": end}
            inputs = [self._input(node, port, own.cursor, end, results) for port in range(len(node.ports))]
            if node.operator is None:
                given[node.name] = inputs[0].batch.to_pylist()
                change["out"] = len(inputs[0])
            elif not node.stateful:
                results[node.place] = node.operator.process(inputs, None)
            else:
                state, _ = state_store.take(self.storage, node.key, node.operator, own.state, (0, 1, 1))
                results[node.place] = node.operator.process(inputs, state)
                name = f"states/{record['step']:09d}-{node.place}.arrow"
                file = state_store.StateFile(name)
                part = file.add(state, not own.state, f"{record['step']}", (0, 1, 1))
                self.storage.write(name, file.parts)
                change["state"] = [{name: getattr(part, name) for name in part.__slots__}]
            record["nodes"][node.key] = change
        self._commit(record)
        for query, rows in given.items():
            self.out.setdefault(query, []).extend(rows)

    def _names(self) -> list[str]:
        return [outlet.name for outlet in self.nodes.outlets]

    def _closed(self, queries: set[str]) -> set[str]:
        """With the queries that share boxes: nothing then waits between boxes."""
        while True:
            shared = {
                q for node in self.nodes.all if queries.intersection(node.queries) for q in node.queries
            }
            if shared <= queries:
                return queries
            queries |= shared

    def _input(self, node: Node, port: int, low: int, high: int, results: dict[int, list[Packet]]) -> Packet:
        packets = []
        for arrow in node.ports[port]:
            feed = node.feeds[arrow]
            if feed.source:
                _, origin = self.nodes.sources[feed.place]
                pieces = self.position.offsets.sources[feed.place].pieces(low, high)
                needs = self.nodes.needs[feed.place]
                found = read(origin, needs, pieces, self.storage, self.clock)
                assert not found.failed, found.failed
                packets += found.packets
            else:
                packets += [results[feed.place][feed.output]] if feed.place in results else []
        packets = [packet for packet in packets if len(packet)]
        if not packets:
            return Packet.empty(node.schemas[port])
        merged_ = Packet.merge(packets)
        first = int((merged_.order.serials < low).sum())  # a shared box may stand before this one
        return merged_.slice(first, len(merged_) - first)

    def _commit(self, record: dict[str, Any]) -> None:
        if self.pending:
            record |= {"admitted": self.pending, "sources": self.memories, "learned": self.learned}
        self.log.append(record)
        self.position.sources |= self.memories
        self.position.learn(self.learned)
        known = {"admitted": (), "sources": {}, "learned": {}}
        self.position.apply({**record, **known})
        self.pending, self.memories, self.learned = [], {}, {}

    def trim(self) -> None:
        """Forget what all have passed, as a driver does now and then, and write the position as a whole."""
        if self.pending:
            return
        low = min(own.cursor for own in self.position.nodes.values())
        for own in self.position.offsets.sources:
            own.forget(low)
        self.log.compact(self.position, self.start, self.network.name)
        spooled = {e.unit.partition(":")[2] for own in self.position.offsets.sources for e in own.extents}
        for name in self.storage.names("spool"):
            if f"spool/{name}" not in spooled:
                self.storage.remove(f"spool/{name}")

    def tuples_in(self) -> dict[str, int]:
        return {query: sum(own.values()) for query, own in self.given.rows(self.position)[1].items()}


def forget_states() -> None:
    """As in a new process."""
    state_store._cache.clear()
