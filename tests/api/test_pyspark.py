"""Programs of PySpark give what Structured Streaming gives, though nothing but their last line changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as every program of PySpark has it

import headgate as hg
import pyspark_programs as programs
from checkpoints import Crash, crashing, read, run_until, write_orders
from headgate.engines.spark.session import open_session
from headgate.errors import PipelineError, RunError
from killed_driver import Trains
from pyspark_compared import by_spark, compare, plain, started

pytestmark = pytest.mark.xdist_group("spark")


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
    every = {**programs.APPEND, **programs.UPDATE}
    compared = list(every) if os.environ.get("HEADGATE_ALL_PROGRAMS") else QUICK
    app, verdicts = compare(session, folder, compared)
    assert len(app.network.sources) == 6
    different = [
        verdict for verdict in verdicts if verdict.only_ours or verdict.only_theirs or not verdict.rows
    ]
    assert different == []


def test_late_rows_begin_nothing_anew(session: Any, tmp_path: Path) -> None:
    """A row whose window or key has been forgotten is dropped, as by Spark, and not taken for a new one's."""
    # Spark judges what is late by the batch before the last one, so two rows move time on.
    rows = [("09:00", 1), ("09:01", 2), ("11:00", 3), ("11:00", 4), ("09:02", 5), ("09:00", 1), ("11:01", 6)]
    for number, (time, id) in enumerate(rows):
        line = json.dumps({"ts": f"2024-01-01T{time}:00Z", "id": id})
        (tmp_path / f"{number}.json").write_text(line)
        os.utime(tmp_path / f"{number}.json", (1_000_000 + number,) * 2)
    read = session.readStream.schema("ts TIMESTAMP, id BIGINT").option("maxFilesPerTrigger", 1)
    timed = read.json(str(tmp_path)).withWatermark("ts", "10 minutes")
    frames = {
        "windows": (timed.groupBy(F.window("ts", "5 minutes")).count(), "update"),
        "pairs": (timed.dropDuplicates(["id", "ts"]), "append"),
        "within": (timed.dropDuplicatesWithinWatermark(["id"]), "append"),
    }
    app, found = hg.App("late"), {name: [] for name in frames}
    for name, (frame, mode) in frames.items():
        app.from_spark(frame, follow=False, update=mode == "update").to(name, hg.to_list(found[name]))
    app.run("threads")
    for name, (frame, mode) in frames.items():
        ours = [tuple(plain(v) for v in row.values()) for row in found[name]]
        theirs = by_spark(frame, f"late_{name}", started(frame, f"late_{name}", mode))
        assert ours == theirs, name


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


def test_batch_numbers_never_come_again_for_other_rows(session: Any, tmp_path: Path) -> None:
    """A program that skips numbers it has seen gets every row once: after a crash, and in the next run."""
    calls: list[tuple[int, list[Any]]] = []

    def run(train: int, rows: int) -> None:
        orders = session.readStream.schema("user BIGINT, amount BIGINT, ts TIMESTAMP")
        frame = orders.parquet(str(tmp_path / "orders")).where("amount >= 0")
        app = hg.App("each")
        app.adopt(frame.writeStream.foreachBatch(lambda b, n: calls.append((n, b.collect()))), name="each")
        engine = hg.Spark(checkpoint=tmp_path / "checkpoint", workers=2)
        run_until(
            app, engine, lambda: sum(len(own) for own in once().values()) >= rows, policy=Trains(train, 1)
        )

    def once() -> dict[int, list[Any]]:
        for number, own in calls:
            assert all(other == own for same, other in calls if same == number)
        return dict(calls)

    write_orders(tmp_path / "orders", 1, 200, seed=1)
    # The records: a start, then for each step an intent and the step; the second step's is not written.
    with pytest.raises(Crash), crashing(5):
        run(60, 201)
    assert len(calls) == 2
    run(90, 201)
    write_orders(tmp_path / "orders", 1, 100, seed=2, first=1)
    run(70, 302)
    assert [tuple(row)[:2] for own in once().values() for row in own] == [
        (row["user"], row["amount"]) for row in read(tmp_path / "orders")
    ]
    assert len(calls) > len(once())  # the step that was not logged came again


def test_each_writer_keeps_its_own_function(session: Any, folder: Path) -> None:
    """Both writers are there before either is adopted, as in a program with two queries."""
    app, given = hg.App("two"), {"low": [], "high": []}
    frame = programs.devices(session, folder)
    writers = {}
    for name, condition in (("low", "signal < 5"), ("high", "signal >= 5")):
        into = given[name]
        writer = frame.where(condition).writeStream.trigger(availableNow=True)
        writers[name] = writer.foreachBatch(lambda rows, _, into=into: into.extend(rows.collect()))
    for name, writer in writers.items():
        app.adopt(writer, name=name)
    app.run("threads")
    assert given["low"]
    assert given["high"]
    assert all(row.signal < 5 for row in given["low"])
    assert all(row.signal >= 5 for row in given["high"])


def test_what_would_land_elsewhere_is_refused(session: Any, folder: Path, tmp_path: Path) -> None:
    frame, out = programs.devices(session, folder), str(tmp_path / "out")
    parquet = frame.writeStream.format("parquet").option("path", out).trigger(availableNow=True)
    records = frame.selectExpr("device AS value", "array() AS headers").writeStream.format("kafka")
    records = records.option("kafka.bootstrap.servers", "localhost:1").option("topic", "t")
    for writer, words in ((parquet.partitionBy("device"), "partitionBy"), (records, "column 'headers'")):
        with pytest.raises(PipelineError, match=words):
            hg.App("elsewhere").adopt(writer)
    # Spark has written to the folder, and says there which files are to be read.
    query = frame.writeStream.format("parquet").option("path", out).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    app = hg.App("elsewhere")
    app.adopt(frame.writeStream.format("parquet").option("path", out).trigger(availableNow=True), name="all")
    with pytest.raises(RunError, match=r"'all'.*_spark_metadata"):
        app.run("threads")


def test_a_plan_that_cannot_be_taken_over_names_the_node(session: Any, folder: Path) -> None:
    from pyspark.sql import functions

    rows = programs.devices(session, folder)
    changed = rows.mapInPandas(lambda frames: frames, rows.schema)
    shifted = rows.withWatermark("time", "1 minute").groupBy(
        functions.window("time", "5 minutes", "5 minutes", "1 minute")
    )
    for frame, words in (
        (changed, ["MapInPandas", "no box"]),
        (programs.REFUSED["a_function_of_python"](session, folder), ["function of Python", "@hg.udf"]),
        (programs.REFUSED["lines_of_a_socket"](session, folder), ["socket", "files, rate and Kafka"]),
        (shifted.count(), ["offset"]),
        (session.range(3), ["readStream"]),
    ):
        with pytest.raises(PipelineError) as raised:
            hg.from_spark(frame, follow=False)
        assert all(word in str(raised.value) for word in words), str(raised.value)
