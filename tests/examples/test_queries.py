"""The TPCx-BB examples give the batch answers, row for row, on every engine and number of workers."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from answers import QUERIES, answer

import headgate as hg
from benchmarks.workloads import tpcx_bb

EXAMPLES = Path(__file__).parents[2] / "examples" / "tpcx_bb"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ENGINES: dict[str, Callable[[], Any]] = {
    "threads-1": lambda: hg.Threads(workers=1),
    "threads-2": lambda: hg.Threads(workers=2),
    "threads-4": lambda: hg.Threads(workers=4, packet_rows=1_000),
    "simulated": hg.Simulated,
    "spark": lambda: hg.Spark(workers=2),
}


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tpcx_bb_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty days: several weeks for Q15, more than ten days for Q3, and users who come back."""
    return tpcx_bb.generate(
        tmp_path_factory.mktemp("tpcx-bb"),
        60_000,
        seed=1,
        rows_per_day=3_000,
        users=2_000,
        items=500,
        rows_per_file=25_000,
    )


@pytest.fixture(scope="module")
def answers(data: Path) -> dict[str, list[dict[str, Any]]]:
    return {query: answer(query, data) for query in QUERIES}


def plain(value: Any) -> Any:
    return (value - EPOCH) // timedelta(microseconds=1) if isinstance(value, datetime) else value


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for place, (row, right) in enumerate(zip(found, expected, strict=True)):
        row = {name: plain(value) for name, value in row.items()}
        assert row.keys() == right.keys()
        for name, value in right.items():
            if isinstance(value, float):
                assert math.isclose(row[name], value, rel_tol=1e-9, abs_tol=1e-9), (place, row, right)
            else:
                assert row[name] == value, (place, row, right)


def test_the_answers_are_worth_comparing(answers: dict[str, list[dict[str, Any]]]) -> None:
    assert max(row["sold"] for row in answers["q1"]) > 1
    assert max(row["sessions"] for row in answers["q2"]) > 5
    assert max(row["views"] for row in answers["q3"]) > 5
    assert max(row["sessions"] for row in answers["q4"]) > 5
    assert 0 < len(answers["q15"]) < 10 * len({row["window_start"] for row in answers["q15"]})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("query", QUERIES)
def test_query_gives_the_batch_answer(
    query: str, engine: str, data: Path, answers: dict[str, list[dict[str, Any]]]
) -> None:
    rows: list[dict[str, Any]] = []
    app = example(query).build(str(data), {query: hg.to_list(rows)})
    report = app.run(engine=ENGINES[engine](), policy="round_robin", until="drained")
    assert report.queries[query].error is None
    assert report.queries[query].late == 0
    assert_same(rows, answers[query])


@pytest.mark.parametrize("engine", ["threads-2", "simulated", "spark"])
def test_all_in_one_application(engine: str, data: Path, answers: dict[str, list[dict[str, Any]]]) -> None:
    rows: dict[str, list[dict[str, Any]]] = {query: [] for query in QUERIES}
    app = example("all").build(str(data), {query: hg.to_list(rows[query]) for query in QUERIES})
    report = app.run(engine=ENGINES[engine](), policy="round_robin", until="drained")
    for query in QUERIES:
        assert report.queries[query].error is None
        assert report.queries[query].late == 0
        assert_same(rows[query], answers[query])


# Table 1, and in parentheses the stateless boxes that stand beside its operators, as the examples say.
KINDS = {
    "q1": "SL PS (SL) PS SF",
    "q2": "SL PS SL PS SF",
    "q3": "SL PS PS",
    "q4": "SL PS SL SF",
    "q15": "SL SL PS (SL)",
}


@pytest.mark.parametrize("query", QUERIES)
def test_operators_are_of_the_kinds_of_table_1(query: str, data: Path) -> None:
    short = {"stateless": "SL", "keyed": "PS", "stateful": "SF"}
    app = example(query).build(str(data), {query: hg.to_list([])})
    kinds = [short[box.operator.kind.value] for box in app.network.boxes]
    assert kinds == KINDS[query].replace("(", "").replace(")", "").split()


def test_an_example_without_data_can_be_imported() -> None:
    for name in (*QUERIES, "all"):
        assert callable(example(name).build)
