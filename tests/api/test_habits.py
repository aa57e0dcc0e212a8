"""What PySpark users type and is not here is answered with what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headgate as hg
from headgate.errors import PipelineError


def stream() -> Any:
    app = hg.App("habits")
    app_stream = app.source("clicks", hg.from_rate(1))
    return app_stream.select("value AS price", "value % 3 AS item", "timestamp AS ts")


HABITS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "groupBy": (lambda s: s.groupBy("item").count(), r"\.key_by\("),
    "where": (lambda s: s.where("price > 1"), r"\.filter\("),
    "withColumn": (lambda s: s.withColumn("x", "price + 1"), r"\.with_columns\("),
    "withWatermark": (lambda s: s.withWatermark("ts", "1 minute"), "lateness="),
    "count": (lambda s: s.count(), r"\.running\("),
    "a column": (lambda s: s.price > 3, r"'price' is a column.*stream\.filter\(\"price"),
    "an item": (lambda s: s["price"], r"stream\.select\(\"price\"\)"),
    "len": (len, r"hg\.to_list\(rows\)"),
    "for": (list, r"hg\.to_list\(rows\)"),
    "toPandas": (lambda s: s.toPandas(), r"hg\.to_list\(rows\)"),
    "cache": (lambda s: s.cache(), "computed once"),
    "repartition": (lambda s: s.repartition(8), r"app\.run\(workers=2\)"),
    "fillna": (lambda s: s.fillna(0), r"coalesce\("),
    "dropna": (lambda s: s.dropna(), "IS NOT NULL"),
    "a view": (lambda s: s.createOrReplaceTempView("c"), r"app\.view\("),
    "writeStream": (lambda s: s.writeStream.format("parquet"), r"hg\.to_parquet"),
    "foreach": (lambda s: s.foreach(print), r"hg\.to_function"),
    "pivot": (lambda s: s.key_by("item").pivot("price"), "count_if"),
    "keyed count": (lambda s: s.key_by("item").count(), r"\.running\(\"count\(\*\) AS n\"\)"),
    "state": (lambda s: s.key_by("item").applyInPandasWithState(print), r"\.process\("),
    "windowed sum": (
        lambda s: s.window(hg.tumbling("1 minute", on="ts")).sum("price"),
        r"\.agg\(\"sum\(price\) AS x\"\)",
    ),
    "readStream": (lambda s: hg.App("a").readStream, r"app\.source\("),
    "awaitTermination": (lambda s: hg.App("a").awaitTermination(), r"app\.start\(\)"),
    "a slip": (lambda s: s.fliter("price > 1"), "Did you mean 'filter'"),
}


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_is_answered_with_what_to_write(habit: str) -> None:
    do, words = HABITS[habit]
    with pytest.raises((AttributeError, PipelineError), match=words):
        do(stream())


def test_a_stream_is_not_empty() -> None:
    assert stream()
