"""Latency of results as their reader sees it, and the CPU that they cost: the same ruler for every system.

A result's latency runs from the arrival of the click that caused it, which is a column of the result, to the
moment at which a Python function holds it.  Both are times of this machine's wall clock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.graph.qos import QoS

_TICKS = os.sysconf("SC_CLK_TCK")
_SETTLED = 2
"""Hand-overs of every query before measuring starts: the first ones pay for compilation and caches."""


Note = tuple[str, float, npt.NDArray[np.float64]]
"""A hand-over: whose, when, and the arrival of what caused each of its results."""


class Recorder:
    """Notes the latency of every result row; called as ``recorder(query, batch)`` like any function sink.

    ``period`` is the time in seconds between two arrivals at the source: a window's result is caused by the
    first arrival at or after the window's end.
    """

    def __init__(self, queries: Sequence[str], period: float) -> None:
        self._period = round(period * 1_000_000)
        self._lock = threading.Lock()
        self._calls = dict.fromkeys(queries, 0)
        self._notes: list[tuple[str, float, npt.NDArray[np.float64]]] = []

    def __call__(self, query: str, batch: pa.RecordBatch) -> None:
        now = time.time()
        caused = _micros(batch.column("ts"))
        if "window_end" in batch.schema.names:
            left = _micros(batch.column("window_end")) - caused
            caused = caused + (-(-left // self._period) * self._period if self._period else left)
        with self._lock:
            self._calls[query] += 1
            self._notes.append((query, now, now - caused / 1e6))

    def settled(self) -> bool:
        """Whether every query has handed over a few times."""
        with self._lock:
            return all(calls >= _SETTLED for calls in self._calls.values())

    def between(self, start: float, end: float) -> dict[str, npt.NDArray[np.float64]]:
        """Latencies by query of what was handed over between two times; silent queries have none."""
        with self._lock:
            notes = list(self._notes)
        parts: dict[str, list[npt.NDArray[np.float64]]] = {query: [] for query in self._calls}
        for query, at, latencies in notes:
            if start <= at < end:
                parts[query].append(latencies)
        return {
            query: np.concatenate(found) if found else np.empty(0, dtype=np.float64)
            for query, found in parts.items()
        }

    def notes(self, shift: float = 0.0) -> list[Note]:
        """Every hand-over so far; ``shift``: seconds by which the source's clock is ahead."""
        with self._lock:
            return [(query, at, at - latencies - shift) for query, at, latencies in self._notes]

    def fronts(self, shift: float = 0.0) -> dict[str, float]:
        """Up to which arrival each query has answered; 0 for those that never did."""
        found = dict.fromkeys(self._calls, 0.0)
        for query, _, causes in self.notes(shift):
            found[query] = max(found[query], float(causes.max(initial=0.0)))
        return found

    def last_before(self, end: float) -> dict[str, float]:
        """When each query last handed over; queries that never did are absent."""
        with self._lock:
            return {query: at for query, at, _ in self._notes if at < end}


def _micros(column: pa.Array) -> npt.NDArray[np.int64]:
    stamps: npt.NDArray[np.int64] = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    return stamps


@dataclass(frozen=True)
class Measurement:
    """One system with so many queries.  Each query weighs the same in the percentiles."""

    side: str
    queries: int
    keyed: bool
    p50: float
    p99: float
    held: int
    """Queries whose median latency is under one second."""
    silent: int
    """Queries without any result while it was measured; they count with the time since their last one."""
    rows: int
    seconds: float
    cpu_per_million: float
    """CPU seconds of this process and everything below it, per million tuples of the stream."""
    note: str = ""
    qos: float | None = None
    """Mean utility of the results, where the queries have QoS graphs."""

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Span:
    """What was seen while it was measured."""

    start: float
    end: float
    cpu: float


def watch(
    recorder: Recorder,
    settle: float,
    seconds: float,
    warm_limit: float,
    patience: float,
    check: Callable[[], None] = lambda: None,
) -> Span:
    """Wait until all queries answer, let things settle, then measure for ``seconds``.

    Warming up is over after ``warm_limit`` at the latest.  While queries are silent, measuring goes on for
    up to ``patience`` seconds in all.  ``check`` raises when there is nothing left to wait for.
    """
    begin = time.monotonic()
    while not recorder.settled() and time.monotonic() - begin < warm_limit:
        check()
        time.sleep(0.25)
    time.sleep(settle)
    start, cpu = time.time(), cpu_seconds()
    time.sleep(seconds)
    while time.time() - start < patience and not all(map(len, recorder.between(start, time.time()).values())):
        time.sleep(1.0)
    return Span(start, time.time(), cpu_seconds() - cpu)


def measurement(
    side: str,
    keyed: bool,
    recorder: Recorder,
    span: Span,
    rate: float,
    *,
    shift: float = 0.0,
    note: str = "",
    graphs: Mapping[str, QoS] | None = None,
) -> Measurement:
    """The percentiles of a span.  ``shift`` is added to every latency, where the source's clock was off.

    With QoS ``graphs`` only the queries that have one are looked at.
    """
    found = {
        query: part + shift
        for query, part in recorder.between(span.start, span.end).items()
        if graphs is None or query in graphs
    }
    last = recorder.last_before(span.end)
    medians, values, weights, worths = [], [], [], []
    silent = 0
    for query, part in found.items():
        if not len(part):
            silent += 1
            part = np.array([span.end - last.get(query, span.start)])
        medians.append(float(np.median(part)))
        if graphs is not None:
            worths.append(float(graphs[query].utilities(part).mean()))
        values.append(part)
        weights.append(np.full(len(part), 1.0 / len(part)))
    p50, p99 = percentiles(values, weights, (50, 99))
    seconds = span.end - span.start
    return Measurement(
        side,
        len(found),
        keyed,
        p50,
        p99,
        sum(median < 1.0 for median in medians),
        silent,
        sum(map(len, found.values())),
        seconds,
        span.cpu / (rate * seconds / 1e6),
        note,
        float(np.mean(worths)) if worths else None,
    )


def percentiles(
    values: Sequence[npt.NDArray[np.float64]],
    weights: Sequence[npt.NDArray[np.float64]],
    percents: Iterable[float],
) -> list[float]:
    """Weighted percentiles of all values together."""
    every, weight = np.concatenate(values), np.concatenate(weights)
    ascending = np.argsort(every, kind="stable")
    ranks = np.cumsum(weight[ascending])
    places = [np.searchsorted(ranks, ranks[-1] * percent / 100.0) for percent in percents]
    return [float(every[ascending][min(int(place), len(every) - 1)]) for place in places]


def cpu_seconds() -> float:
    """CPU of this process, its descendants (JVM, Python workers) and those of them that have ended.

    From ``/proc``: times of every living process below this one, and of the ended ones that it waited for.
    """
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):  # it has just ended
            continue
        parents[int(entry.name)] = int(fields[1])
        spent[int(entry.name)] = sum(map(int, fields[11:15])) / _TICKS
    total, own = 0.0, os.getpid()
    for process in spent:
        ancestor = process
        while ancestor not in (own, 0) and ancestor in parents:
            ancestor = parents[ancestor]
        if ancestor == own:
            total += spent[process]
    return total
