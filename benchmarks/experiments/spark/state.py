"""State that grows: a running sum by 10,000 to 10,000,000 keys on Spark, and RocksDB in Structured Streaming.

For each number of keys, a first run reads every key once and so fills the state.  Then a new process goes on
from the checkpoint with rows of random keys.  Its first step, with recovery, is the restart; its other steps
are the figures: their median, the longest (a snapshot's spike), bytes written for each, how often a task
found its state in its worker's memory, and the memory of the JVM and of the Python workers.  Both sides have
two cores and run in turns, each run in a process of its own.

What favours Structured Streaming: it gives one sum for each key and batch, not one for each row, and its
results are thrown away, where Headgate writes every thousandth.  Steps are not of the same size: Structured
Streaming's batch is a file of 100,000 rows, Headgate's step what it predicts to do in its time.  So
Structured Streaming goes on with a quarter of the rows: ten batches tell its figures.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.apart import Conversation
from benchmarks.experiments.spark.state_worker import SIDES
from benchmarks.parts import chosen
from benchmarks.result import Result
from headgate.errors import HeadgateError

KEYS, QUICK_KEYS = (10_000, 100_000, 1_000_000, 10_000_000), (1_000, 10_000)
ROWS, QUICK_ROWS = 4_000_000, 1_000_000
FILE_ROWS = 100_000
LOAD_FILE_ROWS = 1_000_000
LESS = 4
"""Of how many rows Structured Streaming reads one."""
LIMIT = 150.0
"""Seconds after which a side is given up for a number of keys."""
NAMES = {"headgate": "Headgate on Spark", "structured": "Structured Streaming, RocksDB"}
HITS = 0.9


@dataclass(frozen=True)
class Found:
    """One side with so many keys, after a restart."""

    restart: float | None
    steps: list[float]
    memory: dict[str, float]
    bytes: float | None = None
    """Of state, written for each step; None where the engine does not count them."""
    hits: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.steps) if self.steps else float("nan")

    @property
    def longest(self) -> float:
        return max(self.steps, default=float("nan"))

    def figures(self) -> dict[str, float | None]:
        """All but the hits, by what they are."""
        return {
            "restart, s": self.restart,
            "step, s": self.median,
            "longest step, s": self.longest,
            "bytes of state for each step": self.bytes,
            "MiB of JVM and Python workers": sum(self.memory.values()),
        }


def run(quick: bool, console: Console, *, rows: int | None = None, part: str | None = None) -> list[Result]:
    """All numbers of keys, or one, on both sides, then the claims; ``rows`` of random keys."""
    rows = rows or (QUICK_ROWS if quick else ROWS)
    found: dict[tuple[int, str], Found] = {}
    right = True
    for keys in chosen("spark-state", QUICK_KEYS if quick else KEYS, part):
        with tempfile.TemporaryDirectory(prefix="headgate-spark-state-") as folder:
            right &= _measure(Path(folder), keys, rows, found, console)
    console.print(table(found))
    return claims(found, right)


def _measure(
    folder: Path, keys: int, rows: int, found: dict[tuple[int, str], Found], console: Console
) -> bool:
    """Fill the state, go on in another process; whether Headgate's answers are right."""
    console.print(f"{keys:,} keys …", highlight=False)
    given = folder / "in"
    given.mkdir()
    load(given, keys)
    filled = [side for side in SIDES if _tried(side, folder, keys, console) is not None]
    few = max(FILE_ROWS, rows // LESS)
    random = np.random.default_rng(2)
    for side, first, end in (("structured", 0, few), ("headgate", few, rows)):
        update(given, keys, first, end, random)
        told = _tried(side, folder, end, console) if side in filled else None
        if told is None:
            continue
        found[keys, side] = own = Found(**told)
        console.print(
            f"  {NAMES[side]}: a step {own.median:.3f} s, at most {own.longest:.3f} s", highlight=False
        )
    return (keys, "headgate") in found and _right(given, folder / "answers-headgate")


def _tried(side: str, folder: Path, new: int, console: Console) -> Any:
    """What a side tells; None if it failed, with the reason said."""
    begin = time.monotonic()
    try:
        told = ask(side, folder, new)
    except HeadgateError as error:
        console.print(f"  {error}", highlight=False, markup=False)
        return None
    took = time.monotonic() - begin
    console.print(f"  {NAMES[side]}: {new:,} rows in {took:.0f} s with its start", highlight=False)
    return told


def ask(side: str, folder: Path, new: int) -> Any:
    """What a side tells of a run over what is new in the folder, in a process of its own."""
    process = Conversation(NAMES[side], "experiments.spark.state_worker", "--side", side)
    try:
        return process.ask(request(side, folder, new), LIMIT)
    finally:
        process.close()


def request(side: str, folder: Path, new: int) -> dict[str, Any]:
    """What a side is asked: to read so many new rows, from where it was."""
    places = {"checkpoint": f"{folder}/checkpoint-{side}", "answers": f"{folder}/answers-{side}"}
    return {"rows": str(folder / "in"), "new": new, **places}


def load(folder: Path, keys: int) -> None:
    """Every key once, in random order."""
    order = np.random.default_rng(1).permutation(keys)
    for number, first in enumerate(range(0, keys, LOAD_FILE_ROWS)):
        _write(folder / f"a-load-{number:05d}.parquet", first, order[first : first + LOAD_FILE_ROWS])


def update(folder: Path, keys: int, start: int, end: int, random: np.random.Generator) -> None:
    """Rows ``start`` to ``end`` of random keys, after those of ``load``."""
    for first in range(start, end, FILE_ROWS):
        part = random.integers(0, keys, min(FILE_ROWS, end - first))
        _write(folder / f"b-update-{first:012d}.parquet", keys + first, part)


def _write(path: Path, first: int, keys: Any) -> None:
    n = np.arange(first, first + len(keys))
    table = pa.table({"n": n, "k": keys.astype(np.int64), "x": n * 31 % 1_009})
    pq.write_table(table, path, row_group_size=1 << 17)


def _right(rows: Path, answers: Path) -> bool:
    """Whether every sum that was written is DuckDB's."""
    import duckdb

    sums = f"SELECT n, k, sum(x) OVER (PARTITION BY k ORDER BY n) AS s FROM read_parquet('{rows}/*.parquet')"
    asked = "SELECT count(*), sum(hash(n, k, CAST(s AS BIGINT))) FROM ({}) WHERE n % 1000 = 0"
    with duckdb.connect() as database:
        expected = database.sql(asked.format(sums)).fetchall()
        given = database.sql(asked.format(f"FROM read_parquet('{answers}/*.parquet')")).fetchall()
    return bool(given == expected)


def table(found: dict[tuple[int, str], Found]) -> Table:
    made = Table(title="a running sum after a restart", title_justify="left")
    made.add_column("keys", justify="right")
    made.add_column("system")
    for column in ("restart s", "step s", "longest s", "KiB per step", "hits", "JVM MiB", "Python MiB"):
        made.add_column(column, justify="right")
    for (keys, side), own in found.items():
        made.add_row(
            f"{keys:,}",
            NAMES[side],
            "-" if own.restart is None else f"{own.restart:.2f}",
            f"{own.median:.3f}",
            f"{own.longest:.3f}",
            "-" if own.bytes is None else f"{own.bytes / 1024:,.0f}",
            "-" if own.hits is None else f"{own.hits:.2f}",
            f"{own.memory.get('jvm', 0):,.0f}",
            f"{own.memory.get('python', 0):,.0f}",
        )
    made.caption = "Step: from its start to the next one's, the median; without the first, which restarts."
    return made


def claims(found: dict[tuple[int, str], Found], right: bool) -> list[Result]:
    """Cache hits are claimed, and that answers are right; the other figures stand beside RocksDB's."""
    results = []
    for (keys, side), own in found.items():
        if side != "headgate":
            continue
        other = found.get((keys, "structured"))
        theirs = {} if other is None else other.figures()
        for what, measured in own.figures().items():
            if measured is not None:
                name = f"spark-state, {keys:,} keys"
                results.append(Result(name, "our aim", what, measured, theirs.get(what), None))
        if own.hits is not None:
            claim = f"states found in a worker's memory: at least {HITS:g} of them"
            name = f"spark-state, {keys:,} keys, hits"
            results.append(Result(name, "our aim", claim, own.hits, None, own.hits >= HITS))
    claim = "all sums as DuckDB's, after a restart too (1: yes)"
    results.append(Result("spark-state, answers", "our aim", claim, float(right), 1.0, right))
    return results
