"""One measurement of ``headgate bench spark-many``, in a process of its own.

    python -m benchmarks.experiments.spark.many_worker --side structured-fifo --queries 50 --seconds 20

So no session's leftovers disturb the next, and hundreds of streaming queries end with their process.
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
from datetime import UTC, datetime
from pathlib import Path

import headgate as hg
from benchmarks.experiments.spark.latencies import Measurement, Recorder, Span, measurement, watch
from benchmarks.workloads import many_queries
from headgate.demo import small_queries
from headgate.demo.small_queries import Question
from headgate.errors import HeadgateError

SIDES = (
    "headgate",
    "headgate-threads",
    "structured-fifo",
    "structured-fair",
    "fused-arrow",
    "fused-jvm",
    "real-time",
)
RATE = 5_000
SETTLE = 10.0
"""Seconds after every query has answered before measuring starts, on either side."""
WARM_LIMIT = 120.0
PATIENCE = 90.0


def measure(side: str, queries: int, keyed: bool, seconds: float, rate: int, settle: float) -> Measurement:
    """Run one side with so many queries and measure it; call it in a fresh process."""
    questions = many_queries.many(queries, keyed=keyed)
    if side.startswith("headgate"):
        return _headgate(side, questions, keyed, seconds, rate, settle)
    return _structured(side, questions, keyed, seconds, rate, settle)


def _structured(
    side: str, questions: list[Question], keyed: bool, seconds: float, rate: int, settle: float
) -> Measurement:
    from benchmarks.peers import structured

    recorder = Recorder([question.name for question in questions], structured.PERIOD)
    spark = structured.session(fair=side.endswith("fair"))
    # Queries are still writing to it when this process ends; the process that started it clears up.
    folder = Path(tempfile.mkdtemp(prefix="headgate-structured-"))
    if side == "real-time":
        refused = structured.refusal(spark, questions[0], rate, folder)
        return _not_measured(side, len(questions), keyed, refused or "not refused, but not measured")
    if side.startswith("fused"):
        way = side.removeprefix("fused-")
        running = structured.start_fused(spark, questions, rate, recorder, folder, way, keyed)
    else:
        running = structured.start(spark, questions, rate, recorder, folder, side.endswith("fair"))
    span = watch(recorder, settle, seconds, WARM_LIMIT, PATIENCE, lambda: structured.check(running))
    structured.check(running)
    parts = ", ".join(f"{part} {millis:.0f}" for part, millis in structured.parts(running).items())
    return measurement(side, keyed, recorder, span, rate, note=f"ms per batch: {parts}")


def measure_shop(seconds: float, rate: int, settle: float) -> list[Measurement]:
    """The demo's small questions as plain Structured Streaming: the tight ones, then the loose ones."""
    from benchmarks.peers import structured

    questions = [question.timed for question in small_queries.QUESTIONS]
    recorder = Recorder([question.name for question in questions], structured.PERIOD)
    spark = structured.session(fair=True)
    folder = Path(tempfile.mkdtemp(prefix="headgate-structured-"))
    running = structured.start(spark, questions, rate, recorder, folder, fair=True)
    span = watch(recorder, settle, seconds, WARM_LIMIT, seconds, lambda: structured.check(running))
    structured.check(running)
    return [
        measurement(
            "structured-fair",
            True,
            recorder,
            span,
            rate,
            graphs={q.name: q.qos for q in questions if q.tight == tight},
        )
        for tight in (True, False)
    ]


def _not_measured(side: str, queries: int, keyed: bool, why: str) -> Measurement:
    nothing = float("nan")
    return Measurement(side, queries, keyed, nothing, nothing, 0, queries, 0, 0.0, nothing, why)


def _headgate(
    side: str, questions: list[Question], keyed: bool, seconds: float, rate: int, settle: float
) -> Measurement:
    recorder = Recorder([question.name for question in questions], 1.0)
    engine = _engine(side)
    start = datetime.now(UTC)
    app = hg.App("spark-many")
    source = hg.from_rate(rate, burst=rate, start_time=start)
    clicks = small_queries.clicks(app.source("clicks", source))
    for question in questions:
        sink = hg.to_function(recorder)
        small_queries.ask(question, clicks).to(question.name, sink, qos=question.qos)

    # The source counts from the moment at which the run starts, which only the run knows.
    offsets: list[float] = []
    spans: list[Span] = []

    def follow(report: hg.Report) -> None:
        offsets.append(time.time() - report.seconds)

    def look() -> None:
        spans.append(watch(recorder, settle, seconds, WARM_LIMIT, PATIENCE))
        # As after Ctrl-C: the run ends here, and still reports.
        _thread.interrupt_main()

    threading.Thread(target=look, daemon=True).start()
    longest = WARM_LIMIT + settle + max(seconds, PATIENCE) + 30
    report = app.run(engine, until=longest, progress=follow)
    errors = [query.error for query in report.queries.values() if query.error is not None]
    if errors or not spans:
        said = errors[0] if errors else "the run ended before it could be measured"
        raise HeadgateError(f"{side}: {len(errors)} queries failed: {said}")
    shift = start.timestamp() - min(offsets)
    return measurement(side, keyed, recorder, spans[0], rate, shift=shift)


def _engine(side: str) -> hg.Engine:
    return hg.Threads(workers=2) if side == "headgate-threads" else hg.Spark(master="local[2]")


def main() -> None:
    """Measure one side and write what was found as JSON, the last line of the output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=(*SIDES, "shop"), required=True)
    parser.add_argument("--queries", type=int, default=10)
    parser.add_argument("--keyed", action="store_true")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=int, default=RATE)
    parser.add_argument("--settle", type=float, default=SETTLE)
    given = parser.parse_args()
    try:
        if given.side == "shop":
            data: object = [each.to_data() for each in measure_shop(given.seconds, given.rate, given.settle)]
        else:
            found = measure(given.side, given.queries, given.keyed, given.seconds, given.rate, given.settle)
            data = found.to_data()
    except HeadgateError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    print("\n" + json.dumps(data), flush=True)
    # Hundreds of streaming queries and their JVM: the process that measured ends them all at once.
    os._exit(0)


if __name__ == "__main__":
    main()
