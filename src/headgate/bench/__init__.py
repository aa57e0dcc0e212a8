"""Benchmarks: each compares in one run, says what was claimed, and reports ratios."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console

from headgate.bench import backlog, haren, memory, ordered, overhead, spark_many
from headgate.bench.result import Result

Bench = Callable[[bool, Console], list[Result]]

BENCHES: dict[str, Bench] = {
    "overhead": overhead.run,
    "memory": memory.run,
    "ordered": ordered.run,
    "haren": haren.run,
    "spark-many": spark_many.run,
    "spark-backlog": backlog.run,
}


def run_benches(names: Sequence[str], quick: bool, console: Console) -> list[Result]:
    """Run these benchmarks, one after the other."""
    results: list[Result] = []
    for name in names:
        console.rule(name)
        results += BENCHES[name](quick, console)
    return results
