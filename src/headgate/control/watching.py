"""Watches a run: samples of what it does, the last minute of every query, and events worth hearing of.

A thread takes an observation about twice a second.  It rests fifty times as long as an observation takes the
processor, so watching costs at most two percent of one core, however many queries there are.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate.control.lateness import Delivered, Seconds, reasons
from headgate.graph.network import Network
from headgate.runtime.observing import Observation, QuerySeen
from headgate.runtime.report import Report

LOG = logging.getLogger("headgate.run")
MINUTE = 60.0
REST = 50
"""An observation is followed by a rest of so many times its processor time."""
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the latency histogram, in seconds."""
CELLS = 300_000
"""Figures of queries and boxes that the history holds: many queries have a shorter one."""
MOST_CALLS = 20_000
"""Box calls that the history holds."""
MISSED = 0.9
"""A goal is missed while a query's utility over the last ten seconds is below this."""
WINDOW = 10.0
WAITING = 1_000_000
"""Rows that wait for a stopped query from which on one hears of them; again when they have doubled."""


@dataclass(frozen=True)
class Event:
    """Something that an operator wants to hear of.

    ``kind``: ``failed``, ``waiting`` (a source does not answer), ``running`` (again), ``goal missed``
    (for as long as asked), ``goal met`` (again), ``backlog`` (rows wait for a query that is stopped, and
    their sources must keep them), or ``problem`` (of the policy).
    """

    kind: str
    query: str | None
    message: str
    at: float
    """Seconds of the run."""


Hook = Callable[[Event], None]


class Watched(Protocol):
    """A run, as far as watching needs it."""

    def observe(self, calls_seen: int) -> Observation: ...


@dataclass
class QuerySample:
    """One query between two observations."""

    seen: QuerySeen
    delivered: Delivered
    why: tuple[float, float, float, float]
    """Mean seconds that its results spent: waiting for their turn, in its own work, before admission (the
    source), and with the sink."""


@dataclass
class Sample:
    """What happened between two observations."""

    seen: Observation
    seconds: float
    queries: dict[str, QuerySample]
    version: int
    """Of the network; a page that knows another one asks for it again."""


@dataclass
class Totals:
    """What the metrics need of a query, since the start."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0
    late: int = 0


class Watch:
    """Follows a run through its line, also where another run succeeds it."""

    def __init__(self, runner: Callable[[], Watched | None], every: float = 1.0) -> None:
        self._runner, self.every = runner, every
        self._hooks: list[Hook] = []
        self._missed_for = 30.0
        self.samples: deque[Sample] = deque()
        self.totals: dict[str, Totals] = {}
        self.events: deque[Event] = deque(maxlen=200)
        self.version = 0
        self.listeners: list[Callable[[Sample], None]] = []
        """Called on the watching thread for every sample."""
        self.took = 0.0
        """Processor seconds of all observations together."""
        self.at = 0.0
        """When the last observation was made, by ``time.monotonic``."""
        self._before: Observation | None = None
        self._network: Network | None = None
        self._told: dict[str, str] = {}
        self._missing: dict[str, float] = {}
        self._alerted: set[str] = set()
        self._waiting: dict[str, int] = {}
        """By stopped query, the rows at which its backlog is told next."""
        self._problems = self._calls = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    # --- the thread ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch; again and again is the same as once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="headgate-watch", daemon=True)
            self._thread.start()

    def stop(self, report: Report | None = None) -> None:
        """The run is over; what failed and was not told yet is told now."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        for name, query in report.queries.items() if report is not None else ():
            if query.error is not None:
                self._tell_state(name, "failed", str(query.error), report.seconds if report else 0.0)

    def _work(self) -> None:
        rest = 0.0
        while not self._over.wait(max(self.every, rest)):
            begin = time.thread_time()
            try:
                self.look()
            except Exception:  # watching must not end a run
                LOG.exception("The run could not be observed.")
            spent = time.thread_time() - begin
            self.took += spent
            rest = REST * spent

    def look(self) -> Sample | None:
        """Take one observation; None while there is no run."""
        runner = self._runner()
        if runner is None:
            return None
        before = self._before
        seen = runner.observe(0 if before is None else before.calls_total)
        self.at = time.monotonic()
        if seen.network is not self._network:
            self._network, before = seen.network, None
            self.version += 1
        if before is not None and seen.now <= before.now:
            return None
        seconds = seen.now - (before.now if before is not None else 0.0)
        why = reasons(before, seen)
        queries = {}
        for name, query in seen.queries.items():
            if query.report.recent is None:
                query.report.recent = deque(maxlen=20_000)
            delivered = Delivered.of(_taken(query.report.recent), seen.network.goals.get(name))
            self._add_totals(name, delivered)
            queries[name] = QuerySample(query, delivered, why(name, delivered))
        sample = Sample(seen, seconds, queries, self.version)
        self._before = seen
        self._keep(sample)
        self._tell(sample)
        for listener in list(self.listeners):
            listener(sample)
        return sample

    def _keep(self, sample: Sample) -> None:
        self.samples.append(sample)
        size = max(1, len(sample.queries) + len(sample.seen.boxes))
        while len(self.samples) > min(1_200, max(70, CELLS // size)):
            self._calls -= len(self.samples.popleft().seen.calls)
        self._calls += len(sample.seen.calls)
        while self._calls > MOST_CALLS:
            oldest = next(s for s in self.samples if s.seen.calls)
            self._calls -= len(oldest.seen.calls)
            oldest.seen.calls = []

    def _add_totals(self, name: str, delivered: Delivered) -> None:
        totals = self.totals.setdefault(name, Totals())
        totals.late += delivered.late
        for seconds, rows in delivered.values:
            totals.seconds += seconds * rows
            totals.buckets[bisect_left(BUCKETS, seconds)] += rows

    def goals_changed(self) -> None:
        """QoS graphs are part of what a page shows of the network."""
        self.version += 1

    # --- the last minute ----------------------------------------------------------------------------

    def last(self, name: str, seconds: float = MINUTE) -> dict[str, Any]:
        """A query's figures over the last ``seconds``: results, late ones, latency, utility."""
        samples = list(self.samples)
        end = samples[-1].seen.now if samples else 0.0
        parts = [s.queries[name] for s in samples if s.seen.now > end - seconds and name in s.queries]
        return summed([part.delivered for part in parts])

    # --- events -------------------------------------------------------------------------------------

    def listen(self, hooks: Sequence[Hook], missed_for: float) -> None:
        """Call hooks for every event; a goal that is missed for ``missed_for`` seconds is one."""
        self._hooks, self._missed_for = list(hooks), missed_for

    def _tell(self, sample: Sample) -> None:
        now = sample.seen.now
        for name, query in sample.queries.items():
            error, waits = query.seen.report.error, query.seen.waits_for
            state = query.seen.state
            message = str(error) if error is not None else f"waits for {waits}" if waits else ""
            self._tell_state(name, state, message, now)
            self._tell_backlog(name, query.seen, now)
            if state == "running" and query.seen.report.has_qos:
                self._tell_goal(name, now)
        for problem in sample.seen.problems[self._problems :]:
            self._event("problem", None, problem, now)
        self._problems = len(sample.seen.problems)

    def _tell_state(self, name: str, state: str, message: str, now: float) -> None:
        before = self._told.get(name, "running")
        self._told[name] = state
        if state == before:
            return
        if state in ("failed", "waiting"):
            self._event(state, name, message, now)
        elif state == "running":
            self._event("running", name, "runs again", now)

    def _tell_backlog(self, name: str, seen: QuerySeen, now: float) -> None:
        if seen.state != "failed":
            self._waiting.pop(name, None)
        elif seen.backlog >= self._waiting.get(name, WAITING):
            self._waiting[name] = 2 * seen.backlog
            text = f"{seen.backlog:,} rows wait for it; restart it, or remove it and let them go"
            self._event("backlog", name, text, now)

    def _tell_goal(self, name: str, now: float) -> None:
        rows = worth = 0.0
        for sample in reversed(self.samples):
            if sample.seen.now <= now - WINDOW:
                break
            own = sample.queries.get(name)
            if own is not None and own.delivered.worth is not None:
                rows, worth = rows + own.delivered.rows, worth + own.delivered.worth
        if not rows:
            return
        utility = worth / rows
        if utility >= MISSED:
            self._missing.pop(name, None)
            if name in self._alerted:
                self._alerted.discard(name)
                self._event("goal met", name, f"utility is {utility:.2f} again", now)
            return
        since = self._missing.setdefault(name, now)
        if now - since >= self._missed_for and name not in self._alerted:
            self._alerted.add(name)
            text = f"its goal has been missed for {now - since:.0f} s: utility {utility:.2f}"
            self._event("goal missed", name, text, now)

    def _event(self, kind: str, query: str | None, message: str, now: float) -> None:
        event = Event(kind, query, message, now)
        self.events.append(event)
        level = {"failed": logging.ERROR, "running": logging.INFO, "goal met": logging.INFO}
        text = f"query '{query}' {kind}: {message}" if query is not None else f"{kind}: {message}"
        extra = {"headgate": {"kind": kind, "query": query, "message": message, "at": now}}
        LOG.log(level.get(kind, logging.WARNING), text, extra=extra)
        for hook in list(self._hooks):
            try:
                hook(event)
            except Exception:  # a hook that raises is dropped, not fatal
                self._hooks.remove(hook)
                LOG.exception("A hook failed and is not called any more.")


def _taken(recent: deque[tuple[float | Seconds, int]]) -> Iterator[tuple[float | Seconds, int]]:
    """What was handed over since the last look; threads that hand over may add meanwhile."""
    for _ in range(len(recent)):
        yield recent.popleft()


def summed(parts: Sequence[Delivered]) -> dict[str, Any]:
    """Several samples of one query as plain figures."""
    values = sorted([value for part in parts for value in part.values])
    rows = sum(part.rows for part in parts)
    worth = [part.worth for part in parts if part.worth is not None]
    return {
        "rows": rows,
        "late": sum(part.late for part in parts),
        "p50": percentile(values, rows, 50),
        "p99": percentile(values, rows, 99),
        "utility": sum(worth) / rows if worth and rows else None,
    }


def percentile(values: Sequence[tuple[float, int]], rows: int, percent: float) -> float | None:
    """Of values in order, each with its rows."""
    rank = 0
    for seconds, own in values:
        rank += own
        if rank >= rows * percent / 100:
            return seconds
    return None
