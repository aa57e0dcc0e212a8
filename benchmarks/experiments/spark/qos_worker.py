"""One measurement of ``headgate bench spark-qos``, in a process of its own.

python -m benchmarks.experiments.spark.qos_worker --side qos --rate 10000 --seconds 20
"""

from __future__ import annotations

import _thread
import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

import headgate as hg
from benchmarks.experiments.spark.latencies import Note, Recorder, percentiles
from benchmarks.workloads import many_queries
from headgate.demo import small_queries
from headgate.demo.small_queries import Question
from headgate.errors import HeadgateError

POLICIES = ("mc", "qos", "round_robin")
STRUCTURED = "structured-fair"
TIGHT = hg.QoS([(0, 1), (0.5, 1), (2, 0)])
LOOSE = hg.QoS([(0, 1), (5, 1), (20, 0)])
BURSTS = 20
"""Arrivals per second at Headgate's source."""
WARM_LIMIT = 90.0
GRACE = LOOSE.points[-1][0]
"""Seconds after which a result of any query is worth nothing."""
LOOK = 0.5


def questions(n: int) -> list[Question]:
    """``n`` questions, every third one tight: alerts, sums by user that run, and counts of every second."""
    made = []
    for number in range(n):
        rest, limit = many_queries.cut(number)
        where = f"item % {many_queries.RESTS} = {rest} AND price > {limit}"
        tight = number % 3 == 0
        kind = ("alert", "sum", "count")[number // 3 % 3]
        name = f"{kind}-{number:03d}"
        if kind == "alert":
            columns = ("user", "item", f"price * {number + 1} AS worth", "ts")
            made.append(Question(name, f"clicks with {where}", where, columns, tight=tight))
        elif kind == "sum":
            aggregates = ("sum(price) AS spent", "count(*) AS n")
            kept = ("user", "price", "ts")
            made.append(Question(name, f"spent on {where}", where, kept, ("user",), aggregates, tight=tight))
        else:
            aggregates = ("count(*) AS n", "sum(price) AS revenue")
            asks = f"clicks with {where} of every second"
            counts = Question(name, asks, where, (), ("category",), aggregates, "tumbling", 1, 1, tight=tight)
            made.append(counts.timed)
    return made


def graph(question: Question) -> hg.QoS:
    return TIGHT if question.tight else LOOSE


# --- what was seen -----------------------------------------------------------------------------------------


@dataclass
class Answers:
    """What one query gave for what arrived between two times.

    Each hand-over answers the input since the one before, up to the newest click among its causes.  Input
    that was never answered is worth nothing.
    """

    question: Question
    start: float
    end: float
    fronts: list[tuple[float, float]] = field(default_factory=list)
    """When it had answered everything up to when."""
    latencies: list[npt.NDArray[np.float64]] = field(default_factory=list)
    weights: list[npt.NDArray[np.float64]] = field(default_factory=list)
    worth: float = 0.0
    """Utility, times the seconds of input that had it."""

    def add(self, at: float, causes: npt.NDArray[np.float64]) -> None:
        """A hand-over, in the order of time."""
        before = self.front()
        newest = float(causes.max())
        self.fronts.append((at, max(before, newest)))
        low, high = max(before, self.start), min(newest, self.end)
        if high <= low:
            return
        own = at - causes[(causes >= low) & (causes <= high)]
        if not len(own):  # its results began before the time of interest or go beyond it
            own = np.array([at - high])
        self.latencies.append(own)
        self.weights.append(np.full(len(own), (high - low) / len(own)))
        self.worth += float(graph(self.question).utilities(own).mean()) * (high - low)

    def front(self, now: float | None = None) -> float:
        """Up to when input had been answered at a time, or at last."""
        known = [front for at, front in self.fronts if now is None or at <= now]
        return known[-1] if known else 0.0

    def close(self, now: float) -> float:
        """Nothing more will be seen: seconds of input without an answer, which are worth nothing."""
        answered = min(max(self.front(), self.start), self.end)
        missing = self.end - answered
        if missing > 0:
            self.latencies.append(np.array([now - (answered + self.end) / 2]))
            self.weights.append(np.array([missing]))
        return missing


@dataclass(frozen=True)
class Found:
    """One side at one rate.  Each query weighs the same."""

    side: str
    rate: int
    utility: float
    tight: float
    loose: float
    tight_p50: float
    tight_p99: float
    loose_p50: float
    loose_p99: float
    backlog: float
    """Tuples that had no answer yet when the last of those looked at arrived, per query."""
    unanswered: float
    """Share of the tuples looked at that never had one before it was worth nothing."""
    growth: float
    """Seconds by which answers fell behind in a second."""
    steps: int = 0
    seconds: float = 0.0
    """Of the whole run, to which the steps belong."""
    note: str = ""

    def to_data(self) -> dict[str, object]:
        return asdict(self)


def found(
    side: str, rate: int, asked: Sequence[Question], notes: Sequence[Note], start: float, end: float
) -> Found:
    """What the hand-overs seen mean for input that arrived between two times."""
    answers = {question.name: Answers(question, start, end) for question in asked}
    for query, at, causes in notes:
        answers[query].add(at, causes)
    now = max(end, *(at for _, at, _ in notes)) if notes else end
    missing = [each.close(now) for each in answers.values()]
    span = end - start

    def utility(which: Callable[[Question], bool]) -> float:
        return float(np.mean([a.worth / span for a in answers.values() if which(a.question)]))

    def seconds(tight: bool) -> list[float]:
        own = [a for a in answers.values() if a.question.tight == tight]
        values = [part for a in own for part in a.latencies]
        return percentiles(values, [part for a in own for part in a.weights], (50, 99))

    times = np.arange(start, end + LOOK / 2, LOOK)
    lags = [np.mean([t - max(a.front(t), start - GRACE) for a in answers.values()]) for t in times]
    p50, p99 = seconds(True)
    loose_p50, loose_p99 = seconds(False)
    return Found(
        side,
        rate,
        utility(lambda question: True),
        utility(lambda question: question.tight),
        utility(lambda question: not question.tight),
        p50,
        p99,
        loose_p50,
        loose_p99,
        float(lags[-1]) * rate,
        float(np.mean(missing)) / span,
        float(np.polyfit(times, lags, 1)[0]),
    )


def observe(
    recorder: Recorder, settle: float, seconds: float, shift: Callable[[], float]
) -> tuple[float, float]:
    """Wait until all queries answer, and on until what arrives in ``seconds`` has been answered, or is not
    worth it any more; between which times that arrived."""
    begin = time.monotonic()
    while not recorder.settled() and time.monotonic() - begin < WARM_LIMIT:
        time.sleep(0.25)
    time.sleep(settle)
    start = time.time()
    end = start + seconds
    time.sleep(seconds)
    while time.time() < end + GRACE and any(front < end for front in recorder.fronts(shift()).values()):
        time.sleep(0.25)
    return start, end


# --- sides -------------------------------------------------------------------------------------------------


def measure(side: str, queries: int, rate: int, seconds: float, settle: float) -> Found:
    """Run one side at a rate; call it in a fresh process."""
    asked = questions(queries)
    if side == STRUCTURED:
        return _structured(asked, rate, seconds, settle)
    return _headgate(side, asked, rate, seconds, settle)


def _structured(asked: list[Question], rate: int, seconds: float, settle: float) -> Found:
    from benchmarks.peers import structured

    recorder = Recorder([question.name for question in asked], structured.PERIOD)
    spark = structured.session(fair=True)
    folder = Path(tempfile.mkdtemp(prefix="headgate-structured-"))
    running = structured.start(spark, asked, rate, recorder, folder, fair=True)
    start, end = observe(recorder, settle, seconds, lambda: 0.0)
    structured.check(running)
    return found(STRUCTURED, rate, asked, recorder.notes(), start, end)


def _headgate(policy: str, asked: list[Question], rate: int, seconds: float, settle: float) -> Found:
    recorder = Recorder([question.name for question in asked], 1 / BURSTS)
    began = datetime.now(UTC)
    app = hg.App("spark-qos")
    source = app.source("clicks", hg.from_rate(rate, burst=max(rate // BURSTS, 1), start_time=began))
    for question in asked:
        # Every query makes its own clicks from numbers, as Structured Streaming's queries do.
        answers = small_queries.ask(question, small_queries.clicks(source))
        answers.to(question.name, hg.to_function(recorder), qos=graph(question))
    # The source counts from the moment at which the run starts, which only the run knows.
    offsets: list[float] = []
    spans: list[tuple[float, float]] = []

    def follow(report: hg.Report) -> None:
        offsets.append(time.time() - report.seconds)

    def shift() -> float:
        return began.timestamp() - min(offsets, default=began.timestamp())

    def look() -> None:
        while not offsets:  # on a busy machine Spark takes its time to start
            time.sleep(0.1)
        spans.append(observe(recorder, settle, seconds, shift))
        # As after Ctrl-C: the run ends here, and still reports.
        _thread.interrupt_main()

    threading.Thread(target=look, daemon=True).start()
    longest = WARM_LIMIT + settle + seconds + GRACE + 30
    report = app.run(hg.Spark(master="local[2]"), policy, until=longest, progress=follow)
    errors = [query.error for query in report.queries.values() if query.error is not None]
    if errors or not spans:
        said = errors[0] if errors else "the run ended before it could be measured"
        raise HeadgateError(f"{policy}: {len(errors)} queries failed: {said}")
    seen = found(policy, rate, asked, recorder.notes(shift()), *spans[0])
    parts = ", ".join(f"{part} {1000 * s / report.steps:.0f}" for part, s in report.step_seconds.items())
    extra = {"steps": report.steps, "seconds": report.seconds, "note": f"ms per step: {parts}"}
    return Found(**(seen.to_data() | extra))  # type: ignore[arg-type]


def main() -> None:
    """Measure one side and write what was found as JSON, the last line of the output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=(*POLICIES, STRUCTURED), required=True)
    parser.add_argument("--queries", type=int, default=60)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--settle", type=float, default=10.0)
    given = parser.parse_args()
    try:
        seen = measure(given.side, given.queries, given.rate, given.seconds, given.settle)
    except HeadgateError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    print("\n" + json.dumps(seen.to_data()), flush=True)
    # Streaming queries and their JVM: the process that measured ends them all at once.
    os._exit(0)


if __name__ == "__main__":
    main()
