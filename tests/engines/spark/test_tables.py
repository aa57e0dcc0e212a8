"""Tables through the Spark engine: JDBC (Derby, which Spark brings along), parquet, the catalog."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate import testing
from headgate.runtime.report import Report

pytestmark = pytest.mark.xdist_group("spark")
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True, scope="module")
def _folder_of_tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """In the Spark that all tests share; files of Derby and of the catalog are in a folder of their own."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("tables")
    assert testing.run([{"a": 1}], lambda stream: stream, engine=hg.Spark()) == [{"a": 1}]
    session = SparkSession.active()
    session.sparkContext._jvm.System.setProperty("derby.system.home", str(folder))
    session.sql(f"CREATE DATABASE room LOCATION '{folder / 'room'}'")
    yield
    session.sql("DROP DATABASE room CASCADE")


def derby(name: str, table: str) -> dict[str, Any]:
    driver = "org.apache.derby.iapi.jdbc.AutoloadedDriver"
    options = {"url": f"jdbc:derby:memory:{name};create=true", "dbtable": table, "driver": driver}
    return {"format": "jdbc", "options": options}


def insert(where: dict[str, Any], first: int, rows: int) -> None:
    from pyspark.sql import SparkSession

    made = SparkSession.active().range(first, first + rows, 1, 1).selectExpr("id", "concat('n', id) AS name")
    made.write.format(where["format"]).options(**where["options"]).mode("append").save()


def named(first: int, last: int) -> Rows:
    return [{"id": i, "name": f"n{i}"} for i in range(first, last)]


def finite() -> tuple[Rows, Rows]:
    insert(derby("finite", "orders"), 0, 50)
    app = hg.App("tables")
    source = app.source("orders", hg.from_table(derby("finite", "orders"), "id", schema=SCHEMA, follow=False))
    rows: Rows = []
    sums: Rows = []
    source.to("rows", hg.to_list(rows))
    source.key_by("name").running("sum(id) AS s").select("s").to("sums", hg.to_list(sums))
    app.run(hg.Spark())
    return rows, sums


def test_the_rows_that_are_there_come_in_the_order_of_the_column() -> None:
    rows, sums = finite()
    assert rows == named(0, 50)
    assert sums == [{"s": i} for i in range(50)]


def growing(checkpoint: str) -> Rows:
    """Rows are inserted when those before have come; a second run goes on where the first was stopped."""
    where = derby("growing", "orders")
    insert(where, 0, 10)
    rows: Rows = []

    def run(more: Callable[[int], None], upto: int) -> None:
        app = hg.App("tables")
        source = app.source("orders", hg.from_table(where, "id", schema=SCHEMA))
        source.filter("id % 2 = 0").to("rows", hg.to_list(rows))

        def progress(report: Report) -> None:
            more(len(rows))
            if len(rows) >= upto:
                raise KeyboardInterrupt

        app.run(hg.Spark(checkpoint=checkpoint), until=None, progress=progress)

    inserted = threading.Event()

    def once(seen: int) -> None:
        if seen == 5 and not inserted.is_set():
            inserted.set()
            insert(where, 10, 10)

    run(once, 10)
    insert(where, 20, 10)
    run(lambda _: None, 15)
    return rows


def test_a_table_is_followed_while_it_grows_and_across_runs(tmp_path: Path) -> None:
    assert growing(str(tmp_path / "checkpoint")) == named(0, 30)[::2]


def timed() -> list[int]:
    """Rows of one time have an order that repeats; a backlog is admitted in pieces."""
    from pyspark.sql import SparkSession

    from headgate.engines.spark import tables

    session = SparkSession.active()
    rows = session.range(0, 1000, 1, 4).selectExpr("id", "timestamp_micros(id div 3 * 1000007) AS at")
    rows.orderBy("id", ascending=False).write.saveAsTable("room.timed")
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("id", pa.int64())])
    found: Rows = []
    app = hg.App("tables")
    source = app.source("timed", hg.from_table("room.timed", "at", schema=schema, follow=False))
    source.select("id").to("rows", hg.to_list(found))
    size, tables.EXTENT = tables.EXTENT, 100
    try:
        app.run(hg.Spark())
    finally:
        tables.EXTENT = size
    return [row["id"] for row in found]


def test_a_backlog_comes_in_pieces_and_in_order() -> None:
    assert timed() == list(range(1000))


def out_of_order() -> str:
    """A row that comes late has a smaller value than one that was noticed."""
    from headgate.engines.spark.tables import Table

    where = derby("late", "orders")
    insert(where, 0, 5)
    insert(where, 8, 2)
    asked = Table._ask

    def ask(self: Table) -> Any:
        found = asked(self)
        if found:
            insert(where, 6, 1)
        return found

    Table._ask = ask  # type: ignore[method-assign]
    try:
        app = hg.App("tables")
        app.source("orders", hg.from_table(where, "id", schema=SCHEMA, follow=False)).to("r", hg.to_list([]))
        app.run(hg.Spark())
    except hg.HeadgateError as error:
        return str(error)
    finally:
        Table._ask = asked  # type: ignore[method-assign]
    return ""


def test_a_column_that_does_not_grow_is_noticed() -> None:
    error = out_of_order()
    assert "Source 'orders': jdbc table 'orders' had 7 rows in a range of 'id'" in error
    assert "and has 8 now" in error


def missing(where: Any) -> tuple[str, int]:
    app = hg.App("tables")
    source = app.source("orders", hg.from_table(where, "id", schema=SCHEMA, follow=False))
    source.to("rows", hg.to_list([]))
    beside: Rows = []
    numbers = app.source("numbers", hg.from_batches([pa.RecordBatch.from_pydict({"x": [1, 2, 3]})]))
    numbers.to("beside", hg.to_list(beside))
    report = app.run(hg.Spark())
    return str(report.queries["rows"].error), len(beside)


def test_a_table_that_is_not_there_stops_its_query_alone() -> None:
    error, beside = missing("nobody.knows")
    assert error.startswith("Source 'orders': table 'nobody.knows' cannot be read: ")
    assert "NOT_FOUND" in error
    assert beside == 3
    error, beside = missing(derby("empty", "missing"))
    assert error.startswith("Source 'orders': jdbc table 'missing' cannot be read: ")
    assert "does not exist" in error
    assert beside == 3


def appended(folder: str) -> list[Rows]:
    from pyspark.sql import SparkSession

    session = SparkSession.active()
    wheres: list[Any] = [
        "room.results",
        {"format": "parquet", "options": {"path": f"{folder}/results"}},
        derby("results", "results"),
    ]
    app = hg.App("tables")
    batches = [pa.RecordBatch.from_pylist(named(at, at + 10), schema=SCHEMA) for at in (0, 10)]
    source = app.source("in", hg.from_batches(batches)).with_columns("id * 2 AS double")
    for number, where in enumerate(wheres):
        source.to(f"query-{number}", hg.to_table(where))
    for _ in range(2):
        report = app.run(hg.Spark())
        assert [q.error for q in report.queries.values()] == [None] * 3
    frames = [session.table("room.results")]
    frames += [session.read.format(w["format"]).options(**w["options"]).load() for w in wheres[1:]]
    return [[row.asDict() for row in frame.orderBy("id").collect()] for frame in frames]


def test_results_are_appended_to_the_catalog_to_files_and_over_jdbc(tmp_path: Path) -> None:
    wanted = [{**row, "double": 2 * row["id"]} for row in named(0, 20) for _ in range(2)]
    assert appended(str(tmp_path)) == [wanted] * 3


def refused() -> tuple[str, Rows]:
    """A table whose columns are others refuses the results; the query beside goes on."""
    from pyspark.sql import SparkSession

    SparkSession.active().sql("CREATE TABLE room.other (something ARRAY<INT>) USING parquet")
    app = hg.App("tables")
    source = app.source("in", hg.from_batches([pa.RecordBatch.from_pylist(named(0, 3), schema=SCHEMA)]))
    rows: Rows = []
    source.filter("id > 0").to("refused", hg.to_table("room.other"))
    source.to("rows", hg.to_list(rows))
    report = app.run(hg.Spark(retries=0))
    return str(report.queries["refused"].error), rows


def test_a_table_that_refuses_the_results_stops_its_query_alone() -> None:
    error, rows = refused()
    assert error.startswith("Query 'refused': its results cannot be written to table 'room.other': ")
    assert rows == named(0, 3)
