"""Calibration: what this machine's memory costs, and what operators cost when they run alone.

Everything is measured by the processor's time of one thread on one core, so that neighbours on a busy
machine count as little as can be, and the least of several times is taken.  Operators work on rows drawn at
random from their schemas, not on the data of any query.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.app import App
from headgate.engines import topology as machines
from headgate.engines.base import default_packet_rows
from headgate.engines.calibration import Calibration, OperatorCost, keys_of
from headgate.engines.memory_model import MemoryModel
from headgate.engines.sinks import to_function
from headgate.engines.sources import from_batches
from headgate.engines.threads import Threads
from headgate.graph.network import Network
from headgate.graph.operator import Operator
from headgate.graph.packet import Order, Packet
from headgate.scheduling.topology import MIB, Topology

Tell = Callable[[str, float], None]
"""Called with what is measured now, and how far it is, from 0 to 1."""
Floats = npt.NDArray[np.float64]

_LARGEST = 256 * MIB
_STREAMS = ((20_000, 10), (20_000, 10_000), (100_000, 10_000))
"""Rows per day of event time (few let many windows close) and different values of a column."""
_START = 1_704_326_400_000_000
_DAY = 86_400_000_000


def calibrate(networks: Sequence[Network], quick: bool, tell: Tell) -> Calibration:
    """Measure the host, and every operator of these networks once."""
    machine = machines.host()
    with _on_one_core(machine):
        memory = _memory(machine, quick, tell)
        operators: dict[str, Operator] = {}
        for network in networks:
            operators |= {box.operator.label: box.operator for box in network.boxes}
        costs: dict[str, OperatorCost] = {}
        for place, (label, operator) in enumerate(operators.items()):
            tell(label, 0.2 + 0.7 * place / len(operators))
            if len(operator.inputs) == 1 and operator.cost is None:
                costs[label] = operator_cost(operator, quick)
        tell("box calls", 0.9)
        overhead = _call_overhead(quick)
    tell("done", 1.0)
    return Calibration(memory, costs, overhead)


@contextmanager
def _on_one_core(machine: Topology) -> Iterator[None]:
    """This thread stays on the first core that it may use."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {machine.cores[0]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


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
    """Seconds of one thread to read a byte of so many that it reads again and again."""
    values = np.ones(max(size // 8, 1))
    rounds = max(1, (8 if quick else 32) * MIB // values.nbytes)
    best = np.inf
    values.sum()
    for _ in range(3 if quick else 7):
        begin = time.thread_time()
        for _ in range(rounds):
            values.sum()
        best = min(best, (time.thread_time() - begin) / rounds)
    # The sum's own call is no memory: it is taken off by that of a sum of nothing.
    return max(0.0, float(best) - _empty_sum()) / values.nbytes


def _empty_sum() -> float:
    nothing = np.ones(1)
    begin = time.thread_time()
    for _ in range(1000):
        nothing.sum()
    return (time.thread_time() - begin) / 1000


def _bandwidth(machine: Topology, size: int, quick: bool) -> float:
    """Bytes per second that all cores of the machine together read from memory, by their own time."""
    rates: list[float] = []
    size = size // 2 if quick else size
    start = threading.Barrier(machine.workers)

    def read(core: int) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {core})
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


# --- operators ------------------------------------------------------------------------------------------


def operator_cost(operator: Operator, quick: bool) -> OperatorCost:
    """What calls cost on packets of several sizes, with few and with many results: the line through them."""
    whole = default_packet_rows()
    sizes = (whole // 8, whole) if quick else (whole // 32, whole // 4, whole)
    made: list[tuple[float, ...]] = []
    seconds: list[float] = []
    for per_day, values in _STREAMS:
        for size in sizes:
            again = [
                _calls(operator, size, per_day, values, 2 if quick else 4) for _ in range(2 if quick else 3)
            ]
            made += [about for about, _ in again[0]]
            seconds += [min(spent for _, spent in calls) for calls in zip(*again, strict=True)]
    return OperatorCost(*_line(np.array(made), np.array(seconds)))


def _calls(
    operator: Operator, size: int, per_day: int, values: int, count: int
) -> list[tuple[tuple[float, ...], float]]:
    """Packets, rows, results and keys of calls one after the other, and their seconds, the first left out."""
    state = operator.open()
    random = np.random.default_rng(7)
    found: list[tuple[tuple[float, ...], float]] = []
    serial = 0
    for _ in range(count + 1):
        batch = _rows(operator.inputs[0], size, serial, per_day, values, random)
        packet = Packet(batch, Order(serial, 0.0, size))
        keys = keys_of(operator, [packet])
        serial += size
        begin = time.thread_time()
        results = operator.process([packet], state)
        spent = time.thread_time() - begin
        found.append(((1.0, float(size), float(len(results[0])), float(keys)), spent))
    return found[1:]


def _rows(
    schema: pa.Schema, size: int, first: int, per_day: int, values: int, random: np.random.Generator
) -> pa.RecordBatch:
    """Rows of a schema: times go on steadily, a tenth of the other values is null."""
    times = _START + (np.arange(first, first + size) * (_DAY / per_day)).astype(np.int64)
    columns = [_column(field.type, times, values, random) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(
    kind: pa.DataType, times: npt.NDArray[np.int64], different: int, random: np.random.Generator
) -> pa.Array:
    size = len(times)
    if pa.types.is_timestamp(kind):
        return pa.array(times).cast(pa.timestamp("us")).cast(kind)
    null = random.random(size) < 0.1
    if pa.types.is_integer(kind):
        # Most of a shop's things are a few of many.
        values = (different * random.random(size) ** 2).astype(np.int64)
        values = values % np.iinfo(kind.to_pandas_dtype()).max
        return pa.array(values, mask=null).cast(kind)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pa.array(np.round(random.random(size) * 100, 2), mask=null).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.array(random.random(size) < 0.5, mask=null)
    if pa.types.is_list(kind):
        offsets = np.concatenate([[0], np.cumsum(random.integers(1, 6, size))])
        items = _column(kind.value_type, np.repeat(times, np.diff(offsets)), different, random)
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items).cast(kind)
    words = pa.array([f"word {number}" for number in range(different)])
    return words.take(pa.array(random.integers(0, different, size), mask=null)).cast(kind)


def _line(made: Floats, seconds: Floats) -> list[float]:
    """Costs of a call, a tuple, a result and a key, none of them negative, that explain the times best.

    Errors count relative to the time, so that small packets tell what a call costs.
    """
    weight = 1 / np.maximum(seconds, 1e-7)
    kept = [part for part in range(made.shape[1]) if made[:, part].any()]
    while True:
        costs = np.zeros(made.shape[1])
        found, *_ = np.linalg.lstsq(made[:, kept] * weight[:, None], seconds * weight, rcond=None)
        costs[kept] = found
        worst = int(np.argmin(costs))
        if costs[worst] >= 0:
            return [float(cost) for cost in costs]
        kept.remove(worst)


def _call_overhead(quick: bool) -> float:
    """Seconds of the whole process per box call on packets of a few rows, by boxes that do nothing.

    What a run takes whatever its length is taken off, by a shorter one.
    """
    packets = 200 if quick else 800
    best = np.inf
    for _ in range(2 if quick else 4):
        (few, short), (many, long) = _idle_calls(packets // 4), _idle_calls(packets)
        best = min(best, max(long - short, 0.0) / max(many - few, 1))
    return float(best)


def _idle_calls(packets: int) -> tuple[int, float]:
    """So many calls, and the seconds they took together."""
    app = App("calls")
    stream = app.source("rows", from_batches([pa.RecordBatch.from_pydict({"a": np.arange(64)})] * packets))
    for box in range(8):
        stream = stream.universal(cost=0.0, name=f"box{box}")
    stream.to("out", to_function(lambda query, batch: None))
    begin = time.process_time()
    report = app.run(Threads(workers=1, packet_rows=64), "round_robin")
    return sum(box.calls for box in report.boxes.values()), time.process_time() - begin
