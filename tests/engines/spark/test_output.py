"""Parquet folders on Spark: a checkpoint claims a folder once, and publishes into it without replacing."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headgate as hg
from checkpoints import Crash, crashing, read
from headgate.checkpoint.log import decode, encode
from headgate.control.socket import ControlError, call
from headgate.errors import RunError, SinkError
from killed_driver import QUICK

pytestmark = pytest.mark.xdist_group("spark")


def spark(checkpoint: Path) -> hg.Spark:
    return hg.Spark(checkpoint=checkpoint, workers=2, options=QUICK)


def numbers(first: int, end: int, sink: hg.Sink, name: str = "numbers") -> hg.App:
    app = hg.App(name)
    source = app.source("numbers", hg.from_batches([pa.record_batch({"n": pa.array(range(first, end))})]))
    source.to("all", sink)
    return app


def found(folder: Path) -> list[int]:
    return [row["n"] for row in read(folder)]


def test_appending_with_a_new_checkpoint_or_the_same_one_keeps_what_is_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    numbers(0, 10, hg.to_parquet(out, append=True)).run(spark(tmp_path / "one"))
    numbers(10, 20, hg.to_parquet(out, append=True)).run(spark(tmp_path / "two"))
    assert found(out) == list(range(20))
    (out / ".staged-0123456789abcdef-1.parquet").touch()  # another application is about to publish it
    names = sorted(os.listdir(out))
    numbers(10, 20, hg.to_parquet(out, append=True)).run(spark(tmp_path / "two"))  # it was done
    assert found(out) == list(range(20))
    assert sorted(os.listdir(out)) == names


def test_parts_sort_behind_those_of_older_writers(tmp_path: Path) -> None:
    """Names that Headgate gave before, on threads and on Spark, and those of Spark's own writer."""
    for name in (
        "part-000007.parquet",
        "part-000001000003-000.parquet",
        "part-00012-4ef0-c000.snappy.parquet",
    ):
        pq.write_table(pa.table({"n": [-1]}), tmp_path / name)
    numbers(0, 10, hg.to_parquet(tmp_path, append=True)).run(spark(tmp_path / "checkpoint"))
    numbers(10, 20, hg.to_parquet(tmp_path, append=True)).run("threads")
    assert found(tmp_path) == [-1, -1, -1, *range(20)]


def test_a_folder_in_use_is_refused_as_often_as_one_tries(tmp_path: Path) -> None:
    out = tmp_path / "out"
    numbers(0, 10, hg.to_parquet(out), "first").run(spark(tmp_path / "first"))
    for _ in range(3):
        with pytest.raises(RunError, match=r"'all'.*is not empty"):
            numbers(10, 20, hg.to_parquet(out), "second").run(spark(tmp_path / "second"))
        assert found(out) == list(range(10))
    for part in out.iterdir():
        part.unlink()
    numbers(10, 20, hg.to_parquet(out), "second").run(spark(tmp_path / "second"))
    assert found(out) == list(range(10, 20))


def test_a_query_that_goes_to_another_folder_claims_that_one_too(tmp_path: Path) -> None:
    numbers(0, 10, hg.to_parquet(tmp_path / "one")).run(spark(tmp_path / "checkpoint"))
    numbers(90, 99, hg.to_parquet(tmp_path / "two"), "other").run("threads")
    report = numbers(0, 10, hg.to_parquet(tmp_path / "two")).run
    with pytest.raises(RunError, match=r"'all'.*two' is not empty"):
        report(spark(tmp_path / "checkpoint"))
    assert found(tmp_path / "two") == list(range(90, 99))


def test_overwriting_begins_when_the_folder_is_free_of_foreign_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    numbers(0, 10, hg.to_parquet(out), "old").run("threads")
    (out / "notes.txt").write_text("mine")
    for _ in range(2):
        with pytest.raises(RunError, match=r"notes\.txt"):
            numbers(10, 20, hg.to_parquet(out, overwrite=True)).run(spark(tmp_path / "checkpoint"))
        assert found(out) == list(range(10))
    (out / "notes.txt").unlink()
    numbers(10, 20, hg.to_parquet(out, overwrite=True)).run(spark(tmp_path / "checkpoint"))
    assert found(out) == list(range(10, 20))
    numbers(10, 20, hg.to_parquet(out, overwrite=True)).run(spark(tmp_path / "checkpoint"))
    assert found(out) == list(range(10, 20))  # its own results are not what it replaces


@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize("after", [False, True])
def test_overwriting_survives_a_crash_at_any_record(tmp_path: Path, count: int, after: bool) -> None:
    out = tmp_path / "out"
    numbers(0, 10, hg.to_parquet(out), "old").run("threads")
    app = numbers(10, 20, hg.to_parquet(out, overwrite=True))
    with contextlib.suppress(Crash), crashing(count, after=after):
        app.run(spark(tmp_path / "checkpoint"))
    app.run(spark(tmp_path / "checkpoint"))
    assert found(out) == list(range(10, 20))


@pytest.mark.parametrize("second", [os.link, shutil.copy])
def test_publishing_never_replaces_a_file(tmp_path: Path, second: Callable[[str, str], Any]) -> None:
    """A file that has the name of a part, and is not that part, stays; once it is gone, the part appears."""
    last: dict[str, Any] = {}
    for count in range(1, 9):
        out, checkpoint = tmp_path / f"out {count}", tmp_path / f"checkpoint {count}"
        with pytest.raises(Crash), crashing(count, after=True):
            numbers(0, 10, hg.to_parquet(out)).run(spark(checkpoint))
        last = decode(max((checkpoint / "log").glob("*.json")).read_bytes())
        if last.get("files"):
            break
    ((written, final),) = last["files"]
    Path(final).write_text("another's")
    for _ in range(2):
        with pytest.raises(SinkError, match="is there already"):
            numbers(0, 10, hg.to_parquet(out)).run(spark(checkpoint))
        assert Path(final).read_text() == "another's"
    Path(final).unlink()
    second(written, final)  # as if the crash had come in the middle of publishing
    numbers(0, 10, hg.to_parquet(out)).run(spark(checkpoint))
    assert found(out) == list(range(10))
    assert os.listdir(out) == [os.path.basename(final)]


def test_a_sink_that_refused_is_opened_when_its_query_is_restarted(tmp_path: Path, sockets: None) -> None:
    out = tmp_path / "out"
    numbers(-10, 0, hg.to_parquet(out), "old").run("threads")
    app = hg.App("restarting")
    rows = app.source("rows", hg.from_rate(200)).select("value AS n")
    rows.to("good", hg.to_parquet(tmp_path / "good"))
    rows.to("all", hg.to_parquet(out))
    with app.start(spark(tmp_path / "checkpoint"), until=None) as running:
        wait(lambda: len(read(tmp_path / "good")) > 0)
        with pytest.raises(ControlError, match="is not empty"):
            call("restarting", "restart", query="all")
        assert found(out) == list(range(-10, 0))
        for part in out.iterdir():
            part.unlink()
        call("restarting", "restart", query="all")
        wait(lambda: len(found(out)) > 0)
        running.stop()
    assert found(out) == list(range(len(found(out))))
    # The claim is in the log: the next run goes on in the same folder.
    written = len(found(out))
    with app.start(spark(tmp_path / "checkpoint"), until=None) as running:
        wait(lambda: len(found(out)) > written)
        running.stop()
    assert found(out) == list(range(len(found(out))))


def wait(enough: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not enough():
        assert time.monotonic() < deadline, "it has not come within two minutes"
        time.sleep(0.05)


def test_a_checkpoint_of_version_0_3_keeps_the_folder_that_it_has_used(tmp_path: Path) -> None:
    """Its log says nothing of folders: what is there are its own results, also with ``overwrite=True``."""
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    numbers(0, 10, hg.to_parquet(out, overwrite=True)).run(spark(checkpoint))
    for file in sorted((checkpoint / "log").glob("*.json")):
        record = decode(file.read_bytes())
        record.pop("format", None)
        record.pop("claims", None)
        file.write_bytes(encode(record))
    numbers(0, 10, hg.to_parquet(out, overwrite=True)).run(spark(checkpoint))
    assert found(out) == list(range(10))
