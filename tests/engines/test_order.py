"""Order and completeness: whatever the engine, the policy, the workers and the cut, a query emits exactly
what serial execution emits, tuple for tuple.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import headgate as hg
from depth import examples
from headgate import testing
from headgate.api import Stream
from headgate.graph import turns
from headgate.scheduling.interface import Call, Plan, Policy
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import WHOLE_QUEUE, Count, Share, Time
from serial import serial

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("s", pa.string()),
        ("ts", pa.timestamp("us")),
        ("x", pa.int64()),
        ("v", pa.float64()),
    ]
)
START = datetime(2024, 1, 1)
Rows = list[dict[str, Any]]
Run = Callable[[], hg.Report]
Ends = Callable[[Run], hg.Report]


# --- random streams -----------------------------------------------------------------------------------


def rows(seed: int, count: int, disorder: float) -> Rows:
    """Tuples with nulls, ties, few keys, and times that run on, jump back and stand still."""
    draw = random.Random(seed)
    found: Rows = []
    now = 0.0
    for _ in range(count):
        now += draw.choice((0, 0, 1, 1, 2, 5, 15))
        late = draw.uniform(0, 25) if draw.random() < disorder else 0
        found.append(
            {
                "k": draw.choice((None, 0, 0, 1, 2, 3)),
                "s": draw.choice((None, "a", "b", "b", "c")),
                "ts": None if draw.random() < 0.05 else START + timedelta(seconds=round(now - late)),
                "x": draw.choice((None, -3, -1, 0, 1, 2, 4)),
                "v": draw.choice((None, 0.1, 0.2, 1e-3, 1e6, -2.5)),
            }
        )
    return found


# --- random networks ----------------------------------------------------------------------------------


def _repeat_row(row: dict[str, Any]) -> Rows:
    return [{**row, "x": i} for i in range(((row["x"] or 0) + (row["k"] or 0)) % 3)]


def _every_other(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
    """Rows of odd x are left out, rows of x = 2 come twice."""
    x = np.array([1 if v is None else v for v in batch.column("x").to_pylist()], dtype=np.int64)
    causes = np.repeat(np.arange(len(x)), np.where(x == 2, 2, np.where(x % 2, 0, 1)))
    return batch.take(pa.array(causes, pa.int64())), causes


def _remember_last(row: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    last, state["x"] = state.get("x"), row["x"]
    return {**row, "x": last}


def _every_third(row: dict[str, Any], state: dict[str, Any]) -> dict[str, Any] | None:
    state["n"] = state.get("n", 0) + 1
    return {**row, "x": state["n"]} if state["n"] % 3 else None


def _window(window: hg.WindowedStream | Any, keys: str, early: str | None = None) -> list[Stream]:
    results = window.agg("count(*) AS n", "sum(v) AS total", "min(x) AS low", early=early)
    shaped = results.select(keys, "'w' AS s", "window_end AS ts", "n + coalesce(low, 0) AS x", "total AS v")
    return [shaped, window.late()]


def _join(left: Stream, right: Stream) -> list[Stream]:
    pairs = left.key_by("k").join(right.key_by("k"), within="8 seconds", on="ts")
    return [pairs.select("k", "s", "ts", "coalesce(x, 0) + coalesce(x_right, 0) AS x", "v")]


def _outer(how: str, within: Any) -> Step:
    def build(left: Stream, right: Stream) -> list[Stream]:
        on = None if within is None else "ts"
        pairs = left.key_by("k").join(right.key_by("k"), within=within, on=on, how=how)
        if how in ("semi", "anti"):
            return [pairs]
        return [
            pairs.select(
                "k", "s", "coalesce(ts, ts_right) AS ts", "coalesce(x, x_right) AS x", "v_right AS v"
            )
        ]

    return build


Step = Callable[[Stream, Stream], list[Stream]]

STATELESS: dict[str, Step] = {
    "filter": lambda a, b: [a.filter("x > 0 OR s = 'b'")],
    "filter none": lambda a, b: [a.filter("x > 100000")],
    "select": lambda a, b: [a.select("k", "s", "ts", "x + 1 AS x", "v * 0.5 AS v")],
    "with_columns": lambda a, b: [a.with_columns("coalesce(x, k, 7) AS x", "upper(s) AS s")],
    "flat_map_rows": lambda a, b: [a.flat_map_rows(_repeat_row, schema=SCHEMA)],
    "map_packets": lambda a, b: [a.map_packets(_every_other, schema=SCHEMA)],
    "explode": lambda a, b: [
        a.explode("split(s, 'b') AS part", outer=True, position="p")
        .cast(p="BIGINT")
        .drop("x", "part")
        .rename(p="x")
        .select("k", "s", "ts", "x", "v")
    ],
    "universal half": lambda a, b: [a.universal(cost=0, selectivity=0.5)],
    "universal more": lambda a, b: [a.universal(cost=0, selectivity=1.5)],
}
KEYED: dict[str, Step] = {
    "running": lambda a, b: [
        a.key_by("k").running("sum(v) AS sv", "count(x) AS n").select("k", "s", "ts", "n AS x", "sv AS v")
    ],
    "tumbling": lambda a, b: _window(
        a.key_by("k").window(hg.tumbling("10 seconds", on="ts", lateness="3 seconds")), "k"
    ),
    "sliding": lambda a, b: _window(
        a.key_by("s", "k").window(hg.sliding("12 seconds", every="4 seconds", on="ts")), "k"
    ),
    "session": lambda a, b: _window(
        a.key_by("k").window(hg.session("6 seconds", on="ts", lateness="5 seconds")), "k"
    ),
    "early": lambda a, b: _window(
        a.key_by("k").window(hg.tumbling("20 seconds", on="ts", lateness="2 seconds")), "k", early="5 seconds"
    ),
    "keyed process": lambda a, b: [a.key_by("k").process(_remember_last, schema=SCHEMA, state=dict)],
    "drop_duplicates": lambda a, b: [a.drop_duplicates("k", "s", within="9 seconds", on="ts")],
    "drop_duplicates ever": lambda a, b: [a.drop_duplicates("x", "s")],
    "top per key": lambda a, b: [a.key_by("k").top(2, by="x DESC")],
    "top per key and period": lambda a, b: [
        a.key_by("k").top(2, by="x DESC", every="9 seconds", on="ts", lateness="2 seconds")
    ],
    "keyed universal": lambda a, b: [a.key_by("k").universal(cost=0, selectivity=0.7, state_bytes=8)],
    "join": _join,
    "left join": _outer("left", ("-2 seconds", "5 seconds")),
    "full join": _outer("full", "4 seconds"),
    "right join ever": _outer("right", None),
    "anti join": _outer("anti", ("1 second", "6 seconds")),
    "semi join": _outer("semi", "5 seconds"),
}
STATEFUL: dict[str, Step] = {
    "process": lambda a, b: [a.process(_every_third, schema=SCHEMA, state=dict)],
    "top": lambda a, b: [a.top(2, by="x DESC, k", every="15 seconds", on="ts", lateness="4 seconds")],
    "sort": lambda a, b: [a.sort("x, v DESC", limit=7)],
    "limit": lambda a, b: [a.limit(9)],
    "window": lambda a, b: _window(a.window(hg.tumbling("15 seconds", on="ts")), "n AS k"),
}
UNIONS: dict[str, Step] = {
    "union": lambda a, b: [a.union(b)],
    "union of branches": lambda a, b: [a.filter("x >= 0").union(a.filter("k = 1 OR x < 2"), b)],
    "union with itself": lambda a, b: [a.union(a)],
}
STEPS = STATELESS | KEYED | STATEFUL | UNIONS
ALONE = {name for name in STEPS if "join" not in name} - {"union", "union of branches"}
"""Steps that use one stream only."""


@dataclass(frozen=True)
class Recipe:
    """A network as hypothesis draws it: sizes of sources, steps over earlier streams, and who leaves.

    Streams that nobody uses leave as queries, and so do ``queries``, whoever uses them.
    """

    sizes: tuple[int, ...]
    steps: tuple[tuple[str, int, int], ...]
    queries: tuple[int, ...]
    seed: int
    disorder: float

    def build(self) -> tuple[hg.App, dict[str, Rows]]:
        app = hg.App("random")
        streams = [
            app.source(f"source-{i}", testing.from_rows(rows(self.seed + i, size, self.disorder), SCHEMA))
            for i, size in enumerate(self.sizes)
        ]
        used = set()
        for name, one, other in self.steps:
            one, other = one % len(streams), other % len(streams)
            used |= {one} if name in ALONE else {one, other}
            streams += STEPS[name](streams[one], streams[other])
        leaving = {place for place in range(len(streams)) if place not in used}
        results: dict[str, Rows] = {}
        for number, place in enumerate([*sorted(leaving), *(p % len(streams) for p in self.queries)]):
            results[f"q{number}"] = []
            streams[place].to(f"q{number}", hg.to_list(results[f"q{number}"]))
        return app, results


def recipes(most_rows: int, most_steps: int) -> st.SearchStrategy[Recipe]:
    place = st.integers(0, 40)

    def few(kind: str, most: int) -> Callable[[Sequence[tuple[str, int, int]]], bool]:
        return lambda steps: sum(kind in name for name, _, _ in steps) <= most

    steps = (
        st.lists(st.tuples(st.sampled_from(list(STEPS)), place, place), min_size=3, max_size=most_steps)
        .filter(few("join", 2))
        .filter(few("union", 3))
    )
    return st.builds(
        Recipe,
        st.lists(st.sampled_from([0, 1, 10, most_rows, most_rows]), min_size=1, max_size=3).map(tuple),
        steps.map(tuple),
        st.lists(place, max_size=2).map(tuple),
        st.integers(0, 10_000),
        st.sampled_from([0.0, 0.1, 0.5]),
    )


# --- random schedules ---------------------------------------------------------------------------------


class Wild(Pull):
    """As free as a policy can be: plans of several calls, of boxes that may not even be able to run."""

    name = "wild"

    def choose(self, worker: int, now: float) -> Plan | None:
        if not self.catalog.ready:
            return None
        draw = self.random
        trains = (Count(1), Count(3), Share(0.4), Share(1.0), Time(0.002))
        first = draw.choice(self.catalog.ready)
        plan = [Call(first, draw.choice(trains))]
        if draw.random() < 0.5:  # a superbox: some of the boxes that follow, with all that comes
            after = [box for box in self.catalog.downstream(first) if draw.random() < 0.8]
            plan += [Call(box, WHOLE_QUEUE) for box in after]
        else:
            anywhere = [draw.randrange(len(self.catalog.boxes)) for _ in range(draw.randrange(3))]
            plan += [Call(box, draw.choice(trains)) for box in anywhere]
        return tuple(plan)


def policy(name: str) -> Policy | str:
    return Wild() if name == "wild" else name


POLICIES = [*hg.policies.names(), "wild"]


@dataclass(frozen=True)
class Way:
    """One way of running: an engine's settings and a policy."""

    policy: str
    workers: int
    packet_rows: int
    seed: int = 0

    def schemes(self, partitioning: Sequence[str]) -> dict[str, Any]:
        """How results are put in order, and how workers share a keyed box."""
        draw = random.Random(self.seed + 1)
        return {
            "reorder": draw.choice(("nonblocking", "lock")),
            "partitioning": draw.choice(partitioning),
            "buckets": draw.choice((2, 5)),
            "split": draw.choice((None, True)),
        }

    def threads(self, app: hg.App) -> Run:
        schemes = self.schemes(("hybrid", "partitioned", "shared"))
        engine = hg.Threads(workers=self.workers, packet_rows=self.packet_rows, **schemes)
        return lambda: app.run(engine, policy(self.policy), seed=self.seed)

    def spark(self, app: hg.App) -> Run:
        """A box's first step takes as many rows as a packet, so that there are several."""

        def run() -> hg.Report:
            with mock.patch("headgate.engines.spark.planner.FIRST_ROWS", max(self.packet_rows, 7)):
                return app.run(hg.Spark(workers=self.workers), policy(self.policy), seed=self.seed)

        return run

    def simulated(self, app: hg.App) -> Run:
        """Boxes get random costs, so that schedules differ as they would on real workers."""
        draw = random.Random(self.seed)
        names = [box.name for box in app.network.boxes]
        costs = {name: draw.choice((0.0, 0.001, 0.01, 0.05)) for name in names}
        engine = hg.Simulated(
            workers=self.workers,
            packet_rows=self.packet_rows,
            costs=costs,
            call_overhead=draw.choice((0.0, 0.001)),
            quantum=0.003,
            **self.schemes(("hybrid", "partitioned", "shared")),
        )
        return lambda: app.run(engine, policy(self.policy), seed=self.seed)


ways = st.builds(
    Way,
    st.sampled_from(POLICIES),
    st.integers(1, 4),
    st.sampled_from([1, 2, 3, 7, 16, 1000]),
    st.integers(0, 1000),
)


# --- comparison ---------------------------------------------------------------------------------------


def same(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
    return bool(found == expected)


def difference(found: Rows, expected: Rows) -> str | None:
    """The first place where two results differ; None if they are equal, floats to 1e-9."""
    for place, (one, other) in enumerate(zip(found, expected, strict=False)):
        if one.keys() != other.keys() or not all(same(one[c], other[c]) for c in one):
            return f"row {place}: {one}, but serial execution gives {other}"
    if len(found) != len(expected):
        return f"{len(found)} rows, but serial execution gives {len(expected)}"
    return None


def check(recipe: Recipe, turn: int, ways: Sequence[tuple[Way, str]], ends: Ends = lambda run: run()) -> None:
    app, results = recipe.build()
    expected = serial(app.network, turn)
    with mock.patch.object(turns, "TURN", turn):
        for way, engine in ways:
            for found in results.values():
                found.clear()
            ends(getattr(way, engine)(app))
            for query, found in results.items():
                wrong = difference(found, expected[query])
                assert wrong is None, f"{query} on {engine}, {way}: {wrong}"


# --- the property -------------------------------------------------------------------------------------


UNSHRUNK = [Phase.explicit, Phase.generate]
"""A recipe is readable as it is drawn; shrinking one takes minutes: add ``Phase.shrink`` when you need it."""


@settings(max_examples=examples(50), phases=UNSHRUNK)
@given(recipes(40, 7), st.sampled_from([2, 5, 1024]), st.lists(ways, min_size=3, max_size=3))
def test_simulation_emits_what_serial_execution_emits(recipe: Recipe, turn: int, ways: list[Way]) -> None:
    """Random networks, data, costs, workers, packets and policies, in virtual time."""
    check(recipe, turn, [(way, "simulated") for way in ways])


@settings(max_examples=examples(50), phases=UNSHRUNK)
@given(recipes(60, 7), st.sampled_from([2, 5, 1024]), st.lists(ways, min_size=3, max_size=3))
def test_threads_emit_what_serial_execution_emits(
    ends: Ends, recipe: Recipe, turn: int, ways: list[Way]
) -> None:
    """The same on real threads."""
    check(recipe, turn, [(way, "threads") for way in ways], ends)


ways_on_spark = st.builds(
    Way,
    st.sampled_from([name for name in POLICIES if name != "tuple_at_a_time"]),
    st.integers(1, 3),
    st.sampled_from([7, 16, 1000]),
    st.integers(0, 1000),
)


@pytest.mark.xdist_group("spark")
@settings(max_examples=examples(8), phases=UNSHRUNK)
@given(recipes(60, 6), st.sampled_from([2, 5, 1024]), st.lists(ways_on_spark, min_size=2, max_size=2))
def test_spark_emits_what_serial_execution_emits(
    ends: Ends, recipe: Recipe, turn: int, ways: list[Way]
) -> None:
    """The same as Spark jobs; fewer, because every step is one."""
    check(recipe, turn, [(way, "spark") for way in ways], ends)


# --- chosen examples ----------------------------------------------------------------------------------


def numbered(count: int, source: int = 0) -> Rows:
    return [{"source": source, "a": i} for i in range(count)]


@pytest.mark.parametrize("sizes", [(2500, 2500), (1024, 3000), (0, 1500, 1025)])
def test_finite_sources_take_turns_of_1024_rows(engine: hg.Engine, sizes: tuple[int, ...]) -> None:
    """In the order of their declaration; one that has ended is passed over."""
    app, found = hg.App("turns"), []
    schema = pa.schema([("source", pa.int64()), ("a", pa.int64())])
    streams = [app.source(f"s{i}", testing.from_rows(numbered(n, i), schema)) for i, n in enumerate(sizes)]
    streams[0].union(*streams[1:]).to("all", hg.to_list(found))
    app.run(engine)
    expected: Rows = []
    for start in range(0, max(sizes), 1024):
        for source, size in enumerate(sizes):
            expected += numbered(size, source)[start : start + 1024]
    assert found == expected


def test_a_union_keeps_one_tuples_results_in_the_order_of_its_streams(engine: hg.Engine) -> None:
    app, found = hg.App("union"), []
    numbers = app.source("numbers", testing.from_rows([{"a": i} for i in range(50)]))
    tens = numbers.with_columns("a * 10 AS a")
    odd = numbers.filter("a % 2 = 1")
    odd.union(tens, numbers).to("q", hg.to_list(found))
    app.run(engine)
    expected = [v for i in range(50) for v in ([i] if i % 2 else []) + [i * 10, i]]
    assert [row["a"] for row in found] == expected


@pytest.mark.parametrize("policy", hg.policies.names())
@pytest.mark.parametrize("workers", [1, 3])
def test_a_source_and_its_branch_meet_before_a_sink_in_tiny_queues(
    ends: Ends, policy: str, workers: int
) -> None:
    """The source's own rows wait in the query's queue until the branch has passed: handing them over is what
    makes room, and the source must hear of it.
    """
    app, found = hg.App("tiny"), []
    numbers = app.source("numbers", testing.from_rows([{"a": i} for i in range(300)]))
    numbers.union(numbers.filter("a % 2 = 0")).to("q", hg.to_list(found))
    ends(lambda: app.run(hg.Threads(workers=workers, packet_rows=1), policy))
    assert [row["a"] for row in found] == [v for i in range(300) for v in ([i, i] if i % 2 == 0 else [i])]


def test_what_is_closed_at_the_end_keeps_the_order_of_the_union(engine: hg.Engine) -> None:
    """Both windows close with the final punctuation; the one that was declared first is united last."""
    app, found, summed = hg.App("end"), [], []
    stream = app.source("rows", testing.from_rows(rows(1, 30, 0.0), SCHEMA))
    first, second = (
        part.window(hg.tumbling("1 day", on="ts")).agg("count(*) AS n").select("n", f"'{who}' AS who")
        for part, who in ((stream, "first"), (stream.filter("x > 0"), "second"))
    )
    both = second.union(first)
    both.to("q", hg.to_list(found))
    both.process(
        lambda row, state: {"who": state.setdefault("who", []).append(row["who"]) or "".join(state["who"])},
        schema=pa.schema([("who", pa.string())]),
    ).to("p", hg.to_list(summed))
    app.run(engine)
    assert [row["who"] for row in found] == ["second", "first"]
    assert summed == [{"who": "second"}, {"who": "secondfirst"}]


@pytest.mark.parametrize("packet_rows", [1, 2, 64])
def test_a_joins_time_does_not_depend_on_how_far_its_sources_were_read(packet_rows: int) -> None:
    """The left source has ended long before its rows come to the join, but holds back time there.

    Otherwise the right side's clock runs ahead and rows that are still to meet are forgotten.
    """

    def at(second: int, **columns: Any) -> dict[str, Any]:
        return {"k": 1, "ts": START + timedelta(seconds=second), **columns}

    app, found = hg.App("join"), []
    left = app.source("left", testing.from_rows([at(s, left=s) for s in (0, 1, 2, 3)]))
    right = app.source("right", testing.from_rows([at(s, right=s) for s in (0, 50, 2, 3, 100)]))
    slow = left.filter("left >= 0", name="slow")
    slow.key_by("k").join(right.key_by("k"), within="1 second", on="ts").to("pairs", hg.to_list(found))
    engine = hg.Simulated(workers=2, packet_rows=packet_rows, costs={"slow": 1.0})
    app.run(engine, "tuple_at_a_time")
    assert [(row["left"], row["right"]) for row in found] == [
        (row["left"], row["right"]) for row in serial(app.network)["pairs"]
    ]
    assert found, "the example proves something only if there are pairs"


def test_the_reference_itself() -> None:
    """Serial execution on a network small enough to do by hand."""
    app, found = hg.App("hand"), []
    a = app.source("a", testing.from_rows([{"n": 1}, {"n": 2}, {"n": 3}]))
    b = app.source("b", testing.from_rows([{"n": 10}, {"n": 20}]))
    a.union(b).process(
        lambda row, state: {"n": state.setdefault("n", []).append(row["n"]) or sum(state["n"])},
        schema=pa.schema([("n", pa.int64())]),
    ).to("sums", hg.to_list(found))
    assert serial(app.network, turn=2) == {"sums": [{"n": n} for n in (1, 3, 13, 33, 36)]}


def test_results_of_a_live_source_keep_its_order(engine: hg.Engine) -> None:
    """Tuples that arrive one by one, through a branch and a keyed box."""
    app, found = hg.App("live"), []
    arrivals = [(i * 0.002, [{"k": i % 3, "a": i}]) for i in range(40)]
    stream = app.source("live", testing.Timed(arrivals))
    stream.filter("a % 2 = 0").union(stream).key_by("k").running("count(*) AS n").to("q", hg.to_list(found))
    app.run(engine)
    counts: dict[int, int] = {}
    expected: Rows = []
    for _, (row,) in arrivals:
        for _ in range(2 if row["a"] % 2 == 0 else 1):
            counts[row["k"]] = counts.get(row["k"], 0) + 1
            expected.append({**row, "n": counts[row["k"]]})
    assert found == expected
