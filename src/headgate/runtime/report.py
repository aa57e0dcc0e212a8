"""What a run reports: per query latency, QoS and counts; throughput, overhead, and the trace of box calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headgate.graph.packet import Marker
from headgate.graph.qos import QoS
from headgate.memory.statistics import Statistics

EXACT_SAMPLES = 1_000_000
"""Up to that many distinct measurements percentiles are exact; beyond, within half a percent."""
_RATIO = np.log(1.005)
_SMALLEST = 1e-7


class Latency:
    """A distribution of seconds: ``mean`` and ``max`` exact, percentiles exact until samples are many."""

    def __init__(self) -> None:
        self.count = 0
        self.max = 0.0
        self._total = 0.0
        self._single: list[tuple[float, int]] = []
        self._values: list[npt.NDArray[np.float64]] = []
        self._weights: list[npt.NDArray[np.int64]] = []
        self._held = 0
        self._histogram: npt.NDArray[np.int64] | None = None

    def add(self, seconds: float | npt.NDArray[np.float64], rows: int) -> None:
        """``rows`` results of that latency, or one each."""
        if not rows:
            return
        self.count += rows
        if isinstance(seconds, float):
            self._single.append((seconds, rows))
            self.max = max(self.max, seconds)
            self._total += seconds * rows
            self._held += 1
        else:
            self._values.append(seconds)
            self._weights.append(np.ones(rows, dtype=np.int64))
            self.max = max(self.max, float(seconds.max()))
            self._total += float(seconds.sum())
            self._held += rows
        if self._held > EXACT_SAMPLES:
            self._compress()

    def _gathered(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Every value held and how many results had it."""
        if self._single:
            values, weights = zip(*self._single, strict=True)
            self._values.append(np.array(values))
            self._weights.append(np.array(weights, dtype=np.int64))
            self._single = []
        return np.concatenate(self._values), np.concatenate(self._weights)

    def _compress(self) -> None:
        values, weights = self._gathered()
        values = np.maximum(values, _SMALLEST)
        places = np.clip((np.log(values / _SMALLEST) / _RATIO).astype(np.int64), 0, 6000)
        counts = np.bincount(places, weights=weights, minlength=6001).astype(np.int64)
        self._histogram = counts if self._histogram is None else self._histogram + counts
        self._values, self._weights, self._held = [], [], 0

    @property
    def mean(self) -> float:
        return self._total / self.count if self.count else float("nan")

    def percentile(self, percent: float) -> float:
        """The smallest latency that ``percent`` of the results do not exceed."""
        if not self.count:
            return float("nan")
        if self._histogram is not None:
            if self._held:
                self._compress()
            rank = np.searchsorted(np.cumsum(self._histogram), self.count * percent / 100.0)
            return float(min(_SMALLEST * np.exp((rank + 0.5) * _RATIO), self.max))
        values, weights = self._gathered()
        ascending = np.argsort(values, kind="stable")
        ranks = np.cumsum(weights[ascending])
        place = min(int(np.searchsorted(ranks, self.count * percent / 100.0)), len(values) - 1)
        return float(values[ascending][place])

    @property
    def p50(self) -> float:
        return self.percentile(50)

    @property
    def p99(self) -> float:
        return self.percentile(99)

    def __repr__(self) -> str:
        if not self.count:
            return "Latency(no results)"
        return f"Latency(p50={self.p50:.6f}, p99={self.p99:.6f}, mean={self.mean:.6f}, max={self.max:.6f})"


@dataclass
class QueryReport:
    """One query's run.

    ``latency`` is from a tuple's arrival to the hand-over of the results it caused.  ``processing`` and
    ``end_to_end`` are measured by markers that travel with tuples, over the middle 60 % of the run: from
    the first operator, and from arrival, to the exit.
    """

    name: str
    latency: Latency = field(default_factory=Latency)
    processing: Latency = field(default_factory=Latency)
    end_to_end: Latency = field(default_factory=Latency)
    tuples_in: int = 0
    tuples_out: int = 0
    shed: int = 0
    """Tuples that load shedding dropped on their way to it."""
    shed_by: dict[tuple[str, str], int] = field(default_factory=dict)
    """The same by reason, "random" or "semantic", and by the box before which it was."""
    waiting: int = 0
    """Tuples on their way to it when the report was made: queued, or in calls that had not ended.

    Without selectivity, ``tuples_in = tuples_out + shed + waiting`` (a run that goes on from a checkpoint
    also answers what waited there).
    """
    late: int = 0
    error: BaseException | None = None
    waits_for: str | None = None
    """The source that it waits for because that does not answer, and since when."""
    removed: bool = False
    """It was removed while the run went on."""
    worth: float = 0.0
    """Utility of all results together."""
    unanswered: float = 0.0
    """Results that shed and waiting tuples would have led to, by the measured selectivity of the boxes that
    they had still to pass."""
    has_qos: bool = False
    unjudged: int = 0
    """Results from before it was given a QoS graph."""
    attainable: float | None = None
    """What ``qos`` could be at most: if no tuple had to wait, by what the query's boxes cost."""
    sink_seconds: float = 0.0
    """On threads: how long its sink was at work."""
    recent: deque[tuple[float | npt.NDArray[np.float64], int]] | None = field(default=None, repr=False)
    """Latencies and rows that were handed over and not yet watched; None if there is no watcher."""

    @property
    def qos(self) -> float | None:
        """Mean utility of the results that were delivered; None without a QoS graph or results.

        Tuples that were shed or never answered do not count: ``utility`` is the figure in which they do.
        """
        judged = self.tuples_out - self.unjudged
        return self.worth / judged if self.has_qos and judged else None

    @property
    def utility(self) -> float | None:
        """Mean utility of the results that there should have been: those never delivered are worth 0.

        It is ``worth / (tuples_out + unanswered)``: the utility of what was delivered, by the results that
        were delivered and those that shed and waiting tuples are expected to have led to.  So a tuple that
        the query would have filtered out does not count as lost.  None without a QoS graph, or if there was
        nothing to answer.
        """
        owed = self.tuples_out - self.unjudged + self.unanswered
        return self.worth / owed if self.has_qos and owed else None

    def delivered(self, latencies: float | npt.NDArray[np.float64], rows: int, qos: QoS | None) -> None:
        """``rows`` results were handed over."""
        self.latency.add(latencies, rows)
        if self.recent is not None:
            self.recent.append((latencies, rows))
        self.tuples_out += rows
        if qos is not None:
            self.has_qos = True
            if isinstance(latencies, float):
                self.worth += qos.utility(latencies) * rows
            else:
                self.worth += float(qos.utilities(latencies).sum())

    def settle(
        self, tuples_in: int, late: int, markers: Sequence[Marker], qos: QoS | None, least: float
    ) -> None:
        """Fill in what is known of a query when a report is made; ``least``: latency if no tuple waits."""
        self.tuples_in, self.late = tuples_in, late
        self.measure(markers)
        if qos is not None:
            self.attainable = qos.utility(least)

    def measure(self, markers: Sequence[Marker]) -> None:
        """Fill in what the markers saw: those between the 20th and the 80th percentile of the run."""
        self.processing, self.end_to_end = Latency(), Latency()
        done = sorted((m for m in markers if self.name in m.exits), key=lambda m: m.serial)
        low, high = int(len(done) * 0.2), max(int(len(done) * 0.8), int(len(done) * 0.2) + 1)
        for marker in done[low:high]:
            leave = marker.exits[self.name]
            self.end_to_end.add(leave - marker.entry, 1)
            self.processing.add(leave - (marker.begin if marker.begin is not None else marker.entry), 1)


@dataclass
class Overhead:
    """Seconds of worker time apart from the operators' own (Aurora, section 5.5).

    With the operators' time (``report.busy``) and ``idle`` they make up the workers' time.
    """

    worker: float = 0.0
    """Around box calls: waiting for the scheduler's lock, and what a call takes apart from its operators."""
    storage: float = 0.0
    """Queues: taking trains, passing results on, handing over to sinks."""
    scheduler: float = 0.0
    """Deciding."""
    idle: float = 0.0
    """No overhead: workers with nothing to do."""
    feeder: float = 0.0
    """Not the workers' time: admitting tuples and the policy's timers, with what they made it decide."""
    rescheduling: float = 0.0
    """Part of the scheduler's: periodic scheduling tasks, and workers waiting for each other in them."""
    rescheduling_cpu: float = 0.0
    """The processor's time in ``rescheduling``, on threads; the rest is waiting, also for other programs."""

    @property
    def total(self) -> float:
        return self.worker + self.storage + self.scheduler


@dataclass
class Traffic:
    """Where a simulation's workers found what they read, and put what they wrote."""

    bytes: dict[str, int] = field(default_factory=dict)
    """By place: "L1", "L2" …, "memory" of the own node, "remote" of another."""
    seconds: float = 0.0
    """The share of the workers' time that it cost."""
    waited: float = 0.0
    """Seconds that they waited in addition, for memory or links that others kept busy."""
    written_back: int = 0
    """Bytes that caches had to give to memory to make room."""

    def add(self, place: str, size: int) -> None:
        self.bytes[place] = self.bytes.get(place, 0) + size


class BoxCall(NamedTuple):
    """One box call of the trace."""

    worker: int
    box: str
    tuples: int
    start: float
    end: float


class Trace(Sequence[BoxCall]):
    """The box calls of a run in the order in which they ended; the newest ``limit`` of them."""

    def __init__(self, limit: int = 200_000) -> None:
        self._calls: deque[BoxCall] = deque(maxlen=limit)
        self.total = 0
        """Calls since the start, with those that are no longer held."""

    def add(self, call: BoxCall) -> None:
        self._calls.append(call)
        self.total += 1

    def newest(self, count: int) -> list[BoxCall]:
        """The last so many calls, without a copy of all."""
        return list(islice(reversed(self._calls), count))[::-1]

    def __len__(self) -> int:
        return len(self._calls)

    def __getitem__(self, place: Any) -> Any:
        return list(self._calls)[place]

    def __iter__(self) -> Iterator[BoxCall]:
        return iter(list(self._calls))


@dataclass
class BoxReport:
    """What the catalog learned of a box."""

    name: str
    calls: int
    tuples_in: int
    tuples_out: int
    cost: float
    selectivity: float
    call_overhead: float
    busy: float


@dataclass
class StateReport:
    """On Spark: where tasks found the states of boxes, and what was written of them."""

    found: int = 0
    """In the memory of a Python worker."""
    loaded: int = 0
    """In files of the checkpoint."""
    bytes: int = 0
    """Written, as changes and as snapshots."""
    snapshots: int = 0
    """How often a shard was written as a whole."""


@dataclass
class Report:
    """What happened in a run."""

    engine: str
    policy: str
    workers: int
    seconds: float
    tuples: int
    queries: dict[str, QueryReport]
    boxes: dict[str, BoxReport]
    overhead: Overhead
    trace: Trace
    requests: dict[str, dict[str, QueryReport]] = field(default_factory=dict)
    """Of the last requests that have ended, by name, the reports of their queries."""
    spooled: int = 0
    """Bytes of packets that waited out of the way, since a query was behind."""
    ring_full: int = 0
    """How often tuples waited because the ring, in which results wait for earlier ones, had no place."""
    semaphores: int = 0
    """On threads: operations on the semaphores on which workers sleep."""
    packet_rows: int = 0
    """Rows of a packet, as it was last; on Spark there are none."""
    steps: int = 0
    """Spark jobs that were committed."""
    memory: Statistics | None = None
    """On threads: what was allocated for packets."""
    queued_bytes: int = 0
    """In a replay: the most bytes that were seen to wait in queues."""
    traffic: Traffic | None = None
    """In a simulation with a memory model: what went through caches and memory."""
    step_seconds: dict[str, float] = field(default_factory=dict)
    """On Spark, where the steps' time went, all steps together: plan, spark, scan, boxes, state, …"""
    state: StateReport | None = None
    """On Spark: what states cost."""
    chosen: str = ""
    """On Spark: the sizes that were not given and how they were chosen."""
    problems: list[str] = field(default_factory=list)
    """What went wrong in the policy itself, each problem once; the queries went on."""

    @property
    def busy(self) -> float:
        """Seconds that workers were inside operators."""
        return sum(box.busy for box in self.boxes.values())

    @property
    def throughput(self) -> float:
        """Source tuples per second."""
        return self.tuples / self.seconds if self.seconds > 0 else float("nan")

    @property
    def _head(self) -> str:
        workers = f"{self.workers} workers: {self.tuples:,} tuples in {self.seconds:.2f} s"
        return f"Report({self.engine}, {self.policy}, {workers})"

    def _rows(self) -> list[tuple[str, ...]]:
        """A table's head, and a row for each query."""
        rows: list[tuple[str, ...]] = [("query", "results", "p50", "p99", "late", "shed", "")]
        for own in self.queries.values():
            times = [f"{s * 1000:,.1f} ms" for s in (own.latency.p50, own.latency.p99)]
            times = times if own.latency.count else ["-", "-"]
            why = f"failed: {own.error}" if own.error is not None else ""
            rows.append((own.name, f"{own.tuples_out:,}", *times, f"{own.late:,}", f"{own.shed:,}", why))
        return rows

    def __repr__(self) -> str:
        """What each query did and how late its results were, as a table."""
        rows = self._rows()
        widths = [max(len(row[place]) for row in rows) for place in range(6)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(row[n].rjust(widths[n]) for n in range(1, 6)), row[6]])
            for row in rows
        ]
        return "\n".join([self._head, *(f"  {line.rstrip()}" for line in lines)])

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        head, *rows = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in self._rows()]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        title = f"<caption>{escape(self._head)}</caption>"
        return (
            f"<table>{title}<thead><tr>{head.replace('td>', 'th>')}</tr></thead><tbody>{body}</tbody></table>"
        )
