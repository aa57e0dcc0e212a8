"""Keys and windows on expressions, tables to look up, and side outputs, on every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import headgate as hg
from headgate import testing
from headgate.errors import HeadgateError

ROWS = [
    {"user": "Ann", "item": 1, "second": 5},
    {"user": "ben", "item": 2, "second": 20},
    {"user": "ANN", "item": 9, "second": 61},
    {"user": "Ben", "item": 1, "second": 65},
]
ALERTS = pa.schema([("user", pa.string()), ("why", pa.string())])


def test_keys_windows_and_joins_take_expressions(engine: hg.Engine) -> None:
    app = hg.App("expressions")
    clicks = app.source("clicks", testing.from_rows(ROWS))
    people = clicks.key_by("lower(user) AS person")
    counted: list[dict[str, Any]] = []
    people.running("count(*) AS n").select("person", "n").to("running", hg.to_list(counted))
    minutes: list[dict[str, Any]] = []
    window = hg.tumbling("1 minute", on="timestamp_seconds(second) AS ts")
    people.window(window).agg("count(*) AS n").to("minutes", hg.to_list(minutes))
    app.run(engine)
    assert [tuple(row.values()) for row in counted] == [("ann", 1), ("ben", 1), ("ann", 2), ("ben", 2)]
    assert [(row["person"], row["window_start"].minute, row["n"]) for row in minutes] == [
        ("ann", 0, 1), ("ben", 0, 1), ("ann", 1, 1), ("ben", 1, 1),
    ]  # fmt: skip


def test_tables_of_any_kind_are_looked_up(engine: hg.Engine, tmp_path: Path) -> None:
    csv = tmp_path / "items.csv"
    csv.write_text("id,name\n1,pen\n2,ink\n")
    frame = pd.DataFrame({"id": [1, 2], "name": ["pen", "ink"]})
    tables: dict[str, Any] = {
        "frame": frame,
        "file": csv,
        "source": hg.from_files(str(csv), format="csv"),
        "function": lambda: frame,
    }
    app = hg.App("lookup")
    clicks = app.source("clicks", testing.from_rows(ROWS))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in tables}
    for name, table in tables.items():
        again = None if name == "frame" else "1 hour"
        clicks.lookup(table, on={"item": "id"}, refresh=again).to(name, hg.to_list(found[name]))
    app.run(engine)
    for name, rows in found.items():
        assert [row["name"] for row in rows] == ["pen", "ink", None, "pen"], name


def watch(row: dict[str, Any], state: dict[str, int]) -> Any:
    state["n"] = state.get("n", 0) + 1
    yield {"user": row["user"], "n": state["n"]}
    if row["item"] > 5:
        yield hg.Side("alerts", {"user": row["user"], "why": f"item {row['item']}"})


def test_a_function_has_side_outputs(engine: hg.Engine) -> None:
    app = hg.App("sides")
    clicks = app.source("clicks", testing.from_rows(ROWS))
    schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    found: list[list[dict[str, Any]]] = [[], [], []]
    keyed = clicks.key_by("lower(user) AS person").process(watch, schema=schema, side={"alerts": ALERTS})
    keyed.to("main", hg.to_list(found[0]))
    keyed.side("alerts").to("alerts", hg.to_list(found[1]))
    whole = clicks.process(watch, schema=schema, side={"alerts": ALERTS})
    whole.filter("n > 3").select("user").union(whole.side("alerts").select("user")).to(
        "both", hg.to_list(found[2])
    )
    app.run(engine)
    assert [row["n"] for row in found[0]] == [1, 1, 2, 2]
    assert found[1] == [{"user": "ANN", "why": "item 9"}]
    assert [row["user"] for row in found[2]] == ["ANN", "Ben"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    clicks = hg.App("mistakes").source("clicks", testing.from_rows(ROWS))
    schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    for build, words in (
        (lambda: clicks.key_by("usr"), ["'usr'", "'user'"]),
        (lambda: clicks.key_by("lower(usr)"), ["usr"]),
        (lambda: clicks.lookup(tmp_path / "none.csv", on="item"), ["no file"]),
        (lambda: clicks.lookup(hg.from_rate(1), on="item"), ["must end"]),
        (lambda: clicks.process(watch, schema=schema, side={"main": ALERTS}), ["'main'"]),
        (lambda: clicks.process(watch, schema=schema).side("alerts"), ["'alerts'", "side="]),
    ):
        with pytest.raises(HeadgateError) as raised:
            build()
        assert all(word in str(raised.value) for word in words), str(raised.value)
    app = hg.App("undeclared")
    stream = app.source("clicks", testing.from_rows(ROWS))
    stream.process(watch, schema=schema, side={"other": ALERTS}).to("q", hg.to_list([]))
    with pytest.raises(HeadgateError, match="no side output 'alerts'"):
        app.run("threads")
