"""What people type who know PySpark, and what to write here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from headgate.errors import PipelineError, nearest

_WINDOWED = '.key_by("user").window(hg.tumbling("1 minute", on="ts")).agg("count(*) AS n")'
_BEST = '.top(10, by="n DESC", every="1 hour", on="ts")'
_ONCE = '.drop_duplicates("id", within="1 hour", on="ts")'
_PACKETS = ".map_packets(function, schema=...)"
_ROWS = '.to("name", hg.to_list(rows)) and app.run()'
_KEPT = "nothing: a stream that several queries use is computed once"
_PLACED = "nothing: the engine places the work; app.run(workers=2) says how many workers"
STREAM: Mapping[str, str] = {
    "withColumn": '.with_columns("a + b AS c")',
    "withColumns": '.with_columns("a + b AS c", "upper(d) AS e")',
    "withColumnRenamed": '.rename(old="new")',
    "selectExpr": '.select("a", "b + 1 AS c")',
    "where": '.filter("a > 1")',
    **dict.fromkeys(["groupBy", "groupby", "agg"], _WINDOWED),
    "count": '.running("count(*) AS n") for the number so far, or a window',
    "withWatermark": 'lateness= in the window: hg.tumbling("1 minute", on="ts", lateness="10 seconds")',
    **dict.fromkeys(["dropDuplicates", "dropDuplicatesWithinWatermark", "distinct"], _ONCE),
    **dict.fromkeys(["orderBy", "sort"], _BEST),
    **dict.fromkeys(["unionAll", "unionByName"], ".union(other)"),
    "alias": '.rename(a="left_a"), since a join needs no aliases',
    "join": '.key_by("id").join(other.key_by("id"), within="1 hour", on="ts"), or .lookup(table, on="id")',
    "crossJoin": '.lookup(table, on="id") with a table, or .key_by("id").join(other.key_by("id"), …)',
    **dict.fromkeys(["fillna", "na"], '.with_columns("coalesce(price, 0) AS price")'),
    "dropna": '.filter("price IS NOT NULL")',
    **dict.fromkeys(["mapInArrow", "mapInPandas", "transform", "foreachPartition"], _PACKETS),
    **dict.fromkeys(["map", "flatMap", "rdd"], ".flat_map_rows(function, schema=...)"),
    **dict.fromkeys(["foreachBatch", "foreach"], '.to("name", hg.to_function(function))'),
    **dict.fromkeys(["writeStream", "write"], '.to("name", hg.to_parquet("out"))'),
    **dict.fromkeys(["to_parquet", "parquet"], '.to("name", hg.to_parquet("out"))'),
    **dict.fromkeys(["collect", "take", "head", "first", "toPandas", "toArrow"], _ROWS),
    "show": '.to("name", hg.to_console()) and app.run()',
    **dict.fromkeys(["start", "awaitTermination"], "app.run() when all queries are there"),
    "printSchema": "print(stream.schema)",
    "columns": "stream.schema.names",
    "dtypes": "stream.schema",
    "explain": "print(app.to_mermaid())",
    "isStreaming": "nothing: every stream is one",
    **dict.fromkeys(["createOrReplaceTempView", "createTempView"], 'app.view("name", stream)'),
    **dict.fromkeys(["cache", "persist", "unpersist", "checkpoint"], _KEPT),
    **dict.fromkeys(["repartition", "coalesce", "hint"], _PLACED),
    "pivot": ".agg(\"count_if(kind = 'a') AS a\", \"count_if(kind = 'b') AS b\") of a window",
}
KEYED: Mapping[str, str] = {
    **dict.fromkeys(
        ["count", "sum", "avg", "mean", "min", "max", "agg"],
        '.window(hg.tumbling("1 minute", on="ts")).agg("count(*) AS n"), or .running("count(*) AS n") for '
        "the value so far",
    ),
    "applyInPandas": ".process(function, schema=..., state=...)",
    "applyInPandasWithState": ".process(function, schema=..., state=...)",
    "transformWithState": ".process(function, schema=..., state=...)",
    "transformWithStateInPandas": ".process(function, schema=..., state=...)",
    "pivot": STREAM["pivot"],
    **dict.fromkeys(["filter", "select"], "that on the stream, before key_by()"),
}
WINDOWED: Mapping[str, str] = {
    "count": '.agg("count(*) AS n")',
    **{name: f'.agg("{name}(price) AS x")' for name in ("sum", "avg", "min", "max")},
    "mean": '.agg("avg(price) AS x")',
    "to": '.agg("count(*) AS n").to("name", sink)',
}
APP: Mapping[str, str] = {
    **dict.fromkeys(["readStream", "read"], 'app.source("clicks", hg.from_files("data/clicks"))'),
    "table": 'app.sql("SELECT * FROM clicks")',
    **dict.fromkeys(["createDataFrame", "range"], 'app.source("rows", hg.from_batches([batch]))'),
    "add_source": 'app.source("clicks", hg.from_files("data/clicks"))',
    **dict.fromkeys(["stop", "awaitTermination"], "with app.start() as running: …, and running.stop()"),
    "query": 'app.sql("SELECT …").to("name", sink)',
    "to": 'stream.to("name", sink)',
}


def no_attribute(what: str, name: str, habits: Mapping[str, str], own: Iterable[str]) -> AttributeError:
    """The answer to a name that a class does not have."""
    written = habits.get(name)
    return AttributeError(f"{what} has no {name!r}.{f' Write {written}.' if written else nearest(name, own)}")


def is_column(name: str) -> AttributeError:
    """The answer to ``stream.price``."""
    return AttributeError(
        f"'{name}' is a column, and columns are named in the text of expressions: "
        f'stream.filter("{name} IS NOT NULL"), stream.select("{name}").'
    )


def no_items(what: str) -> NoReturn:
    """The answer to ``stream["price"]``, ``len(stream)`` and ``for row in stream``."""
    raise PipelineError(
        f"A stream has no {what}: nothing of it is there before it runs. Name columns in the text of "
        'expressions, stream.select("price"). For rows let it run: stream.to("name", hg.to_list(rows)) and '
        "app.run()."
    )
