"""Queries that join an application under way begin where they are told to, and share what stands there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headgate as hg
from headgate.engines.spark import engine as spark_engine
from headgate.errors import RunError
from waiting import PATIENCE

pytestmark = pytest.mark.xdist_group("spark")
BATCH = 40


def write(folder: Path, number: int) -> None:
    first = number * BATCH
    table = pa.table(
        {"x": list(range(first, first + BATCH)), "k": [i % 3 for i in range(first, first + BATCH)]}
    )
    pq.write_table(table, folder / f"part-{number}.parquet")


def build(folder: Path, found: dict[str, list[Any]], starts: dict[str, Any]) -> hg.App:
    """Every query asks for the even rows and for running sums over them, sharing both boxes."""
    app = hg.App("joining")
    rows = app.source("rows", hg.from_files(folder, format="parquet", follow=True))
    even = rows.filter("x % 2 = 0", name="even")
    sums = even.key_by("k").running("sum(x) AS total", name="sums")
    for query, start in starts.items():
        sums.to(query, hg.to_list(found.setdefault(query, [])), start=start)
    return app


class Enough(Exception):
    pass


def run(app: hg.App, checkpoint: Path, found: dict[str, list[Any]], rows: dict[str, int]) -> set[str]:
    """Run until every query has so many results; gives the names of the boxes that ran."""
    boxes: set[str] = set()

    def check(report: hg.Report) -> None:
        boxes.update(box.name for box in report.boxes.values() if box.tuples_in)
        if all(len(found[query]) >= count for query, count in rows.items()):
            raise Enough

    with pytest.raises(Enough):
        app.run(hg.Spark(checkpoint=checkpoint), until=PATIENCE, progress=check)
    return boxes


def expected(numbers: range) -> list[dict[str, Any]]:
    totals = [0, 0, 0]
    rows = []
    for x in numbers:
        if x % 2 == 0:
            totals[x % 3] += x
            rows.append({"x": x, "k": x % 3, "total": totals[x % 3]})
    return rows


def test_queries_join_from_the_beginning_from_now_and_from_a_serial(tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    folder.mkdir()
    found: dict[str, list[Any]] = {}
    write(folder, 0)
    run(build(folder, found, {"first": "earliest"}), checkpoint, found, {"first": BATCH // 2})

    write(folder, 1)
    starts = {"first": "earliest", "now": "now", "at": 30}
    app = build(folder, found, starts)
    boxes = run(app, checkpoint, found, {"first": BATCH, "now": BATCH // 2, "at": 25})
    assert found["first"] == expected(range(2 * BATCH))
    assert found["at"] == expected(range(30, 2 * BATCH))
    # What has come before 'now' is in the state that 'first' stands at: so 'now' shares it.
    assert found["now"] == expected(range(2 * BATCH))[BATCH // 2 :]
    assert boxes == {"even", "sums", "even@at", "sums@at"}

    write(folder, 2)
    boxes = run(build(folder, found, starts), checkpoint, found, {"first": 60, "now": 40, "at": 45})
    assert found["first"] == expected(range(3 * BATCH))
    assert found["at"] == expected(range(30, 3 * BATCH))
    assert boxes == {"even", "sums", "even@at", "sums@at"}


def test_a_serial_that_the_application_does_not_have_is_refused(tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    folder.mkdir()
    found: dict[str, list[Any]] = {}
    write(folder, 0)
    run(build(folder, found, {"first": "earliest"}), checkpoint, found, {"first": BATCH // 2})
    app = build(folder, found, {"first": "earliest", "late": 1_000})
    with pytest.raises(RunError, match=r"query 'late' asks to start with tuple 1000.*from 0 to 40"):
        app.run(hg.Spark(checkpoint=checkpoint), until=PATIENCE)


def numbers(folder: Path, format: str, number: int) -> None:
    first = number * BATCH
    rows = [{"x": x, "k": x % 3} for x in range(first, first + BATCH)]
    if format == "parquet":
        write(folder, number)
    else:
        (folder / f".{number}").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f".{number}").rename(folder / f"part-{number}.json")


def follow(folder: Path, format: str, found: dict[str, list[Any]], starts: dict[str, Any]) -> hg.App:
    app = hg.App("joining")
    schema = pa.schema([("x", pa.int64()), ("k", pa.int64())])
    rows = app.source("rows", hg.from_files(folder, format=format, schema=schema, follow=True))
    for query, start in starts.items():
        rows.filter("x % 2 = 0", name=f"even-{query}").to(
            query, hg.to_list(found.setdefault(query, [])), start=start
        )
    return app


def test_earliest_is_the_first_row_of_all_files_that_are_still_there(tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    folder.mkdir()
    found: dict[str, list[Any]] = {}
    for number in range(3):
        numbers(folder, "parquet", number)
        rows = {"first": (number + 1) * BATCH // 2}
        run(follow(folder, "parquet", found, {"first": "earliest"}), checkpoint, found, rows)
    app = follow(folder, "parquet", found, {"first": "earliest", "late": "earliest", "now": "now"})
    seen: dict[str, int] = {}

    def check(report: hg.Report) -> None:
        seen.update({name: query.tuples_in for name, query in report.queries.items()})
        if len(found["late"]) >= 3 * BATCH // 2:
            raise Enough

    with pytest.raises(Enough):
        app.run(hg.Spark(checkpoint=checkpoint), until=PATIENCE, progress=check)
    assert [row["x"] for row in found["late"]] == list(range(0, 3 * BATCH, 2))
    assert seen == {"first": 0, "late": 3 * BATCH, "now": 0}

    (folder / "part-0.parquet").unlink()
    app = follow(folder, "parquet", found, {"first": "earliest", "later": "earliest"})
    problems: list[str] = []

    def note(report: hg.Report) -> None:
        problems[:] = report.problems
        if len(found["later"]) >= BATCH:
            raise Enough

    with pytest.raises(Enough):
        app.run(hg.Spark(checkpoint=checkpoint), until=PATIENCE, progress=note)
    assert [row["x"] for row in found["later"]] == list(range(BATCH, 3 * BATCH, 2))
    assert any(f"{BATCH} of the {3 * BATCH} tuples of source 'rows' are gone" in each for each in problems)


def test_the_earliest_rows_come_from_the_files_where_the_spool_has_let_go_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What every query has read is removed once in a while; here, as soon as can be."""
    monkeypatch.setattr(spark_engine, "CLEAN_EVERY", 1)
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    folder.mkdir()
    found: dict[str, list[Any]] = {}
    for number in range(3):
        numbers(folder, "json", number)
        rows = {"first": (number + 1) * BATCH // 2}
        run(follow(folder, "json", found, {"first": "earliest"}), checkpoint, found, rows)
    app = follow(folder, "json", found, {"first": "earliest", "late": 5})
    with pytest.raises(RunError, match=rf"start with tuple 5.*from {2 * BATCH} to {3 * BATCH}"):
        app.run(hg.Spark(checkpoint=checkpoint), until=PATIENCE)
    app = follow(folder, "json", found, {"first": "earliest", "again": "earliest"})
    boxes = run(app, checkpoint, found, {"again": 3 * BATCH // 2})
    assert [row["x"] for row in found["again"]] == list(range(0, 3 * BATCH, 2))
    assert boxes == {"even-again@again"}, "the other query is given nothing twice"
    app = follow(folder, "json", found, {"first": "earliest", "late": 2 * BATCH})
    run(app, checkpoint, found, {"late": BATCH // 2})
    assert [row["x"] for row in found["late"]] == list(range(2 * BATCH, 3 * BATCH, 2))
