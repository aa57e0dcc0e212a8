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
from checkpoints import put_file, read, run_until
from headgate.control.socket import call
from headgate.engines.spark import engine as spark_engine
from headgate.errors import HeadgateError
from killed_driver import QUICK
from waiting import PATIENCE

pytestmark = pytest.mark.xdist_group("spark")
SCHEMA = pa.schema([("x", pa.int64())])


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
    """It begins anew with the earliest row, whatever the spool has let go of meanwhile."""
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
    app(folder, again).run(spark, "round_robin", until=PATIENCE, progress=enough)
    assert [row["x"] for row in again["leaves"]] == list(range(140))
    assert [row["x"] for row in again["stays"]][-20:] == list(range(120, 140))


def test_a_source_that_left_with_its_query_is_read_from_the_beginning_when_it_comes_back(
    tmp_path: Path, ends: Any
) -> None:
    """Rows that it had read before, files that came meanwhile, and new ones: all of them, in order."""

    def write(number: int) -> None:
        put(tmp_path / "stays", number)
        put(tmp_path / "leaves", number)
        write_lines(tmp_path / "lines", number, 10)

    def run(**wanted: int) -> dict[str, list[int]]:
        made = hg.App("sources")
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in wanted}
        for name in wanted:
            source = hg.from_files(tmp_path / name, schema=SCHEMA, follow=True)
            made.source(name, source).filter("x >= 0").to(name, hg.to_list(found[name]))

        def enough() -> bool:
            return all(len(found[name]) >= rows for name, rows in wanted.items())

        ends(lambda: run_until(made, hg.Spark(checkpoint=tmp_path / "checkpoint", options=QUICK), enough))
        return {name: [row["x"] for row in own] for name, own in found.items()}

    write(0)
    run(stays=10, leaves=10, lines=10)
    write(1)
    assert run(stays=10) == {"stays": list(range(10, 20))}
    write(2)
    every = list(range(30))
    assert run(stays=10, leaves=30, lines=30) == {"stays": every[20:], "leaves": every, "lines": every}


def test_a_query_that_was_added_by_command_is_not_gone_without_a_word(tmp_path: Path, sockets: None) -> None:
    """The application's file does not have it.  The next run says so, and where it goes on."""
    spark = hg.Spark(checkpoint=tmp_path / "checkpoint", workers=2, options=QUICK)

    def run(number: int) -> tuple[list[str], list[int]]:
        """Add the query behind what it had before; what the run said of it, and its rows."""
        write_lines(tmp_path / "lines", number)
        out, stays = tmp_path / f"out {number}", list[dict[str, Any]]()
        made = hg.App("added")
        source = hg.from_files(tmp_path / "lines", format="json", schema=SCHEMA, follow=True)
        made.source("rows", source).to("stays", hg.to_list(stays))
        with made.start(spark, "round_robin", until=None) as running:
            wait_for(lambda: len(stays) == 20)
            problems = running.report().problems
            start = re.search(r"'even'.*start=(\d+)", problems[0])[1] if problems else "earliest"  # type: ignore[index]
            even = "SELECT x FROM rows WHERE x % 2 = 0"
            call("added", "add", name="even", sql=even, to=str(out), start=start)
            wait_for(lambda: len(read(out)) == 10)
        return problems, [row["x"] for row in read(out)]

    assert run(0) == ([], list(range(0, 20, 2)))
    (told,), rows = run(1)
    assert "'even'" in told
    assert rows == list(range(20, 40, 2))


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
