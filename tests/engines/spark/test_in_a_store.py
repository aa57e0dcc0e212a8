"""A whole run with its checkpoint in an object store: no folder is used, and a step asks for little."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from checkpoints import Crash, crashing, read, write_orders
from headgate.checkpoint.object_store import ObjectStore
from headgate.errors import RunError
from headgate.scheduling.interface import Call
from killed_driver import QUICK, Trains
from object_stores import BUCKET, Way, options


class Whole(Trains):
    """Every step goes through all boxes."""

    def choose(self, worker: int, now: float) -> Any:
        return tuple(Call(box, self._train) for box in range(len(self.catalog.boxes)))


pytestmark = pytest.mark.xdist_group("spark")
QUERIES = 24


def spark(way: Way, name: str) -> hg.Spark:
    where = f"s3a://{BUCKET}/{name}"
    return hg.Spark(checkpoint=where, storage_options=options(way.address), workers=1, options=QUICK)


def app(tmp_path: Path, out: str, queries: int) -> hg.App:
    """Keyed states, windows and queues between steps; and rows of a spool."""
    made = hg.App("shop")
    orders = made.source("orders", hg.from_files(tmp_path / "orders"))
    for number in range(queries):
        some = orders.filter(f"amount % {queries} = {number}").key_by("user")
        sums = some.running("sum(amount) AS total").filter("total >= 0")
        sums.to(f"sums-{number}", hg.to_parquet(tmp_path / out / f"sums-{number}"))
    return made


def results(tmp_path: Path, out: str, queries: int) -> list[Any]:
    return [read(tmp_path / out / f"sums-{number}") for number in range(queries)]


def test_runs_go_on_from_a_store(tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed again and again at its records, states and queues in the store; each row comes once."""
    monkeypatch.chdir(tmp_path)
    write_orders(tmp_path / "orders", 2, 300, seed=1)
    app(tmp_path, "expected", 2).run("threads")
    runs = 0
    while True:
        runs += 1
        try:
            with crashing(6, storage=ObjectStore):
                app(tmp_path, "out", 2).run(spark(way, "resumed"), Trains(90, runs))
            break
        except Crash:
            assert runs < 60
    assert runs > 2
    assert results(tmp_path, "out", 2) == results(tmp_path, "expected", 2)
    folders = {key.split("/")[1] for method, key in way.seen if method == "PUT"}
    assert {"log", "owners", "slots", "states", "queues", "pipelines", "identity"} <= folders
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "orders", "out"]


def test_requests_of_a_step_do_not_grow_with_its_queries(tmp_path: Path, way: Way) -> None:
    """An order, a file of states for each task, a record; and what each task reads."""
    write_orders(tmp_path / "orders", 1, 1200, seed=1)
    for queries in (1, QUERIES):
        place = f"counted-{queries}"
        way.seen.clear()
        report = app(tmp_path, place, queries).run(spark(way, place), Whole(200, 1))
        assert report.steps >= 6
        asked = Counter((method, key.split("/")[1]) for method, key in way.seen if "/" in key)
        tasks = asked["GET", "slots"]  # how many share a step depends on what was measured
        assert asked["PUT", "slots"] == report.steps
        assert asked["PUT", "states"] <= tasks
        assert asked["PUT", "log"] == report.steps + 4  # the owner, the start, what sinks claim, the end
        assert asked["PUT", "queues"] == 0
        assert len(way.seen) <= 3 * report.steps + 2 * tasks + 50  # to begin and to end


def test_a_kept_history_needs_a_folder(tmp_path: Path, way: Way) -> None:
    made = hg.App("kept")
    made.source("numbers", hg.from_rate(10, limit=5)).to("numbers", hg.to_list([]), keep="1 day")
    with pytest.raises(RunError, match=r"Query 'numbers' \(keep=\) needs a checkpoint in a folder"):
        made.run(spark(way, "kept"))
