"""The questions of ``click_queries`` asked of Structured Streaming: files in, Parquet out, all that is there.

The state store is RocksDB and the trigger ``availableNow``, with a batch for each file.  Java's own choice of
compiler and collector stays, since batches are long here.  Structured Streaming has no running sum for each
row: it gives the sums of a batch's users once for each batch, which is less work.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks.peers.structured import check
from benchmarks.workloads.click_queries import GAP, LATENESS, MINUTE, WHERE

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def session(cores: int = 2) -> SparkSession:
    """A local session, set for throughput; its Python workers are not needed."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("headgate-structured-files")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .getOrCreate()
    )


def frame(query: str, rows: DataFrame) -> DataFrame:
    """A question as a DataFrame; running sums are the user's newest."""
    if query == "filter":
        return rows.where(WHERE).selectExpr("user_id", "item_id", "price * 1.2D AS gross")
    total = sql.sum("price").alias("s")
    if query == "running":
        return rows.groupBy("user_id").agg(total)
    timed = rows.withWatermark("ts", LATENESS)
    window = sql.session_window("ts", GAP) if query == "session" else sql.window("ts", MINUTE)
    counted = timed.groupBy("user_id", window.alias("window")).agg(sql.count("*").alias("n"), total)
    return counted.selectExpr("user_id", "window.start AS window_start", "window.end AS window_end", "n", "s")


def ask(spark: SparkSession, query: str, clicks: str | Path, answers: str | Path) -> dict[str, Any]:
    """Answer a question; seconds from the first trigger to the end, batches, and rows read."""
    schema = spark.read.parquet(str(clicks)).schema
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(clicks))
    writer = frame(query, files).writeStream.option("checkpointLocation", f"{answers}-checkpoint")
    if query == "running":
        writer = writer.outputMode("update").foreachBatch(_append(str(answers)))
    else:
        writer = writer.outputMode("append").format("parquet").option("path", str(answers))
    running = writer.trigger(availableNow=True).start()
    running.awaitTermination()
    end = time.time()
    check([running])
    progress = running.recentProgress
    first = datetime.fromisoformat(progress[0]["timestamp"]).timestamp()
    return {
        "seconds": end - first,
        "steps": len(progress),
        "rows": sum(each["numInputRows"] for each in progress),
        "step_seconds": [each["durationMs"]["triggerExecution"] / 1000 for each in progress],
    }


def _append(answers: str) -> Any:
    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("append").parquet(answers)

    return write
