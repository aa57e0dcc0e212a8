"""Programs of PySpark give what Structured Streaming gives, though nothing but their last line changes."""

from __future__ import annotations

import os
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headgate as hg
import pyspark_programs as programs
from headgate.engines.spark.session import open_session
from headgate.errors import PipelineError

pytestmark = pytest.mark.xdist_group("spark")
DAY_LATER = datetime(2024, 1, 1, 12)


@pytest.fixture(scope="module")
def session() -> Any:
    found = open_session("local[2]", "programs", {}, list)
    own = found.newSession()
    own.conf.set("spark.sql.session.timeZone", "UTC")
    own.conf.set("spark.sql.shuffle.partitions", "1")
    return own


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("programs")
    programs.write_input(made)
    return made


def plain(value: Any) -> Any:
    """A value that compares: structs as tuples, times without zone."""
    if isinstance(value, dict):
        return tuple(plain(v) for v in value.values())
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return round(value, 9) if isinstance(value, float) else value


def of_the_end(row: tuple[Any, ...]) -> bool:
    """Whether it comes from the rows that only close what was before them."""
    times = [v for value in row for v in (value if isinstance(value, tuple) else (value,))]
    late = any(isinstance(v, datetime) and v > DAY_LATER for v in times)
    return late or any(v in (programs.LAST, programs.LAST.upper(), -1, -2, 100) for v in row)


def started(frame: Any, name: str, mode: str) -> Any:
    query = frame.writeStream.format("memory").queryName(name).outputMode(mode)
    return query.trigger(availableNow=True).start()


def by_spark(frame: Any, name: str, query: Any) -> list[tuple[Any, ...]]:
    query.awaitTermination()
    rows = frame.sparkSession.table(name).collect()
    return [tuple(plain(v) for v in row.asDict(recursive=True).values()) for row in rows]


QUICK = [
    "tumbling_windows",
    "session_windows",
    "duplicates_within_watermark",
    "left_outer_join",
    "word_count",
]
"""What the suite compares; HEADGATE_ALL_PROGRAMS=1 compares all programs."""


def test_programs_give_what_structured_streaming_gives(session: Any, folder: Path) -> None:
    """All of them run as one application, whose queries share their sources."""
    app = hg.App("programs")
    every = {**programs.APPEND, **programs.UPDATE}
    compared = list(every) if os.environ.get("HEADGATE_ALL_PROGRAMS") else QUICK
    found: dict[str, list[dict[str, Any]]] = {}
    frames = {name: program(session, folder) for name, program in every.items()}
    for name, frame in frames.items():
        found[name] = []
        stream = app.from_spark(frame, follow=False, update=name in programs.UPDATE)
        stream.to(name, hg.to_list(found[name]))
    assert len(app.network.sources) == 5
    app.run("threads")
    assert all(found.values())
    queries = {
        name: started(frames[name], name, "update" if name in programs.UPDATE else "append")
        for name in compared
    }
    different = []
    for name in compared:
        ours = [tuple(plain(v) for v in row.values()) for row in found[name]]
        if name in programs.UPDATE:  # the last value of every group
            keys = 1 if name != "windows_in_update_mode" else 2
            ours = list({row[:keys]: row for row in ours}.values())
        one = Counter(row for row in ours if not of_the_end(row))
        theirs = by_spark(frames[name], name, queries[name])
        two = Counter(row for row in theirs if not of_the_end(row))
        if one != two or not one:
            different.append(
                (name, len(one), len(two), list((one - two).items())[:3], list((two - one).items())[:3])
            )
    assert different == []


def test_a_writer_is_adopted(session: Any, folder: Path, tmp_path: Path) -> None:
    app = hg.App("adopted")
    frame = programs.devices_with_a_strong_signal(session, folder)
    written = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    written = written.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    app.adopt(written, name="strong", qos=hg.QoS([(0, 1), (1, 0)]))
    counts: list[int] = []

    def each(batch: Any, number: int) -> None:
        counts.append(batch.count())

    app.adopt(frame.writeStream.foreachBatch(each).trigger(availableNow=True), name="each")
    app.run("threads")
    rows = pq.read_table(tmp_path / "out").num_rows
    assert rows == sum(counts) > 0
    assert len(app.network.sources) == 1
    with pytest.raises(PipelineError, match="complete"):
        app.adopt(programs.word_count(session, folder).writeStream.outputMode("complete").format("console"))


def test_a_plan_that_cannot_be_taken_over_names_the_node(session: Any, folder: Path) -> None:
    from pyspark.sql import functions

    rows = programs.devices(session, folder)
    changed = rows.mapInPandas(lambda frames: frames, rows.schema)
    shifted = rows.withWatermark("time", "1 minute").groupBy(
        functions.window("time", "5 minutes", "5 minutes", "1 minute")
    )
    for frame, words in (
        (changed, ["MapInPandas", "no box"]),
        (shifted.count(), ["offset"]),
        (session.range(3), ["readStream"]),
    ):
        with pytest.raises(PipelineError) as raised:
            hg.from_spark(frame, follow=False)
        assert all(word in str(raised.value) for word in words), str(raised.value)
