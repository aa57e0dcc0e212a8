"""The benchmarks by name: each compares in one run, says what was claimed, and reports ratios."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console

from benchmarks.experiments import allocator, decisions, memory, operators, overhead, overload
from benchmarks.experiments.aurora import experiment as aurora
from benchmarks.experiments.haren import experiment as haren
from benchmarks.experiments.locality import experiment as locality
from benchmarks.experiments.ordered import experiment as ordered
from benchmarks.experiments.spark import backlog
from benchmarks.experiments.spark import driver as spark_driver
from benchmarks.experiments.spark import many as spark_many
from benchmarks.experiments.spark import qos as spark_qos
from benchmarks.result import Result

Bench = Callable[[bool, Console], list[Result]]

BENCHES: dict[str, Bench] = {
    "overhead": overhead.run,
    "memory": memory.run,
    "decisions": decisions.run,
    "operators": operators.run,
    "allocator": allocator.run,
    "ordered": ordered.run,
    "aurora": aurora.run,
    "overload": overload.run,
    "haren": haren.run,
    "locality": locality.run,
    "spark-many": spark_many.run,
    "spark-backlog": backlog.run,
    "spark-driver": spark_driver.run,
    "spark-qos": spark_qos.run,
}


def run_benches(names: Sequence[str], quick: bool, console: Console) -> list[Result]:
    """Run these benchmarks, one after the other."""
    results: list[Result] = []
    for name in names:
        console.rule(name)
        results += BENCHES[name](quick, console)
    return results
