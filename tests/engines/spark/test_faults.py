"""Kill tests: whatever is killed, and whenever, what was written equals an undisturbed run, row for row."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import killed_driver
from killed_driver import POINTS, SCHEMA, rows, shop
from servers import LOCAL, Broker, Cluster
from waiting import PATIENCE, eventually

pytestmark = pytest.mark.xdist_group("servers")
DRIVER = Path(killed_driver.__file__)
START = datetime(2026, 1, 1, tzinfo=UTC)


def write_orders(folder: Path, files: int, rows_of_file: int, seed: int) -> None:
    """Orders of thirty users, a little out of order, and one of long after that closes what is open."""
    chance = random.Random(seed)
    folder.mkdir(parents=True)
    second = 0.0
    for number in range(files):
        data = []
        for _ in range(rows_of_file):
            second += chance.random() * 0.4
            at = START + timedelta(seconds=second - chance.random() * 12)
            data.append({"user": chance.randrange(30), "amount": chance.randrange(100), "ts": at})
        if number == files - 1:
            data.append({"user": 99, "amount": 99, "ts": START + timedelta(days=9)})
        pq.write_table(pa.Table.from_pylist(data, SCHEMA), folder / f"orders-{number:03d}.parquet")


def undisturbed(folder: Path) -> dict[str, list[dict[str, Any]]]:
    shop(folder, folder / "expected").run("threads", until="drained")
    return rows(folder / "expected")


class Driver:
    """The driver in a session of its own, with the Java and the Python workers that it starts."""

    def __init__(self, folder: Path, plan: dict[str, Any], environment: dict[str, str] | None = None) -> None:
        self.folder = folder
        with (folder / "said").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, str(DRIVER), str(folder), json.dumps({"master": "local[2]", **plan})],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, **LOCAL, **(environment or {})},
                start_new_session=True,
            )

    def records(self) -> int:
        """The number of the newest record of the log."""
        found = [
            int(path.stem)
            for kind in ("log", "snapshots")
            for path in (self.folder / "checkpoint" / kind).glob("[0-9]*")
        ]
        return max(found, default=-1)

    def wait_for_records(self, count: int) -> None:
        before = self.records()
        self._until(lambda: self.records() >= before + count)

    def wait_for_step(self) -> None:
        """Until the work order of another step has been given out: its tasks are about to run."""
        orders = self.folder / "checkpoint" / "slots"

        def newest() -> int:
            return max((path.stat().st_mtime_ns for path in orders.glob("[0-9]")), default=0)

        before = newest()
        self._until(lambda: newest() != before)

    def _until(self, condition: Callable[[], bool]) -> None:
        """Until something has happened, or the driver has ended."""
        try:
            eventually(lambda: condition() or self.process.poll() is not None, patience=PATIENCE)
        except AssertionError:
            raise AssertionError(self.last_words()) from None

    def kill(self) -> None:
        """End the whole session at once; Spark puts its Python workers into a group of their own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in _session(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def finish(self) -> int:
        """How it ended; nothing that it started outlives it."""
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.kill()

    def last_words(self) -> str:
        return (self.folder / "said").read_text(errors="replace")[-4000:]


def _session(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                found.append(int(entry.name))
    return found


def kill_often(folder: Path, kills: int, *, seed: int, tuples: int, follow: bool = False) -> dict[str, int]:
    """Start the driver again and again and kill it each time; returns how often at which point."""
    chance = random.Random(seed)
    done: dict[str, int] = {}
    number = 0
    while sum(done.values()) < kills:
        number += 1
        assert number < kills + 20, f"most runs ended before they were killed: {done}"
        plan: dict[str, Any] = {
            "tuples": tuples,
            "seed": chance.randrange(1 << 30),
            "follow": follow,
            "enough": {},
        }
        point = "any moment"
        if chance.random() < 0.7:
            # In turns, so that every point is met.
            point = plan["point"] = POINTS[(seed + number) % len(POINTS)]
            plan["times"] = chance.randint(1, 3)
        driver = Driver(folder, plan)
        if point == "any moment":
            driver.wait_for_records(chance.randint(1, 4))
            time.sleep(chance.random() * 0.3)
            driver.kill()
            ended = driver.process.returncode
        else:
            ended = driver.finish()
        if ended == -signal.SIGKILL:
            done[point] = done.get(point, 0) + 1
        else:
            assert ended == 0, driver.last_words()
    return done


def run_to_the_end(folder: Path, *, follow: bool = False, enough: dict[str, int] | None = None) -> None:
    driver = Driver(folder, {"tuples": 0, "seed": 1, "follow": follow, "enough": enough or {}})
    assert driver.finish() == 0, driver.last_words()


def assert_same(folder: Path, expected: dict[str, list[dict[str, Any]]]) -> None:
    found = rows(folder / "out")
    for query, wanted in expected.items():
        assert found[query] == wanted, f"{query}: {len(found[query])} rows, not {len(wanted)}"
    assert not list((folder / "out").rglob(".staged-*"))


@pytest.mark.faults
def test_a_driver_killed_three_times_writes_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    """Before a commit, between a commit and its files' names, and while the log is compacted."""
    write_orders(tmp_path / "in", files=3, rows_of_file=1000, seed=1)
    expected = undisturbed(tmp_path)
    for seed, (point, times) in enumerate((("before record", 5), ("after record", 3), ("after snapshot", 1))):
        plan = {"tuples": 150, "seed": seed, "follow": False, "enough": {}, "point": point, "times": times}
        driver = Driver(tmp_path, plan)
        assert driver.finish() == -signal.SIGKILL, driver.last_words()
    run_to_the_end(tmp_path)
    assert_same(tmp_path, expected)


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("follow", "kills", "seed"), [(False, 35, 1), (True, 15, 2)])
def test_a_driver_killed_at_fifty_moments_writes_what_an_undisturbed_one_does(
    tmp_path: Path, follow: bool, kills: int, seed: int
) -> None:
    write_orders(tmp_path / "in", files=8, rows_of_file=300 * kills, seed=seed)
    expected = undisturbed(tmp_path)
    if follow:
        # A folder that is followed never ends, so what the last row opened stays open.
        for query in ("windows", "sessions"):
            expected[query] = [row for row in expected[query] if row["user"] != 99]
    begin = time.monotonic()
    done = kill_often(tmp_path, kills, seed=seed, tuples=150, follow=follow)
    print(f"{sum(done.values())} kills in {time.monotonic() - begin:.0f} s: {done}")
    run_to_the_end(tmp_path, follow=follow, enough={query: len(wanted) for query, wanted in expected.items()})
    assert_same(tmp_path, expected)


@pytest.mark.faults
def test_a_worker_of_a_cluster_killed_in_the_middle_of_a_step(tmp_path: Path) -> None:
    """Its executor, with the Python workers and the state that they have in memory, is gone at once."""
    write_orders(tmp_path / "in", files=4, rows_of_file=1000, seed=3)
    expected = undisturbed(tmp_path)
    with Cluster() as cluster:
        plan = {"tuples": 100, "seed": 5, "follow": False, "enough": {}, "master": cluster.master}
        driver = Driver(tmp_path, plan)
        for killed in range(2):
            driver.wait_for_records(6)
            driver.wait_for_step()
            cluster.kill_worker(killed)
            # One that was there all the time takes over, and after the second kill only a new one can.
            cluster.start_worker()
        assert driver.finish() == 0, driver.last_words()
    assert_same(tmp_path, expected)


FOLLOW_TOPIC = """
    import sys
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pathlib import Path
    import headgate as hg

    servers, folder, wanted = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    app = hg.App("restarted broker")
    schema = pa.schema([("id", pa.int64()), ("user", pa.int64())])
    rows = app.source("rows", hg.from_kafka(servers, "rows", schema=schema, starting="earliest"))
    rows.key_by("user").running("count(*) AS n").to("counts", hg.to_parquet(folder / "out"))

    def enough(report):
        assert report.queries["counts"].error is None, report.queries["counts"].error
        if sum(pq.read_metadata(part).num_rows for part in (folder / "out").glob("part-*.parquet")) >= wanted:
            raise KeyboardInterrupt

    options = {"spark.ui.enabled": "false"}
    spark = hg.Spark(master="local[2]", checkpoint=folder / "checkpoint", options=options)
    app.run(spark, until=None, progress=enough)
"""


@pytest.mark.faults
def test_a_broker_that_is_restarted_does_not_end_the_run(tmp_path: Path) -> None:
    def records(first: int) -> list[bytes]:
        return [json.dumps({"id": n, "user": n % 7}).encode() for n in range(first, first + 500)]

    def written() -> list[dict[str, Any]]:
        return [
            row
            for part in sorted((tmp_path / "out").glob("part-*.parquet"))
            for row in pq.read_table(part).to_pylist()
        ]

    with Broker() as broker:
        broker.create_topic("rows")
        broker.produce("rows", records(0))
        with (tmp_path / "said").open("ab") as said:
            driver = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(FOLLOW_TOPIC), broker.servers, str(tmp_path), "1500"],
                stdout=said,
                stderr=said,
                env={**os.environ, **LOCAL},
            )
        try:
            for part in (1, 2):
                eventually(
                    lambda part=part: len(written()) >= 500 * part or driver.poll() is not None,
                    patience=PATIENCE,
                )
                assert driver.poll() is None, (tmp_path / "said").read_text()[-4000:]
                broker.kill()
                broker.start()
                broker.produce("rows", records(500 * part))
            assert driver.wait(PATIENCE) == 0, (tmp_path / "said").read_text()[-4000:]
        finally:
            driver.kill()
    assert [row["id"] for row in written()] == list(range(1500))
    assert [row["n"] for row in written()] == [n // 7 + 1 for n in range(1500)]
