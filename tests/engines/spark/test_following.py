"""A followed folder of lines after a restart: every row once, whatever became of the files meanwhile."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from depth import examples
from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.memory import merged
from headgate.checkpoint.offsets import Piece
from headgate.engines.spark import spooling
from headgate.engines.spark.connectors import way_in
from headgate.engines.spark.reading import read
from headgate.errors import SourceError
from headgate.graph.needs import everything
from headgate.graph.network import Source
from waiting import SOON

pytestmark = pytest.mark.xdist_group("spark")
SCHEMA = pa.schema([("x", pa.int64())])


def lines(format: str, numbers: range) -> str:
    if format == "csv":
        return "x\n" + "".join(f"{n}\n" for n in numbers)
    return "".join(json.dumps({"x": n}) + "\n" for n in numbers)


def put(folder: Path, name: str, format: str, numbers: range, time: int) -> Path:
    """Move a file into the folder, with its time of modification."""
    (folder / f".{name}").write_text(lines(format, numbers))
    os.utime(folder / f".{name}", (time, time))
    (folder / f".{name}").rename(folder / name)
    return folder / name


class Driver:
    """What the Spark engine does with a source: polls it, and remembers what it said of what was logged."""

    def __init__(self, folder: Path, format: str, checkpoint: Path) -> None:
        self.folder, self.format = folder, format
        self.storage = Folder(str(checkpoint), durable=False)
        self.given: list[int] = []
        self.memory: Any = None
        self.start()

    def start(self) -> None:
        origin = hg.from_files(self.folder, format=self.format, schema=SCHEMA, follow=True)
        self.node = Source("lines", SCHEMA, origin)
        self.source = way_in(self.node, self.storage, None, False)
        if self.memory is not None:
            self.source.resume(copy.deepcopy(self.memory), len(self.given))

    def poll(self, logged: bool = True) -> None:
        """Read what is there; if a crash comes before it is ``logged``, it has not been read."""
        extents = self.source.poll(0.0, 0.0)
        for extent in extents:
            piece = Piece(extent.unit, 0, extent.rows, extent.arrival, 0)
            packets = read(self.node.origin, everything(SCHEMA), [piece], self.storage, 0.0).packets
            if logged:
                self.given += [x for packet in packets for x in packet.batch.column("x").to_pylist()]
        if logged and extents:
            self.memory = merged(self.memory, json.loads(json.dumps(self.source.news())))
            assert self.memory == json.loads(json.dumps(self.source.memory))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 30), st.integers(1, 12)),
        st.tuples(st.just("poll"), st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, 5)),
        st.tuples(st.just("restart")),
    ),
    min_size=3,
    max_size=25,
)


@pytest.mark.parametrize("format", ["json", "csv"])
@settings(max_examples=examples(80))
@given(steps=STEPS, most=st.sampled_from([1, 7, 1 << 20]))
def test_every_row_is_spooled_once_and_each_file_in_order(
    format: str, steps: list[tuple[Any, ...]], most: int
) -> None:
    """Files of any time come, those that were read may go, and drivers die before and after the log."""
    top = Path(tempfile.mkdtemp(prefix="headgate-following-"))
    folder = top / "in"
    folder.mkdir()
    written: dict[Path, range] = {}
    next_number = 0
    with mock.patch.object(spooling, "SPOOL_FILE_ROWS", most):
        driver = Driver(folder, format, top / "checkpoint")
        for step in steps:
            if step[0] == "write":
                _, time, count = step
                numbers = range(next_number, next_number + count)
                next_number += count
                written[put(folder, f"f{len(written)}.{format}", format, numbers, 1_000_000 + time)] = numbers
            elif step[0] == "poll":
                driver.poll(logged=step[1])
                if not step[1]:
                    driver.start()
            elif step[0] == "delete":
                done = [
                    file for file, own in written.items() if set(own) <= set(driver.given) and file.exists()
                ]
                for file in done[step[1] : step[1] + 1]:
                    file.unlink()
            else:
                driver.start()
        for _ in range(next_number + len(written) + 1):
            driver.poll()
    assert sorted(driver.given) == list(range(next_number))
    for own in written.values():
        places = [driver.given.index(n) for n in own]
        assert places == sorted(places)
    shutil.rmtree(top)


@pytest.mark.parametrize("format", ["json", "csv"])
def test_a_file_that_was_begun_must_come_back_as_it_was(format: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    file = put(folder, f"a.{format}", format, range(10), 1_000_000)
    with (
        mock.patch.object(spooling, "SPOOL_FILE_ROWS", 1),
        mock.patch("headgate.connectors.json_lines.BLOCK_BYTES", 16),
        mock.patch("headgate.connectors.formats.BLOCK_BYTES", 8),
    ):
        driver = Driver(folder, format, tmp_path / "checkpoint")
        driver.poll()
        assert 0 < len(driver.given) < 10
        put(folder, f"a.{format}", format, range(9), 1_000_000)
        driver.start()
        with pytest.raises(SourceError, match=rf"a\.{format}' has changed after \d+ of its rows were read"):
            driver.poll()
        file.unlink()
        driver.start()
        with pytest.raises(SourceError, match=rf"a\.{format}' is gone, but only \d+ of its rows"):
            driver.poll()
        put(folder, f"a.{format}", format, range(10), 1_000_000)
        driver.start()
        for _ in range(12):
            driver.poll()
    assert driver.given == list(range(10))


def test_a_file_that_grew_after_it_was_read_is_named_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    put(folder, "a.json", "json", range(10), 1_000_000)
    driver = Driver(folder, "json", tmp_path / "checkpoint")
    driver.poll()
    put(folder, "a.json", "json", range(11), 1_000_000)
    driver.start()
    with pytest.raises(SourceError, match=r"a\.json' has changed since it was read: it had \d+ bytes"):
        driver.poll()


def test_a_broken_file_gives_nothing_until_it_is_mended(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    put(folder, "a.json", "json", range(10), 1_000_000)
    (folder / "b.json").write_text(lines("json", range(10, 15)) + "rubbish\n")
    driver = Driver(folder, "json", tmp_path / "checkpoint")
    driver.poll()
    assert driver.given == list(range(10))
    with pytest.raises(Exception, match=r"b\.json', line 6"):
        driver.poll()
    (folder / "b.json").write_text(lines("json", range(10, 17)))
    driver.start()
    driver.poll()
    assert driver.given == list(range(17))


class Enough(Exception):
    pass


@pytest.mark.parametrize("format", ["json", "csv"])
def test_spark_goes_on_with_every_file_where_it_was(format: str, tmp_path: Path, ends: Any) -> None:
    """The issue's two cases: a file that was read is deleted; a later file has an older time."""
    folder, found = tmp_path / "in", []
    folder.mkdir()

    def run(rows: int) -> None:
        app = hg.App("following")
        origin = hg.from_files(folder, format=format, schema=SCHEMA, follow=True)
        app.source("lines", origin).filter("x >= 0").to("q", hg.to_list(found))

        def check(report: hg.Report) -> None:
            if len(found) >= rows:
                raise Enough

        with contextlib.suppress(Enough):
            app.run(hg.Spark(checkpoint=tmp_path / "checkpoint"), until=SOON, progress=check)

    first = put(folder, f"a.{format}", format, range(10), 2_000_000)
    put(folder, f"b.{format}", format, range(10, 20), 2_000_001)
    ends(lambda: run(20))
    first.unlink()
    put(folder, f"c.{format}", format, range(20, 30), 1_000_000)
    put(folder, f"d.{format}", format, range(30, 40), 3_000_000)
    ends(lambda: run(40))
    assert [row["x"] for row in found] == list(range(40))
