"""The benchmarks by name: each compares in one run, says what was claimed, and reports ratios."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from rich.console import Console

from benchmarks.experiments import (
    allocator,
    decisions,
    goals,
    joining,
    lock,
    memory,
    nexmark,
    operators,
    overhead,
    overload,
    replays,
)
from benchmarks.experiments.aurora import experiment as aurora
from benchmarks.experiments.haren import experiment as haren
from benchmarks.experiments.locality import experiment as locality
from benchmarks.experiments.ordered import experiment as ordered
from benchmarks.experiments.requests import experiment as requests
from benchmarks.experiments.spark import backlog
from benchmarks.experiments.spark import driver as spark_driver
from benchmarks.experiments.spark import many as spark_many
from benchmarks.experiments.spark import qos as spark_qos
from benchmarks.experiments.spark import scale as spark_scale
from benchmarks.experiments.spark import state as spark_state
from benchmarks.result import Result
from headgate.errors import PipelineError

Bench = Callable[..., list[Result]]
"""``bench(quick, console)``; some also take ``rows=``, ``repeat=`` and ``part=``."""

BENCHES: dict[str, Bench] = {
    "overhead": overhead.run,
    "memory": memory.run,
    "decisions": decisions.run,
    "lock": lock.run,
    "operators": operators.run,
    "allocator": allocator.run,
    "ordered": ordered.run,
    "aurora": aurora.run,
    "overload": overload.run,
    "replays": replays.run,
    "goals": goals.run,
    "haren": haren.run,
    "locality": locality.run,
    "requests": requests.run,
    "joining": joining.run,
    "nexmark": nexmark.run,
    "spark-many": spark_many.run,
    "spark-backlog": backlog.run,
    "spark-driver": spark_driver.run,
    "spark-qos": spark_qos.run,
    "spark-scale": spark_scale.run,
    "spark-state": spark_state.run,
}


def run_benches(
    names: Sequence[str],
    quick: bool,
    console: Console,
    *,
    rows: int | None = None,
    repeat: int | None = None,
    part: str | None = None,
) -> list[Result]:
    """Run these benchmarks, one after the other."""
    given: dict[str, int | str | None] = {"rows": rows, "repeat": repeat, "part": part}
    sizes = {name: size for name, size in given.items() if size is not None}
    for name in names:
        taken = inspect.signature(BENCHES[name]).parameters
        for size in [size for size in sizes if size not in taken]:
            able = [each for each in BENCHES if size in inspect.signature(BENCHES[each]).parameters]
            raise PipelineError(f"Benchmark '{name}' takes no --{size}; {', '.join(able)} do.")
    results: list[Result] = []
    for name in names:
        console.rule(name)
        results += BENCHES[name](quick, console, **sizes)
    return results
