"""A savepoint of a running application, its state, and a new run that begins there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from killed_driver import QUICK
from waiting import eventually

pytestmark = pytest.mark.xdist_group("spark")
SCHEMA = pa.schema([("k", pa.int64())])


def app(folder: Path, found: list[dict[str, Any]], query: str = "counts", **options: Any) -> hg.App:
    made = hg.App("saved")
    lines = made.source("lines", hg.from_files(folder, format="json", schema=SCHEMA, follow=True))
    lines.key_by("k").running("count(*) AS n").to(query, hg.to_list(found), **options)
    return made


def write(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f".{number}").write_text("".join(json.dumps({"k": i % 2}) + "\n" for i in range(10)))
    (folder / f".{number}").rename(folder / f"{number}.json")


def test_a_run_is_saved_looked_at_and_begun_from(
    tmp_path: Path, sockets: None, headgate: Callable[..., str]
) -> None:
    rows, after, anew = [list[dict[str, Any]]() for _ in range(3)]
    write(tmp_path / "in", 0)
    spark = hg.Spark(checkpoint=tmp_path / "checkpoint", workers=1, options=QUICK)
    with app(tmp_path / "in", rows).start(spark, until=None) as running:
        eventually(lambda: len(rows) == 10)
        eventually(lambda: running.report().queries["counts"].tuples_in == 10)
        headgate("savepoint", tmp_path / "saved", "--app", "saved")
        [own] = json.loads(headgate("state", "saved", "counts", "--json"))
        write(tmp_path / "in", 1)
        eventually(lambda: len(rows) == 20)
    assert [(row["k"], row["n.count"]) for row in own["state"]] == [(0, 5), (1, 5)]
    wanted = [i // 2 + 1 for i in range(10, 20)]
    spark = hg.Spark(checkpoint=tmp_path / "new", savepoint=tmp_path / "saved", workers=1, options=QUICK)
    with app(tmp_path / "in", after, "renamed", was="counts").start(spark, until=None):
        eventually(lambda: len(after) == 10)
    assert [row["n"] for row in after] == wanted
    spark = hg.Spark(checkpoint=tmp_path / "new", replay=["renamed"], workers=1, options=QUICK)
    with app(tmp_path / "in", anew, "renamed").start(spark, until=None):
        eventually(lambda: len(anew) == 20)
    assert [row["n"] for row in anew] == [i // 2 + 1 for i in range(20)]
