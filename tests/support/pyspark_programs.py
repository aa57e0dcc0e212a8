"""Streaming programs as PySpark's documentation and tutorials write them, without their last line.

Each takes a session and the folder of the input, and gives a streaming DataFrame.  The input ends with rows
of a day later: they close everything before them, and are left out of the comparison.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every program of PySpark has it

START = datetime(2024, 1, 1)
LAST = "the end"
DEVICES = "device STRING, type STRING, signal BIGINT, time TIMESTAMP, id BIGINT"
ADS = "ad BIGINT, time TIMESTAMP"

Program = Callable[[SparkSession, Path], DataFrame]
APPEND: dict[str, Program] = {}
UPDATE: dict[str, Program] = {}
REFUSED: dict[str, Program] = {}


def write_input(folder: Path, rows: int = 60) -> None:
    draw = random.Random(7)
    devices, shown, clicked, lines = [], [], [], []
    for number in range(rows):
        time = START + timedelta(seconds=number * 20 - draw.randrange(8))
        devices.append(
            {
                "device": f"d{draw.randrange(4)}",
                "type": draw.choice(["door", "light"]),
                "signal": draw.randrange(30),
                "time": f"{time.isoformat()}Z",
                "id": number // 2,
            }
        )
        shown.append({"ad": number, "time": f"{time.isoformat()}Z"})
        if number % 3:
            later = time + timedelta(seconds=draw.choice([5, 50, 4000]))
            clicked.append({"ad": number, "time": f"{later.isoformat()}Z"})
        lines.append(draw.choice(["apache spark", "spark streams", "the quick stream"]))
    end = f"{(START + timedelta(days=1)).isoformat()}Z"
    devices.append({"device": LAST, "type": LAST, "signal": 100, "time": end, "id": -1})
    shown.append({"ad": -1, "time": end})
    clicked.append({"ad": -2, "time": end})
    clicked.sort(key=lambda row: str(row["time"]))
    for name, found in (("devices", devices), ("shown", shown), ("clicked", clicked)):
        (folder / name).mkdir(parents=True)
        (folder / name / "1.json").write_text("".join(json.dumps(row) + "\n" for row in found))
    (folder / "lines").mkdir()
    (folder / "lines" / "1.txt").write_text("".join(line + "\n" for line in lines))
    (folder / "csv").mkdir()
    texts = [f"{row['device']},{row['signal']}" for row in devices]
    (folder / "csv" / "1.csv").write_text("\n".join(["device,signal", *texts]) + "\n")
    (folder / "events").mkdir()
    (folder / "events" / "1.txt").write_text("".join(json.dumps(row) + "\n" for row in devices))


def append(program: Program) -> Program:
    APPEND[program.__name__] = program
    return program


def update(program: Program) -> Program:
    UPDATE[program.__name__] = program
    return program


def refused(program: Program) -> Program:
    REFUSED[program.__name__] = program
    return program


def devices(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(DEVICES).json(str(folder / "devices"))


def ads(spark: SparkSession, folder: Path, name: str) -> DataFrame:
    return spark.readStream.format("json").schema(ADS).load(str(folder / name))


@append
def devices_with_a_strong_signal(spark: SparkSession, folder: Path) -> DataFrame:
    return devices(spark, folder).select("device").where("signal > 10")


@append
def columns_computed(spark: SparkSession, folder: Path) -> DataFrame:
    return (
        devices(spark, folder)
        .withColumn("strength", F.when(F.col("signal") > 20, "high").otherwise("low"))
        .withColumn("hour", F.hour("time"))
        .withColumnRenamed("type", "kind")
        .drop("time")
    )


@append
def expressions_in_sql(spark: SparkSession, folder: Path) -> DataFrame:
    return devices(spark, folder).selectExpr(
        "upper(device) AS device", "signal / 2 AS half", "id % 3 AS rest"
    )


@append
def a_view_in_sql(spark: SparkSession, folder: Path) -> DataFrame:
    devices(spark, folder).createOrReplaceTempView("updates")
    return spark.sql(
        "SELECT device, signal * 2 AS twice FROM updates WHERE type = 'door' AND signal IS NOT NULL"
    )


@update
def word_count(spark: SparkSession, folder: Path) -> DataFrame:
    lines = spark.readStream.text(str(folder / "lines"))
    words = lines.select(F.explode(F.split(lines.value, " ")).alias("word"))
    return words.groupBy("word").count()


@update
def signals_by_type(spark: SparkSession, folder: Path) -> DataFrame:
    return (
        devices(spark, folder).groupBy("type").agg(F.sum("signal").alias("sum"), F.max("signal").alias("max"))
    )


@update
def windows_in_update_mode(spark: SparkSession, folder: Path) -> DataFrame:
    rows = devices(spark, folder).withWatermark("time", "1 minute")
    return rows.groupBy(F.window("time", "5 minutes"), "device").count()


@append
def tumbling_windows(spark: SparkSession, folder: Path) -> DataFrame:
    words = devices(spark, folder).withWatermark("time", "10 minutes")
    return words.groupBy(F.window(words.time, "5 minutes"), words.device).count()


@append
def sliding_windows(spark: SparkSession, folder: Path) -> DataFrame:
    return (
        devices(spark, folder)
        .withWatermark("time", "10 minutes")
        .groupBy(F.window("time", "10 minutes", "5 minutes"), "device")
        .agg(F.avg("signal").alias("mean"), F.count("*").alias("n"))
    )


@append
def windows_over_all(spark: SparkSession, folder: Path) -> DataFrame:
    rows = devices(spark, folder).withWatermark("time", "1 minute")
    found = rows.groupBy(F.window("time", "2 minutes")).agg(
        F.min("signal").alias("low"), F.max("signal").alias("high")
    )
    return found.select(F.col("window.start").alias("start"), F.col("window.end").alias("end"), "low", "high")


@append
def windows_that_have_many(spark: SparkSession, folder: Path) -> DataFrame:
    rows = devices(spark, folder).withWatermark("time", "1 minute")
    return rows.groupBy(F.window("time", "5 minutes"), "type").count().where("count > 6")


@append
def session_windows(spark: SparkSession, folder: Path) -> DataFrame:
    events = devices(spark, folder).withWatermark("time", "10 minutes")
    return events.groupBy(F.session_window(events.time, "1 minute"), events.device).count()


@append
def duplicates_dropped(spark: SparkSession, folder: Path) -> DataFrame:
    return devices(spark, folder).select("id", "device").dropDuplicates(["id"]).select("id")


@append
def duplicates_with_watermark(spark: SparkSession, folder: Path) -> DataFrame:
    return devices(spark, folder).withWatermark("time", "10 minutes").dropDuplicates(["id", "time"])


@append
def duplicates_within_watermark(spark: SparkSession, folder: Path) -> DataFrame:
    rows = devices(spark, folder).withWatermark("time", "10 minutes")
    return rows.dropDuplicatesWithinWatermark(["id"]).select("id")


def _impressions(spark: SparkSession, folder: Path) -> tuple[DataFrame, DataFrame]:
    impressions = ads(spark, folder, "shown").select(
        F.col("ad").alias("impressionAdId"), F.col("time").alias("impressionTime")
    )
    clicks = ads(spark, folder, "clicked").select(
        F.col("ad").alias("clickAdId"), F.col("time").alias("clickTime")
    )
    return (
        impressions.withWatermark("impressionTime", "2 hours"),
        clicks.withWatermark("clickTime", "3 hours"),
    )


CONDITION = """
    clickAdId = impressionAdId AND
    clickTime >= impressionTime AND
    clickTime <= impressionTime + interval 1 hour
"""


@append
def inner_join(spark: SparkSession, folder: Path) -> DataFrame:
    impressions, clicks = _impressions(spark, folder)
    return impressions.join(clicks, F.expr(CONDITION))


@append
def left_outer_join(spark: SparkSession, folder: Path) -> DataFrame:
    impressions, clicks = _impressions(spark, folder)
    return impressions.join(clicks, F.expr(CONDITION), "leftOuter")


@append
def right_outer_join(spark: SparkSession, folder: Path) -> DataFrame:
    impressions, clicks = _impressions(spark, folder)
    return impressions.join(clicks, F.expr(CONDITION), "rightOuter")


@append
def left_semi_join(spark: SparkSession, folder: Path) -> DataFrame:
    impressions, clicks = _impressions(spark, folder)
    return impressions.join(clicks, F.expr(CONDITION), "leftSemi")


@append
def join_of_aliases(spark: SparkSession, folder: Path) -> DataFrame:
    one = ads(spark, folder, "shown").withWatermark("time", "1 minute").alias("a")
    two = ads(spark, folder, "clicked").withWatermark("time", "1 minute").alias("b")
    found = one.join(two, F.expr("a.ad = b.ad AND b.time BETWEEN a.time AND a.time + interval 2 minutes"))
    return found.select("a.ad", F.col("b.time").alias("clicked"))


@append
def join_by_key_alone(spark: SparkSession, folder: Path) -> DataFrame:
    return ads(spark, folder, "shown").join(ads(spark, folder, "clicked").select("ad"), "ad")


def _kinds(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("door", 1), ("window", 2)], "type STRING, code BIGINT")


@append
def join_with_a_table(spark: SparkSession, folder: Path) -> DataFrame:
    return devices(spark, folder).join(_kinds(spark), "type").select("device", "code")


@append
def left_join_with_a_table(spark: SparkSession, folder: Path) -> DataFrame:
    return devices(spark, folder).join(_kinds(spark), "type", "left_outer").select("id", "code")


@append
def union(spark: SparkSession, folder: Path) -> DataFrame:
    return ads(spark, folder, "shown").union(ads(spark, folder, "clicked"))


@append
def csv_files(spark: SparkSession, folder: Path) -> DataFrame:
    rows = (
        spark.readStream.option("header", True).schema("device STRING, signal INT").csv(str(folder / "csv"))
    )
    return rows.filter(rows.signal >= 15).select("device", "signal")


@append
def exploded_with_positions(spark: SparkSession, folder: Path) -> DataFrame:
    lines = spark.readStream.text(str(folder / "lines"))
    return lines.select("value", F.posexplode(F.split("value", " ")))


@append
def json_in_text(spark: SparkSession, folder: Path) -> DataFrame:
    raw = spark.readStream.text(str(folder / "events"))
    data = F.from_json(F.col("value").cast("string"), "device STRING, signal BIGINT").alias("data")
    return raw.select(data).select("data.*").where("signal > 5")


# --- what is not taken over -----------------------------------------------------------------------------


@refused
def a_function_of_python(spark: SparkSession, folder: Path) -> DataFrame:
    louder = F.udf(lambda text: text.upper(), "string")
    return devices(spark, folder).select(louder("device").alias("device"))


@refused
def batches_through_pandas(spark: SparkSession, folder: Path) -> DataFrame:
    rows = devices(spark, folder)
    return rows.mapInPandas(lambda frames: frames, rows.schema)


@refused
def state_in_pandas(spark: SparkSession, folder: Path) -> DataFrame:
    rows = devices(spark, folder).groupBy("device")
    return rows.applyInPandasWithState(
        lambda key, frames, state: frames, "device STRING", "n INT", "append", "NoTimeout"
    )


@refused
def lines_of_a_socket(spark: SparkSession, folder: Path) -> DataFrame:
    lines = spark.readStream.format("socket").option("host", "localhost").option("port", 9999).load()
    return lines.select(F.explode(F.split(lines.value, " ")).alias("word"))


@refused
def windows_with_an_offset(spark: SparkSession, folder: Path) -> DataFrame:
    rows = devices(spark, folder).withWatermark("time", "1 minute")
    return rows.groupBy(F.window("time", "5 minutes", "5 minutes", "1 minute")).count()


@refused
def a_table_that_is_no_stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.schema(DEVICES).json(str(folder / "devices"))
