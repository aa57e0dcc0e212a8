"""``to_sql``: each row once, whatever call to the database the driver dies at."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate.connectors.sql_sink import SqlSink
from headgate.engines.spark.sinks import Outlet
from headgate.engines.spark.transaction_sinks import Transacted
from headgate.errors import RunError, SinkError
from outside import DISK, Fault, Log, Points, Steps, drive, every_point, output, staged
from servers import Postgres

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("n", pa.int64())])
IDENTITY = "0123456789abcdef" * 2


def batch(first: int, rows: int, n: int = 0) -> pa.RecordBatch:
    data = [{"id": i % 7 if n else i, "name": f"n'{i}", "n": i} for i in range(first, first + rows)]
    return pa.RecordBatch.from_pylist(data, schema=SCHEMA)


def steps_of(folder: Path, n: int = 0) -> Steps:
    """Steps with gaps in their numbers, of several tasks."""
    return staged(folder, {1: [batch(0, 5, n), batch(5, 3, n)], 4: [batch(8, 4, n)], 5: [batch(12, 6, n)]})


def outlet(sink: hg.extend.Sink, query: str = "alerts", identity: str = IDENTITY) -> Transacted:
    return Transacted(output(query, sink, SCHEMA), "", DISK, 1, identity)


def watched(path: Path, points: Points) -> SqlSink:
    """The table ``alerts`` of an SQLite file, each call of which is a point."""

    class Cursor(sqlite3.Cursor):
        def execute(self, *given: Any) -> Any:
            return points.call(str(given[0]).split(" ", 1)[0], super().execute, *given)

        def executemany(self, *given: Any) -> Any:
            return points.call("executemany", super().executemany, *given)

    class Connection(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return super().cursor(Cursor)

        def commit(self) -> None:
            points.call("commit", super().commit)

    def connect() -> Any:
        made = points.call("connect", sqlite3.connect, path, factory=Connection)
        sqlite3.Connection.execute(made, "PRAGMA synchronous = OFF")  # no test cuts the power
        return made

    return hg.to_sql(connect, "alerts")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as made:
        yield made


def asked(server: Postgres, statement: str) -> list[Any]:
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(server.url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def watched_postgres(server: Postgres, points: Points) -> Callable[[], Any]:
    """Connections each call of which is a point."""
    from adbc_driver_postgresql import dbapi

    def cursor_of(connection: Any) -> Any:
        cursor = dbapi.Connection.cursor(connection)
        execute = cursor.execute
        cursor.execute = lambda text: points.call(text.split(" ", 1)[0], execute, text)
        cursor.adbc_ingest = points.wrap("ingest", cursor.adbc_ingest)
        return cursor

    def connect() -> Any:
        made = points.call("connect", dbapi.connect, server.url)
        made.commit = points.wrap("commit", made.commit)
        made.cursor = lambda: cursor_of(made)
        return made

    return connect


def rows(path: Path, table: str = "alerts", order: str = "rowid") -> list[Any]:
    connection = sqlite3.connect(path)
    found = connection.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()
    connection.close()
    return found


@pytest.mark.parametrize("key", [None, "id"])
@pytest.mark.parametrize("fails", [None, Fault])
def test_each_row_is_in_the_table_once_wherever_the_driver_dies(
    tmp_path: Path, key: str | None, fails: Callable[[], BaseException] | None
) -> None:
    path = tmp_path / "shop.db"

    def attempt(points: Points) -> Callable[[], Outlet]:
        sink = watched(path, points)
        sink.key = [key] if key else []
        return lambda: outlet(sink)

    options: dict[str, Any] = {"pairs": 40} if fails is None else {"error": fails}
    steps = steps_of(tmp_path, n=7 if key else 0)
    name = f"SQLite, {'by key' if key else 'appended'}"
    faults = every_point(
        name, lambda: path.unlink(missing_ok=True), attempt, steps, lambda: rows(path), **options
    )
    assert {"before commit", "after commit", "after executemany", "after record"} <= set(faults)
    found = rows(path)
    if key:
        assert [(row[0], row[2]) for row in sorted(found)] == [(i, max(range(i, 18, 7))) for i in range(7)]
    else:
        assert [row[0] for row in found] == list(range(18))
    assert rows(path, "headgate_steps", "1") == [(IDENTITY, "alerts", 5)]


@pytest.mark.parametrize("only", [["commit"], pytest.param([], marks=pytest.mark.faults)])
@pytest.mark.parametrize("key", [None, "id"])
def test_each_row_is_in_postgresql_once_wherever_the_driver_dies(
    tmp_path: Path, postgres: Postgres, key: str | None, only: list[str]
) -> None:
    """Through the Arrow driver, into a schema, with columns that the user has made."""

    def fresh() -> None:
        asked(postgres, "DROP SCHEMA IF EXISTS shop CASCADE")
        asked(postgres, "CREATE SCHEMA shop")
        asked(postgres, "CREATE TABLE shop.alerts (id INTEGER PRIMARY KEY, name VARCHAR(20), n SMALLINT)")

    def attempt(points: Points) -> Callable[[], Outlet]:
        sink = hg.to_sql(watched_postgres(postgres, points), "shop.alerts", key=key)
        return lambda: outlet(sink)

    def found() -> list[Any]:
        return asked(postgres, "SELECT * FROM shop.alerts ORDER BY id")

    steps = steps_of(tmp_path, n=7 if key else 0)
    name = f"PostgreSQL, {'by key' if key else 'appended'}"
    faults = every_point(name, fresh, attempt, steps, found, only=only)
    assert {"before commit", "after commit"} <= set(faults)
    assert len(found()) == (7 if key else 18)
    assert asked(postgres, "SELECT * FROM shop.headgate_steps") == [(IDENTITY, "alerts", 5)]


def test_values_of_every_simple_type_arrive_in_postgresql(postgres: Postgres) -> None:
    at, day = datetime(2026, 1, 2, 3, 4, 5, 678900, UTC), date(2026, 1, 2)
    schema = pa.schema(
        [
            ("yes", pa.bool_()),
            ("small", pa.int8()),
            ("x", pa.float32()),
            ("text", pa.string()),
            ("bytes", pa.binary()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("local", pa.timestamp("us")),
            ("price", pa.decimal128(12, 2)),
            ("none", pa.int64()),
        ]
    )
    values = [True, -7, 0.5, "it's", b"\0\xff", day, at, at.replace(tzinfo=None), Decimal("1.10"), None]
    row = dict(zip(schema.names, values, strict=True))
    app = hg.App("types")
    rows_of = app.source("in", hg.from_batches(pa.Table.from_pylist([row], schema)))
    rows_of.to("appended", hg.to_sql(postgres.url, "types"))
    rows_of.to("replaced", hg.to_sql(postgres.url, "keyed types", key=["text", "day"]))
    report = app.run("threads")
    assert [query.error for query in report.queries.values()] == [None, None]
    for table in ("types", '"keyed types"'):
        [found] = asked(postgres, f"SELECT * FROM {table}")
        assert [*found[:8], Decimal(str(found[8])), found[9]] == values


def test_a_database_with_a_driver_of_its_own_habits(tmp_path: Path) -> None:
    """DuckDB's cursors are connections, and begin no transaction by themselves."""
    import duckdb

    path, steps = str(tmp_path / "shop.duckdb"), steps_of(tmp_path, n=7)
    sink = hg.to_sql(lambda: duckdb.connect(path), "alerts", key="id")
    log = Log()
    made = outlet(sink)
    made.open({})
    made.hand_over(steps[1], 1, False)
    made.close(True, 0)
    log.announced = [1]
    drive(lambda: outlet(sink), log, steps, Points())
    with duckdb.connect(path) as connection:
        found = connection.execute("SELECT id, n FROM alerts ORDER BY id").fetchall()
        assert connection.execute("SELECT step FROM headgate_steps").fetchall() == [(5,)]
    assert found == [(i, max(range(i, 18, 7))) for i in range(7)]


def test_two_queries_and_two_checkpoints_do_not_meet(tmp_path: Path) -> None:
    sink = hg.to_sql(f"sqlite:///{tmp_path / 'shop.db'}", "alerts")
    steps = steps_of(tmp_path)
    for query, identity in (("a", "1" * 32), ("b", "1" * 32), ("a", "2" * 32)):
        drive(lambda q=query, i=identity: outlet(sink, q, i), Log(), steps, Points())
    assert len(rows(tmp_path / "shop.db")) == 3 * 18
    assert len(rows(tmp_path / "shop.db", "headgate_steps", "1")) == 3


def test_a_checkpoint_that_is_behind_its_table_is_refused(tmp_path: Path) -> None:
    """An older copy of the checkpoint would number other rows as those that are there."""
    sink, steps = hg.to_sql(f"sqlite:///{tmp_path / 'shop.db'}", "alerts"), steps_of(tmp_path)
    drive(lambda: outlet(sink), Log(), steps, Points())
    for log in (Log(done=[1, 4]), Log(done=[1]), Log(announced=[4], done=[1])):
        with pytest.raises(SinkError, match=r"has step 5 of this checkpoint already.*restored"):
            drive(lambda: outlet(sink), log, steps, Points())
    assert len(rows(tmp_path / "shop.db")) == 18


def test_a_mark_that_was_deleted_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    sink, steps = hg.to_sql(f"sqlite:///{path}", "alerts"), steps_of(tmp_path)
    made = outlet(sink)
    made.open({})
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM headgate_steps")
    connection.commit()
    with pytest.raises(SinkError, match="no longer knows the last step"):
        made.hand_over(steps[4], 4, True)
    assert rows(path) == []


def test_a_connection_that_keeps_what_is_rolled_back_is_refused(tmp_path: Path) -> None:
    class Careless(sqlite3.Connection):
        def rollback(self) -> None:
            self.commit()

    def connect(**options: Any) -> Any:
        return sqlite3.connect(tmp_path / "shop.db", **options)

    for factory, level, why in (
        (Careless, "", "does not take back what is rolled back"),
        (sqlite3.Connection, None, "autocommit"),
    ):
        sink = hg.to_sql(lambda f=factory, i=level: connect(factory=f, isolation_level=i), "alerts")
        with pytest.raises(SinkError, match=why):
            outlet(sink).open({})


def test_a_table_without_the_key_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE alerts (id INTEGER, name TEXT, n INTEGER)")
    connection.commit()
    sink = hg.to_sql(f"sqlite:///{tmp_path / 'shop.db'}", "alerts", key="id")
    with pytest.raises(SinkError, match=r"cannot replace rows by key 'id'.*primary key"):
        outlet(sink).open({})


def test_values_of_every_simple_type_arrive_as_they_are(tmp_path: Path) -> None:
    at, day = datetime(2026, 1, 2, 3, 4, 5, 678900, UTC), date(2026, 1, 2)
    columns: dict[str, tuple[pa.DataType, Any, Any]] = {
        "yes": (pa.bool_(), True, 1),
        "small": (pa.int16(), -7, -7),
        "long": (pa.int64(), 2**62, 2**62),
        "x": (pa.float64(), 0.1, 0.1),
        "text": (pa.string(), 'it\'s "%s"', 'it\'s "%s"'),
        "bytes": (pa.binary(), b"\0\xff", b"\0\xff"),
        "day": (pa.date32(), day, "2026-01-02"),
        "at": (pa.timestamp("us", tz="UTC"), at, "2026-01-02 03:04:05.678900Z"),
        "price": (pa.decimal128(12, 2), Decimal("1.10"), "1.10"),
        'an "odd" name': (pa.int32(), None, None),
    }
    schema = pa.schema([(name, type_) for name, (type_, _, _) in columns.items()])
    table = pa.Table.from_pylist([{name: given for name, (_, given, _) in columns.items()}], schema)
    app = hg.App("types")
    app.source("in", hg.from_batches(table)).to(
        "out", hg.to_sql(f"sqlite:///{tmp_path / 's.db'}", "all types")
    )
    assert app.run("threads").queries["out"].error is None
    [found] = rows(tmp_path / "s.db", '"all types"')
    assert list(found) == [stored for _, _, stored in columns.values()]


def test_the_table_has_what_the_query_made_on_every_engine(engine: hg.Engine, tmp_path: Path) -> None:
    app = hg.App("sums")
    data = pa.RecordBatch.from_pylist([{"k": i % 5, "v": i} for i in range(200)])
    source = app.source("in", hg.from_batches([data]))
    sums = source.key_by("k").running("sum(v) AS total")
    sums.to("all", hg.to_sql(f"sqlite:///{tmp_path / 'all.db'}", "sums"))
    sums.to("last", hg.to_sql(lambda: sqlite3.connect(tmp_path / "last.db"), "sums", key="k"))
    report = app.run(engine)
    assert not [query.error for query in report.queries.values() if query.error]
    found = rows(tmp_path / "all.db", "sums")
    assert [(k, v) for k, v, _ in found] == [(i % 5, i) for i in range(200)]
    assert {k: total for k, _, total in found} == {k: sum(range(k, 200, 5)) for k in range(5)}
    last = rows(tmp_path / "last.db", "sums", "k")
    assert [(k, total) for k, _, total in last] == [(k, sum(range(k, 200, 5))) for k in range(5)]


@pytest.mark.parametrize(
    ("database", "why"),
    [
        ("mysql://host/x", "no database that Headgate can open itself"),
        ("sqlite://x.db", "no database that Headgate can open itself"),
        (7, "give the database as"),
    ],
)
def test_mistakes_are_told_when_the_sink_is_made(database: Any, why: str) -> None:
    with pytest.raises(SinkError, match=why):
        hg.to_sql(database, "alerts")


def test_a_password_is_not_in_messages() -> None:
    assert "secret" not in hg.to_sql("postgresql://me:secret@host/shop", "alerts").named
    with pytest.raises(SinkError) as caught:
        hg.to_sql("oracle://me:secret@host/shop", "alerts")
    assert "secret" not in str(caught.value)


def test_rows_that_no_table_can_hold_and_null_keys_are_named(tmp_path: Path) -> None:
    for value, key, why in (([1], None, "column 'x' is list"), (None, "x", "key column 'x' is null")):
        app = hg.App("bad")
        schema = pa.schema([("x", pa.list_(pa.int64()) if key is None else pa.int64())])
        source = app.source("in", hg.from_batches(pa.Table.from_pylist([{"x": value}], schema)))
        source.to("out", hg.to_sql(f"sqlite:///{tmp_path / 's.db'}", "t", key=key))
        with pytest.raises(RunError, match=why):
            app.run("threads")
