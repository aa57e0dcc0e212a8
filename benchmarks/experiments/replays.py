"""Whether replays predict: recorded runs under other policies and workers, predicted and then measured.

A live application of filters, running sums and windows is loaded to a share of what it can do, which is
calibrated first.  Each of ten lines records a run under one policy, predicts another by replaying, and
measures that one.  Then queries of random cost ask to be admitted: the forecast against what happens when
they are added all the same.  At last, what recording and the page cost: processor time of the whole process
by tuple, which neighbours disturb least, in runs that take turns.
"""

from __future__ import annotations

import math
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

from benchmarks import parts
from benchmarks.experiments import additions
from benchmarks.result import Result
from headgate.api import App
from headgate.api.running import Running
from headgate.api.streams import Stream
from headgate.connectors.batches import from_batches
from headgate.connectors.python import to_function
from headgate.connectors.rate import from_rate
from headgate.connectors.source import Source
from headgate.control.watching import MISSED
from headgate.engines.threads import Threads
from headgate.graph.qos import QoS
from headgate.graph.windows import tumbling
from headgate.recording.recorder import Recorder, measured
from headgate.recording.replaying import Replayable
from headgate.runtime.report import Report

PAIRS = (
    ("mc", 2, "mc", 2),
    ("mc", 2, "lp", 2),
    ("mc", 2, "fcfs", 2),
    ("mc", 2, "round_robin", 2),
    ("mc", 2, "mc", 1),
    ("lp", 2, "lp", 2),
    ("lp", 2, "mc", 2),
    ("lp", 2, "qos", 2),
    ("lp", 1, "mc", 1),
    ("fcfs", 2, "lp", 1),
)
"""Recorded under a policy with so many workers, predicted for another; or for itself, and then compared with
the recorded run."""
SHARE = 0.4
"""Of the calibrated capacity of two workers."""
SECONDS = 4.0
FAR_TOO_MANY = 2_000_000.0
CLOSE, CLOSE_UTILITY = 0.5, 0.1
"""A prediction is close within half of what was measured; of a utility, within a tenth."""
COSTED = 4_000_000
"""Rows of a run for what recording and the page cost: finite, so that reading them takes the same in all."""
VIEWER = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1].partition("#")[0] + "api/stream") as stream:
    while stream.read1(65536):
        pass
"""
"""Looks at a page until the run is over, in a process of its own."""
PARTS = ("predictions", "admission", "additions", "costs")
ADDITIONS, ADDED = 30, 3.0
"""Queries that ask to join, and seconds for which each then runs."""
TIGHT, LOOSE = QoS([(0, 1), (0.1, 1), (0.5, 0)]), QoS([(0, 1), (1, 1), (4, 0)])


def _nowhere(name: str, batch: pa.RecordBatch) -> None:
    pass


def _app(rate: float, seconds: float | None = SECONDS) -> tuple[App, Stream]:
    return _queries(from_rate(rate, None if seconds is None else int(rate * seconds)))


def _queries(source: Source) -> tuple[App, Stream]:
    app = App("replays")
    rows = app.source("rows", source)
    base = rows.with_columns("value % 1000 AS k", "value % 97 AS v")
    for n in range(4):
        few = base.filter(f"v > {20 * n}").with_columns("v * 2.5 + k AS z")
        few.to(f"filter {n}", to_function(_nowhere), qos=TIGHT)
    for n in range(3):
        sums = base.filter(f"k % 3 = {n}").key_by("k").running("sum(v) AS s")
        sums.to(f"sum {n}", to_function(_nowhere), qos=LOOSE)
    for n in range(2):
        windows = base.key_by("k").window(tumbling("1 second", on="timestamp"))
        windows.agg("count(*) AS n", f"max(v + {n}) AS m").to(f"window {n}", to_function(_nowhere), qos=LOOSE)
    return app, base


def _run(
    rate: float, policy: str, workers: int, record: Path | None = None, seconds: float = SECONDS
) -> Report:
    return _app(rate, seconds)[0].run(Threads(), policy, workers, record=record)


def _capacity() -> float:
    """Rows per second that two workers do, far too many given."""
    return _run(FAR_TOO_MANY, "mc", 2, seconds=0.5).throughput


def run(quick: bool, console: Console, repeat: int | None = None, part: str | None = None) -> list[Result]:
    """``repeat``: additions that ask to join, or rounds of what recording and the page cost."""
    wanted = parts.chosen("replays", PARTS, part)
    rate = 0.0 if part in ("additions", "costs") else SHARE * _capacity()
    if rate:
        console.print(f"{rate:,.0f} rows a second, {SHARE:.0%} of the capacity")
    found: list[Result] = []
    if "predictions" in wanted:
        found += _predicted(rate, PAIRS[:3] if quick else PAIRS, console)
    if "admission" in wanted:
        found += _admitted(rate, repeat or (6 if quick else ADDITIONS), console)
    if "additions" in wanted:
        found.append(additions.measure(repeat or (6 if quick else additions.ADDITIONS), console))
    if "costs" in wanted:
        found += _costs(repeat or (3 if quick else 12), console)
    return found


def _predicted(rate: float, pairs: tuple[tuple[str, int, str, int], ...], console: Console) -> list[Result]:
    say = partial(console.print, highlight=False)
    say("recorded → predicted: predicted / measured, medians over the queries")
    errors: dict[str, list[float]] = {"p50": [], "p99": [], "utility": []}
    recorded: dict[tuple[str, int], Replayable] = {}
    with tempfile.TemporaryDirectory() as folder:
        for before, had, after, workers in pairs:
            if (before, had) not in recorded:
                path = Path(folder) / f"{before}-{had}.hgr"
                _run(rate, before, had, path)
                recorded[before, had] = Replayable(path)
            begin = time.perf_counter()
            predicted = recorded[before, had].run(after, workers)
            took = time.perf_counter() - begin
            itself = recorded[before, had].measured if (before, had) == (after, workers) else None
            cells = _against(predicted, itself or measured(_run(rate, after, workers)), errors)
            say(f"{before}, {had} → {after}, {workers}: {'; '.join(cells)}; replayed in {took:.1f} s")
    found = []
    for what, limit in (("p50", CLOSE), ("p99", CLOSE), ("utility", CLOSE_UTILITY)):
        close = sum(abs(error) <= limit for error in errors[what]) / len(errors[what])
        claim = f"share of queries whose {what} is predicted within {limit:g}"
        found.append(Result(f"replay {what}", "X1", claim, close, None, close >= 0.8))
    return found


def _against(predicted: Report, real: dict[str, Any], errors: dict[str, list[float]]) -> list[str]:
    """The cells of one line: medians over the queries."""
    told, seen = measured(predicted)["queries"], real["queries"]
    cells: dict[str, list[tuple[float, float]]] = {"p50": [], "p99": [], "utility": []}
    for name, own in seen.items():
        for what in cells:
            if own[what] is not None and told[name][what] is not None:
                cells[what].append((told[name][what], own[what]))
    late = {what: [(p - m) / m for p, m in cells[what]] for what in ("p50", "p99")}
    worth = [p - m for p, m in cells["utility"]]
    for what in ("p50", "p99"):
        errors[what] += late[what]
    errors["utility"] += worth
    middle = {
        what: [statistics.median(side) for side in zip(*pairs, strict=True)] for what, pairs in cells.items()
    }
    return [
        *[
            f"{what} {1e3 * middle[what][0]:.1f} / {1e3 * middle[what][1]:.1f} ms "
            f"({statistics.median(late[what]):+.0%}, of single queries {min(late[what]):+.0%} to "
            f"{max(late[what]):+.0%})"
            for what in ("p50", "p99")
        ],
        f"utility {middle['utility'][0]:.3f} / {middle['utility'][1]:.3f} (worst {max(worth, key=abs):+.3f})",
    ]


def _admitted(rate: float, additions: int, console: Console) -> list[Result]:
    """Ask, then add it whatever the answer is, and see whether a goal breaks."""
    chance = random.Random(5)
    app, rows = _app(rate, None)
    right = missed = false = 0
    with app.start(Threads(), "mc", 2) as running:
        time.sleep(2.0)
        for number in range(additions):
            name = f"new {number}"
            _newcomer(rows, chance, rate).to(name, to_function(_nowhere), qos=LOOSE)
            _calm(running, rate)
            found = running.forecast(name)
            was = {n: (q.worth, q.tuples_out) for n, q in running.report().queries.items()}
            running.add(name)
            time.sleep(ADDED)
            broken = _broken(running.report(), was)
            running.remove(name)
            least = min([goal.after for goal in found.goals])
            console.print(
                f"{name}: {found.need:.1f} workers, utility at least {least:.2f}; a goal broke: {broken}",
                highlight=False,
            )
            right += broken != found.fits
            missed += broken and found.fits
            false += not broken and not found.fits
    console.print(
        f"Of {additions} additions {right} were answered right; {missed} broke a goal unforeseen, {false} "
        "would have been refused for nothing."
    )
    return [
        Result("admission", "V6", "share of right answers", right / additions, None, right >= 0.8 * additions)
    ]


def _newcomer(rows: Stream, chance: random.Random, rate: float) -> Stream:
    """Half of them keep up to 1.2 times the workers busy, the others are like what runs already."""
    kind = chance.randrange(6)
    if kind < 3:
        return rows.universal(cost=chance.uniform(0.02, 1.2) * 2 / rate)
    if kind == 3:
        return rows.key_by("v").running("sum(k) AS s", "max(k) AS m")
    if kind == 4:
        return rows.filter(f"v > {chance.randrange(97)}").with_columns("sqrt(v * k) AS z")
    return rows.with_columns("upper(concat('a', cast(v AS STRING), '-', cast(k AS STRING))) AS t")


def _calm(running: Running, rate: float) -> None:
    """Until what the query before has left is worked off."""
    end = time.monotonic() + 20.0
    while time.monotonic() < end:
        seen = running._line.runner.observe(1 << 62)
        if sum(box.queued for box in seen.boxes) < rate * 0.05:
            return
        time.sleep(0.1)


def _broken(report: Report, was: dict[str, tuple[float, int]]) -> bool:
    """Whether a query with a goal has missed it since."""
    for name, query in report.queries.items():
        worth, rows = was.get(name, (0.0, 0))
        if query.has_qos and not query.removed:
            came = query.tuples_out - rows
            if not came or (query.worth - worth) / came < MISSED:
                return True
    return False


def _costs(rounds: int, console: Console) -> list[Result]:
    """Processor time of a recorder and of a page that is looked at: what they themselves took, and in turns.

    The first is what the claims are about: what their threads took, and their part of the workers' time.  The
    second, a run with each against one with neither, also has what they do to the others, and every noise.
    """
    spent: dict[str, list[float]] = {"alone": [], "recorder": [], "page": []}
    shares: dict[str, list[float]] = {"recorder": [], "page": []}
    with tempfile.TemporaryDirectory() as folder:
        _spent("alone", Path(folder))  # the first run of a process is dearer
        for n in range(rounds):
            sides = list(spent) if n % 2 else list(reversed(spent))
            for side in sides:
                whole, own = _spent(side, Path(folder))
                spent[side].append(whole)
                if side in shares:
                    shares[side].append(own / (whole - own))
    found = []
    for side, row in (("recorder", "V5"), ("page", "V1")):
        share, (least, most) = statistics.median(shares[side]), _interval(sorted(shares[side]))
        ratios = sorted(own / alone for own, alone in zip(spent[side], spent["alone"], strict=True))
        low, high = _interval(ratios)
        console.print(
            f"{side}: itself {share:.2%} of the rest ({least:.2%} to {most:.2%}); in turns the whole took "
            f"{statistics.median(ratios):.3f} of the time without ({low:.3f} to {high:.3f}), {rounds} rounds",
            highlight=False,
        )
        claim = "processor time of its own, as a share of the rest of the run's"
        found.append(Result(side, row, claim, share, 0.02, share <= 0.02))
    return found


class _Weighed(Recorder):
    """A recorder that notes what it takes itself."""

    own = 0.0

    def begin(self, core: Any) -> None:
        super().begin(core)
        core.calls.weigh = self._weighing

    def _weighing(self) -> float:
        begin = time.thread_time()
        end = time.thread_time()
        self.own += end - begin  # as long as the call that a recorder makes
        return end

    def __call__(self, stimulus: Any, instructions: Any, now: float) -> None:
        begin = time.thread_time()
        super().__call__(stimulus, instructions, now)
        self.own += time.thread_time() - begin

    def end(self, report: Report | None) -> None:
        begin, writing = time.thread_time(), _seconds_of("headgate-recorder")
        super().end(report)
        self.own += writing + time.thread_time() - begin


def _seconds_of(*names: str) -> float:
    """Processor time of the threads of these names."""
    threads = [
        thread for thread in threading.enumerate() if thread.name in names and thread.ident is not None
    ]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0)) for thread in threads)


def _spent(side: str, folder: Path) -> tuple[float, float]:
    """Processor seconds of a run, and of them those of the recorder or the page."""
    numbers = np.arange(COSTED)
    table = pa.table({"value": numbers, "timestamp": pa.array(numbers, pa.timestamp("us", tz="UTC"))})
    app, own = _queries(from_batches(table))[0], 0.0
    about = {"engine": "threads", "settings": {}, "policy": "mc", "policy_spelled": True, "seed": 0}
    recorder = _Weighed(folder / "run.hgr", about | {"drain": True}) if side == "recorder" else None
    begin = time.process_time()
    with app.start(
        Threads(),
        "mc",
        2,
        "drained",
        page=side == "page",
        telemetry=[] if recorder is None else [recorder],
    ) as running:
        viewer = None
        while not running.over:
            if viewer is None and running.page is not None:
                viewer = subprocess.Popen([sys.executable, "-c", VIEWER, running.page])
            own = max(own, _seconds_of("headgate-page", "headgate-watch"))
            time.sleep(0.02)
        running.wait()
    whole = time.process_time() - begin
    if viewer is not None:
        viewer.wait()
    if recorder is not None:
        return whole, recorder.own
    return whole, own if side == "page" else 0.0


def _interval(ascending: list[float]) -> tuple[float, float]:
    """Of the median, with 95 % certainty whatever the distribution is: order statistics by the binomial."""
    count = len(ascending)
    below, total = 0, 0.0
    while below < count // 2 and total + math.comb(count, below) / 2**count <= 0.025:
        total += math.comb(count, below) / 2**count
        below += 1
    place = max(0, below - 1)
    return ascending[place], ascending[count - 1 - place]
