"""The same questions asked of Structured Streaming: one query each, or fused by hand as an expert would.

Questions are those of ``headgate.demo.small_queries``; from their text come DataFrames.  Spark's
``rate`` source releases the rows of a second when the second is over; a row has arrived then, and ``ts`` is
that moment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.window import Window

from benchmarks.workloads.many_queries import RESTS, cut
from headgate.demo.small_queries import CLICK, RANDOM, Question
from headgate.engines.spark.session import LOCAL_SETTINGS
from headgate.errors import HeadgateError

Receive = Callable[[str, pa.RecordBatch], None]
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
PERIOD = 1.0
"""Seconds between two arrivals: the rate source works in whole seconds."""


def session(fair: bool = False, cores: int = 2) -> SparkSession:
    """A local session, set as one would for small and frequent batches."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("headgate-structured")
        .config("spark.scheduler.mode", "FAIR" if fair else "FIFO")
        # The same JVM on both sides of a comparison.
        .config(JAVA_OPTIONS, LOCAL_SETTINGS[JAVA_OPTIONS])
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )


def clicks(spark: SparkSession, rate: int, partitions: int = 1) -> DataFrame:
    """The live stream of clicks, ``ts`` being the arrival."""
    numbers = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", rate)
        .option("numPartitions", partitions)
        .load()
    )
    arrived = (
        f"timestamp_millis(unix_millis(timestamp) + 1000 - value % {rate} * 1000 DIV {rate}) AS timestamp"
    )
    return as_clicks(numbers.selectExpr("value", arrived))


def as_clicks(numbers: DataFrame) -> DataFrame:
    """Numbers and times as clicks."""
    return numbers.selectExpr(*RANDOM).selectExpr(*CLICK)


def frame(question: Question, clicks: DataFrame) -> DataFrame:
    """A question as a DataFrame, live or not.

    ``running`` aggregates are the key's newest values; a ``top`` is left to ``best``, as Structured Streaming
    cannot rank inside a live query.
    """
    rows = clicks.where(question.where)
    if not question.aggregates:
        return rows.selectExpr(*question.columns)
    aggregates = [sql.expr(each) for each in question.aggregates]
    if question.window is None:
        return rows.groupBy(*question.key).agg(*aggregates, sql.expr("max(ts) AS ts"))
    if rows.isStreaming:
        rows = rows.withWatermark("ts", "0 seconds")
    size, every = (f"{round(each * 1000)} milliseconds" for each in (question.size, question.every or 1))
    window = sql.session_window("ts", size) if question.window == "session" else sql.window("ts", size, every)
    answers = rows.groupBy(*question.key, window.alias("window")).agg(*aggregates)
    return answers.withColumns(
        {"window_start": sql.col("window.start"), "window_end": sql.col("window.end")}
    ).drop("window")


def best(question: Question, answers: DataFrame) -> DataFrame:
    """The first rows of every window, where the question asks for them; a window's rows come together."""
    if not question.top:
        return answers
    order = [sql.expr(each.removesuffix(" DESC")).desc() if each.endswith(" DESC") else sql.expr(each).asc()
             for each in question.order.split(", ")]  # fmt: skip
    rank = sql.row_number().over(Window.partitionBy("window_start").orderBy(*order))
    return answers.withColumn("_rank", rank).where(f"_rank <= {question.top}").drop("_rank")


def start(
    spark: SparkSession, questions: Sequence[Question], rate: int, receive: Receive, folder: Path, fair: bool
) -> list[Any]:
    """One ``StreamingQuery`` per question, each in a pool of its own if ``fair``."""
    return [_start(spark, question, rate, receive, folder, fair) for question in questions]


def _start(
    spark: SparkSession, question: Question, rate: int, receive: Receive, folder: Path, fair: bool
) -> Any:
    def hand_over(batch: DataFrame, number: int) -> None:
        for part in best(question, batch).toArrow().to_batches():
            if part.num_rows:
                receive(question.name, part)

    # A streaming query runs its jobs in the pool of the thread that started it.
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", question.name if fair else None)
    return (
        frame(question, clicks(spark, rate))
        .writeStream.queryName(question.name)
        .outputMode("update" if question.aggregates and question.window is None else "append")
        .option("checkpointLocation", str(folder / question.name))
        .foreachBatch(hand_over)
        .start()
    )


# --- fused by hand ----------------------------------------------------------------------------------------

_FUSED = "q INT, user BIGINT, item BIGINT, price DOUBLE, ts TIMESTAMP"


def start_fused(
    spark: SparkSession,
    questions: Sequence[Question],
    rate: int,
    receive: Receive,
    folder: Path,
    way: str,
    keyed: bool,
) -> list[Any]:
    """All generated questions (``many_queries.many``) as one ``StreamingQuery`` with one job per batch.

    ``way`` says how a click meets all conditions: ``"arrow"``, in one pass of numpy over Arrow batches, or
    ``"jvm"``, in an array of the questions it answers, exploded.  Sums by key share one aggregation whose key
    begins with the question's number.
    """
    source = clicks(spark, rate).select("user", "item", "price", "ts")
    n = len(questions)
    matches = source.mapInArrow(_matcher(n), _FUSED) if way == "arrow" else _exploded(source, n)
    if keyed:
        answers = matches.groupBy("q", "user").agg(
            sql.sum("price").alias("spent"), sql.count("*").alias("n"), sql.max("ts").alias("ts")
        )
    else:
        answers = matches.selectExpr("q", "user", "item", "price * (q + 1) AS worth", "ts")
    names = [question.name for question in questions]

    def hand_over(batch: DataFrame, number: int) -> None:
        table = batch.toArrow().combine_chunks().sort_by("q")
        places = np.searchsorted(table.column("q").to_numpy(), np.arange(n + 1))
        for q in np.flatnonzero(np.diff(places)):
            rows = table.slice(places[q], places[q + 1] - places[q])
            for part in rows.drop_columns("q").to_batches():
                receive(names[q], part)

    return [
        answers.writeStream.outputMode("update" if keyed else "append")
        .option("checkpointLocation", str(folder / "fused"))
        .foreachBatch(hand_over)
        .start()
    ]


def _exploded(source: DataFrame, n: int) -> DataFrame:
    conditions = [cut(number) for number in range(n)]
    matching = ", ".join(
        f"IF(item % {RESTS} = {rest} AND price > {limit}, {number}, NULL)"
        for number, (rest, limit) in enumerate(conditions)
    )
    return source.selectExpr(f"explode(array_compact(array({matching}))) AS q", "user", "item", "price", "ts")


def _matcher(n: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    conditions = [cut(number) for number in range(n)]

    def match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rests = batch.column("item").to_numpy() % RESTS
            price = batch.column("price").to_numpy()
            of_rest = [np.flatnonzero(rests == rest) for rest in range(RESTS)]
            rows = [of_rest[rest][price[of_rest[rest]] > limit] for rest, limit in conditions]
            q = np.repeat(np.arange(n, dtype=np.int32), [len(each) for each in rows])
            taken = batch.take(pa.array(np.concatenate(rows)))
            yield pa.RecordBatch.from_arrays([pa.array(q), *taken.columns], names=["q", *batch.schema.names])

    return match


# --- the real-time trigger --------------------------------------------------------------------------------


def refusal(spark: SparkSession, question: Question, rate: int, folder: Path) -> str | None:
    """Why Spark refuses a question under the real-time trigger, in its own words; None if it does not.

    Tried with a sink that the trigger takes (``foreachBatch`` is not one of them).
    """
    try:
        query = (
            frame(question, clicks(spark, rate))
            .writeStream.outputMode("update")
            .option("checkpointLocation", str(folder / "real-time"))
            .trigger(realTime="5 seconds")
            .foreach(_ignore)
            .start()
        )
        query.awaitTermination(15)
    except Exception as error:
        return in_short(error)
    query.stop()
    return None


def _ignore(row: Any) -> None:
    pass


def check(queries: Sequence[Any]) -> None:
    """Raise if one of them has failed."""
    for query in queries:
        error = query.exception()
        if error is not None:
            raise HeadgateError(f"Structured Streaming: query '{query.name}' failed: {in_short(error)}")


def in_short(error: Exception) -> str:
    """What Spark says of a failed query, without its plan and its stack."""
    said = str(error).split("=== Streaming Query ===")[0].strip()
    reason = said.split("terminated with exception: ", 1)[-1]
    return reason.split("SQLSTATE")[0].strip()


def parts(queries: Sequence[Any]) -> dict[str, float]:
    """Median milliseconds of the newest batches, by part, over all queries: what Spark says of itself."""
    found: dict[str, list[float]] = {}
    for query in queries:
        for batch in query.recentProgress[-5:]:
            for part, millis in batch["durationMs"].items():
                found.setdefault(part, []).append(float(millis))
    return {part: float(np.median(each)) for part, each in found.items()}
