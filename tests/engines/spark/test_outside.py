"""Runs on Spark that die at each record of their log: databases and lakehouses have each row once."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import headgate as hg
from checkpoints import Crash, Rows, crashing, write_orders
from headgate.connectors.iceberg_sink import IcebergSink
from killed_driver import QUICK, Trains

pytestmark = pytest.mark.xdist_group("spark")


def iceberg(folder: Path) -> IcebergSink:
    uri = f"sqlite:///{folder}/catalog.db"
    return hg.to_iceberg("shop.sums", properties={"type": "sql", "uri": uri, "warehouse": f"file://{folder}"})


def app(folder: Path, places: Path, more: list[Any] | None = None) -> hg.App:
    """Running sums into every kind of place."""
    made = hg.App("shop")
    orders = made.source("orders", hg.from_files(folder / "orders"))
    sums = orders.filter("amount > 3").key_by("user").running("sum(amount) AS total", "count(*) AS n")
    rows = sums.select("user", "total", "n")
    rows.to("appended", hg.to_sql(f"sqlite:///{places}/shop.db", "sums"))
    rows.to("replaced", hg.to_sql(f"sqlite:///{places}/shop.db", "last", key="user"))
    rows.to("delta", hg.to_delta(str(places / "delta")))
    rows.to("iceberg", iceberg(places))
    if more is not None:
        rows.to("listed", hg.to_list(more))
    return made


def found(places: Path) -> dict[str, Rows]:
    with sqlite3.connect(places / "shop.db") as connection:
        connection.row_factory = sqlite3.Row
        appended = [dict(row) for row in connection.execute("SELECT * FROM sums ORDER BY rowid")]
        replaced = [dict(row) for row in connection.execute("SELECT * FROM last ORDER BY user")]
    lake = {
        "delta": DeltaTable(places / "delta").to_pyarrow_table(),
        "iceberg": iceberg(places).load().load_table("shop.sums").scan().to_arrow(),
    }
    ordered = {
        name: table.sort_by([("user", "ascending"), ("n", "ascending")]) for name, table in lake.items()
    }
    return {"appended": appended, "replaced": replaced} | {n: t.to_pylist() for n, t in ordered.items()}


def test_each_row_is_outside_once_when_the_driver_dies_at_any_record(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", 2, 150, seed=3)
    wanted: Rows = []
    (tmp_path / "undisturbed").mkdir()
    app(tmp_path, tmp_path / "undisturbed", wanted).run("threads")
    (tmp_path / "places").mkdir()
    crashes = 0
    while True:
        spark = hg.Spark(checkpoint=tmp_path / "checkpoint", workers=2, options=QUICK)
        try:
            # A start, the sinks' claims, then for each step an intent and the step: each of them is the last.
            with crashing(3 + crashes % 4, after=bool(crashes // 4 % 2)):
                report = app(tmp_path, tmp_path / "places").run(spark, Trains(70, crashes))
            break
        except Crash:
            crashes += 1
            assert crashes < 60
    assert [query.error for query in report.queries.values()] == [None] * 4
    assert crashes > 3
    made = found(tmp_path / "places")
    assert made["appended"] == wanted
    assert made["replaced"] == sorted({row["user"]: row for row in wanted}.values(), key=lambda r: r["user"])
    for lake in ("delta", "iceberg"):
        assert made[lake] == sorted(wanted, key=lambda row: (row["user"], row["n"])), lake
    assert found(tmp_path / "undisturbed") == made
