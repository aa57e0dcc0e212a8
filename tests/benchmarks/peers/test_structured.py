"""The small questions: Headgate and Spark give the same answers to the same text over the same numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import headgate as hg
from benchmarks.workloads.many_queries import many
from headgate.demo import small_queries
from headgate.demo.small_queries import QUESTIONS, Question

RATE = 2_000
SECONDS = 30
START = datetime(2024, 1, 4, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ASKED = [*QUESTIONS, *many(3, keyed=False), *many(3, keyed=True)]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from benchmarks.peers import structured

    session = structured.session().newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.ansi.enabled", "true")
    return session


@pytest.fixture(scope="module")
def answers() -> dict[str, list[dict[str, Any]]]:
    """Headgate's, all in one application."""
    app = hg.App("small")
    source = hg.from_rate(RATE, limit=RATE * SECONDS, burst=RATE, start_time=START)
    clicks = small_queries.clicks(app.source("clicks", source))
    rows: dict[str, list[dict[str, Any]]] = {question.name: [] for question in ASKED}
    for question in ASKED:
        small_queries.ask(question, clicks).to(
            question.name, hg.to_list(rows[question.name]), qos=question.qos
        )
    report = app.run(hg.Simulated(workers=2), policy="round_robin", until="drained")
    for name, query in report.queries.items():
        assert query.error is None, (name, query.error)
        assert query.late == 0, name
    return rows


@pytest.fixture(scope="module")
def numbers(spark: Any) -> Any:
    """The same numbers and times as a table of Spark's."""
    values = spark.range(RATE * SECONDS).withColumnRenamed("id", "value")
    start = round(START.timestamp()) * 1_000_000
    return values.selectExpr("value", f"timestamp_micros({start} + value DIV {RATE} * 1000000) AS timestamp")


def plain(value: Any) -> Any:
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (moment - EPOCH) // timedelta(microseconds=1)
    return value


def in_order(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows as tuples by column name, sorted; floats last, so that rounding does not change the order."""
    if not rows:
        return []
    names = sorted(rows[0], key=lambda name: (isinstance(rows[0][name], float), name))
    return sorted(tuple(plain(row[name]) for name in names) for row in rows)


def latest(question: Question, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ran last per key: the only thing that a table can be asked."""
    if not question.aggregates or question.window is not None:
        return rows
    return list({tuple(row[key] for key in question.key): row for row in rows}.values())


@pytest.mark.parametrize("question", ASKED, ids=lambda question: question.name)
def test_headgate_and_spark_answer_alike(
    question: Question, answers: dict[str, list[dict[str, Any]]], numbers: Any
) -> None:
    from benchmarks.peers import structured

    frame = structured.best(question, structured.frame(question, structured.as_clicks(numbers)))
    expected = in_order(frame.toArrow().to_pylist())
    found = in_order(latest(question, answers[question.name]))
    assert expected, "a question without answers proves nothing"
    assert len(found) == len(expected)
    for row, right in zip(found, expected, strict=True):
        for value, other in zip(row, right, strict=True):
            assert value == other or math.isclose(value, other, rel_tol=1e-9), (row, right)


@pytest.mark.parametrize("keyed", [False, True])
def test_generated_questions_all_differ(keyed: bool) -> None:
    made = many(500, keyed=keyed)
    assert len({question.where for question in made}) == len({question.name for question in made}) == 500
