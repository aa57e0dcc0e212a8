"""Many small continuous queries on one Spark session: Headgate against Structured Streaming.

For several numbers of queries, stateless and keyed: Headgate on Spark; Structured Streaming with one
``StreamingQuery`` per question, in FIFO and in FAIR pools; all questions fused by hand into one
``StreamingQuery`` with ``foreachBatch``; and the real-time trigger, where it takes the source.  Both sides
read 5,000 rows a second that come once a second, as Spark's rate source gives them, ask the same text of
them, and hand results to the same Python function; latency is measured there, from a row's arrival.  Each
measurement is a process of its own, on two cores, warmed up until every query has answered.

What favours Structured Streaming: its queries' bursts are spread over the second by their different starts,
and its sums by key give one result per key and batch, timed by the newest of the batch's rows, where
Headgate gives one per row.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import apart
from benchmarks.experiments.spark.latencies import Measurement
from benchmarks.result import Result
from headgate.errors import HeadgateError

SIZES = (1, 10, 50, 150, 500, 1_000)
QUICK_SIZES = (1, 5, 20)
LIMIT = 180.0
"""Seconds after which a measurement is given up."""
TOO_SLOW = 60.0
"""A system whose median result is that old is not tried with more queries."""
NAMES = {
    "headgate": "Headgate on Spark",
    "headgate-threads": "Headgate on threads",
    "structured-fifo": "Structured Streaming, FIFO",
    "structured-fair": "Structured Streaming, FAIR",
    "fused-arrow": "fused by hand, Arrow",
    "fused-jvm": "fused by hand, JVM",
    "real-time": "real-time trigger",
}
FUSED = ("fused-arrow", "fused-jvm")

Found = dict[tuple[str, int, bool], Measurement]


def run(quick: bool, console: Console) -> list[Result]:
    """All sizes and sides, then the claims."""
    sizes = QUICK_SIZES if quick else SIZES
    seconds, settle = (8.0, 4.0) if quick else (20.0, 10.0)
    found: Found = {}
    for keyed in (False, True):
        given_up: set[str] = set()
        for size in sizes:
            for side in ("headgate", "structured-fifo", "structured-fair", *FUSED, "real-time"):
                if side in given_up or (side == "real-time" and size > 1):
                    continue
                measured = measure(side, size, keyed, seconds, settle, console)
                if measured is None:
                    given_up.add(side)
                    continue
                found[side, size, keyed] = measured
                console.print(describe(measured), highlight=False)
                if measured.p50 > TOO_SLOW:
                    console.print(f"  {NAMES[side]} is past {TOO_SLOW:g} s: not tried with more queries.")
                    given_up.add(side)
    console.print(table(found))
    return claims(found, "headgate")


def measure(
    side: str, queries: int, keyed: bool, seconds: float, settle: float, console: Console
) -> Measurement | None:
    """One measurement in a process of its own; None if it failed or took too long, with the reason said."""
    options = ["--queries", str(queries), *(["--keyed"] if keyed else [])]
    try:
        found = worker(side, seconds, settle, *options)
    except HeadgateError as error:
        what = f"{NAMES[side]}, {queries} {'keyed' if keyed else 'stateless'}"
        console.print(f"{what}: {error}", highlight=False, markup=False)
        return None
    return Measurement(**found)


def worker(
    side: str,
    seconds: float,
    settle: float,
    *options: str,
    module: str = "many_worker",
    limit: float = LIMIT,
) -> Any:
    """What a process that measures one side found."""
    command = [*apart.PYTHON, "-m", f"benchmarks.experiments.spark.{module}", "--side", side, *options]
    command += ["--seconds", str(seconds), "--settle", str(settle)]
    folder = Path(tempfile.mkdtemp(prefix="headgate-spark-many-"))
    try:
        out, error, code = _in_own_group(command, {**apart.environment(), "TMPDIR": str(folder)}, limit)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if code is None:
        raise HeadgateError(f"not done within {limit:g} s, given up.")
    lines, said = out.strip().splitlines(), error.strip().splitlines()
    if code or not lines:
        raise HeadgateError(f"failed: {said[-1] if said else f'exit code {code}'}")
    return json.loads(lines[-1])


def _in_own_group(command: list[str], env: Mapping[str, str], limit: float) -> tuple[str, str, int | None]:
    """Output, errors and exit code of a command; all that it started ends with it."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
    code: int | None = None
    try:
        out, error = process.communicate(timeout=limit)
        code = process.returncode
    except subprocess.TimeoutExpired:
        out = error = ""
    finally:
        # The JVM and its workers stay in the group and outlive a process that ends in a hurry.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return out, error, code


def describe(measured: Measurement) -> str:
    """One line for people."""
    head = f"{NAMES[measured.side]}, {measured.queries} {'keyed' if measured.keyed else 'stateless'}: "
    if math.isnan(measured.p50):
        return head + f"n/a: {measured.note}".replace("[", "\\[")
    return head + f"p50 {measured.p50:.3f} s, p99 {measured.p99:.3f} s, {measured.held} queries under 1 s"


def table(found: Found) -> Table:
    """All measurements."""
    made = Table(title="arrival to the function that gets the result", title_justify="left")
    for column in ("kind", "queries", "system"):
        made.add_column(column)
    for column in ("p50 s", "p99 s", "queries under 1 s", "silent", "CPU s per M tuples"):
        made.add_column(column, justify="right")
    for (side, size, keyed), measured in sorted(found.items(), key=lambda each: (each[0][2], each[0][1])):
        cells = (f"{measured.p50:.3f}", f"{measured.p99:.3f}", f"{measured.held} of {size}")
        more = (str(measured.silent), f"{measured.cpu_per_million:.1f}")
        made.add_row(
            "keyed" if keyed else "stateless",
            str(size),
            NAMES[side],
            *((*cells, *more) if not math.isnan(measured.p50) else ("n/a",) * 5),
        )
    made.caption = (
        "Each query weighs the same. Under 1 s: by the query's median. Silent: without any result while it "
        "was measured, counted with the time since its last one. CPU: this process, the JVM and the Python "
        "workers, from /proc, over the stream's tuples; every query sees each of them."
    )
    return made


# --- claims ------------------------------------------------------------------------------------------------


def claims(found: Found, ours: str) -> list[Result]:
    """The claims, with what was measured."""
    results = []
    for (side, size, keyed), measured in sorted(found.items(), key=lambda each: (each[0][2], each[0][1])):
        if side == ours:
            results += _claims(found, measured, size, keyed)
        elif not math.isnan(measured.p50):
            name = f"spark-many, {_what(size, keyed)}, {NAMES[side]}"
            results.append(Result(name, "our aim", "p50 latency, s", measured.p50, None, None))
    return results


def _claims(found: Found, measured: Measurement, size: int, keyed: bool) -> list[Result]:
    what = f"spark-many, {_what(size, keyed)}"
    results = []
    theirs = _best(found, ("structured-fifo", "structured-fair"), size, keyed)
    if theirs is not None:
        claim, holds = "p50 latency, s", None
        times = {50: 15, 150: 50}.get(size)
        if times is not None:
            claim += f": at least {times} times lower than Structured Streaming's"
            holds = measured.p50 * times <= theirs.p50
        elif size == 1:
            claim += ": not more than Structured Streaming's"
            holds = measured.p50 <= theirs.p50
        name = f"{what}, against {NAMES[theirs.side]}"
        results.append(Result(name, "our aim", claim, measured.p50, theirs.p50, holds))
    fused = _best(found, FUSED, size, keyed)
    if fused is not None and size > 1:
        claim = "p50 latency, s: not more than the hand-fused query's"
        name = f"{what}, against {NAMES[fused.side]}"
        results.append(Result(name, "our aim", claim, measured.p50, fused.p50, measured.p50 <= fused.p50))
    if size == 500 and not keyed:
        claim = "p50 latency, s: under 0.4"
        results.append(Result(what, "our aim", claim, measured.p50, None, measured.p50 < 0.4))
    if size == 1_000 and not keyed:
        claim = "p99 latency, s: under 1"
        results.append(Result(f"{what}, p99", "our aim", claim, measured.p99, None, measured.p99 < 1.0))
    held = theirs.held if theirs else None
    results.append(Result(f"{what}, under 1 s", "our aim", "queries", measured.held, held, None))
    spent = theirs.cpu_per_million if theirs else None
    claim = "CPU s per million tuples"
    results.append(Result(f"{what}, CPU", "our aim", claim, measured.cpu_per_million, spent, None))
    return results


def _best(found: Found, sides: tuple[str, ...], size: int, keyed: bool) -> Measurement | None:
    """The fastest of these: a claim has to hold against the best of them."""
    there = [found[side, size, keyed] for side in sides if (side, size, keyed) in found]
    return min(there, key=lambda measured: measured.p50, default=None)


def _what(size: int, keyed: bool) -> str:
    return f"{size} {'keyed' if keyed else 'stateless'} quer{'y' if size == 1 else 'ies'}"
