"""``to_delta`` and ``to_iceberg``: each row once in a real table, whatever commit the driver dies at."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headgate as hg
from headgate.connectors.transactions import TransactionalSink
from headgate.engines.spark.sinks import Outlet
from headgate.engines.spark.transaction_sinks import Transacted
from headgate.errors import SinkError
from outside import DISK, Log, Points, Steps, drive, every_point, output, staged

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(12, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)
IDENTITY = "0123456789abcdef" * 2


def batch(first: int, rows: int) -> pa.RecordBatch:
    ids = pa.array(range(first, first + rows))
    tags = pa.array([["a"] * (i % 3) for i in range(rows)], pa.list_(pa.string()))
    prices = ids.cast(pa.decimal128(21, 2)).cast(SCHEMA.types[3])
    columns = [ids, ids.cast(pa.string()), ids.cast(SCHEMA.types[2]), prices, tags]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


PARTS = [batch(0, 5), batch(5, 3), batch(8, 4), batch(12, 6)]


def steps_of(folder: Path) -> Steps:
    first, second, third, fourth = PARTS
    return staged(folder, {1: [first, second], 4: [third], 5: [fourth]})


class Delta:
    """A table in a folder."""

    name = "Delta"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "alerts"

    def sink(self) -> TransactionalSink:
        return hg.to_delta(str(self.folder))

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def table(self) -> pa.Table:
        from deltalake import DeltaTable

        return DeltaTable(self.folder).to_pyarrow_table()

    def watch(self, points: Points, patch: pytest.MonkeyPatch) -> None:
        import deltalake

        for owner, name in ((deltalake, "write_deltalake"), (deltalake.DeltaTable, "create")):
            plain = getattr(owner, f"_plain_{name}", None) or getattr(owner, name)
            patch.setattr(owner, f"_plain_{name}", plain, raising=False)
            patch.setattr(owner, name, points.wrap(name, plain))


class Iceberg:
    """A table of a catalog in an SQLite file."""

    name = "Iceberg"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sink(self) -> TransactionalSink:
        uri = f"sqlite:///{self.folder}/catalog.db"
        properties = {"type": "sql", "uri": uri, "warehouse": f"file://{self.folder}/warehouse"}
        return hg.to_iceberg("shop.alerts", catalog="tests", properties=properties)

    def catalog(self) -> Any:
        return self.sink().load()  # type: ignore[attr-defined]

    def clear(self) -> None:
        (self.folder / "catalog.db").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "warehouse", ignore_errors=True)

    def table(self) -> pa.Table:
        return self.catalog().load_table("shop.alerts").scan().to_arrow()

    def watch(self, points: Points, patch: pytest.MonkeyPatch) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        for name in ("commit_table", "create_table"):
            plain = getattr(SqlCatalog, f"_plain_{name}", None) or getattr(SqlCatalog, name)
            patch.setattr(SqlCatalog, f"_plain_{name}", plain, raising=False)
            wrapped = points.wrap(name, plain)
            patch.setattr(SqlCatalog, name, lambda self, *a, _w=wrapped, **k: _w(self, *a, **k))


@pytest.fixture(params=[Delta, Iceberg])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return request.param(tmp_path)


def outlet(place: Any, query: str = "alerts", identity: str = IDENTITY) -> Transacted:
    return Transacted(output(query, place.sink(), SCHEMA), "", DISK, 1, identity)


def rows(place: Any) -> list[Any]:
    return sorted(place.table().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("fails", [False, True])
def test_each_row_is_in_the_table_once_wherever_the_driver_dies(
    tmp_path: Path, place: Any, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def attempt(points: Points) -> Callable[[], Outlet]:
        place.watch(points, monkeypatch)
        return lambda: outlet(place)

    options: dict[str, Any] = {"error": lambda: OSError("away")} if fails else {}
    if isinstance(place, Iceberg):  # a commit takes a tenth of a second
        options["only"] = ["commit_table", "record"]
    faults = every_point(place.name, place.clear, attempt, steps_of(tmp_path), lambda: rows(place), **options)
    assert {"before record", "after record"} <= set(faults)
    assert rows(place) == [row for part in PARTS for row in part.to_pylist()]


def test_a_driver_that_wakes_up_writes_nothing_twice(tmp_path: Path, place: Any) -> None:
    steps = steps_of(tmp_path)
    paused = outlet(place)
    log = Log(claim=paused.open({}), announced=[1])
    drive(lambda: outlet(place), log, {1: steps[1]}, Points())
    paused.hand_over(steps[1], 1, True)
    assert len(rows(place)) == 8
    drive(lambda: outlet(place), log, steps, Points())
    with pytest.raises(SinkError, match="has step 5 of this checkpoint already"):
        paused.hand_over(steps[4], 4, True)
    assert len(rows(place)) == 18


def test_two_drivers_that_write_a_step_at_the_same_time_write_it_once(
    tmp_path: Path, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one commits when this one has looked what is there, and has not committed."""
    steps, mine, other = steps_of(tmp_path), outlet(place), outlet(place)
    mine.open({})
    other.open({})
    turns = [lambda: other.hand_over(steps[1], 1, True)]

    def first(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            if turns:
                turns.pop()()
            return plain(*given, **options)

        return call

    if isinstance(place, Delta):
        import deltalake

        monkeypatch.setattr(deltalake, "write_deltalake", first(deltalake.write_deltalake))
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        plain = SqlCatalog.commit_table
        monkeypatch.setattr(SqlCatalog, "commit_table", lambda *a, **k: first(plain)(*a, **k))
    mine.hand_over(steps[1], 1, True)
    assert not turns
    assert len(rows(place)) == 8


def test_queries_checkpoints_and_other_writers_do_not_meet(tmp_path: Path, place: Any) -> None:
    steps = steps_of(tmp_path)
    for query, identity in (("a", "1" * 32), ("b", "1" * 32), ("a", "2" * 32)):
        drive(lambda q=query, i=identity: outlet(place, q, i), Log(), steps, Points())
    assert len(rows(place)) == 3 * 18


def test_small_files_are_compacted_beside_the_run(tmp_path: Path) -> None:
    """A reader sees each row once, before and after; a step that comes again then is still known."""
    from deltalake import DeltaTable

    place, steps = Delta(tmp_path), steps_of(tmp_path)
    log = Log()
    drive(lambda: outlet(place), log, {1: steps[1], 4: steps[4]}, Points())
    reader = DeltaTable(place.folder)
    made = outlet(place)
    made.open(log.claim)
    DeltaTable(place.folder).optimize.compact()
    made.hand_over(steps[4], 4, True)
    made.hand_over(steps[5], 5, False)
    DeltaTable(place.folder).create_checkpoint()
    made.hand_over(steps[5], 5, True)
    assert reader.to_pyarrow_table().num_rows == 12
    assert [row["id"] for row in rows(place)] == list(range(18))
    assert len(DeltaTable(place.folder).file_uris()) == 2


def test_the_table_has_what_the_query_made(place: Any) -> None:
    app = hg.App("lake")
    source = app.source("in", hg.from_batches([batch(0, 300)]))
    source.filter("id % 2 = 0").to("even", place.sink())
    assert app.run("threads").queries["even"].error is None
    assert rows(place) == batch(0, 300).to_pylist()[::2]


@pytest.mark.xdist_group("spark")
def test_the_table_has_what_spark_made(place: Any, tmp_path: Path) -> None:
    app = hg.App("lake")
    source = app.source("in", hg.from_batches([batch(0, 300)]))
    source.filter("id % 2 = 0").to("even", place.sink())
    report = app.run(hg.Spark(checkpoint=tmp_path / "checkpoint"))
    assert report.queries["even"].error is None
    assert pc.sum(place.table().column("id")).as_py() == sum(range(0, 300, 2))
    assert place.table().num_rows == 150
    again = hg.App("lake")
    again.source("in", hg.from_batches([batch(0, 300)])).filter("id % 2 = 0").to("even", place.sink())
    again.run(hg.Spark(checkpoint=tmp_path / "checkpoint"))
    assert place.table().num_rows == 150


@pytest.mark.parametrize(("table", "why"), [("alerts", "a namespace and a name"), ("", "a namespace")])
def test_mistakes_are_told_when_the_sink_is_made(table: str, why: str) -> None:
    with pytest.raises(SinkError, match=why):
        hg.to_iceberg(table)
    with pytest.raises(SinkError, match="must be a folder or a URL"):
        hg.to_delta("")
