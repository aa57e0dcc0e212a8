"""More cores, more rows: four questions to files of clicks, on Spark with one core and more, and elsewhere.

The sides: Headgate on ``local[1]``, ``local[2]`` and ``local[4]``, on a standalone cluster of one and of two
workers with a core each, and on threads with two workers; Structured Streaming with two cores (RocksDB,
``availableNow``); DuckDB's batch answer with two threads.  All read the same files and write Parquet.  Each
side is a process of its own, started once; they are asked in turns, the order reversed every round, while the
others are idle.  Before the first round each answers each question over a small set, so that compilers and
caches are warm everywhere.

Active rows/s leave the start-up out.  Headgate: the rows by ``report.seconds``, from the beginning of
admission, with session and Python workers started, to the last commit.  Structured Streaming: from the start
of the first trigger to the end of the query.  DuckDB: the statement.

Structured Streaming is a hundred times slower on windows, so it is measured on a twentieth of the rows.

Answers are compared by a checksum of their rows, so that no side is fast and wrong; of Structured Streaming
over the small set.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.apart import Conversation
from benchmarks.cluster import Cluster
from benchmarks.parts import chosen
from benchmarks.result import Result
from benchmarks.workloads import click_queries, clicks_files
from headgate.errors import HeadgateError

ROWS, QUICK_ROWS = 20_000_000, 1_000_000
REPEAT = 1
WARM_ROWS = 200_000
LESS = 20
"""Of how many rows Structured Streaming is measured on one."""
LIMIT = 120.0
"""Seconds after which a side is given up for a question."""
SPARK = {
    "local-1": "local[1]",
    "local-2": "local[2]",
    "local-4": "local[4]",
    "cluster-1": "one worker",
    "cluster-2": "two workers",
}
SIDES = (*SPARK, "threads", "structured", "duckdb")
NAMES = {
    **{side: f"Headgate on Spark, {where}" for side, where in SPARK.items()},
    "threads": "Headgate on threads",
    "structured": "Structured Streaming",
    "duckdb": "DuckDB, batch",
}
PARTIAL = ("structured",)
"""Sides that leave the last windows open and give running sums by batch, not by row."""


@dataclass
class Found:
    """What one side did with one question."""

    rates: list[float] = field(default_factory=list)
    """Active rows/s of each round."""
    steps: int | None = None
    whole: tuple[int, str] | None = None
    """Rows and checksum of all answers; None where a side gives only part of them."""
    common: tuple[int, str] | None = None
    """The same of the part that all sides give."""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


Answers = dict[tuple[str, str], Found]


def run(
    quick: bool,
    console: Console,
    *,
    rows: int | None = None,
    repeat: int | None = None,
    part: str | None = None,
) -> list[Result]:
    """All questions, or one, to all sides; then the claims."""
    rows = rows or (QUICK_ROWS if quick else ROWS)
    queries = chosen("spark-scale", click_queries.QUERIES, part)
    with tempfile.TemporaryDirectory(prefix="headgate-spark-scale-") as folder, sides(console) as asked:
        console.print(f"generating {rows:,} clicks …")
        clicks, small = _files(Path(folder) / "clicks", rows), _files(Path(folder) / "small", WARM_ROWS)
        part_rows = max(WARM_ROWS, rows // LESS)
        few = (_files(Path(folder) / "few", part_rows), part_rows)
        console.print("warming up: every side answers every question over a small set …")
        warm = compared(asked, small, WARM_ROWS, 1, console, queries)
        found = compared(asked, clicks, rows, repeat or REPEAT, console, queries, few)
    console.print(table(found))
    return claims(found, same(warm) and same(found), queries)


def _files(folder: Path, rows: int) -> Path:
    """Row groups of a million rows where there are enough rows for four a file, and for several files."""
    group = max(1 << 14, min(clicks_files.ROW_GROUP, rows // 16))
    return clicks_files.generate(folder, rows, row_group=group, rows_per_file=4 * group)


# --- the sides ---------------------------------------------------------------------------------------------


class Side:
    """A side's process, started when it is first asked and again after it has failed."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self._arguments = arguments
        self._process: Conversation | None = None

    def ask(self, query: str, clicks: Path, answers: Path) -> Any:
        if self._process is None:
            module = "experiments.spark.scale_worker"
            self._process = Conversation(NAMES[self.name], module, *self._arguments)
        try:
            request = {"query": query, "clicks": str(clicks), "answers": str(answers)}
            return self._process.ask(request, LIMIT)
        except HeadgateError:
            self.close()
            raise

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


@contextmanager
def sides(console: Console) -> Iterator[list[Side]]:
    """All sides, with the clusters that two of them need."""
    with ExitStack() as stack:
        console.print("starting two standalone clusters …")
        made = []
        for name in SIDES:
            if name.startswith("cluster"):
                cluster = stack.enter_context(Cluster(int(name[-1]), worker_memory="2g"))
                arguments = ["--side", "headgate", "--master", cluster.master]
            elif name in SPARK:
                arguments = ["--side", "headgate", "--master", SPARK[name]]
            else:
                arguments = ["--side", name]
            side = Side(name, *arguments)
            stack.callback(side.close)
            made.append(side)
        yield made


def compared(
    asked: list[Side],
    clicks: Path,
    rows: int,
    repeat: int,
    console: Console,
    queries: Sequence[str] = click_queries.QUERIES,
    few: tuple[Path, int] | None = None,
) -> Answers:
    """Every side's answers to every question, in turns; a side that fails one is not asked it again.

    ``few``: the files for slow sides, and their rows.
    """
    found: Answers = {}
    newest = click_queries.newest(clicks)
    failed: set[tuple[str, str]] = set()
    for turn in range(repeat):
        for query in queries:
            for side in asked if turn % 2 == 0 else asked[::-1]:
                if (query, side.name) in failed:
                    continue
                try:
                    if few is not None and side.name in PARTIAL:
                        measured = _measured(side, query, *few, None, found)
                    else:
                        measured = _measured(side, query, clicks, rows, newest, found)
                except HeadgateError as error:
                    failed.add((query, side.name))
                    found.pop((query, side.name), None)
                    console.print(f"{query}, {error}", highlight=False, markup=False)
                    continue
                console.print(f"{query}, {NAMES[side.name]}: {measured / 1e6:.2f} M rows/s", highlight=False)
    return found


def _measured(side: Side, query: str, clicks: Path, rows: int, newest: int | None, found: Answers) -> float:
    """Rows/s of one answer; ``newest``: the time up to which answers are compared, if they are."""
    with tempfile.TemporaryDirectory(prefix="headgate-answers-") as folder:
        answers = Path(folder) / "answers"
        told = side.ask(query, clicks, answers)
        read = told.get("rows", rows)
        if read != rows:
            raise HeadgateError(f"{NAMES[side.name]} read {read:,} of {rows:,} rows.")
        own = found.setdefault((query, side.name), Found())
        own.steps = told.get("steps")
        if own.common is None and newest is not None:
            own.common = click_queries.digest(query, answers, newest, common=True)
            if side.name not in PARTIAL:
                own.whole = click_queries.digest(query, answers, newest, common=False)
        own.rates.append(rows / told["seconds"])
        # Many files: removed here, where an error of a process that still writes does not matter.
        with contextlib.suppress(OSError):
            shutil.rmtree(answers)
        return own.rates[-1]


def same(found: Answers) -> bool:
    """Whether all sides that answered a question gave the same answers."""
    for query in {query for query, _ in found}:
        own = [each for (asked, _), each in found.items() if asked == query]
        if (
            len({each.common for each in own if each.common}) > 1
            or len({each.whole for each in own if each.whole}) > 1
        ):
            return False
    return True


# --- what was found ----------------------------------------------------------------------------------------


def table(found: Mapping[tuple[str, str], Found]) -> Table:
    made = Table(title="active rows/s, start-up left out", title_justify="left")
    for column in ("question", "side"):
        made.add_column(column)
    for column in ("M rows/s", "least to most", "steps", "answers", "checksum of common"):
        made.add_column(column, justify="right")
    for (query, side), own in found.items():
        made.add_row(
            query,
            NAMES[side],
            f"{own.rate / 1e6:.2f}",
            f"{min(own.rates) / 1e6:.2f} to {max(own.rates) / 1e6:.2f}",
            "-" if own.steps is None else str(own.steps),
            "-" if own.whole is None else f"{own.whole[0]:,}",
            "-" if own.common is None else own.common[1][-8:],
        )
    made.caption = (
        "The median of all rounds. Common: answers that Structured Streaming gives too, whose last windows "
        "stay open and whose running sums come once for each user and batch."
    )
    return made


AIMS: tuple[tuple[str, str, str, dict[str, float]], ...] = (
    ("local-2", "local-1", "two cores against one", dict.fromkeys(click_queries.QUERIES, 1.6)),
    ("cluster-2", "cluster-1", "two workers against one", dict.fromkeys(click_queries.QUERIES, 1.6)),
    ("local-4", "local-2", "local[4] on two cores", dict.fromkeys(click_queries.QUERIES, 0.9)),
    ("local-2", "threads", "Spark against threads", dict.fromkeys(click_queries.QUERIES, 0.8)),
    (
        "local-2",
        "structured",
        "Spark against Structured Streaming",
        {"filter": 3.0, "tumbling": 10.0, "session": 10.0},
    ),
    ("threads", "duckdb", "threads against DuckDB", {"filter": 0.4, "tumbling": 0.4, "session": 1.0}),
)
"""One side, the other, what is compared, and the least ratio by question; nothing is claimed of the rest."""


def claims(
    found: Mapping[tuple[str, str], Found],
    same_answers: bool,
    queries: Sequence[str] = click_queries.QUERIES,
) -> list[Result]:
    """What was to be shown, with what was found."""
    results = []
    for query in click_queries.QUERIES:
        for one, other, what, least in AIMS:
            if (query, one) not in found or (query, other) not in found:
                continue
            measured, baseline = found[query, one].rate, found[query, other].rate
            aim = least.get(query)
            claim = "active rows/s" + ("" if aim is None else f": at least {aim:g} times")
            holds = None if aim is None else measured >= aim * baseline
            name = f"spark-scale, {query}, {what}"
            results.append(Result(name, "our aim", claim, measured, baseline, holds))
    wanted = len(queries) * len(SIDES)
    claim = "questions answered by a side: all of them, and all sides alike"
    holds = same_answers and len(found) == wanted
    results.append(Result("spark-scale, answers", "our aim", claim, len(found), wanted, holds))
    return results
