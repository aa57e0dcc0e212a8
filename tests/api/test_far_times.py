"""Rows whose event time no window can count are bad rows: none vanishes, and time does not follow them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headgate as hg
from headgate.errors import BadRow, PipelineError, RunError

US = pa.timestamp("us")
MINUTE = 60_000_000
FAR = [1 << 62, (1 << 63) - 1, -(1 << 62), -(1 << 62) + 1, 1 - (1 << 63), (1 << 61) + 1]
TIMES = [0, MINUTE, FAR[0], 2 * MINUTE, FAR[1], FAR[2], None, 3 * MINUTE, FAR[3], FAR[4], FAR[5], 4 * MINUTE]
BAD = [place for place, time in enumerate(TIMES) if time in FAR]
ROWS = pa.table(
    {
        "id": pa.array(range(len(TIMES)), pa.int64()),
        "k": pa.array([place % 3 for place in range(len(TIMES))], pa.int64()),
        "ts": pa.array(TIMES, pa.int64()).cast(US),
    }
)
IDS = "collect_list(id) AS ids"


def keep(row: dict[str, Any], state: Any) -> dict[str, Any]:
    return {"id": row["id"]}


Rows = list[dict[str, Any]]
Make = Callable[[hg.Stream], hg.Stream]
MAKES: dict[str, Make] = {
    "tumbling": lambda s: s.window(hg.tumbling("1 minute", on="ts")).agg(IDS),
    "tumbling by key": lambda s: s.key_by("k").window(hg.tumbling("1 minute", on="ts")).agg(IDS),
    "sliding": lambda s: s.key_by("k").window(hg.sliding("2 minutes", every="1 minute", on="ts")).agg(IDS),
    "session": lambda s: s.key_by("k").window(hg.session("30 seconds", on="ts")).agg(IDS),
    "early": lambda s: s.window(hg.tumbling("1 minute", on="ts")).agg(IDS, early="10 seconds"),
    "top": lambda s: s.top(5, by="id", every="1 minute", on="ts"),
    "running": lambda s: s.key_by("k").running("count(*) AS n", expire="1 hour", on="ts"),
    "process": lambda s: s.key_by("k").process(
        keep, schema=pa.schema([("id", pa.int64())]), state=dict, expire="1 hour", on="ts"
    ),
    "join": lambda s: s.key_by("k").join(
        s.select("k", "ts", "id AS other").key_by("k"), within="10 seconds", on="ts"
    ),
}


def answers(rows: pa.Table, engine: hg.Engine) -> tuple[dict[str, Rows], Rows]:
    """The results of every query of ``MAKES``, and the dead letters."""
    app, letters = hg.App("far"), Rows()
    found: dict[str, Rows] = {name: [] for name in MAKES}
    source = app.source("rows", hg.from_batches(rows))
    for name, make in MAKES.items():
        make(source).to(name, hg.to_list(found[name]))
    app.dead_letter(hg.to_list(letters))
    report = app.run(engine)
    assert [str(query.error) for query in report.queries.values() if query.error is not None] == []
    return found, letters


def test_far_times_are_dead_letters_and_the_others_go_on(engine: hg.Engine) -> None:
    found, letters = answers(ROWS, engine)
    good, none = answers(ROWS.take([p for p in range(len(TIMES)) if p not in BAD]), hg.Simulated())
    assert none == []
    for name in MAKES:
        assert good[name]
        assert found[name] == good[name], name
        own = [letter for letter in letters if name in letter["queries"].split(",")]
        told = [json.loads(letter["row"]) for letter in own]
        assert {row.get("id", row.get("other")) for row in told} == set(BAD), name
    assert all("column 'ts'" in letter["reason"] for letter in letters)
    assert [letter["serial"] for letter in letters] == sorted(letter["serial"] for letter in letters)
    assert str(FAR[0]) in letters[0]["reason"]


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_without_dead_letters_a_far_time_fails_the_query(make: Make) -> None:
    app = hg.App("far")
    make(app.source("rows", hg.from_batches(ROWS))).to("q", hg.to_list([]))
    with pytest.raises(RunError) as failed:
        app.run(hg.Simulated())
    assert isinstance(failed.value.__cause__, BadRow)
    assert "tuple 2" in str(failed.value)
    assert f"column 'ts' is {FAR[0]}" in str(failed.value)


def test_a_date_that_is_too_far_does_not_wrap_around(engine: hg.Engine) -> None:
    days = pa.array([0, 2**31 - 1, 1, -(2**31), 2, 213_503_983], pa.int32()).cast(pa.date32())
    found: list[dict[str, Any]] = []
    letters: list[dict[str, Any]] = []
    app = hg.App("far")
    rows = app.source("rows", hg.from_batches(pa.table({"id": range(6), "day": days})))
    rows.window(hg.tumbling("1 day", on="day")).agg(IDS).to("q", hg.to_list(found))
    app.dead_letter(hg.to_list(letters))
    app.run(engine)
    assert [row["ids"] for row in found] == [[0], [2], [4]]
    assert [json.loads(letter["row"])["id"] for letter in letters] == [1, 3, 5]


def test_times_that_can_be_counted_are_in_their_windows_however_far_apart(
    engine: hg.Engine, request: pytest.FixtureRequest
) -> None:
    """Panes of a microsecond, and windows of many keys that are 70,000 years apart when they close."""
    most = 1 << 61
    times = [-most, -most + 1, 0, most - 1, most]
    keys = range(40 if "small-packets" in request.node.name else 400)
    table = pa.table(
        {
            "k": [k for k in keys for _ in times],
            "ts": pa.array(times * len(keys), pa.int64()).cast(US),
        }
    )
    found: dict[str, list[pa.RecordBatch]] = {"tumbling": [], "sliding": [], "late": [], "late sliding": []}
    app = hg.App("far")
    by_key = app.source("rows", hg.from_batches(table)).key_by("k")
    tumbling = by_key.window(hg.tumbling("1 ms", on="ts"))
    tumbling.agg("count(*) AS n").to("tumbling", into(found))
    sliding = by_key.window(hg.sliding("20 ms", every="10 ms", on="ts"))
    sliding.agg("count(*) AS n").to("sliding", into(found))
    tumbling.late().to("late", into(found))
    sliding.late().to("late sliding", into(found))
    report = app.run(engine)
    assert all(query.error is None for query in report.queries.values())
    tables = {name: pa.Table.from_batches(batches) for name, batches in found.items()}
    assert pc.sum(tables["tumbling"]["n"]).as_py() + tables["late"].num_rows == table.num_rows
    assert pc.sum(tables["sliding"]["n"]).as_py() == 2 * (table.num_rows - tables["late sliding"].num_rows)
    for name in ("tumbling", "sliding"):
        rows = tables[name].select(["k", "window_start"]).group_by(["k", "window_start"]).aggregate([])
        assert rows.num_rows == tables[name].num_rows


def into(found: dict[str, list[pa.RecordBatch]]) -> Any:
    """Python has no date for most of these times, so rows stay as they are."""
    return hg.to_function(lambda query, batch: found[query].append(batch))


@pytest.mark.parametrize(
    "make",
    [
        lambda s: hg.tumbling("2000000 weeks", on="ts"),
        lambda s: hg.tumbling(60, on="ts", lateness="2000000 weeks"),
        lambda s: s.top(3, by="id", every="2000000 weeks", on="ts"),
    ],
)
def test_windows_longer_than_times_can_be_counted_are_refused(make: Any) -> None:
    with pytest.raises(PipelineError, match=r"2000000 weeks.*18,000 years"):
        make(hg.App("far").source("rows", hg.from_batches(ROWS)))
