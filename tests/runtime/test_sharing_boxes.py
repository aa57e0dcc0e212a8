"""Queries that join a run share the boxes without state that run, from the next tuple on."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from depth import examples
from graphs import events
from headgate import testing
from serial import serial
from waiting import PATIENCE, SOON, Held, eventually

Rows = list[dict[str, Any]]
ROWS = 60
POLICIES = ["lp", "mc", "ml", "qos", "ct", "bobox", "las", "thread_per_box", "chain", "fcfs"]


def every_kind() -> tuple[hg.App, dict[str, Rows]]:
    """One query to begin with, and others over parts of it: after each kind of box, and with each kind."""
    app, found = hg.App("joining"), {}

    def leave(stream: Any, name: str) -> None:
        found[name] = []
        stream.to(name, hg.to_list(found[name]))

    rows = app.source("rows", testing.from_rows(events(ROWS, 1)))
    kept = rows.universal(cost=3e-5, selectivity=0.9, name="dear").filter("a < 90", name="keep")
    more = kept.universal(cost=1e-5, selectivity=1.7, name="more")
    counted = more.key_by("k").running("count(*) AS n", name="count")
    leave(counted, "first")
    leave(kept, "as it is")
    leave(kept.with_columns("a * 2 AS b", name="twice").select("b", name="b"), "stateless")
    leave(more.key_by("k").running("sum(a) AS s", name="sum"), "keyed")
    leave(more.window(hg.tumbling("10 seconds", on="ts")).agg("count(*) AS n", name="windows"), "windows")
    leave(counted.filter("n % 2 = 0", name="even"), "behind state")
    leave(kept.union(more).filter("k > 0", name="both"), "union")
    sides = kept.key_by("k").join(more.key_by("k"), within="3 seconds", on="ts", name="join")
    leave(sides.select("k", "a", "a_right", name="sides"), "join")
    leave(kept.union(more, order="arrival").filter("k > 0", name="any"), "arrival")
    return app, found


@settings(max_examples=examples(10), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 8)),
        min_size=1,
        max_size=8,
        unique_by=lambda pair: pair[1],
    ),
    st.sampled_from(POLICIES),
    st.integers(1, 3),
    st.sampled_from([1, 3, 20]),
)  # fmt: skip
def test_a_query_that_joins_gives_what_serial_execution_from_there_gives(
    joining: list[tuple[int, int]], policy: str, workers: int, packet_rows: int
) -> None:
    """Whenever it joins, whatever it shares, and whatever is queued and under way at that moment."""
    app, found = every_kind()
    names = list(found)
    planned = [hg.Change(at * 1e-4, add=names[query]) for at, query in sorted(joining)]
    asked = [name for change in planned for name in change.add]
    for name in set(names[1:]).difference(asked):
        app._pipeline.outputs = [o for o in app._pipeline.outputs if o.name != name]
    engine = hg.Simulated(workers=workers, packet_rows=packet_rows, call_overhead=1e-5)
    report = app.run(engine, policy, changes=planned)
    late = {problem for problem in report.problems if "comes too late" not in problem}
    assert not late
    for name in report.queries:
        begins = ROWS - report.queries[name].tuples_in
        expected = serial(app.network, keep=lambda box, arrow, row: row.order.first_serial >= begins)  # noqa: B023
        if name == "arrival":
            found[name].sort(key=str)
            expected[name].sort(key=str)
        assert found[name] == expected[name], (name, begins)
    copies = {name.partition("@")[0] for name in report.boxes if "@" in name}
    assert copies <= {"count"}, "only what remembers earlier tuples needs a copy"


def selects(count: int, rows: Any) -> tuple[hg.App, dict[str, Rows], list[str]]:
    """One query, and others to be added: SELECTs that filter alike, each with columns of its own."""
    app, found = hg.App("selects"), {"q0": []}
    app.source("numbers", rows)
    app.sql("SELECT value AS v FROM numbers WHERE value % 2 = 0").to("q0", hg.to_list(found["q0"]))
    return app, found, [f"q{n}" for n in range(1, count + 1)]


def add(app: hg.App, found: dict[str, Rows], name: str) -> None:
    text = f"SELECT value + {name[1:]} AS v FROM numbers WHERE value % 2 = 0"
    app.sql(text).to(name, hg.to_list(found.setdefault(name, [])), start="now")


def test_queries_added_one_after_the_other_filter_once() -> None:
    """Of two hundred there are two hundred boxes and one, and the one is called as if it were alone."""

    def run(count: int) -> hg.Report:
        packets = [(n / 4, [{"value": n * 125 + row} for row in range(125)]) for n in range(8)]
        app, found, names = selects(count, testing.Timed(packets))
        for name in names:
            add(app, found, name)
        planned = [hg.Change(0.51 + n / 1000, add=name) for n, name in enumerate(names)]
        report = app.run(hg.Simulated(workers=2, packet_rows=200), "lp", changes=planned)
        assert report.problems == []
        for name in names:
            given = report.queries[name].tuples_in
            assert [row["v"] - int(name[1:]) for row in found[name]] == [
                value for value in range(1000 - given, 1000) if value % 2 == 0
            ]
        return report

    alone, many = run(0), run(200)
    assert len(many.boxes) == len(alone.boxes) + 200
    (filtering,) = [name for name in alone.boxes if name.startswith("filter")]
    assert many.boxes[filtering].tuples_in == alone.boxes[filtering].tuples_in == 1000
    calls = [box.calls for box in many.boxes.values()]
    assert sum(calls) <= 8 * 201, "a packet is one call of each box"


def test_queries_added_while_it_runs_on_threads_share_and_leave_again() -> None:
    done: list[bool] = []
    app, found, names = selects(12, Held(2000, 4000, 1000, lambda: done))
    with app.start(hg.Threads(workers=2), until="drained") as running:
        for name in names:
            add(app, found, name)
            running.add(name)
        eventually(lambda: running.over or all(found[name] for name in names), "one gives nothing", PATIENCE)
        running.remove(*names[:6])
        more = f"q{len(names) + 1}"
        add(app, found, more)
        running.add(more)
        done.append(True)
        report = running.wait(SOON)
    assert not [name for name in report.boxes if "@" in name]
    for name in [*names[6:], more]:
        values = [row["v"] - int(name[1:]) for row in found[name]]
        assert values == list(range(values[0], 4000, 2))
        assert report.queries[name].tuples_in in (4000 - values[0], 4001 - values[0])


def test_rows_that_were_queued_before_it_joined_do_not_reach_it_through_a_superbox() -> None:
    """The only worker is held in the first query's box while rows queue up before the filter."""
    app, joined, held, late = hg.App("fused"), threading.Event(), threading.Event(), []
    numbers = Held(20_000, 4000, 3000, joined.is_set)

    def hold(batch: pa.RecordBatch) -> pa.RecordBatch:
        held.set()
        assert joined.wait(SOON)
        return batch

    even = app.source("numbers", numbers).filter("value % 2 = 0", name="even")
    even.map_packets(hold, schema=even.schema, name="hold").to("first", hg.to_list([]))
    with app.start(hg.Threads(workers=1, packet_rows=2000), "lp", until="drained") as running:
        assert held.wait(SOON)
        eventually(lambda: running.report().queries["first"].tuples_in == 1000, "no rows queue up")
        even.select("value", name="later").to("late", hg.to_list(late), start="now")
        running.add("late")
        joined.set()
        report = running.wait(SOON)
    begins = 4000 - report.queries["late"].tuples_in
    assert begins == 1000
    assert [row["value"] for row in late] == list(range(1000, 4000, 2))


def test_a_query_does_not_share_what_has_failed() -> None:
    """The filter has stopped with the query before; the one that joins has another."""
    app = hg.App("failed")
    source = app.source("rows", testing.Timed([(i / 10, [{"a": i}]) for i in range(20)]))
    found: Rows = []
    shared = source.filter("10 / (a - 3) < 100", name="bad")
    shared.to("q", hg.to_list([]))
    source.select("a").to("other", hg.to_list([]))
    shared.to("late", hg.to_list(found))
    report = app.run(hg.Simulated(workers=1), "fcfs", changes=[hg.Change(1.05, add="late")])
    assert report.queries["q"].error is not None
    assert report.queries["late"].error is None
    assert [row["a"] for row in found] == list(range(11, 20))
    assert "bad@late" in report.boxes


def test_what_was_dropped_before_a_query_joined_is_not_its_loss() -> None:
    app, found = hg.App("shed"), {}
    rows = app.source("rows", hg.from_rate(200, limit=1_200))
    slow = rows.universal(cost=0.01, name="slow")
    for name in ("first", "late"):
        slow.to(name, hg.to_list(found.setdefault(name, [])), qos=hg.QoS([(0.5, 1), (2, 0)]))
    report = app.run(
        hg.Simulated(workers=1), hg.policies.shedding("lp"), changes=[hg.Change(2.0, add="late")]
    )
    first, late = report.queries["first"], report.queries["late"]
    assert first.shed > late.shed > 0
    for name, query in report.queries.items():
        assert query.shed + len(found[name]) == query.tuples_in
