"""A damaged file of a checkpoint is named and stops the queries that need it: no wrong rows, no letters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from checkpoints import Crash, Rows, crashing, read, write_orders
from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.log import Log
from headgate.engines.spark import task
from headgate.errors import RunError
from killed_driver import QUICK, Trains

pytestmark = pytest.mark.xdist_group("spark")
ROWS = 4000


def spark(tmp_path: Path) -> hg.Spark:
    return hg.Spark(checkpoint=tmp_path / "checkpoint", workers=2, retries=0, options=QUICK)


def app(tmp_path: Path, letters: Rows) -> hg.App:
    """Sums with state and a queue before them, and a query over a spool; neither needs the other's files."""
    made = hg.App("damaged")
    orders = made.source("orders", hg.from_files(tmp_path / "orders"))
    low = orders.filter("amount < 90").with_columns("amount + 1 AS more")
    low.key_by("user").running("sum(amount) AS total").to("sums", hg.to_parquet(tmp_path / "sums"))
    numbers = pa.RecordBatch.from_pydict({"x": list(range(ROWS))})
    spooled = made.source("numbers", hg.from_batches([numbers.slice(at, 500) for at in range(0, ROWS, 500)]))
    spooled.with_columns("x * 2 AS double").to("doubles", hg.to_parquet(tmp_path / "doubles"))
    made.dead_letter(hg.to_list(letters))
    return made


def half_way(tmp_path: Path, wanted: Callable[[], Any]) -> None:
    """Crash after a few records, again and again, until the checkpoint has what the test needs."""
    write_orders(tmp_path / "orders", 2, 1500, seed=1)
    for seed in range(40):
        with pytest.raises(Crash), crashing(8):
            app(tmp_path, []).run(spark(tmp_path), Trains(100, seed))
        if wanted():
            forget_in_workers()
            return
    raise AssertionError("no run left such a file")


def forget_in_workers() -> None:
    """A worker that has something in memory would not look at the file."""

    def forget(batches: Any) -> Any:
        from headgate.checkpoint import state_store as states
        from headgate.engines.spark import reading, task

        for cache in (states._cache, task._pipelines, reading._open):
            cache.clear()
        yield from batches

    from pyspark.sql import SparkSession

    SparkSession.builder.getOrCreate().range(0, 20, 1, 20).mapInArrow(forget, "id long").collect()


def files(tmp_path: Path, folder: str) -> list[Path]:
    """Files of a checkpoint that it still needs; a step that was not committed may have left others."""
    nodes, storage = Nodes(app(tmp_path, []).network), Folder(str(tmp_path / "checkpoint"))
    position, _, start = Log(storage).recover(nodes, "damaged")
    assert start is not None
    low = min(own.cursor for own in position.nodes.values())
    units = [piece.unit for own in position.offsets.sources for piece in own.pieces(low, 1 << 60)]
    names = position.files() | {unit.removeprefix("spool:") for unit in units}
    return sorted(tmp_path / "checkpoint" / name for name in names if name.startswith(f"{folder}/"))


def flip(file: Path, at: float = 0.6) -> None:
    """Flip a bit, as a disk does: neither length nor form of the file says so."""
    data = bytearray(file.read_bytes())
    data[int(len(data) * at) & ~7] ^= 0x04
    file.write_bytes(data)


def finished(tmp_path: Path) -> dict[str, Rows]:
    """What an undisturbed run would have written."""
    made: dict[str, Rows] = {"sums": [], "doubles": []}
    copy = hg.App("undisturbed")
    orders = copy.source("orders", hg.from_files(tmp_path / "orders"))
    low = orders.filter("amount < 90").with_columns("amount + 1 AS more")
    low.key_by("user").running("sum(amount) AS total").to("sums", hg.to_list(made["sums"]))
    copy.run("threads")
    made["doubles"] = [{"x": x, "double": 2 * x} for x in range(ROWS)]
    return made


@pytest.mark.parametrize(
    ("folder", "concerned", "other"),
    [("states", "sums", "doubles"), ("queues", "sums", "doubles"), ("spool", "doubles", "sums")],
)
def test_a_flipped_bit_stops_the_queries_that_need_the_file(
    tmp_path: Path, folder: str, concerned: str, other: str
) -> None:
    half_way(tmp_path, lambda: files(tmp_path, folder))
    before, damaged = read(tmp_path / concerned), files(tmp_path, folder)
    for file in damaged:
        flip(file)
    letters: Rows = []
    report = app(tmp_path, letters).run(spark(tmp_path), Trains(500, 7))
    error = report.queries[concerned].error
    assert isinstance(error, RunError), error
    assert f"{folder}/" in str(error)
    assert "is damaged (its checksum does not fit)" in str(error)
    assert any(file.name in str(error) for file in damaged)
    assert letters == []
    assert report.queries[other].error is None
    wanted = finished(tmp_path)
    found = read(tmp_path / concerned)
    assert found == wanted[concerned][: len(found)]
    assert len(found) >= len(before)
    assert read(tmp_path / other) == wanted[other]
    # Whoever brings the files back loses nothing.
    for file in damaged:
        if file.exists():
            flip(file)
    forget_in_workers()
    report = app(tmp_path, letters).run(spark(tmp_path))
    assert [str(query.error) for query in report.queries.values() if query.error] == []
    assert letters == []
    assert read(tmp_path / concerned) == wanted[concerned]


@pytest.mark.parametrize("folder", ["queues", "spool"])
def test_a_missing_file_is_named(tmp_path: Path, folder: str) -> None:
    half_way(tmp_path, lambda: files(tmp_path, folder))
    for file in files(tmp_path, folder):
        file.unlink()
    report = app(tmp_path, []).run(spark(tmp_path), Trains(500, 7))
    error = report.queries["sums" if folder == "queues" else "doubles"].error
    assert isinstance(error, RunError)
    assert f"file {folder}/" in str(error)
    assert "is missing" in str(error)


def test_a_damaged_pipeline_is_written_anew_by_the_next_run(tmp_path: Path) -> None:
    half_way(tmp_path, lambda: True)
    [file] = (tmp_path / "checkpoint" / "pipelines").iterdir()
    flip(file)
    with pytest.raises(RunError, match=rf"pipelines/{file.name} is damaged.*start the application again"):
        task.pipeline(Folder(str(tmp_path / "checkpoint")), file.name)
    letters: Rows = []
    report = app(tmp_path, letters).run(spark(tmp_path))
    assert [str(query.error) for query in report.queries.values() if query.error] == []
    assert {name: read(tmp_path / name) for name in ("sums", "doubles")} == finished(tmp_path)


def test_files_of_a_checkpoint_without_checksums_are_read(tmp_path: Path) -> None:
    """As version 0.3 wrote it: records and snapshots name files without their checksums."""
    from headgate.checkpoint.log import decode, encode

    def without(thing: Any) -> Any:
        if isinstance(thing, dict):
            return {key: without(value) for key, value in thing.items() if key != "check"}
        return [without(each) for each in thing] if isinstance(thing, list) else thing

    half_way(tmp_path, lambda: files(tmp_path, "states") and files(tmp_path, "queues"))
    named = 0
    for folder in ("log", "snapshots"):
        for record in (tmp_path / "checkpoint" / folder).glob("*.json"):
            named += record.read_text().count('"check":')
            record.write_bytes(encode(without(decode(record.read_bytes()))))
    assert named
    report = app(tmp_path, []).run(spark(tmp_path))
    assert [str(query.error) for query in report.queries.values() if query.error] == []
    assert {name: read(tmp_path / name) for name in ("sums", "doubles")} == finished(tmp_path)
