"""``headgate bench spark-scale``: every side answers the same questions alike, and none is fast and wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from benchmarks import registry
from benchmarks.apart import Conversation
from benchmarks.experiments.spark import scale
from benchmarks.experiments.spark.scale import Found, claims, compared, same
from benchmarks.experiments.spark.scale_worker import answerer
from benchmarks.workloads import click_queries, clicks_files
from headgate.errors import HeadgateError, PipelineError

ROWS = 20_000


class Inside(scale.Side):
    """A side in this process."""

    def __init__(self, name: str, side: str) -> None:
        super().__init__(name)
        self._answer = answerer(side, "local[2]")

    def ask(self, query: str, clicks: Path, answers: Path) -> Any:
        return self._answer({"query": query, "clicks": str(clicks), "answers": str(answers)})


class Broken(scale.Side):
    """A side that answers one question, and fails or gives wrong answers to the others."""

    def __init__(self, wrong: bool) -> None:
        super().__init__("duckdb")
        self._wrong, self._right = wrong, Inside("duckdb", "duckdb")

    def ask(self, query: str, clicks: Path, answers: Path) -> Any:
        told = self._right.ask(query, clicks, answers)
        if query != "filter":
            if not self._wrong:
                raise HeadgateError("DuckDB, batch has ended: it is out of memory")
            part = answers / "part.parquet"
            rows = pq.read_table(part)
            pq.write_table(rows.slice(1), part)
        return told


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An hour of clicks, so that windows and sessions have closed when it ends."""
    folder = tmp_path_factory.mktemp("clicks")
    rows = pa.Table.from_batches(clicks_files.clicks(ROWS, users=300, rows_per_second=5.0))
    for number, first in enumerate(range(0, ROWS, 5_000)):
        part = folder / f"clicks-{number:05d}.parquet"
        pq.write_table(rows.slice(first, 5_000), part, row_group_size=2_500)
    return folder


@pytest.fixture
def quiet() -> Console:
    return Console(quiet=True)


@pytest.mark.xdist_group("spark")
def test_all_systems_give_the_same_answers(clicks: Path, quiet: Console) -> None:
    asked: list[scale.Side] = [
        Inside("local-2", "headgate"),
        Inside("threads", "threads"),
        Inside("structured", "structured"),
        Inside("duckdb", "duckdb"),
    ]
    found = compared(asked, clicks, ROWS, 1, quiet)
    assert len(found) == len(asked) * len(click_queries.QUERIES)
    assert same(found)
    for (query, side), own in found.items():
        assert own.common is not None
        assert own.common[0], (query, side, "answers to nothing prove nothing")
    assert found["running", "threads"].whole is not None
    assert found["running", "threads"].whole[0] == ROWS


def test_a_wrong_answer_shows(clicks: Path, quiet: Console) -> None:
    found = compared([Inside("threads", "threads"), Broken(wrong=True)], clicks, ROWS, 1, quiet)
    assert not same(found)
    assert not claims(found, same(found))[-1].holds


def test_a_side_that_fails_a_question_is_left_out_of_it(clicks: Path, quiet: Console) -> None:
    found = compared([Inside("threads", "threads"), Broken(wrong=False)], clicks, ROWS, 2, quiet)
    assert {query for query, side in found if side == "duckdb"} == {"filter"}
    assert [len(own.rates) for own in found.values()] == [2] * len(found)
    assert same(found)
    assert not claims(found, same(found))[-1].holds, "not all questions were answered"


def test_a_side_that_reads_too_little_has_not_answered(clicks: Path, quiet: Console) -> None:
    assert not compared([Inside("threads", "threads")], clicks, ROWS + 1, 1, quiet)


def test_claims_compare_medians() -> None:
    found = {
        ("tumbling", "local-1"): Found([1.0, 5.0, 2.0]),
        ("tumbling", "local-2"): Found([3.3, 3.0, 9.0]),
        ("tumbling", "structured"): Found([0.4]),
    }
    told = {result.name: result for result in claims(found, True)}
    two = told["spark-scale, tumbling, two cores against one"]
    assert (two.measured, two.baseline, two.holds) == (3.3, 2.0, True)
    against = told["spark-scale, tumbling, Spark against Structured Streaming"]
    assert against.holds is False
    assert against.ratio == pytest.approx(8.25)


def test_a_process_of_its_own_answers_and_says_what_went_wrong(clicks: Path, tmp_path: Path) -> None:
    side = Conversation("DuckDB", "experiments.spark.scale_worker", "--side", "duckdb")
    try:
        request = {"query": "filter", "clicks": str(clicks), "answers": str(tmp_path / "filter")}
        assert side.ask(request, 120)["seconds"] > 0
        with pytest.raises(HeadgateError, match="DuckDB: KeyError: 'no such question'"):
            side.ask({**request, "query": "no such question", "answers": str(tmp_path / "none")}, 120)
        assert side.ask({**request, "query": "session", "answers": str(tmp_path / "session")}, 120)
    finally:
        side.close()
    assert click_queries.digest("filter", tmp_path / "filter", 0, common=False)[0]


def test_a_process_that_ends_is_an_error_with_its_last_words() -> None:
    side = Conversation("DuckDB", "experiments.spark.scale_worker", "--side", "unknown")
    try:
        with pytest.raises(HeadgateError, match=r"DuckDB has ended.*invalid choice: 'unknown'"):
            side.ask({}, 120)
    finally:
        side.close()


def test_a_part_is_one_of_the_benchmarks(quiet: Console) -> None:
    with pytest.raises(PipelineError, match=r"'spark-scale' has no part 'join'. There are: filter, tumbling"):
        registry.run_benches(["spark-scale"], True, quiet, part="join")
    with pytest.raises(PipelineError, match=r"'spark-state' has no part '7'. There are: 1000, 10000"):
        registry.run_benches(["spark-state"], True, quiet, part="7")
    with pytest.raises(PipelineError, match=r"'decisions' takes no --part; .*spark-driver.*spark-state do"):
        registry.run_benches(["decisions"], True, quiet, part="all")


def test_slow_sides_read_fewer_rows_and_are_not_compared_by_them(clicks: Path, quiet: Console) -> None:
    asked: list[scale.Side] = [Inside("threads", "threads"), Inside("structured", "threads")]
    found = compared(asked, clicks, ROWS, 1, quiet, ["filter"], (clicks / "clicks-00000.parquet", 5_000))
    assert found["filter", "structured"].common is None
    assert found["filter", "threads"].common is not None
    assert same(found)


def test_a_size_is_refused_where_it_means_nothing(quiet: Console) -> None:
    with pytest.raises(PipelineError, match=r"'decisions' takes no --rows; requests, nexmark, spark-scale"):
        registry.run_benches(["decisions"], True, quiet, rows=10)
