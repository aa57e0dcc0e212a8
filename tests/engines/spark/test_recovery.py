"""Recovery through the public surface: nothing lost, nothing twice, and clear words where that cannot be."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import headgate as hg
from checkpoints import Crash, Rows, crashing, full_disk, put_file, read, results, run_until, write_orders
from headgate.checkpoint import log
from headgate.engines.spark import engine as spark_engine
from headgate.engines.spark import planner
from headgate.errors import RunError
from killed_driver import QUICK, Trains

pytestmark = pytest.mark.xdist_group("spark")
Make = Callable[[Path], hg.App]


def spark(tmp_path: Path, **options: Any) -> hg.Spark:
    return hg.Spark(checkpoint=tmp_path / "checkpoint", workers=2, options=QUICK, **options)


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """What happens once in a while in life happens often here."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(log, "COMPACT_EVERY", 7))
        stack.enter_context(mock.patch.object(spark_engine, "CLEAN_EVERY", 4))
        stack.enter_context(mock.patch.object(planner, "LONGEST_CHAIN", 3))
        yield


def shop(tmp_path: Path, out: Path, *, follow: bool = False) -> hg.App:
    """Every kind of state, over two sources."""
    app = hg.App("shop")
    orders = app.source("orders", hg.from_files(tmp_path / "orders", follow=follow))
    dear = orders.filter("amount > 20")
    dear.select("user", "amount * 2 AS twice").to("stateless", hg.to_parquet(out / "stateless"))
    users = dear.key_by("user")
    users.running("sum(amount) AS total", "count(*) AS n").to("running", hg.to_parquet(out / "running"))
    windows = users.window(hg.tumbling("1 minute", on="ts", lateness="10 seconds"))
    windows.agg("count(*) AS n", "sum(amount) AS total").to("windows", hg.to_parquet(out / "windows"))
    sessions = users.window(hg.session("20 seconds", on="ts", lateness="10 seconds"))
    sessions.agg("count(*) AS n", "max(amount) AS dearest").to("sessions", hg.to_parquet(out / "sessions"))
    if not follow:
        views = app.source("views", hg.from_files(tmp_path / "views"))
        joined = users.join(views.key_by("user"), within="5 seconds", on="ts")
        joined.to("joined", hg.to_parquet(out / "joined"))
    return app


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, Rows]:
    """What the threads engine makes of the orders and views that are then there."""
    write_orders(tmp_path / "orders", 3, 700, seed=1)
    write_orders(tmp_path / "views", 2, 1200, seed=2)
    shop(tmp_path, tmp_path / "expected").run("threads")
    return results(tmp_path / "expected")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_that_crashes_at_its_records_goes_on_exactly(
    tmp_path: Path, expected: dict[str, Rows], after: bool
) -> None:
    """Each run crashes a few records on, before it is written or just after; all kinds of state survive."""
    crashes = 0
    while True:
        app = shop(tmp_path, tmp_path / "out")
        try:
            with crashing(2 + crashes % 4, after=after):
                app.run(spark(tmp_path), Trains(120, crashes))
            break
        except Crash:
            crashes += 1
            assert crashes < 100
    assert crashes > 5
    assert results(tmp_path / "out") == expected
    assert not list((tmp_path / "out").rglob(".staged-*"))


def test_a_crash_between_compaction_and_the_names_of_files_loses_none(
    tmp_path: Path, expected: dict[str, Rows]
) -> None:
    """The record that says which files to publish may be gone by then."""
    crashes = 0
    while True:
        try:
            with crashing(1, after=True, kind="snapshots"):
                shop(tmp_path, tmp_path / "out").run(spark(tmp_path), Trains(100, crashes))
            break
        except Crash:
            crashes += 1
    assert crashes > 1
    assert results(tmp_path / "out") == expected


def test_a_finished_run_has_nothing_more_to_do(tmp_path: Path, expected: dict[str, Rows]) -> None:
    shop(tmp_path, tmp_path / "out").run(spark(tmp_path))
    again = shop(tmp_path, tmp_path / "out").run(spark(tmp_path))
    assert again.tuples == 0
    assert results(tmp_path / "out") == expected


def test_the_number_of_buckets_may_change(tmp_path: Path, expected: dict[str, Rows]) -> None:
    with pytest.raises(Crash), crashing(6):
        shop(tmp_path, tmp_path / "out").run(spark(tmp_path, buckets=64), Trains(250, 1))
    with pytest.raises(Crash), crashing(6):
        shop(tmp_path, tmp_path / "out").run(spark(tmp_path, buckets=7), Trains(250, 2))
    shop(tmp_path, tmp_path / "out").run(spark(tmp_path, buckets=100))
    assert results(tmp_path / "out") == expected


def test_rows_that_a_list_has_seen_come_again_exactly_after_a_crash(tmp_path: Path) -> None:
    """A list sees rows before the commit: what was announced and not committed is repeated, to the row."""
    write_orders(tmp_path / "orders", 2, 300, seed=1)

    def app(seen: Rows) -> hg.App:
        made = hg.App("lists")
        orders = made.source("orders", hg.from_files(tmp_path / "orders"))
        windows = orders.key_by("user").window(hg.tumbling("1 minute", on="ts", lateness="10 seconds"))
        windows.agg("count(*) AS n", "sum(amount) AS total").to("windows", hg.to_list(seen))
        return made

    wanted: Rows = []
    app(wanted).run("threads")
    runs: list[Rows] = []
    while True:
        runs.append([])
        try:
            # What an intent announces is seen, and its commit fails.
            with crashing(5 - 2 * (len(runs) % 2)):
                app(runs[-1]).run(spark(tmp_path), Trains(60, len(runs)))
            break
        except Crash:
            assert len(runs) < 100
    kept: Rows = []
    for seen in runs:
        # Each run begins with what the one before it had announced.
        start = next(i for i in range(len(kept) + 1) if kept[i:] == seen[: len(kept) - i])
        kept[start:] = seen
    assert len(runs) > 2
    assert sum(map(len, runs)) > len(wanted)
    assert kept == wanted


# --- folders that grow ------------------------------------------------------------------------------------


def grown(out: Path, wanted: dict[str, Rows]) -> Callable[[], bool]:
    return lambda: all(len(read(out / query)) >= len(rows) for query, rows in wanted.items())


def test_a_folder_that_grows_between_runs_is_read_once_and_in_order(tmp_path: Path) -> None:
    out, orders = tmp_path / "out", tmp_path / "orders"
    for part in range(4):
        write_orders(orders, 1, 400, seed=part, first=part)
        expected = tmp_path / f"expected-{part}"
        finite = shop_of_orders(tmp_path, expected)
        finite.run("threads")
        wanted = closed_upto(results(expected), part)
        report = run_until(shop(tmp_path, out, follow=True), spark(tmp_path), grown(out, wanted))
        assert [str(q.error) for q in report.queries.values() if q.error] == []
        assert results(out) == wanted


def closed_upto(rows: dict[str, Rows], part: int) -> dict[str, Rows]:
    """The last order of every file closes what came before it and opens what only the next file closes."""
    found = dict(rows)
    for query in ("windows", "sessions"):
        last = [row for row in rows[query] if row["user"] == 99]
        assert len(last) == part + 1
        found[query] = [row for row in rows[query] if row is not last[-1]]
    return found


def shop_of_orders(tmp_path: Path, out: Path) -> hg.App:
    """The same as when the folder is followed, over what is there now."""
    app = shop(tmp_path, out, follow=True)
    for source in app.network.sources:
        source.origin.finite, source.origin.live = True, False
    return app


def test_a_folder_that_vanishes_stops_its_query_and_the_next_run_goes_on(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", 1, 300, seed=1)
    write_orders(tmp_path / "others", 1, 300, seed=2)
    out = tmp_path / "out"

    def app() -> hg.App:
        made = hg.App("two folders")
        for name in ("orders", "others"):
            rows = made.source(name, hg.from_files(tmp_path / name, follow=True))
            rows.select("user", "amount").to(f"of {name}", hg.to_parquet(out / name))
        return made

    def both(orders: int, others: int) -> Callable[[], bool]:
        return lambda: len(read(out / "orders")) >= orders and len(read(out / "others")) >= others

    run_until(app(), spark(tmp_path), both(301, 301))
    made = app()
    hidden = tmp_path / "hidden"
    (tmp_path / "orders").rename(hidden)
    write_orders(tmp_path / "others", 1, 300, seed=3, first=1)
    report = run_until(made, spark(tmp_path), both(301, 602), errors=True)
    error = report.queries["of orders"].error
    assert error is not None
    assert str(tmp_path / "orders") in str(error)
    assert report.queries["of others"].error is None
    hidden.rename(tmp_path / "orders")
    write_orders(tmp_path / "orders", 1, 300, seed=4, first=1)
    report = run_until(app(), spark(tmp_path), both(602, 602))
    assert [q.error for q in report.queries.values()] == [None, None]
    for name in ("orders", "others"):
        assert read(out / name) == [{k: r[k] for k in ("user", "amount")} for r in read(tmp_path / name)]


# --- pipelines that change --------------------------------------------------------------------------------


def simple(
    tmp_path: Path, queries: dict[str, str], *, name: str = "simple", stateful: bool = False
) -> hg.App:
    """An application of filters, each over the source itself."""
    app = hg.App(name)
    orders = app.source("orders", hg.from_files(tmp_path / "orders"))
    for query, condition in queries.items():
        stream = orders.filter(condition)
        if stateful:
            stream = stream.key_by("user").running("sum(amount) AS total")
        stream.to(query, hg.to_parquet(tmp_path / "out" / query))
    return app


def wanted(tmp_path: Path, condition: Callable[[dict[str, Any]], bool]) -> Rows:
    return [row for row in read(tmp_path / "orders") if condition(row)]


def test_queries_come_and_go(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", 2, 500, seed=1)
    first = {"low": "amount < 30", "high": "amount > 70"}
    with pytest.raises(Crash), crashing(4):
        simple(tmp_path, first).run(spark(tmp_path), Trains(200, 1))
    second = {"high": "amount > 70", "odd": "amount % 2 = 1"}
    with pytest.raises(Crash), crashing(4):
        simple(tmp_path, second).run(spark(tmp_path), Trains(200, 2))
    shutil.rmtree(tmp_path / "out" / "low", ignore_errors=True)
    third = {"low": "amount < 30", "high": "amount > 70", "odd": "amount % 2 = 1"}
    simple(tmp_path, third).run(spark(tmp_path))
    out = tmp_path / "out"
    assert read(out / "high") == wanted(tmp_path, lambda row: row["amount"] > 70)
    assert read(out / "odd") == wanted(tmp_path, lambda row: row["amount"] % 2 == 1)
    assert read(out / "low") == wanted(tmp_path, lambda row: row["amount"] < 30)


def test_a_changed_stateless_query_goes_on_where_it_was(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", 2, 500, seed=1)
    with pytest.raises(Crash), crashing(4):
        simple(tmp_path, {"some": "amount < 50"}).run(spark(tmp_path), Trains(200, 3))
    simple(tmp_path, {"some": "amount >= 50"}).run(spark(tmp_path))
    rows = read(tmp_path / "orders")
    changed_at = [
        [r for r in rows[:at] if r["amount"] < 50] + [r for r in rows[at:] if r["amount"] >= 50]
        for at in range(1, len(rows))
    ]
    assert read(tmp_path / "out" / "some") in changed_at


def test_a_changed_stateful_query_is_refused_unless_it_may_begin_anew(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", 1, 300, seed=1)

    def app(aggregate: str) -> hg.App:
        made = hg.App("simple")
        orders = made.source("orders", hg.from_files(tmp_path / "orders"))
        orders.key_by("user").running(aggregate).to("sums", hg.to_parquet(tmp_path / "out"))
        return made

    app("sum(amount) AS total").run(spark(tmp_path))
    with pytest.raises(RunError, match=r"query 'sums' has changed.*--reset sums.*--replay sums"):
        app("max(amount) AS high").run(spark(tmp_path))
    app("sum(amount) AS total").run(spark(tmp_path))  # nothing was damaged by that
    before = len(read(tmp_path / "out"))
    app("max(amount) AS high").run(spark(tmp_path, replay=["sums"]))
    again = read(tmp_path / "out")[before:]
    best: dict[int, int] = {}
    for row, given in zip(read(tmp_path / "orders"), again, strict=True):
        best[row["user"]] = max(best.get(row["user"], 0), row["amount"])
        assert given["high"] == best[row["user"]]
    app("max(amount) AS high").run(spark(tmp_path))
    assert len(read(tmp_path / "out")) == before + len(again)


def test_the_checkpoint_of_another_application_is_refused(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", 1, 100, seed=1)
    simple(tmp_path, {"low": "amount < 50"}).run(spark(tmp_path))
    with pytest.raises(RunError, match="belongs to application 'simple', not to 'other'"):
        simple(tmp_path, {"low": "amount < 50"}, name="other").run(spark(tmp_path))


def test_other_columns_of_a_source_are_refused(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", 1, 100, seed=1)
    simple(tmp_path, {"low": "amount < 50"}).run(spark(tmp_path))
    shutil.rmtree(tmp_path / "orders")
    (tmp_path / "orders").mkdir()
    put_file(tmp_path / "orders", "a.parquet", pa.table({"user": ["x"], "amount": [1]}))
    with pytest.raises(RunError, match=r"source 'orders' had the columns user int64.*and has user string"):
        simple(tmp_path, {"low": "amount < 50"}).run(spark(tmp_path))


def test_a_finite_source_can_go_but_none_can_join(tmp_path: Path) -> None:
    for name in ("orders", "views", "more"):
        write_orders(tmp_path / name, 1, 3000, seed=len(name))

    def app(names: list[str]) -> hg.App:
        made = hg.App("sources")
        for name in names:
            rows = made.source(name, hg.from_files(tmp_path / name))
            rows.select("user", "amount").to(f"of {name}", hg.to_parquet(tmp_path / "out" / name))
        return made

    with pytest.raises(Crash), crashing(4):
        app(["orders", "views"]).run(spark(tmp_path), Trains(900, 1))
    with pytest.raises(RunError, match=r"take turns \(orders, views\), so 'more' cannot join"):
        app(["orders", "views", "more"]).run(spark(tmp_path))
    with pytest.raises(Crash), crashing(3):
        app(["views"]).run(spark(tmp_path), Trains(900, 2))
    app(["views"]).run(spark(tmp_path))
    found = read(tmp_path / "out" / "views")
    assert found == [{k: r[k] for k in ("user", "amount")} for r in read(tmp_path / "views")]


def test_a_folder_cannot_turn_from_followed_to_finite(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", 1, 300, seed=1)
    followed = hg.App("simple")
    orders = followed.source("orders", hg.from_files(tmp_path / "orders", follow=True))
    orders.filter("amount < 50").to("low", hg.to_parquet(tmp_path / "out" / "low"))
    run_until(followed, spark(tmp_path), lambda: bool(read(tmp_path / "out" / "low")))
    with pytest.raises(RunError, match=r"were followed as they grew, and now all are finite"):
        simple(tmp_path, {"low": "amount < 50"}).run(spark(tmp_path))


# --- damage -----------------------------------------------------------------------------------------------


def half_way(tmp_path: Path) -> Path:
    """A checkpoint in the middle of a run, with several records in its log; the folder of its log."""
    write_orders(tmp_path / "orders", 2, 500, seed=1)
    with mock.patch.object(log, "COMPACT_EVERY", 1000), pytest.raises(Crash), crashing(6):
        simple(tmp_path, {"sums": "amount < 50"}, stateful=True).run(spark(tmp_path), Trains(100, 1))
    return tmp_path / "checkpoint" / "log"


def refused(tmp_path: Path, words: str) -> None:
    before = read(tmp_path / "out" / "sums")
    with pytest.raises(RunError, match=words):
        simple(tmp_path, {"sums": "amount < 50"}, stateful=True).run(spark(tmp_path))
    assert read(tmp_path / "out" / "sums") == before


def test_a_missing_record_is_noticed(tmp_path: Path) -> None:
    records = sorted(half_way(tmp_path).glob("*.json"))
    records[2].unlink()
    refused(tmp_path, "record 2 of its log is missing; it cannot be continued")


@pytest.mark.parametrize("how", ["cut", "changed", "empty"])
def test_a_damaged_record_is_noticed(tmp_path: Path, how: str) -> None:
    record = sorted(half_way(tmp_path).glob("*.json"))[3]
    data = record.read_bytes()
    record.unlink()
    record.write_bytes(
        {"cut": data[:-20], "changed": data.replace(b'"cursor":', b'"cursor":1'), "empty": b""}[how]
    )
    refused(tmp_path, "log/000000000003.json is damaged")


@pytest.mark.parametrize("how", ["cut", "missing"])
def test_state_that_is_not_there_any_more_is_noticed(tmp_path: Path, how: str) -> None:
    half_way(tmp_path)
    for state in (tmp_path / "checkpoint" / "states").iterdir():
        data = state.read_bytes()
        state.unlink()
        if how == "cut":
            state.write_bytes(data[: len(data) // 2])

    # A worker that still has the state in memory would not even look.
    def forget_states(batches: Any) -> Any:
        from headgate.checkpoint import state_store as states

        states._cache.clear()
        yield from batches

    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate()
    session.range(0, 20, 1, 20).mapInArrow(forget_states, "id long").collect()
    refused(tmp_path, "state file states/.* is " + ("damaged" if how == "cut" else "missing"))


@pytest.mark.filterwarnings("ignore:No commands to this run")
def test_two_runs_at_once_do_not_damage_each_other(tmp_path: Path, ends: Any) -> None:
    """The second takes the checkpoint over and goes on to the end; the first stops and says why."""
    write_orders(tmp_path / "orders", 4, 1500, seed=1)
    out = tmp_path / "out"
    queries = {"sums": "amount < 50"}
    begun = threading.Event()
    outcomes: list[BaseException | None] = []

    def run(policy: Trains, take_over: bool) -> None:
        def show(report: hg.Report) -> None:
            if read(out / "sums"):
                begun.set()

        try:
            engine = spark(tmp_path)
            engine.take_over = take_over
            simple(tmp_path, queries, stateful=True).run(engine, policy, progress=show)
            outcomes.append(None)
        except BaseException as error:
            outcomes.append(error)

    thread = threading.Thread(target=run, args=(Trains(100, 1), False), daemon=True)
    thread.start()
    assert begun.wait(100)
    ends(lambda: run(Trains(0, 2), True))
    thread.join(100)
    stopped = [error for error in outcomes if error is not None]
    assert [type(error) for error in stopped] == [RunError]
    assert "has taken it over since" in str(stopped[0])
    assert len(outcomes) == 2
    expected = simple(tmp_path, queries, stateful=True)
    shutil.move(out, tmp_path / "found")
    expected.run("threads")
    assert read(tmp_path / "found" / "sums") == read(out / "sums")


# --- room -------------------------------------------------------------------------------------------------


def test_a_checkpoint_does_not_grow_with_the_number_of_steps(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", 2, 1000, seed=1)
    write_orders(tmp_path / "views", 1, 100, seed=2)
    report = shop(tmp_path, tmp_path / "out").run(spark(tmp_path), Trains(60, 1))
    assert sum(box.calls for box in report.boxes.values()) > 50
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    kinds = {path.parent.name for path in files}
    counted = {kind: len([path for path in files if path.parent.name == kind]) for kind in kinds}
    assert counted["log"] <= 7 + 1
    assert counted["snapshots"] == counted["pipelines"] == 1
    # Chains of at most three changes per state, and what the last steps left.
    assert counted["states"] <= 5 * 5 + 2 * 4
    assert counted.get("queues", 0) <= 2 * 4 * 10
    assert len(files) < 150


def test_a_full_disk_at_commit_time(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", 2, 500, seed=1)
    queries = {"low": "amount < 50", "high": "amount >= 50"}
    with (
        full_disk(4),
        pytest.raises(RunError, match=r"could not be written: No space left on device.*make room"),
    ):
        simple(tmp_path, queries).run(spark(tmp_path), Trains(200, 1))
    simple(tmp_path, queries).run(spark(tmp_path))
    assert read(tmp_path / "out" / "low") == wanted(tmp_path, lambda row: row["amount"] < 50)
    assert read(tmp_path / "out" / "high") == wanted(tmp_path, lambda row: row["amount"] >= 50)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte; who may not mount one has the test above."""
    place = tmp_path / "disk"
    place.mkdir()
    tool = shutil.which("mount")
    mounted = tool and subprocess.run(
        [tool, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("filled", ["checkpoint", "out"])
def test_a_disk_that_is_really_full(tmp_path: Path, small_disk: Path, filled: str) -> None:
    """The checkpoint's or the results': the run says so, and goes on once there is room."""
    write_orders(tmp_path / "orders", 2, 500, seed=1)
    places = {"checkpoint": tmp_path / "checkpoint", "out": tmp_path / "out"}
    places[filled].mkdir()
    os.rmdir(places[filled])
    places[filled].symlink_to(small_disk / filled)
    (small_disk / filled).mkdir()
    queries = {"sums": "amount < 50"}
    ballast = small_disk / "ballast"

    class Filling(Trains):
        """Fills the disk after some plans, down to the last block."""

        plans = 0

        def choose(self, worker: int, now: float) -> Any:
            self.plans += 1
            if self.plans == 4:
                with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(4096))
            return super().choose(worker, now)

    with pytest.raises(RunError, match="No space left on device"):
        simple(tmp_path, queries, stateful=True).run(spark(tmp_path), Filling(50, 1))
    ballast.unlink()
    simple(tmp_path, queries, stateful=True).run(spark(tmp_path))
    found = read(tmp_path / "out" / "sums")
    shutil.rmtree(small_disk / "out" if filled == "out" else tmp_path / "out")
    if filled == "out":
        (small_disk / "out").mkdir()
    simple(tmp_path, queries, stateful=True).run("threads")
    assert found == read(tmp_path / "out" / "sums")
