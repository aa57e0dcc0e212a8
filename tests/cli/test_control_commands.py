"""``headgate status``, ``restart`` and ``query``: what they show of an application, and their mistakes."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.cli import main
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


def test_status_says_for_what_a_query_waits(headgate: Run) -> None:
    waits = a_query("rows", state="waiting", waits_for="source 'in' since 2026: no broker answers")
    with Control("shop", {"status": lambda _: STATUS | {"queries": [waits]}}):
        said = headgate("status")
    assert "Query 'rows' waits for source 'in' since 2026: no broker answers" in said


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


NASTY = "\x1b]0;owned\x07\x1b[31m\x9b2J\r\u202e[red]\ud800"
HARMLESS = r"\x1b]0;owned\x07\x1b[31m\x9b2J\r\u202e[red]\ud800"


def no_controls(said: str) -> bool:
    return not any(c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in said)


def test_status_prints_nothing_raw(headgate: Run) -> None:
    """A terminal obeys escape sequences, in whatever name or message they come."""
    queries = [a_query("a" + NASTY, state="failed", error="why" + NASTY), a_query("b", state="s" + NASTY)]
    status = STATUS | {
        "app": "app" + NASTY,
        "engine": "engine" + NASTY,
        "policy": "policy" + NASTY,
        "workers": "workers" + NASTY,
        "step": "step" + NASTY,
        "queries": queries,
        "problems": ["problem" + NASTY],
    }
    with Control("shop", {"status": lambda _: status}):
        said = headgate("status")
        assert no_controls(headgate("status", "--json"))
    assert no_controls(said)
    flat = "".join(line.strip() for line in said.splitlines())
    for name in ("app", "engine", "policy", "workers", "step", "why", "problem"):
        assert name + HARMLESS in flat


def test_other_commands_print_nothing_raw(
    headgate: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wide: None
) -> None:
    def refuse(arguments: dict[str, Any]) -> dict[str, Any]:
        raise PipelineError("no" + NASTY)

    done = {"value": "v" + NASTY, "policy": "p" + NASTY, "workers": 2}
    with Control("shop", {"restart": lambda _: {"query": "q" + NASTY}, "set": lambda _: done}):
        for said in (headgate("restart", "q"), headgate("set", "policy", "x")):
            assert HARMLESS in said
            assert no_controls(said)
    with Control("sh" + NASTY, {"status": refuse}), Control("other", {}):
        for arguments in (["status"], ["status", "--app", "sh" + NASTY], ["status", "--app", "x" + NASTY]):
            monkeypatch.setattr(sys, "argv", ["headgate", *arguments])
            with pytest.raises(SystemExit):
                main()
            said = capsys.readouterr().err
            assert HARMLESS in said
            assert no_controls(said)


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


HARMFUL = [
    "SELECT * FROM parquet.`{other}`",
    "SELECT * FROM carts JOIN parquet.`{other}` USING (n)",
    "SELECT * FROM carts WHERE n IN (SELECT n FROM parquet.`{other}`)",
    "WITH x AS (SELECT * FROM parquet.`{other}`) SELECT * FROM x",
    "SELECT * FROM text.`{secret}`",
    "SELECT java_method('java.lang.System', 'getProperty', 'user.home')",
    "SELECT `reflect`('java.lang.System', 'getProperty', 'user.home')",
    "SELECT try_reflect('java.lang.System', 'getProperty', 'user.home') FROM carts",
    "SELECT 1 -- ,\r, java_method('java.lang.System', 'getProperty', 'user.home')",
    "SELECT input_file_name() FROM carts",
    "SELECT TRANSFORM(n) USING 'touch {new}' AS (x STRING) FROM carts",
    "SELECT * FROM range(3)",
    "SELECT * FROM IDENTIFIER('parquet.`{other}`')",
    "SELECT spark_catalog.default.f(1)",
    "CREATE OR REPLACE TEMPORARY VIEW carts AS SELECT 1 AS n",
    "CREATE TABLE t USING parquet LOCATION '{new}' AS SELECT * FROM carts",
    "INSERT OVERWRITE DIRECTORY '{new}' USING parquet SELECT * FROM carts",
    "INSERT OVERWRITE TABLE parquet.`{carts}` SELECT * FROM carts",
    "FROM carts INSERT OVERWRITE DIRECTORY '{new}' USING parquet SELECT n",
    "WITH x AS (SELECT 1 AS n) INSERT INTO parquet.`{new}` SELECT * FROM x",
    "SELECT * INTO t FROM carts",
    "SELECT 1; SELECT 2",
    "ADD JAR '{other}'",
    "SET spark.sql.ansi.enabled=false",
    "SHOW TABLES",
    "EXPLAIN SELECT * FROM carts",
    "CACHE TABLE carts",
    "DROP VIEW carts",
    "SELECT /*+ BROADCAST(carts) */ * FROM carts",
    "",
]


def kept_files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("sql", HARMFUL)
def test_only_one_select_over_kept_history_is_answered(
    headgate: Run, checkpoint: Path, tmp_path: Path, spark: None, sql: str
) -> None:
    """A question runs as the person who asks, so it must not reach other files, programs or tables."""
    other, secret = tmp_path / "other.parquet", tmp_path / "secret.txt"
    pq.write_table(pa.table({"n": [42]}), other)
    secret.write_text("secret")
    names = {"other": other, "secret": secret, "new": tmp_path / "new", "carts": checkpoint / "history/carts"}
    before = kept_files(tmp_path)
    with pytest.raises(HeadgateError, match="one SELECT over kept histories"):
        headgate("query", sql.format(**names), "--checkpoint", checkpoint)
    with (
        Control("shop", {"history": lambda _: outputs(checkpoint)}),
        pytest.raises(HeadgateError, match="one SELECT over kept histories"),
    ):
        headgate("query", sql.format(**names), "--app", "shop")
    assert kept_files(tmp_path) == before


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("WITH x AS (SELECT n FROM carts), y AS (SELECT n FROM x) SELECT max(n) AS v FROM y", 4),
        ("SELECT count(*) FILTER (WHERE n > 1) AS v FROM CARTS", 3),
        ("SELECT sum(n) AS v FROM (SELECT n FROM carts UNION ALL SELECT n FROM carts)", 20),
        ("SELECT count(t) AS v FROM carts LATERAL VIEW explode(tags) e AS t -- a comment", 4),
        ("SELECT max(date_format(at, 'EEEE ''of'' yyyy')) AS v FROM carts WHERE n = 1", "Monday of 2024"),
        ("SELECT 'it''s ${env:HOME}' || \"!\" AS v /* a comment */", "it's ${env:HOME}!"),
        ("SELECT element_at(transform(tags, x -> upper(x)), 1) AS v FROM carts WHERE n = 1", "A"),
        ("SELECT CAST(sum(n) AS DECIMAL(10, 2)) + .5 AS v FROM carts", "10.50"),
        ("SELECT max(r) AS v FROM (SELECT rank() OVER w AS r FROM carts WINDOW w AS (ORDER BY n))", 4),
        ("SELECT count(*) AS v FROM carts WHERE EXISTS (SELECT 1 FROM `my/odd query` WHERE big = n)", 4),
        ("SELECT c.n AS v FROM carts c WHERE c.n NOT IN (SELECT n FROM carts WHERE n <> 2)", 2),
    ],
)
def test_all_of_select_is_there(
    headgate: Run, checkpoint: Path, spark: None, sql: str, answer: int | str
) -> None:
    assert json.loads(headgate("query", sql, "--checkpoint", checkpoint, "--json")) == [{"v": answer}]


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
