"""A pipeline that has changed meets its checkpoint: what is accepted, and how it is told."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from checkpoints import Crash, Rows, crashing, read, write_orders
from headgate import testing
from headgate.checkpoint.differences import difference
from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.log import Log
from headgate.checkpoint.offsets import Admitted, Extent
from headgate.checkpoint.position import Position, QueueFile
from headgate.checkpoint.upgrade import Upgrade
from headgate.errors import RunError
from headgate.graph.durations import parse_duration, spell_duration
from headgate.graph.operator import Operator
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import Count
from killed_driver import QUICK

SCHEMA = pa.schema([("user", pa.int64()), ("amount", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])
Change = Callable[[hg.Stream], hg.Stream]


def rows(app: hg.App, name: str = "orders") -> hg.Stream:
    return app.source(name, hg.from_batches([pa.RecordBatch.from_pylist([], schema=SCHEMA)]))


def others(stream: hg.Stream) -> hg.Stream:
    """A second source of the same application."""
    made = rows(hg.App("elsewhere"), "others")
    [arrow] = made._port
    stream._pipeline.sources.append(arrow.node)  # type: ignore[arg-type]
    return hg.Stream(stream._pipeline, made._port)


def windows(stream: hg.Stream, lateness: str = "10 seconds") -> hg.Stream:
    return (
        stream.key_by("user").window(hg.tumbling("1 minute", on="ts", lateness=lateness)).agg("count(*) AS n")
    )


SHAPES: dict[str, Change] = {
    "plain": windows,
    "columns": lambda s: windows(s).with_columns("n + 1 AS more"),
    "filter": lambda s: windows(s).filter("n > 1"),
    "two": lambda s: windows(s).filter("n > 1").with_columns("n + 1 AS more"),
    "before": lambda s: windows(s.filter("amount > 5")),
    "late": lambda s: windows(s, "20 seconds"),
    "running": lambda s: windows(s).key_by("user").running("sum(n) AS total"),
    "stateless": lambda s: s.filter("amount > 5"),
}
STATES: dict[str, str] = dict.fromkeys(("plain", "columns", "filter", "two", "before"), "window")
STATES |= {"late": "late window", "running": "window and sum", "stateless": "none"}
"""Which states they have: those with the same take over from each other."""


def nodes(shape: str) -> Nodes:
    app = hg.App("shop")
    SHAPES[shape](rows(app)).to("q", hg.to_list([]))
    return Nodes(app.network)


def meet(old: str, new: str, arrange: Callable[[Position, Nodes], None] | None = None) -> Upgrade:
    """The checkpoint of one pipeline, at serial 100, and another one that goes on from it."""
    before = nodes(old)
    position = Position(before)
    position.offsets.take_turns([[Extent("", 0, 200)]])
    for own in position.nodes.values():
        own.cursor = 100
    if arrange is not None:
        arrange(position, before)
    with tempfile.TemporaryDirectory() as folder:
        log = Log(Folder(folder, durable=False))
        log.next = 1
        log.compact(position, {"kind": "start", "app": "shop", "pipeline": before.describe()}, "shop")
        return Upgrade(nodes(new).network, Log(log.storage))


@pytest.mark.parametrize(("old", "new"), [(a, b) for a in SHAPES for b in SHAPES if a != b])
def test_what_is_accepted_is_accepted_in_both_directions(old: str, new: str) -> None:
    upgrade = meet(old, new)
    assert upgrade.accepted == (STATES[old] == STATES[new]), upgrade.verdicts
    if upgrade.accepted:
        upgrade.refuse()
        assert {own.cursor for own in upgrade.position.nodes.values()} == {100}, "it goes on where it was"
        return
    with pytest.raises(RunError, match=r"query 'q' has changed \(.*give the changed query another name"):
        upgrade.refuse()


def file() -> QueueFile:
    return QueueFile("queues/x", 5, 100, 120, [(100, 0)])


@pytest.mark.parametrize(("old", "new"), [("columns", "plain"), ("plain", "columns"), ("filter", "columns")])
def test_only_rows_in_the_part_that_changes_are_in_the_way(old: str, new: str) -> None:
    def before_the_window(position: Position, was: Nodes) -> None:
        window = next(node for node in was.boxes if node.stateful)
        position.nodes[window.key].queues[0] = [file()]

    def behind_the_window(position: Position, was: Nodes) -> None:
        window = next(node for node in was.boxes if node.stateful)
        target, arrow = next(t for t in was.following(window) if t[0].key != window.key)
        position.nodes[target.key].queues[arrow] = [file()]

    def further(position: Position, was: Nodes) -> None:
        for node in was.all:
            if not node.stateful:
                position.nodes[node.key].cursor = 90 if node.output is not None else 95

    def further_over_nothing(position: Position, was: Nodes) -> None:
        further(position, was)
        position.offsets.sources[0] = Admitted()
        position.offsets.take_turns([[Extent("", 0, 50)]])

    assert meet(old, new, before_the_window).accepted
    assert meet(old, new, further_over_nothing).accepted
    with pytest.raises(RunError, match="half-way"):
        meet(old, new, behind_the_window).refuse()
    if old != "plain":
        with pytest.raises(RunError, match="half-way"):
            meet(old, new, further).refuse()


def test_a_changed_lateness_is_shown() -> None:
    with pytest.raises(RunError, match=r"lateness 10 seconds before and 20 seconds now"):
        meet("plain", "late").refuse()


# --- every setting of every operator ----------------------------------------------------------------------


def pick(row: dict[str, Any], state: Any = None) -> dict[str, Any]:
    return row


def other(row: dict[str, Any], state: Any = None) -> dict[str, Any]:
    return row


OTHER = pa.schema([*SCHEMA, ("extra", pa.int64())])
TABLE = pa.table({"user": [1], "name": ["a"]})
MANY = [f"amount + {i} AS x{i}" for i in range(40)]


def _window(
    window: Any,
    aggregate: str = "count(*) AS n",
    keys: tuple[str, ...] = ("user",),
    ranges: list[int] | None = None,
    early: str | None = None,
) -> Change:
    return lambda s: s.key_by(*keys, ranges=ranges).window(window).agg(aggregate, early=early)


def _join(within: str = "5 seconds", on: Any = "ts", keys: tuple[str, ...] = ("user",)) -> Change:
    def made(s: hg.Stream) -> hg.Stream:
        right = s.select("user", "amount", "ts", "amount AS price", "ts AS later")
        return s.key_by(*keys).join(right.key_by(*keys), within=within, on=on)

    return made


BOXES: dict[str, list[Change]] = {
    "filter": [lambda s: s.filter("amount > 1"), lambda s: s.filter("amount > 2")],
    "select": [
        lambda s: s.select("amount"),
        lambda s: s.select("amount AS x"),
        lambda s: s.select("user"),
        lambda s: s.select(*MANY, "1 AS z"),
        lambda s: s.select(*MANY, "2 AS z"),
    ],
    "with_columns": [lambda s: s.with_columns("1 AS x"), lambda s: s.with_columns("2 AS x")],
    "map_packets": [
        lambda s: s.map_packets(pick, schema=SCHEMA),
        lambda s: s.map_packets(other, schema=SCHEMA),
        lambda s: s.map_packets(pick, schema=OTHER),
    ],
    "flat_map_rows": [
        lambda s: s.flat_map_rows(pick, schema=SCHEMA),
        lambda s: s.flat_map_rows(other, schema=SCHEMA),
        lambda s: s.flat_map_rows(pick, schema=OTHER),
    ],
    "lookup": [
        lambda s: s.lookup(TABLE, on="user"),
        lambda s: s.lookup(lambda: TABLE, on="user", refresh=5),
        lambda s: s.lookup(lambda: TABLE, on="user", refresh=6),
        lambda s: s.lookup(TABLE.append_column("amount2", pa.array([1])), on="user"),
    ],
    "window": [
        _window(hg.tumbling("1 minute", on="ts")),
        _window(hg.tumbling("2 minutes", on="ts")),
        _window(hg.tumbling("1 minute", on="ts", lateness="1 second")),
        _window(hg.tumbling("1 minute", on="ts", lateness="1 ms")),
        _window(hg.sliding("1 minute", every="30 seconds", on="ts")),
        _window(hg.sliding("1 minute", every="20 seconds", on="ts")),
        _window(hg.session("1 minute", on="ts")),
        _window(hg.tumbling("1 minute", on="ts"), keys=("amount",)),
        _window(hg.tumbling("1 minute", on="ts"), keys=("user", "amount")),
        _window(hg.tumbling("1 minute", on="ts"), "sum(amount) AS n"),
        _window(hg.tumbling("1 minute", on="ts"), early="10 seconds"),
        _window(hg.tumbling("1 minute", on="ts"), early="20 seconds"),
        lambda s: s.window(hg.tumbling("1 minute", on="ts")).agg("count(*) AS n"),
        _window(hg.tumbling("1 minute", on="ts"), ranges=[1, 2]),
        _window(hg.tumbling("1 minute", on="ts"), ranges=[1, 3]),
    ],
    "running": [
        lambda s: s.key_by("user").running("count(*) AS n"),
        lambda s: s.key_by("amount").running("count(*) AS n"),
        lambda s: s.key_by("user").running("sum(amount) AS n"),
        lambda s: s.key_by("user").running("count(*) AS n", expire="1 hour", on="ts"),
        lambda s: s.key_by("user").running("count(*) AS n", expire="2 hours", on="ts"),
    ],
    "process": [
        lambda s: s.process(pick, schema=SCHEMA, state=dict),
        lambda s: s.process(other, schema=SCHEMA, state=dict),
        lambda s: s.process(pick, schema=OTHER, state=dict),
        lambda s: s.process(pick, schema=SCHEMA, state=dict, packets=True),
        lambda s: s.key_by("user").process(pick, schema=SCHEMA, state=dict),
        lambda s: s.key_by("amount").process(pick, schema=SCHEMA, state=dict),
        lambda s: s.key_by("user").process(pick, schema=SCHEMA, state=dict, expire="1 hour", on="ts"),
        lambda s: s.key_by("user").process(pick, schema=SCHEMA, state=dict, expire="1 day", on="ts"),
    ],
    "join": [
        _join(),
        _join("6 seconds"),
        _join(on=("ts", "later")),
        _join(keys=("user", "amount")),
    ],
    "top": [
        lambda s: s.top(3, by="amount", every="1 hour", on="ts"),
        lambda s: s.top(4, by="amount", every="1 hour", on="ts"),
        lambda s: s.top(3, by="amount DESC", every="1 hour", on="ts"),
        lambda s: s.top(3, by="amount", every="2 hours", on="ts"),
        lambda s: s.top(3, by="amount", every="1 hour", on="ts", lateness="1 minute"),
    ],
    "top per key": [
        lambda s: s.key_by("user").top(3, by="amount"),
        lambda s: s.key_by("user").top(4, by="amount"),
        lambda s: s.key_by("user").top(3, by="amount DESC"),
        lambda s: s.key_by("amount").top(3, by="amount"),
    ],
    "drop_duplicates": [
        lambda s: s.drop_duplicates("user"),
        lambda s: s.drop_duplicates("amount"),
        lambda s: s.drop_duplicates("user", within="1 hour", on="ts"),
        lambda s: s.drop_duplicates("user", within="2 hours", on="ts"),
    ],
    "explode": [
        lambda s: s.select("array(amount, 1) AS a", "array(amount) AS b").explode("a AS x"),
        lambda s: s.select("array(amount, 1) AS a", "array(amount) AS b").explode("b AS x"),
    ],
    "pick": [lambda s: s.drop("user"), lambda s: s.drop("amount"), lambda s: s.rename(amount="x")],
    "side": [
        lambda s: s.process(pick, schema=SCHEMA, state=dict, side={"a": SCHEMA}).side("a"),
        lambda s: s.process(pick, schema=SCHEMA, state=dict, side={"b": SCHEMA}).side("b"),
    ],
    "limit": [lambda s: s.limit(3), lambda s: s.limit(4)],
    "keyed packets": [
        lambda s: s.key_by("user").process(pick, schema=SCHEMA, state={"n": 0}, packets=True),
        lambda s: s.key_by("amount").process(pick, schema=SCHEMA, state={"n": 0}, packets=True),
    ],
    "universal": [
        lambda s: s.universal(cost=0.1, name="u"),
        lambda s: s.universal(cost=0.2, name="u"),
        lambda s: s.universal(cost=0.1, selectivity=0.5, name="u"),
        lambda s: s.universal(cost=0.1, tuple_bytes=5, name="u"),
        lambda s: s.key_by("user").universal(cost=0.1, name="u"),
        lambda s: s.key_by("user").universal(cost=0.1, state_bytes=8, name="u"),
    ],
    "reads": [
        lambda s: s.filter("amount > 1"),
        lambda s: others(s).filter("amount > 1"),
        lambda s: s.union(others(s)).filter("amount > 1"),
        lambda s: others(s).union(s).filter("amount > 1"),
    ],
}  # fmt: skip


def described(change: Change) -> dict[str, Any]:
    app = hg.App("shop")
    change(rows(app)).to("q", hg.to_list([]))
    found: dict[str, Any] = Nodes(app.network).describe()["queries"]["q"]["boxes"][-1]
    return found


BASES = {"GatheredWindows", "Gathering", "JoinShape", "Remembering"}
"""No box is only that."""
OF_REQUESTS = {"Deal", "DealByKey", "Decode", "Distinct", "HashJoin", "MergeJoin", "MergeRuns", "SortRun"}
"""A request has no checkpoint: it ends, and is asked again."""


def test_no_operator_is_left_out() -> None:
    kinds = {box["what"]["type"] for changes in BOXES.values() for box in map(described, changes)}
    found = [Operator]
    for kind in found:
        found += kind.__subclasses__()
    named = {k.__name__ for k in found if k.__module__.startswith("headgate.graph.operators.")}
    assert kinds == named - BASES - OF_REQUESTS


@pytest.mark.parametrize("kind", BOXES)
def test_boxes_of_different_keys_are_told_apart(kind: str) -> None:
    boxes = [described(change) for change in BOXES[kind]]
    for one, two in combinations(boxes, 2):
        assert one["key"] != two["key"], "every setting counts"
        text = difference(one, two)
        before, now = _sides(text)
        assert before != now, text
        assert _sides(difference(two, one)) == (now, before)


def test_the_value_that_a_new_key_starts_with_counts() -> None:
    boxes = [
        described(lambda s, n=n: s.key_by("user").process(pick, schema=SCHEMA, state={"n": n}, packets=True))
        for n in (0, 1)
    ]
    assert boxes[0]["key"] != boxes[1]["key"]


def _sides(text: str) -> tuple[str, str]:
    """The part of a text that tells of the old box, and that which tells of the new."""
    if " was " in text and ", now '" in text:
        before, now = text.split(", now '", 1)
        return before.split(" was ", 1)[1], now.split(" is ", 1)[1]
    parts = [part.removesuffix(" now") for part in text.split(" has ", 1)[1].split("; ")]
    pairs = [part.split(" before and ") for part in parts]
    # "lateness 10 seconds before and 20 seconds now": the name is before the old one's only.
    return _values(pairs, 0), _values(pairs, 1)


def _values(pairs: list[list[str]], side: int) -> str:
    return "; ".join(pair[0].split(" ", 1)[1] if side == 0 else pair[1] for pair in pairs)


def test_a_box_that_has_run_keeps_its_key() -> None:
    """An application that ran on another engine first is the same to a checkpoint."""
    app = hg.App("shop")
    app.source("orders", testing.from_rows([{"user": 1, "amount": 1}])).filter("amount > 5").to(
        "q", hg.to_list([])
    )
    keys = [node.key for node in Nodes(app.network).all]
    app.run("threads")
    assert [node.key for node in Nodes(app.network).all] == keys


@pytest.mark.parametrize("text", ["0 seconds", "1 second", "90 minutes", "3 days", "2 weeks", "1 ms", "7 us"])
def test_durations_are_spelled_as_they_are_read(text: str) -> None:
    assert spell_duration(parse_duration(text, "x")) == text


# --- on Spark ---------------------------------------------------------------------------------------------


class Whole(Pull):
    """Short trains through all boxes at once, so that nothing waits between them."""

    name = "whole"

    def choose(self, worker: int, now: float) -> Plan | None:
        catalog: Catalog = self.catalog
        ready = [box for box in catalog.ready if catalog.has_room(box)]
        return tuple(Call(box, Count(150)) for box in range(len(catalog.boxes))) if ready else None


@pytest.mark.xdist_group("spark")
def test_boxes_behind_a_window_come_and_go(tmp_path: Path) -> None:
    """Every run crashes after some steps, and the next has other boxes behind the window."""
    write_orders(tmp_path / "orders", 2, 700, seed=1)

    def app(out: Path, change: Change) -> hg.App:
        made = hg.App("shop")
        change(made.source("orders", hg.from_files(tmp_path / "orders"))).to("q", hg.to_parquet(out))
        return made

    app(tmp_path / "expected", windows).run("threads")
    kinds = ["plain", "columns", "plain", "columns", "plain"]
    parts: list[Rows] = []
    for number, kind in enumerate(kinds):
        engine = hg.Spark(checkpoint=tmp_path / "checkpoint", workers=1, options=QUICK)
        try:
            with crashing(4 if number < len(kinds) - 1 else 1 << 30):
                app(tmp_path / "out", SHAPES[kind]).run(engine, Whole())
            assert number == len(kinds) - 1
        except Crash:
            pass
        parts.append(read(tmp_path / "out"))
    found = [{k: v for k, v in row.items() if k != "more"} for row in parts[-1]]
    assert found == read(tmp_path / "expected")
    changed = ["more" in row for row in parts[-1]]
    assert any(changed)
    assert not all(changed)


@pytest.mark.xdist_group("spark")
def test_a_filter_before_a_state_and_an_aggregate_change_while_rows_go_on(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", 2, 500, seed=1)
    engine = hg.Spark(checkpoint=tmp_path / "checkpoint", workers=1, options=QUICK)
    found: list[Rows] = []
    for number, (condition, more) in enumerate(
        [("amount < 50", []), ("amount < 90", ["max(amount) AS high"]), ("amount < 50", [])]
    ):
        made = hg.App("simple")
        orders = made.source("orders", hg.from_files(tmp_path / "orders"))
        sums = orders.filter(condition).key_by("user").running("sum(amount) AS total", *more)
        sums.to("sums", hg.to_parquet(tmp_path / "out"))
        if number < 2:
            with pytest.raises(Crash), crashing(4):
                made.run(engine, Whole())
        else:
            made.run(engine, Whole())
        found.append(read(tmp_path / "out"))
    totals: dict[int, int] = {}
    for row in found[-1]:
        totals[row["user"]] = totals.get(row["user"], 0) + row["amount"]
        assert row["total"] == totals[row["user"]]
    assert 0 < len(found[0]) < len(found[1]) < len(found[2])
