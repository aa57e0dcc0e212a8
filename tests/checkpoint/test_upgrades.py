"""New versions of an application over one checkpoint: what goes on, with which answers, and what is refused.

Without Spark: real sources, states, log and upgrades under a driver whose steps run in this process.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headgate as hg
from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.log import FORMAT, Log, decode, encode
from headgate.checkpoint.upgrade import Upgrade
from headgate.checkpoint.verdicts import Choices
from headgate.engines.spark.kafka import Kafka
from headgate.errors import RunError, SourceError
from headgate.graph.network import Source
from stepping import Driver, Rows, forget_states

Build = Callable[[hg.Stream], hg.Stream]
EVENTS = pa.schema([("k", pa.int64()), ("x", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])
MORE = pa.schema([*EVENTS, ("more", pa.int64())])


def app(folder: Path, build: Build, schema: pa.Schema = EVENTS, **options: Any) -> hg.App:
    made = hg.App("versions")
    rows = made.source("rows", hg.from_files(folder, format="json", schema=schema, follow=True))
    build(rows).to(options.pop("query", "q"), hg.to_list([]), **options)
    return made


def write(folder: Path, number: int, more: bool = False, rows: int = 30) -> Rows:
    """A file of the stream: a row each second, of three keys."""
    folder.mkdir(exist_ok=True)
    made = []
    for i in range(number * rows, (number + 1) * rows):
        row = {"k": i % 3, "x": i * 7 % 11, "ts": f"2026-01-01T00:{i // 60:02d}:{i % 60:02d}Z"}
        made.append(row | ({"more": i} if more else {}))
    (folder / f".{number}").write_text("".join(json.dumps(row) + "\n" for row in made))
    (folder / f".{number}").rename(folder / f"{number:03d}.json")
    return made


def keyed(s: hg.Stream) -> Any:
    return s.key_by("k")


def window(*aggregates: str, kind: Any = None) -> Build:
    kind = kind or hg.tumbling("20 seconds", on="ts")
    return lambda s: s.key_by("k").window(kind).agg(*aggregates)


def running(*aggregates: str) -> Build:
    return lambda s: s.key_by("k").running(*aggregates)


def versions(tmp_path: Path, *builds: Build, schemas: dict[int, pa.Schema] | None = None) -> list[Rows]:
    """Each version runs over one more file, in a new process; what each gave."""
    found = []
    for number, build in enumerate(builds):
        schema = (schemas or {}).get(number, EVENTS)
        write(tmp_path / "in", number, more=schema is MORE)
        out: dict[str, Rows] = {"q": []}
        forget_states()
        driver = Driver(app(tmp_path / "in", build, schema), tmp_path / "checkpoint", out)
        driver.poll(1.0)
        half = driver.position.offsets.next_serial - 13
        driver.step(upto=half)
        driver.step()
        found.append(out["q"])
    return found


def undisturbed(tmp_path: Path, build: Build, files: int) -> list[Rows]:
    return versions(tmp_path / "undisturbed", *[build] * files)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    (tmp_path / "undisturbed").mkdir()


def only(rows: Rows, columns: list[str]) -> Rows:
    return [{name: row[name] for name in columns} for row in rows]


SUMS = ["count(*) AS n", "sum(x) AS total"]
MANY = [
    "count(DISTINCT x) AS d", "avg(x) AS a", "min(x) AS low", "max(x) AS high", "first(x) AS f",
    "last(x) AS l", "stddev(x) AS sd", "max_by(x, ts) AS latest",
]  # fmt: skip
LISTS = ["collect_list(x) AS c", "collect_set(x) AS cs", "approx_percentile(x, 0.5) AS p"]
WINDOWS = {
    "tumbling": hg.tumbling("20 seconds", on="ts"),
    "sliding": hg.sliding("20 seconds", every="5 seconds", on="ts"),
    "session": hg.session("2 seconds", on="ts"),
}


# --- aggregates that come and go ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WINDOWS)
def test_an_aggregate_comes_to_a_window_and_leaves_again(tmp_path: Path, kind: str) -> None:
    """What was there counts on as if nothing had happened; the new ones count the rows from then on."""
    one = window(*SUMS, kind=WINDOWS[kind])
    two = window("max(x) AS high", *SUMS[::-1], *MANY[:2], *LISTS, kind=WINDOWS[kind])
    found = versions(tmp_path, one, two, one, two)
    wanted = undisturbed(tmp_path, one, 4)
    columns = ["k", "window_start", "window_end", "n", "total"]
    assert [only(rows, columns) for rows in found] == [only(rows, columns) for rows in wanted]
    assert any(found)


def test_an_added_aggregate_is_that_of_the_rows_from_then_on(tmp_path: Path) -> None:
    found = versions(tmp_path, running(*SUMS), running(*SUMS, *MANY), running(*SUMS))
    assert [only(rows, ["n", "total"]) for rows in found] == [
        only(rows, ["n", "total"]) for rows in undisturbed(tmp_path, running(*SUMS), 3)
    ]
    # As a run that begins with the second file gives it.
    other = tmp_path / "other"
    write(other, 1)
    out: dict[str, Rows] = {}
    driver = Driver(app(other, running(*SUMS, *MANY)), tmp_path / "from then", out)
    driver.poll(1.0)
    driver.step()
    names = [text.split(" AS ")[1] for text in MANY]
    for row, wanted in zip(found[1], out["q"], strict=True):
        assert {name: row[name] for name in names} == pytest.approx({name: wanted[name] for name in names})


def test_an_aggregate_that_was_away_counts_from_its_return(tmp_path: Path) -> None:
    one, two = running("count(*) AS n"), running("count(*) AS n", "sum(x) AS total")
    found = versions(tmp_path, two, one, two)
    last = [json.loads(line) for line in (tmp_path / "in" / "002.json").read_text().splitlines()]
    totals = [0, 0, 0]
    for row, given in zip(last, found[2], strict=True):
        totals[row["k"]] += row["x"]
        assert given["total"] == totals[row["k"]]
    assert found[2][-1]["n"] == 30


def test_it_does_so_also_for_keys_of_which_nothing_came_meanwhile(tmp_path: Path) -> None:
    one, two = running("count(*) AS n"), running("count(*) AS n", "sum(x) AS total")
    versions(tmp_path, two)
    write(tmp_path / "in", 1)
    out: dict[str, Rows] = {}
    for build, upto in ((one, 32), (two, None)):
        forget_states()
        driver = Driver(app(tmp_path / "in", build), tmp_path / "checkpoint", out)
        driver.poll(1.0)
        driver.step(upto=upto)
    first = next(row for row in out["q"] if row["k"] == 2)
    assert (first["n"], first["total"]) == (11, first["x"])


def test_a_renamed_aggregate_keeps_what_it_counted(tmp_path: Path) -> None:
    found = versions(tmp_path, running("count(*) AS n"), running("count(*) AS rows", "count(*) AS n"))
    assert [row["rows"] for row in found[1]] == [row["n"] for row in found[1]]
    assert found[1][-1]["n"] == 20


# --- columns of sources, and boxes without state --------------------------------------------------------


def test_a_source_gets_a_column_and_loses_it_again(tmp_path: Path) -> None:
    found = versions(tmp_path, *[window(*SUMS)] * 3, schemas={1: MORE})
    assert found == undisturbed(tmp_path, window(*SUMS), 3)


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.key_by("k").top(2, by="x DESC"),
        lambda s: s.top(3, by="x DESC", every="25 seconds", on="ts"),
        lambda s: s.key_by("k").join(s.filter("x > 5").key_by("k"), within="6 seconds", on="ts"),
        lambda s: s.drop_duplicates("x"),
        lambda s: s.limit(50),
    ],
    ids=["top per key", "top", "join", "distinct", "limit"],
)
def test_rows_that_a_state_remembers_have_no_value_in_a_new_column(tmp_path: Path, build: Build) -> None:
    found = versions(tmp_path, *[build] * 4, schemas={1: MORE, 2: MORE})
    wanted = undisturbed(tmp_path, build, 4)
    for number, rows in enumerate(wanted):
        names = list(rows[0]) if rows else []
        assert only(found[number], names) == rows
    news = [row for rows in found[1:3] for row in rows]
    assert all("more" in row for row in news)


def test_rows_that_were_spooled_before_the_column_came_are_read(tmp_path: Path) -> None:
    write(tmp_path / "in", 0)
    out: dict[str, Rows] = {}
    first = Driver(app(tmp_path / "in", lambda s: s.filter("x > 3")), tmp_path / "checkpoint", out)
    first.poll(1.0)
    first.step(upto=10)
    second = Driver(app(tmp_path / "in", lambda s: s.filter("x > 3"), MORE), tmp_path / "checkpoint", out)
    second.step()
    assert [row["x"] for row in out["q"]] == [i * 7 % 11 for i in range(30) if i * 7 % 11 > 3]
    assert {row.get("more") for row in out["q"]} == {None}


def test_a_filter_before_a_state_comes_and_goes(tmp_path: Path) -> None:
    count = running("count(*) AS n")
    found = versions(tmp_path, count, lambda s: count(s.filter("x < 5")), count)
    few = sum(1 for i in range(30, 60) if i * 7 % 11 < 5)
    assert sum(max(row["n"] for row in found[2] if row["k"] == k) for k in range(3)) == 60 + few
    assert len(found[1]) == few


# --- what cannot be -------------------------------------------------------------------------------------


def refused(tmp_path: Path, one: Build, two: Build) -> str:
    versions(tmp_path, one)
    with pytest.raises(RunError) as error:
        Driver(app(tmp_path / "in", two), tmp_path / "checkpoint", {})
    return str(error.value)


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        (window(*SUMS), window(*SUMS, kind=hg.tumbling("30 seconds", on="ts")), "size 20 seconds before"),
        (window(*SUMS), running(*SUMS), "'tumbling-1' was tumbling window: .*, now 'running-1' is running"),
        (running("sum(x) AS s"), running("max(x) AS s"), "was running sum"),
        (running(*SUMS), lambda s: s.filter("x > 2"), "'running-1' .* is not there any more"),
        (lambda s: s.filter("x > 2"), running(*SUMS), "'running-1' .* is new"),
        (running(*SUMS), lambda s: s.key_by("x").running(*SUMS), "keys"),
    ],
    ids=["size", "kind", "no aggregate left", "gone", "new", "key"],
)  # fmt: skip
def test_a_change_that_cannot_keep_its_state_says_which_and_what_to_do(
    tmp_path: Path, one: Build, two: Build, said: str
) -> None:
    told = refused(tmp_path, one, two)
    assert re.search(said, told), told
    for offer in ("--reset q", "--replay q", "headgate state", "another name"):
        assert offer in told


def test_reset_begins_anew_where_the_query_was(tmp_path: Path) -> None:
    versions(tmp_path, running(*SUMS))
    write(tmp_path / "in", 1)
    out: dict[str, Rows] = {}
    new = app(tmp_path / "in", running("max(x) AS high"))
    driver = Driver(new, tmp_path / "checkpoint", out, Choices(reset=["q"]))
    driver.poll(1.0)
    driver.step()
    assert len(out["q"]) == 30
    assert out["q"][0]["high"] == 30 * 7 % 11
    Driver(new, tmp_path / "checkpoint", {})  # it need not be said again


def test_a_query_that_did_not_change_can_be_reset_and_keeps_nothing(tmp_path: Path) -> None:
    versions(tmp_path, running("count(*) AS n"))
    write(tmp_path / "in", 1)
    out: dict[str, Rows] = {}
    driver = Driver(
        app(tmp_path / "in", running("count(*) AS n")), tmp_path / "checkpoint", out, Choices(reset=["q"])
    )
    forget_states()
    driver.poll(1.0)
    driver.step()
    assert [row["n"] for row in out["q"]] == [i // 3 + 1 for i in range(30)]


@pytest.mark.parametrize("trimmed", [False, True])
def test_replay_begins_with_the_earliest_row(tmp_path: Path, trimmed: bool) -> None:
    """Also if the checkpoint has let go of it: then the files are read again."""
    for number in range(2):
        write(tmp_path / "in", number)
        out: dict[str, Rows] = {}
        first = Driver(app(tmp_path / "in", running("count(*) AS n")), tmp_path / "checkpoint", out)
        first.poll(1.0)
        first.step()
        if trimmed:
            first.trim()
    again: dict[str, Rows] = {}
    new = app(tmp_path / "in", lambda s: s.key_by("x").running("count(*) AS n"))
    driver = Driver(new, tmp_path / "checkpoint", again, Choices(replay=["q"]))
    assert [source.name for source in driver.network.sources] == (["rows@q"] if trimmed else ["rows"])
    driver.poll(1.0)
    driver.step()
    assert [row["x"] for row in again["q"]] == [i * 7 % 11 for i in range(60)]
    assert driver.tuples_in() == {"q": 60}


def test_choices_name_queries_that_there_are(tmp_path: Path) -> None:
    versions(tmp_path, running(*SUMS))
    new = app(tmp_path / "in", running(*SUMS))
    with pytest.raises(RunError, match="no query 'z'"):
        Driver(new, tmp_path / "checkpoint", {}, Choices(reset=["z"]))
    with pytest.raises(RunError, match="both reset and replayed"):
        Driver(new, tmp_path / "checkpoint", {}, Choices(reset=["q"], replay=["q"]))


# --- names ----------------------------------------------------------------------------------------------


def test_a_rename_says_so(tmp_path: Path) -> None:
    versions(tmp_path, running("count(*) AS n"))
    write(tmp_path / "in", 1)
    out: dict[str, Rows] = {}
    made = hg.App("versions")
    source = hg.from_files(tmp_path / "in", format="json", schema=EVENTS, follow=True)
    rows = made.source("events", source, was="rows")
    rows.key_by("k").running("count(*) AS n").to("counts", hg.to_list([]), was="q")
    for _ in range(2):  # told twice, it is done once
        driver = Driver(made, tmp_path / "checkpoint", out)
        driver.poll(1.0)
        driver.step()
    assert [row["n"] for row in out["counts"]] == [i // 3 + 1 for i in range(30, 60)]


def test_a_rename_that_is_not_said_is_suspected(tmp_path: Path) -> None:
    versions(tmp_path, running("count(*) AS n"))
    made = app(tmp_path / "in", running("count(*) AS n"), query="counts")
    upgrade = Upgrade(made.network, Log(Folder(str(tmp_path / "checkpoint"))))
    assert [(v.query, v.what) for v in upgrade.verdicts] == [("counts", "begins"), ("q", "leaves")]
    assert ".to('counts', …, was='q')" in upgrade.verdicts[1].why


# --- crashes and formats --------------------------------------------------------------------------------


def test_a_run_that_dies_before_its_first_step_has_lost_no_place(tmp_path: Path) -> None:
    """Where a changed or new query begins is in the log with the start, not only with its first step."""
    versions(tmp_path, lambda s: s.filter("x > 3"))
    changed = app(tmp_path / "in", lambda s: s.filter("x > 4"))
    stream = hg.Stream(changed._pipeline, changed._pipeline.outputs[0].port)
    stream.to("late", hg.to_list([]), start="now")
    for _ in range(2):
        Driver(changed, tmp_path / "checkpoint", {})  # and dies
    write(tmp_path / "in", 1)
    out: dict[str, Rows] = {}
    driver = Driver(changed, tmp_path / "checkpoint", out)
    driver.poll(1.0)
    driver.step()
    wanted = [i * 7 % 11 for i in range(30, 60) if i * 7 % 11 > 4]
    assert [row["x"] for row in out["q"]] == wanted
    assert [row["x"] for row in out["late"]] == wanted


@pytest.mark.parametrize("folder", ["log", "snapshots"])
def test_a_log_of_a_newer_format_is_refused(tmp_path: Path, folder: str) -> None:
    write(tmp_path / "in", 0)
    made = app(tmp_path / "in", running("count(*) AS n"))
    driver = Driver(made, tmp_path / "checkpoint", {})
    driver.poll(1.0)
    driver.step()
    if folder == "snapshots":
        driver.trim()
    file = min((tmp_path / "checkpoint" / folder).iterdir())
    record = decode(file.read_bytes())
    record.get("start", record)["format"] = FORMAT + 1
    file.write_bytes(encode(record))
    with pytest.raises(RunError, match=rf"written by a newer version.*format {FORMAT + 1}.*up to {FORMAT}"):
        Driver(made, tmp_path / "checkpoint", {})


def test_a_checkpoint_of_version_0_3_goes_on(tmp_path: Path) -> None:
    """Version 0.3 (45a99e6) ran this application on Spark for three seconds: 109 rows of 200."""
    with zipfile.ZipFile(Path(__file__).parent / "version_0_3.zip") as stored:
        stored.extractall(tmp_path / "checkpoint")
    made = hg.App("old")
    ticks = made.source("ticks", hg.from_rate(40, limit=200))
    by_k = ticks.with_columns("value % 3 AS k").key_by("k")
    by_k.running("count(*) AS n", "sum(value) AS total").to("sums", hg.to_list([]))
    windows = by_k.window(hg.tumbling("1 second", on="timestamp"))
    windows.agg("count(*) AS n", "max(value) AS high").to("windows", hg.to_list([]))
    ticks.filter("value % 10 = 0").to("few", hg.to_list([]))
    out: dict[str, Rows] = {}
    driver = Driver(made, tmp_path / "checkpoint", out)
    assert [(v.query, v.what, v.at) for v in driver.upgrade.verdicts] == [
        (query, "goes on", 109) for query in ("sums", "windows", "few")
    ]
    for _ in range(2):
        driver.poll(1_000.0)
        driver.step()
        driver = Driver(made, tmp_path / "checkpoint", out)  # as this version wrote it
    assert [(row["value"], row["n"], row["total"]) for row in out["sums"]] == [
        (x, x // 3 + 1, sum(range(x % 3, x + 1, 3))) for x in range(109, 200)
    ]
    # Rows 80 to 108 were counted by version 0.3, the last of the second by this one.
    second = [row for row in out["windows"] if row["window_end"].second == 3]
    assert [(row["k"], row["n"], row["high"]) for row in second] == [(0, 13, 117), (1, 13, 118), (2, 14, 119)]
    assert [row["value"] for row in out["few"]] == list(range(110, 200, 10))


# --- the earliest rows ------------------------------------------------------------------------------------


def trimmed(tmp_path: Path) -> None:
    """Three files were read, and the checkpoint has let go of all but the last."""
    for number in range(3):
        write(tmp_path / "in", number)
        driver = Driver(app(tmp_path / "in", lambda s: s.filter("x > 3")), tmp_path / "checkpoint", {})
        driver.poll(1.0)
        driver.step()
        driver.trim()


def with_late(tmp_path: Path) -> hg.App:
    made = app(tmp_path / "in", lambda s: s.filter("x > 3"))
    rows = hg.Stream(made._pipeline, made._pipeline.outputs[0].port)
    rows.select("x").to("late", hg.to_list([]))
    return made


def test_what_is_really_gone_is_said_with_how_much(tmp_path: Path) -> None:
    trimmed(tmp_path)
    (tmp_path / "in" / "000.json").unlink()
    out: dict[str, Rows] = {}
    driver = Driver(with_late(tmp_path), tmp_path / "checkpoint", out)
    [told] = driver.upgrade.lost
    assert "30 of the 90 tuples of source 'rows' are gone" in told
    driver.poll(1.0)
    driver.step()
    assert [row["x"] for row in out["late"]] == [i * 7 % 11 for i in range(30, 90) if i * 7 % 11 > 3]
    assert out["q"] == []
    assert driver.tuples_in() == {"q": 0, "late": 60}


def test_a_query_keeps_the_source_that_it_reads_by_itself(tmp_path: Path) -> None:
    trimmed(tmp_path)
    out: dict[str, Rows] = {}
    for number in range(3, 5):
        write(tmp_path / "in", number)
        driver = Driver(with_late(tmp_path), tmp_path / "checkpoint", out)
        assert [source.name for source in driver.network.sources] == ["rows", "rows@late"]
        assert driver.upgrade.lost == []
        driver.poll(1.0)
        driver.step()
        driver.trim()
    assert [row["x"] for row in out["late"]] == [i * 7 % 11 for i in range(150) if i * 7 % 11 > 3]
    assert [row["x"] for row in out["q"]] == [i * 7 % 11 for i in range(90, 150) if i * 7 % 11 > 3]


def test_a_replay_that_dies_before_its_first_step_reads_everything_all_the_same(tmp_path: Path) -> None:
    trimmed(tmp_path)
    out: dict[str, Rows] = {}
    for _ in range(2):
        driver = Driver(with_late(tmp_path), tmp_path / "checkpoint", out)
        driver.poll(1.0)
        driver.step()
    driver.trim()
    whole = [i * 7 % 11 for i in range(90) if i * 7 % 11 > 3]
    assert [row["x"] for row in out["late"]] == whole
    Driver(with_late(tmp_path), tmp_path / "checkpoint", {}, Choices(replay=["late"]))  # and dies
    driver = Driver(with_late(tmp_path), tmp_path / "checkpoint", out)
    driver.poll(1.0)
    driver.step()
    assert [row["x"] for row in out["late"]] == whole * 2


def test_rows_before_the_beginning_are_not_given(tmp_path: Path) -> None:
    """A shared box may stand before the row with which a query begins."""
    write(tmp_path / "in", 0)
    first = Driver(app(tmp_path / "in", lambda s: s.filter("x > 3")), tmp_path / "checkpoint", {})
    first.poll(1.0)
    first.step(upto=10)
    made = app(tmp_path / "in", lambda s: s.filter("x > 3"))
    rows = hg.Stream(made._pipeline, made._pipeline.outputs[0].port)
    rows.to("late", hg.to_list([]), start="now")
    out: dict[str, Rows] = {}
    driver = Driver(made, tmp_path / "checkpoint", out)
    driver.step()
    assert driver.tuples_in() == {"q": 20, "late": 0}
    assert out.get("late", []) == []


def test_a_topic_is_read_again_from_where_the_application_began() -> None:
    """Not from the broker's first record, if the application began later; what was removed is counted."""
    source = hg.from_kafka("localhost:1", "clicks", schema=EVENTS, starting="latest")
    node = hg.App("topic").source("clicks", source)._port[0].node
    assert isinstance(node, Source)

    def reader(memory: Any, earliest: dict[int, int]) -> Kafka:
        made = Kafka(node, None)
        made.resume(json.loads(json.dumps(memory)), 0)
        made._earliest = earliest
        return made

    first = reader(None, {0: 0, 1: 0})
    assert first._admit({0: 100, 1: 50}, 0.0) == []
    first._admit({0: 120, 1: 60}, 0.0)
    again = reader(first.memory["again"], {0: 0, 1: 0})
    assert [(e.unit, e.first, e.rows) for e in again._admit({0: 120, 1: 60}, 0.0)] == [
        ("kafka:0", 100, 20), ("kafka:1", 50, 10),
    ]  # fmt: skip
    assert again.lost == ""
    later = reader(first.memory["again"], {0: 115, 1: 0})
    assert [(e.unit, e.first, e.rows) for e in later._admit({0: 120, 1: 60}, 0.0)] == [
        ("kafka:0", 115, 5), ("kafka:1", 50, 10),
    ]  # fmt: skip
    assert "removed 15 offsets of topic 'clicks'" in later.lost
    # Once it has begun, records that vanish before they are read are an error as for any source.
    with pytest.raises(SourceError, match="no longer has offsets 120 to 129"):
        reader(later.memory, {0: 130, 1: 60})._admit({0: 140, 1: 60}, 0.0)


@pytest.mark.parametrize("spread", ["before", "after"])
def test_parquet_files_may_lack_a_column_that_came_later(tmp_path: Path, spread: str) -> None:
    """Rows of such files have null there, read before the upgrade or after it."""
    folder = tmp_path / "in"
    folder.mkdir()

    def put(number: int, *more: str) -> None:
        table = pa.table({name: [10 * number + i for i in range(3)] for name in ("x", *more)})
        pq.write_table(table, folder / f"{number}.parquet")

    def version(schema: pa.Schema, out: dict[str, Rows], engine: bool = False) -> Any:
        made = hg.App("columns")
        found: Rows = []
        source = hg.from_files(folder, schema=schema, follow=not engine)
        made.source("rows", source).filter("x >= 0").to("q", hg.to_list(found))
        if engine:
            made.run("threads")
            return found
        driver = Driver(made, tmp_path / "checkpoint", out)
        driver.poll(1.0)
        driver.step(upto=2 if spread == "before" and schema is old else None)
        return None

    old, new = pa.schema([("x", pa.int64())]), pa.schema([("x", pa.int64()), ("more", pa.int64())])
    out: dict[str, Rows] = {}
    put(1)
    version(old, out)
    with pytest.raises(SourceError, match="no column 'more'"):
        hg.from_files(folder, schema=new, follow=True)
    put(2, "more")
    version(new, out)
    assert [row["x"] for row in out["q"]] == [10, 11, 12, 20, 21, 22]
    assert [row.get("more") for row in out["q"]] == [None, None, None, 20, 21, 22]
    assert [row["more"] for row in version(new, out, engine=True)] == [None, None, None, 20, 21, 22]
