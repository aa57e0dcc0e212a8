"""``headgate status``, ``restart`` and ``query``: what they show of an application, and their mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.control.socket import Control, ControlError, NotRunning
from headgate.errors import HeadgateError, PipelineError, SourceError

pytestmark = pytest.mark.usefixtures("sockets")
Run = Callable[..., str]


def a_query(name: str, **changes: Any) -> dict[str, Any]:
    made = {
        "name": name,
        "state": "running",
        "error": None,
        "tuples_in": 12345,
        "tuples_out": 678,
        "p50": 0.25,
        "p99": 1.5,
        "qos": 0.987,
        "backlog": 4321,
        "restarts": 0,
    }
    return made | changes


STATUS = {
    "app": "shop",
    "engine": "spark",
    "policy": "qos",
    "seconds": 12.5,
    "workers": 2,
    "step": 34,
    "queries": [
        a_query("carts [new]"),
        a_query(
            "abandoned",
            state="failed",
            error="select(1 / a): tuple 7: division by zero",
            qos=None,
            restarts=3,
        ),
        a_query("quiet", state="finished", tuples_out=0, p50=float("nan"), p99=None, backlog=None),
    ],
}


# --- status ---------------------------------------------------------------------------------------------


def test_status_shows_every_query_and_why_one_failed(headgate: Run) -> None:
    with Control("shop", {"status": lambda _: STATUS}):
        said = headgate("status")
    for part in ("shop", "spark", "policy qos", "2 workers", "12.50 s", "step 34"):
        assert part in said
    rows = {
        name: line for line in said.splitlines() for name in ("carts [new]", "quiet") if f" {name} " in line
    }
    for part in ("running", "12,345", "678", "250.0 ms", "1.50 s", "0.987", "4,321"):
        assert part in rows["carts [new]"]
    assert "finished" in rows["quiet"]
    assert "nan" not in said.lower()
    assert "Query 'abandoned' failed: select(1 / a): tuple 7: division by zero" in said
    assert "headgate restart 'abandoned'" in said


def test_status_without_failures_gives_no_advice(headgate: Run) -> None:
    with Control("shop", {"status": lambda _: STATUS | {"queries": [a_query("carts")]}}):
        assert "restart '" not in headgate("status", "--app", "shop")


def test_status_as_json_is_what_the_application_said(headgate: Run) -> None:
    def strict(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    with Control("shop", {"status": lambda _: STATUS}):
        said = json.loads(headgate("status", "--json"), parse_constant=strict)
    assert said["queries"][1]["error"] == STATUS["queries"][1]["error"]  # type: ignore[index]
    assert said["queries"][2]["p50"] is None


def test_status_of_nothing_says_what_to_do(headgate: Run) -> None:
    with pytest.raises(NotRunning, match="headgate run"):
        headgate("status")
    with pytest.raises(NotRunning, match="'shop' is not running"):
        headgate("status", "--app", "shop")


def test_of_several_applications_one_must_be_named(headgate: Run) -> None:
    other = STATUS | {"app": "other"}
    with Control("shop", {"status": lambda _: STATUS}), Control("other", {"status": lambda _: other}):
        with pytest.raises(ControlError, match="'other', 'shop'"):
            headgate("status")
        assert "other: spark" in headgate("status", "--app", "other")


# --- restart --------------------------------------------------------------------------------------------


def test_restart_names_the_query(headgate: Run) -> None:
    asked: list[dict[str, Any]] = []

    def restart(arguments: dict[str, Any]) -> dict[str, Any]:
        asked.append(arguments)
        return {"ok": True, "query": arguments["query"]}

    with Control("shop", {"restart": restart}):
        assert "Query 'carts [new]' is running again." in headgate("restart", "carts [new]", "--app", "shop")
    assert asked == [{"query": "carts [new]"}]


def test_restart_tells_what_the_application_refuses(headgate: Run) -> None:
    def restart(arguments: dict[str, Any]) -> dict[str, Any]:
        raise PipelineError("Query 'carts' is running; only one that failed can be restarted.")

    with Control("shop", {"restart": restart}), pytest.raises(ControlError, match="only one that failed"):
        headgate("restart", "carts")


# --- query ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def spark() -> None:
    """Tests that start Spark share one process of it."""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The history of two queries, with files beside it that were never committed."""
    history = tmp_path / "checkpoint" / "history"
    carts, odd = history / "carts", history / "my%2Fodd query"
    carts.mkdir(parents=True)
    odd.mkdir()
    for place, numbers in enumerate(([1, 2], [3, 4])):
        at = pa.array([datetime(2024, 1, n) for n in numbers], pa.timestamp("us", tz="UTC"))
        table = pa.table({"n": numbers, "at": at, "tags": [["a", "b"], None]})
        pq.write_table(table, carts / f"part-{place:012d}-000.parquet")
    pq.write_table(pa.table({"n": [99]}), carts / ".part-000000000009-000.parquet")
    (carts / "attempt-1.parquet").write_bytes(b"half a file")
    pq.write_table(pa.table({"big": list(range(150))}), odd / "part-000000000000-000.parquet")
    (history / "none").mkdir()
    return tmp_path / "checkpoint"


def outputs(checkpoint: Path) -> dict[str, Any]:
    names = {"carts": "carts", "my/odd query": "my%2Fodd query", "none": "none"}
    schemas: dict[str, Any] = {"none": {"n": "BIGINT", "odd name": "STRING"}}
    return {
        "outputs": [
            {"query": q, "path": str(checkpoint / "history" / f), "schema": schemas.get(q), "keep": "7 days"}
            for q, f in names.items()
        ]
    }


def test_kept_history_answers_while_the_application_runs(
    headgate: Run, checkpoint: Path, spark: None
) -> None:
    with Control("shop", {"history": lambda _: outputs(checkpoint)}):
        said = headgate("query", "SELECT n * 10 AS tens, tags FROM carts ORDER BY n DESC", "--app", "shop")
        assert [line.split()[1] for line in said.splitlines() if "0 │" in line] == ["40", "30", "20", "10"]
        assert '["a", "b"]' in said
        assert headgate("query", "SELECT count(*) AS c FROM none", "--csv") == '"c"\n0\n'


def test_a_stopped_applications_checkpoint_answers_too(headgate: Run, checkpoint: Path, spark: None) -> None:
    def ask(sql: str, *options: str) -> str:
        return headgate("query", sql, "--checkpoint", checkpoint, *options)

    assert json.loads(ask("SELECT * FROM carts WHERE n > 3 OR n = 1 ORDER BY n", "--json")) == [
        {"n": 1, "at": "2024-01-01T00:00:00+00:00", "tags": ["a", "b"]},
        {"n": 4, "at": "2024-01-04T00:00:00+00:00", "tags": None},
    ]
    csv = ask("SELECT n, tags FROM carts ORDER BY n", "--csv").splitlines()
    assert csv == ['"n","tags"', '1,"[""a"", ""b""]"', "2,", '3,"[""a"", ""b""]"', "4,"]
    many = ask("SELECT big FROM `my/odd query` ORDER BY big")
    assert "│  99 " in many
    assert "│ 100 " not in many
    assert "The first 100 rows" in many
    assert len(ask("SELECT big FROM `my/odd query`", "--csv").splitlines()) == 151


@pytest.mark.parametrize(
    ("sql", "parts"),
    [
        ("SELECT * FROM cart", ("'cart'", "Did you mean 'carts'?", "'my/odd query'", "keep=")),
        ("SELECT * FROM none", ("'none' has committed no results yet",)),
        ("SELECT m FROM carts", ("`m`", "`n`")),
        ("SELEC 1", ("Syntax error", "SELEC")),
        ("SELECT 1 / (n - 2) FROM carts", ("Division by zero",)),
    ],
)
def test_a_question_that_has_no_answer_is_one_clear_line(
    headgate: Run, checkpoint: Path, spark: None, sql: str, parts: tuple[str, ...]
) -> None:
    with pytest.raises(HeadgateError) as caught:
        headgate("query", sql, "--checkpoint", checkpoint)
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_queries_that_sql_cannot_tell_apart_are_refused(headgate: Run, tmp_path: Path, spark: None) -> None:
    for name in ("carts", "Carts"):
        (tmp_path / "history" / name).mkdir(parents=True)
    with pytest.raises(HeadgateError, match="ignores case"):
        headgate("query", "SELECT 1", "--checkpoint", tmp_path)


def test_mistakes_that_need_no_spark(headgate: Run, tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match="--checkpoint"):
        headgate("query", "SELECT 1")
    with pytest.raises(SourceError, match="no kept history"):
        headgate("query", "SELECT 1", "--checkpoint", tmp_path)
    with pytest.raises(PipelineError, match="--csv and --json"):
        headgate("query", "SELECT 1", "--csv", "--json")
    nothing = Control("shop", {"history": lambda _: {"outputs": []}})
    with nothing, pytest.raises(PipelineError, match="keeps no history"):
        headgate("query", "SELECT 1")


@pytest.mark.parametrize("command", ["status", "restart", "query"])
def test_help_shows_an_example(headgate: Run, command: str) -> None:
    said = headgate(command, "--help")
    assert "Example:" in said
    assert f"headgate {command}" in said
