"""Calibration: what this machine's memory costs, and what operators cost when they run alone.

Everything is measured in processor time, so that other programs matter little, and on one core, so that its
current speed is known.  Only memory's bandwidth is measured on all cores together.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa

from headgate.api import App
from headgate.cli.calibration.operator_costs import OperatorCalls, costs_by_label, inputs
from headgate.cli.calibration.yardstick import Yardstick, on_one_core
from headgate.connectors.batches import from_batches
from headgate.connectors.python import to_function
from headgate.engines.threads import Threads
from headgate.graph.network import Network
from headgate.machine import host as machines
from headgate.machine.calibration import Calibration
from headgate.machine.memory_model import MemoryModel
from headgate.machine.topology import MIB, Topology

Tell = Callable[[str, float], None]
"""Called with the current measurement's name and the progress, from 0 to 1."""

ROUNDS, QUICK_ROUNDS = 8, 3
_LARGEST = 256 * MIB


def calibrate(
    networks: Sequence[Network],
    quick: bool,
    tell: Tell,
    yardstick: Yardstick,
    between: Callable[[int], None] | None = None,
) -> Calibration:
    """Measure the host, and every operator of these networks.

    A virtual machine's cores are at times half as fast, for seconds, as neighbours have it.  So operators
    are measured in rounds.  ``between`` is called after the operators of each network in each round, so what
    it measures has as many bad moments.
    """
    machine = machines.host()
    with on_one_core(machine.cores[0]):
        return _calibrate(machine, networks, quick, tell, yardstick, between)


def _calibrate(
    machine: Topology,
    networks: Sequence[Network],
    quick: bool,
    tell: Tell,
    yardstick: Yardstick,
    between: Callable[[int], None] | None,
) -> Calibration:
    memory = _memory(machine, quick, tell)
    by_network = [
        [
            OperatorCalls(share, yardstick)
            for share in inputs(network)
            if share.box.operator.cost is None and any(map(len, share.rows))
        ]
        for network in networks
    ]
    steps = (QUICK_ROUNDS if quick else ROUNDS) * len(networks)
    overhead = []
    for step in range(steps):
        place, done = step % len(networks), 0.2 + 0.8 * step / steps
        if not place:
            tell("box calls", done)
            overhead.append(_call_overhead(quick, yardstick))
        for alone in by_network[place]:
            tell(alone.label, done)
            alone.again()
        if between is not None:
            between(place)
    tell("done", 1.0)
    costs = costs_by_label(chain.from_iterable(by_network))
    return Calibration(memory, costs, yardstick.seconds(statistics.median(overhead)))


# --- memory ---------------------------------------------------------------------------------------------


def _memory(machine: Topology, quick: bool, tell: Tell) -> MemoryModel:
    mine = sorted((c for c in machine.caches if machine.cores[0] in c.cores), key=lambda c: c.level)
    sizes = {cache.level: cache.size // 2 for cache in mine}
    last = mine[-1].size if mine else 32 * MIB
    seconds: dict[int, float] = {}
    for place, (level, size) in enumerate(sizes.items()):
        tell(f"L{level}", 0.1 * place / (len(sizes) + 1))
        seconds[level] = per_byte(size, quick)
    tell("memory", 0.1)
    large = min(4 * last, _LARGEST)
    from_memory = per_byte(large, quick)
    tell("memory, all cores at once", 0.15)
    bandwidth = _bandwidth(machine, large, quick)
    first = min([*seconds.values(), from_memory])
    levels: dict[int, float] = {}
    dearest = 0.0
    for level, time_ in seconds.items():
        # Nearer caches are never dearer; where a measurement says so it was disturbed.
        dearest = levels[level] = max(dearest, time_ - first)
    notes = (
        "numpy sums arrays of half of each cache, and one four times as large as the last (256 MB at most)",
        "the price is what a byte takes beyond the fastest; the bandwidth is of all cores at once",
    )
    return MemoryModel(machine.name, levels, max(dearest, from_memory - first), bandwidth, notes=notes)


def per_byte(size: int, quick: bool) -> float:
    """Seconds of one thread to read a byte of so many that it reads again and again, in one call."""
    values = np.ones(max(size // 8, 1))
    rounds = max(1, (8 if quick else 32) * MIB // values.nbytes)
    again, sums = np.broadcast_to(values, (rounds, len(values))), np.empty(rounds)
    best = np.inf
    for _ in range(4 if quick else 8):
        begin = time.thread_time()
        np.add.reduce(again, axis=1, out=sums)
        best = min(best, time.thread_time() - begin)
    return float(best) / (rounds * values.nbytes)


def _bandwidth(machine: Topology, size: int, quick: bool) -> float:
    """Bytes per second that all cores of the machine together read from memory, by their own time."""
    rates: list[float] = []
    size = size // 2 if quick else size
    start = threading.Barrier(machine.workers)

    def read(core: int) -> None:
        with on_one_core(core):
            values = np.ones(size // 8)
            start.wait()
            begin = time.thread_time()
            for _ in range(2 if quick else 6):
                values.sum()
            rates.append((2 if quick else 6) * values.nbytes / max(time.thread_time() - begin, 1e-9))

    threads = [threading.Thread(target=read, args=(core,)) for core in machine.cores[: machine.workers]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates) / len(machine.nodes)


# --- calls --------------------------------------------------------------------------------------------


def _call_overhead(quick: bool, yardstick: Yardstick) -> float:
    """Yards of the whole process per box call on packets of a few rows, by boxes that do nothing.

    A shorter run is subtracted, to leave out the fixed cost of a run.
    """
    packets = 200 if quick else 800
    (few, short), (many, long) = (_idle_calls(count, yardstick) for count in (packets // 4, packets))
    return max(long - short, 0.0) / max(many - few, 1)


def _idle_calls(packets: int, yardstick: Yardstick) -> tuple[int, float]:
    """So many calls, and the yards they took together."""
    app = App("calls")
    stream = app.source("rows", from_batches([pa.RecordBatch.from_pydict({"a": np.arange(64)})] * packets))
    for box in range(8):
        stream = stream.universal(cost=0.0, name=f"box{box}")
    stream.to("out", to_function(lambda query, batch: None))
    report, yards = yardstick.of_process(lambda: app.run(Threads(workers=1, packet_rows=64), "round_robin"))
    return sum(box.calls for box in report.boxes.values()), yards
