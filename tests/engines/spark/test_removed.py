"""Queries that leave and come back, and queries that are restarted: they go on, or say why not."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from checkpoints import put_file, read
from headgate.control.socket import call
from headgate.engines.spark import engine as spark_engine
from headgate.errors import HeadgateError, RunError
from killed_driver import QUICK

pytestmark = pytest.mark.xdist_group("spark")
SCHEMA = pa.schema([("x", pa.int64())])
PATIENCE = 120.0


class Killed(Exception):
    """The driver dies: nothing is logged any more."""


def write_lines(folder: Path, number: int, rows: int = 20) -> None:
    folder.mkdir(exist_ok=True)
    lines = "".join(json.dumps({"x": number * rows + row}) + "\n" for row in range(rows))
    (folder / f".{number}").write_text(lines)
    (folder / f".{number}").rename(folder / f"{number:03d}.json")


def app(folder: Path, found: dict[str, list[Any]], start: int | str = "earliest") -> hg.App:
    """Lines are spooled, and what every query has passed of the spool is removed."""
    made = hg.App("lines")
    rows = made.source("rows", hg.from_files(folder, format="json", schema=SCHEMA, follow=True))
    for query in ("stays", "leaves"):
        into = hg.to_list(found.setdefault(query, []))
        rows.filter(f"x >= 0 OR '{query}' = ''").to(
            query, into, start="earliest" if query == "stays" else start
        )
    return made


def test_a_query_that_was_removed_comes_back_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins anew, as a query that joins; what was trimmed meanwhile is counted, and not asked for."""
    monkeypatch.setattr(spark_engine, "CLEAN_EVERY", 1)
    folder, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"
    spark = hg.Spark(checkpoint=checkpoint, workers=2, options=QUICK)
    write_lines(folder, 0)
    found: dict[str, list[Any]] = {}
    written, removed = [1], threading.Event()

    def watch(report: hg.Report) -> None:
        """A file at a time, each after the one before; the last one ends the driver."""
        if not removed.is_set() or len(found["stays"]) < 20 * written[0]:
            return
        if written[0] == 6 and len(list((checkpoint / "spool").glob("*.arrow"))) < 4:
            raise Killed
        if written[0] < 6:
            write_lines(folder, written[0])
            written[0] += 1

    running = app(folder, found).start(spark, "round_robin", until=None, progress=watch)
    wait_for(lambda: len(found["leaves"]) >= 20)
    running.remove("leaves")
    removed.set()
    with pytest.raises(Killed):
        running.wait()

    again: dict[str, list[Any]] = {}

    def enough(report: hg.Report) -> None:
        errors = [query.error for query in report.queries.values() if query.error is not None]
        if errors:
            raise errors[0]
        if again["leaves"] and again["leaves"][-1]["x"] == 139 and again["stays"][-1]["x"] == 139:
            raise KeyboardInterrupt

    write_lines(folder, 6)
    with pytest.raises(RunError, match=r"query 'leaves'.* of the 120 tuples .* are gone.*start=") as refused:
        app(folder, again).run(spark, "round_robin", until=PATIENCE, progress=enough)
    first = int(re.search(r"start=(\d+)", str(refused.value))[1])  # type: ignore[index]
    assert first > 0
    app(folder, again, first).run(spark, "round_robin", until=PATIENCE, progress=enough)
    assert [row["x"] for row in again["leaves"]] == list(range(first, 140))
    assert [row["x"] for row in again["stays"]][-20:] == list(range(120, 140))


def wait_for(holds: Callable[[], bool]) -> None:
    import time

    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_restart_says_whether_the_query_goes_on(tmp_path: Path, sockets: None) -> None:
    """Its folder is away: it fails again, and the answer says so.  The folder is back: it really goes on."""
    put(tmp_path / "orders", 0)
    put(tmp_path / "others", 0)
    made = hg.App("folders")
    for name in ("orders", "others"):
        rows = made.source(name, hg.from_files(tmp_path / name, schema=SCHEMA, follow=True))
        rows.to(name, hg.to_parquet(tmp_path / "out" / name))
    spark = hg.Spark(checkpoint=tmp_path / "checkpoint", workers=2, options=QUICK)
    with made.start(spark, until=None) as running:
        wait_for(lambda: len(read(tmp_path / "out" / "orders")) == 10)
        (tmp_path / "orders").rename(tmp_path / "away")
        wait_for(lambda: running.report().queries["orders"].error is not None)
        with pytest.raises(HeadgateError, match=r"Query 'orders' was restarted and has failed again"):
            call("folders", "restart", query="orders")
        (tmp_path / "away").rename(tmp_path / "orders")
        put(tmp_path / "orders", 1)
        assert call("folders", "restart", query="orders")["went_on"]
        wait_for(lambda: len(read(tmp_path / "out" / "orders")) == 20)
        assert running.report().queries["orders"].error is None
    assert [row["x"] for row in read(tmp_path / "out" / "orders")] == list(range(20))


def put(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    put_file(folder, f"{number}.parquet", pa.table({"x": list(range(10 * number, 10 * number + 10))}))
