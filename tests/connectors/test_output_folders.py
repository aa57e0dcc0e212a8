"""Folders of results, on every engine: what is added to them stays, and nothing is written over."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headgate as hg
from headgate.connectors.folder import publish
from headgate.errors import PipelineError, SinkError, SourceError


def numbers(app: hg.App, first: int, end: int) -> hg.Stream:
    return app.source("numbers", hg.from_batches([pa.record_batch({"n": pa.array(range(first, end))})]))


def read(folder: Path) -> list[int]:
    parts = sorted(folder.glob("[!.]*.parquet"))
    return [n for part in parts for n in pq.read_table(part).column("n").to_pylist()]


def test_what_is_appended_comes_after_what_is_there(tmp_path: Path, engine: hg.Engine) -> None:
    for first in (0, 10, 20):
        app = hg.App("appending")
        numbers(app, first, first + 10).to("all", hg.to_parquet(tmp_path / "out", append=True))
        app.run(engine)
        assert read(tmp_path / "out") == list(range(first + 10))


def test_queries_that_append_to_one_folder_all_leave_their_rows(
    tmp_path: Path, engine: hg.Engine, request: pytest.FixtureRequest
) -> None:
    """In many packets, which takes fewer rows where packets are small."""
    rows = 2_000 if "small-packets" in request.node.name else 20_000
    app = hg.App("sharing")
    stream = numbers(app, 0, rows)
    for rest in range(4):
        query = stream.filter(f"n % 4 = {rest}")
        query.to(f"rest {rest}", hg.to_parquet(tmp_path / "out", append=True))
    report = app.run(engine)
    assert [query.tuples_out for query in report.queries.values()] == [rows // 4] * 4
    found = read(tmp_path / "out")
    assert len(found) == rows
    for rest in range(4):
        assert [n for n in found if n % 4 == rest] == list(range(rest, rows, 4))


@pytest.mark.parametrize("options", [({}, {}), ({"append": True}, {}), ({"overwrite": True},) * 2])
def test_queries_that_do_not_all_append_need_folders_of_their_own(
    tmp_path: Path, options: tuple[dict[str, bool], dict[str, bool]]
) -> None:
    app = hg.App("sharing")
    stream = numbers(app, 0, 10)
    stream.to("one", hg.to_parquet(tmp_path / "out", **options[0]))
    with pytest.raises(PipelineError, match=r"'two'.*'one'.*append=True"):
        stream.to("two", hg.to_parquet(tmp_path / "x" / ".." / "out", **options[1]))
    with pytest.raises(PipelineError, match=r"'dead_letter'.*'one'.*append=True"):
        app.dead_letter(hg.to_parquet(tmp_path / "out", **options[1]))
    stream.to("two", hg.to_parquet(tmp_path / "other", **options[1]))


# --- places -----------------------------------------------------------------------------------------------

ELSEWHERE = ["dbfs:/x", "hdfs:/x", "hdfs://name:8020/x", "file://host/x"]
STORES = ["s3a://bucket/x", "S3://bucket/x"]
"""A checkpoint may lie there; rows come from folders and go into them."""


@pytest.mark.parametrize("place", [*ELSEWHERE, *STORES, Path("s3a://bucket/x"), "file:///a%20b"])
def test_a_place_that_is_no_folder_is_refused_when_the_pipeline_is_built(
    place: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    builds: list[tuple[Callable[[], Any], type[Exception]]] = [
        (lambda: hg.to_parquet(place), SinkError),
        (lambda: hg.from_files(place, format="json", schema=pa.schema([("n", pa.int64())])), SourceError),
        (lambda: hg.from_files(f"{place}/*.parquet"), SourceError),
    ]
    if place not in STORES:
        builds.append((lambda: hg.Spark(checkpoint=place), PipelineError))
    for build, mistake in builds:
        with pytest.raises(mistake, match=r"folder|as text") as caught:
            build()
        assert str(place).rpartition("/")[2] in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("prefix", ["file:", "file://", "file://localhost", "FILE:"])
def test_file_urls_are_folders(tmp_path: Path, prefix: str, engine: hg.Engine) -> None:
    app = hg.App("urls")
    numbers(app, 0, 10).to("all", hg.to_parquet(f"{prefix}{tmp_path}/out"))
    app.run(engine)
    again = hg.App("urls")
    found: list[dict[str, int]] = []
    again.source("numbers", hg.from_files(f"{prefix}{tmp_path}/out")).to("all", hg.to_list(found))
    again.run(engine)
    assert [row["n"] for row in found] == read(tmp_path / "out") == list(range(10))


@pytest.mark.parametrize("name", ["out/a:b", "a:b", "12:30/x", "C:/x", "./s3a:/x", "out/s3a://x"])
def test_a_name_with_a_colon_may_be_a_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = hg.App("colons")
    numbers(app, 0, 10).to("all", hg.to_parquet(name))
    app.run("threads")
    assert read(tmp_path / name) == list(range(10))


@pytest.mark.parametrize("folders", [1, 3, 40])
def test_names_of_published_files_are_on_the_disk_before_the_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: int
) -> None:
    """The next record counts the files as published, so a power cut must not take their names."""
    files = []
    for number in range(folders):
        place = tmp_path / f"out-{number}"
        place.mkdir()
        (place / ".staged-1").write_text(str(number))
        files.append((str(place / ".staged-1"), str(place / "part-1")))
    lock, done = threading.Lock(), list[tuple[str, str]]()

    def note(name: str, path: Callable[..., str]) -> None:
        real = getattr(os, name)

        def noted(*given: Any) -> Any:
            where = path(*given)
            found = real(*given)
            with lock:
                done.append((name, where))
            return found

        monkeypatch.setattr(os, name, noted)

    note("link", lambda written, final: os.path.dirname(final))
    note("fsync", lambda handle: os.readlink(f"/proc/self/fd/{handle}"))
    note("unlink", os.path.dirname)
    publish(files, durable=True)
    for _, final in files:
        own = [name for name, where in done if where == os.path.dirname(final)]
        assert own == ["link", "fsync", "unlink"]
        assert os.listdir(os.path.dirname(final)) == ["part-1"]
