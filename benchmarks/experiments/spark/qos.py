"""QoS under contention on Spark: sixty queries, a third of them tight, at 0.8 and 1.2 of what ``mc`` can do.

Tight queries have the QoS graph (0, 1) (0.5, 1) (2, 0), loose ones (0, 1) (5, 1) (20, 0).  They are alerts,
running sums by user and counts of every second, each from the source on, so that none shares another's work.
Capacity is the highest rate at which ``mc`` keeps a flat backlog: answers fall behind by no more than so many
milliseconds in a second.  It is searched for first; then ``qos``, ``round_robin`` (a box at a time, so a
Spark job per box), ``mc`` and Structured Streaming, a query and a FAIR pool per question, run at 0.8 and at
1.2 of it.  Each measurement is a process of its own, on two cores, warmed up until every query has answered.

Utility is counted over input, not over results, so that starving does not look good: a hand-over answers
what has arrived since the one before, at the utility of its results; what has no answer when it would be
worth nothing any more has utility 0.  Each query weighs the same.

What favours Structured Streaming: its rate source gives the rows of a second when it is over, they count as
arrived then, and its sums by key are timed by the newest row of a key and batch.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.spark.many import worker
from benchmarks.experiments.spark.qos_worker import STRUCTURED, Found
from benchmarks.result import Result
from headgate.errors import HeadgateError

QUERIES = 60
LOADS = (0.8, 1.2)
SIDES = ("qos", "mc", "round_robin", STRUCTURED)
NAMES = {
    "qos": "Headgate, qos",
    "mc": "Headgate, mc",
    "round_robin": "Headgate, round_robin",
    STRUCTURED: "Structured Streaming, FAIR",
}
FLAT = 0.05
"""Seconds by which answers may fall behind in a second while a backlog counts as flat."""
FIRST_RATE = 16_000
LIMIT = 300.0
"""Seconds after which a measurement is given up."""
FINEST = 1.12
"""The search ends when the highest rate that was flat and the lowest that was not are that close."""


def run(quick: bool, console: Console) -> list[Result]:
    """Find the capacity, then compare at both loads."""
    seconds, settle = (10.0, 5.0) if quick else (30.0, 10.0)
    rate = capacity(seconds, settle, console)
    if rate is None:
        return []
    found: dict[tuple[float, str], Found] = {}
    for load in LOADS:
        for side in SIDES:
            seen = measure(side, round(load * rate), seconds, settle, console)
            if seen is not None:
                found[load, side] = seen
    console.print(table(found, rate))
    return [Result("spark-qos, capacity", "our aim", "tuples/s with mc", rate, None, None), *claims(found)]


def capacity(seconds: float, settle: float, console: Console) -> int | None:
    """The highest rate at which ``mc`` keeps a flat backlog, within ``FINEST``; None if there is none."""
    low, high = 0, 0
    rate = FIRST_RATE
    while not (low and high and high <= low * FINEST):
        seen = measure("mc", rate, seconds, settle, console)
        if seen is not None and seen.growth <= FLAT:
            low = rate
        else:
            high = rate
        if not low and high < FIRST_RATE // 16:
            console.print("mc does not keep up with any rate: the machine is too busy to measure.")
            return None
        rate = round((low * high) ** 0.5) if low and high else 2 * low or high // 2
    console.print(f"capacity: {low:,} tuples/s, and {high:,} are too many.", highlight=False)
    return low


def measure(side: str, rate: int, seconds: float, settle: float, console: Console) -> Found | None:
    """One measurement in a process of its own; None if it failed or took too long, with the reason said."""
    options = ["--queries", str(QUERIES), "--rate", str(rate)]
    try:
        seen = Found(**worker(side, seconds, settle, *options, module="qos_worker", limit=LIMIT))
    except HeadgateError as error:
        console.print(f"{NAMES[side]}, {rate:,} tuples/s: {error}", highlight=False, markup=False)
        return None
    console.print(describe(seen), highlight=False)
    return seen


def describe(seen: Found) -> str:
    """One line for people."""
    return (
        f"{NAMES[seen.side]}, {seen.rate:,} tuples/s: utility tight {seen.tight:.3f}, loose "
        f"{seen.loose:.3f}; p99 tight {seen.tight_p99:.2f} s, loose {seen.loose_p99:.2f} s; "
        f"{seen.growth:+.3f} s further behind in a second"
    )


def table(found: dict[tuple[float, str], Found], rate: int) -> Table:
    """All measurements."""
    made = Table(title=f"{QUERIES} queries, capacity {rate:,} tuples/s", title_justify="left")
    for column in ("load", "system"):
        made.add_column(column)
    for column in (
        "utility",
        "tight",
        "loose",
        "tight p50 / p99 s",
        "loose p50 / p99 s",
        "waiting",
        "never",
        "steps",
    ):
        made.add_column(column, justify="right")
    for (load, side), seen in found.items():
        made.add_row(
            f"{load:g}",
            NAMES[side],
            *(f"{value:.3f}" for value in (seen.utility, seen.tight, seen.loose)),
            f"{seen.tight_p50:.2f} / {seen.tight_p99:.2f}",
            f"{seen.loose_p50:.2f} / {seen.loose_p99:.2f}",
            f"{seen.backlog:,.0f}",
            f"{100 * seen.unanswered:.1f} %",
            f"{seen.steps / seen.seconds:.1f}/s" if seen.steps else "-",
        )
    made.caption = (
        "Waiting: tuples without an answer when the last of those looked at arrived, per query. Never: of "
        "those looked at, without an answer before it was worth nothing; they count with utility 0."
    )
    return made


def claims(found: dict[tuple[float, str], Found]) -> list[Result]:
    """The claims, with what was measured."""
    results = []
    for (load, side), seen in found.items():
        if side == "qos":
            results += _claims(found, load, seen)
        else:
            what = f"spark-qos, load {load:g}, {NAMES[side]}"
            results.append(Result(f"{what}, tight", "our aim", "mean utility", seen.tight, None, None))
            results.append(Result(f"{what}, all", "our aim", "mean utility", seen.utility, None, None))
    return results


def _claims(found: dict[tuple[float, str], Found], load: float, ours: Found) -> list[Result]:
    what = f"spark-qos, load {load:g}"
    results = []
    if load <= 1:
        claim = "mean utility: at least 0.95"
        results.append(Result(what, "our aim", claim, ours.utility, None, ours.utility >= 0.95))
    else:
        claim = "mean utility of tight queries: at least 0.9"
        results.append(Result(f"{what}, tight", "our aim", claim, ours.tight, None, ours.tight >= 0.9))
    for side in ("round_robin", STRUCTURED):
        if (load, side) in found:
            theirs = found[load, side]
            claim, measured, baseline = "mean utility: more", ours.utility, theirs.utility
            holds = measured > baseline
            if load > 1:
                claim, measured, baseline = "tight: where the other loses it", ours.tight, theirs.tight
                holds = measured >= 0.9 > baseline
            name = f"{what}, against {NAMES[side]}"
            results.append(Result(name, "our aim", claim, measured, baseline, holds))
    return results
