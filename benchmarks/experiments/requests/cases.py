"""What is asked: one of SP²Bench's questions, or Bobox's plan, by one request or by several at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.workloads import sp2bench
from benchmarks.workloads.sp2bench.queries import QUERIES
from headgate.api import App
from headgate.connectors.python import to_function

MANY = 16
LAS, BOBOX = "las", "bobox"
BASELINES = {LAS: "nls", BOBOX: "bobox_baseline"}
"""What each paper compares its policy with."""
PAPERS = {LAS: "LAS", BOBOX: "Bobox"}


@dataclass(frozen=True)
class Sizes:
    """How much is measured.  They fit eight minutes on two cores, ``--quick`` a minute and a half."""

    peer: int
    """Triples of the comparison with pyoxigraph."""
    limit: float
    """Seconds after which pyoxigraph is given up for a question."""
    alone: int
    many: int
    """Triples for one request, and for sixteen at once."""
    questions: tuple[str, ...]
    """Those that policies are compared with."""
    pairs: int
    least: float
    """Seconds of either side of a pair."""
    document: int
    """Nodes of the document that Bobox's plan reads."""
    loads: tuple[int, ...]
    """How many requests run that plan at once."""
    simulated_alone: int
    simulated_many: int
    rounds: int
    """How often operators are measured for the simulation."""


class Data:
    """Triples by how many they are, written when they are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, triples: int) -> Path:
        path = self._folder / str(triples)
        if not path.exists():
            sp2bench.generate(path, triples)
        return path


def let_go(query: str, batch: pa.RecordBatch) -> None:
    """Answers are counted in the report, and not kept."""


def asked(data: Path, name: str, count: int = 1, sink: Callable[[str, pa.RecordBatch], None] = let_go) -> App:
    """An application of ``count`` requests that ask the same question."""
    app = App(f"{count}-{name}")
    for number in range(count):
        app.sparql(QUERIES[name], data).to(f"r{number}", to_function(sink))
    return app
