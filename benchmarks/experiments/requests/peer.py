"""SP²Bench's questions here and with pyoxigraph, over the same triples in the same run.

pyoxigraph has the triples in its memory and runs in a process of its own, which ends when a question takes
too long; Headgate reads its files.  Parsing and planning are in the times of both.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.apart import Conversation, converse
from benchmarks.experiments.requests.cases import LAS, Data, Sizes, asked
from benchmarks.findings import checked
from benchmarks.result import Result
from benchmarks.workloads.sp2bench.queries import QUERIES
from headgate.engines.threads import Threads
from headgate.errors import HeadgateError

TIMES = 3
ENOUGH = 5
"""Questions, of eight, on which Headgate must not be slower."""
LOADING = 120.0
"""Seconds that reading the triples may take."""
PUBLISHED = {
    10_000: (147, 23_200, 155, 229, 0, 184, 4, 10),
    50_000: (965, 104_700, 1_100, 1_800, 2, 264, 4, 10),
    250_000: (6_200, 542_800, 6_900, 12_100, 62, 332, 4, 10),
    1_000_000: (32_800, 2_600_000, 35_200, 62_800, 292, 400, 4, 10),
    5_000_000: (248_700, 18_400_000, 210_700, 417_600, 1_200, 493, 4, 10),
}
"""By triples, rows of each answer that SP²Bench's authors report (ICDE 2009): rounded, from memory."""


class Peer:
    """pyoxigraph; started when it is asked, and again after a question that took too long."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._process: Conversation | None = None

    def ask(self, name: str, limit: float) -> float | None:
        """Seconds of a question; None if it takes longer than ``limit``."""
        if self._process is None:
            self._process = Conversation("pyoxigraph", "experiments.requests.peer", str(self._file))
            self._process.ask("", LOADING)
        try:
            return float(self._process.ask(name, limit)["seconds"])
        except HeadgateError as error:
            self.close()
            if "has not answered" not in str(error):
                raise
            return None

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None


def run(sizes: Sizes, data: Data, console: Console) -> list[Result]:
    """Each question by either side in turns; the best of several times counts."""
    folder = data.of(sizes.peer)
    table = Table(
        title=f"{sizes.peer:,} triples, one request, two workers: rows, and seconds with planning",
        title_justify="left",
    )
    for column in ("question", "rows", "published", "Headgate", "pyoxigraph"):
        table.add_column(column, justify="left" if column == "question" else "right")
    published = dict(zip(QUERIES, PUBLISHED.get(sizes.peer, ()), strict=False))
    peer, won = Peer(folder / "data.nt"), 0
    try:
        for name in QUERIES:
            mine: list[float] = []
            theirs: list[float | None] = []
            for _ in range(TIMES):
                rows, seconds = _asked(folder, name)
                mine.append(seconds)
                if None not in theirs:
                    theirs.append(peer.ask(name, sizes.limit))
            measured = [seconds for seconds in theirs if seconds is not None]
            given_up = len(measured) < len(theirs)
            won += min(mine) <= (sizes.limit if given_up else min(measured))
            table.add_row(
                name,
                f"{rows:,}",
                f"{published[name]:,}" if name in published else "-",
                f"{min(mine):.3f}",
                f"over {sizes.limit:g}" if given_up else f"{min(measured):.3f}",
            )
    finally:
        peer.close()
    console.print(table)
    claim = f"questions of {len(QUERIES)} on which Headgate is not slower, with planning; at least {ENOUGH}"
    return [
        Result(f"requests, pyoxigraph, {sizes.peer:,} triples", "issue 20", claim, won, ENOUGH, won >= ENOUGH)
    ]


def _asked(data: Path, name: str) -> tuple[int, float]:
    begin = time.perf_counter()
    report = checked(asked(data, name).run(Threads(workers=2), LAS))
    return report.queries["r0"].tuples_out, time.perf_counter() - begin


def _answers(file: str) -> None:
    """The other process."""
    import pyoxigraph

    store = pyoxigraph.Store()
    store.bulk_load(path=file, format=pyoxigraph.RdfFormat.N_TRIPLES)

    def answer(name: str) -> dict[str, float]:
        begin = time.perf_counter()
        if name:
            for _ in store.query(QUERIES[name]):  # type: ignore[union-attr]
                pass
        return {"seconds": time.perf_counter() - begin}

    converse(answer)


if __name__ == "__main__":
    _answers(sys.argv[1])
