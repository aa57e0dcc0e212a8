"""Load shedding on every engine: what is dropped is counted, and what is left is as if it had never come."""

from __future__ import annotations

import random
from collections.abc import Sequence
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_order import UNSHRUNK, Recipe, Way, difference, policy, recipes, ways

import headgate as hg
from depth import examples
from dropping import Dropping
from headgate import testing
from headgate.errors import PipelineError
from headgate.graph import turns
from headgate.graph.drops import RANDOM, SEMANTIC, Drop, Dropper, Recent, semantic
from headgate.graph.importance import Importance
from headgate.graph.network import Box
from headgate.graph.packet import Order, Packet
from headgate.runtime import admission
from headgate.runtime.shedding import Gate
from headgate.scheduling import policies
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Event
from headgate.scheduling.interface import Decision, Policy, Shed
from headgate.scheduling.wrapper import Around
from serial import serial
from waiting import Held

ROWS = [{"i": i, "k": i % 7, "amount": i * 7919 % 1000} for i in range(1000)]


def chain(**options: object) -> tuple[hg.App, list[dict[str, int]]]:
    """A chain of selectivity 1 with a state in its middle."""
    app, out = hg.App("chain"), list[dict[str, int]]()
    stream = app.source("rows", testing.from_rows(ROWS)).with_columns("amount + 0 AS amount", name="first")
    stream = stream.key_by("k").running("sum(i) AS total", "count(*) AS n", name="sums")
    stream.with_columns("n + 1 AS m", name="last").to("q", hg.to_list(out), **options)  # type: ignore[arg-type]
    return app, out


def expected(kept: set[int]) -> list[dict[str, int]]:
    totals, counts, found = dict[int, int](), dict[int, int](), []
    for row in ROWS:
        if row["i"] in kept:
            k = row["k"]
            totals[k], counts[k] = totals.get(k, 0) + row["i"], counts.get(k, 0) + 1
            found.append({**row, "total": totals[k], "n": counts[k], "m": counts[k] + 1})
    return found


@pytest.mark.parametrize("place", ["first", "sums", "last"])
def test_what_is_not_dropped_is_as_if_the_rest_had_never_come(engine: hg.Engine, place: str) -> None:
    app, out = chain()
    report = app.run(engine, Dropping("lp", {place: 0.4})).queries["q"]
    assert report.tuples_in == len(ROWS)
    assert report.tuples_in == report.tuples_out + report.shed
    assert report.shed_by == {("random", place): report.shed}
    assert 0.35 < report.shed / len(ROWS) < 0.45
    if place == "last":  # the state has seen them all
        assert out == [row for row in expected({r["i"] for r in ROWS}) if row["i"] in {o["i"] for o in out}]
    else:
        assert out == expected({row["i"] for row in out})


def test_the_least_important_go(engine: hg.Engine) -> None:
    app, out = chain(importance="amount")
    report = app.run(engine, Dropping("lp", {"sums": 0.5}, SEMANTIC)).queries["q"]
    assert report.tuples_in == report.tuples_out + report.shed
    assert set(report.shed_by) <= {("semantic", "sums")}
    assert out == expected({row["i"] for row in out})
    if engine.name == "spark":
        return  # a batch is one step there, and importance is known from the step before
    assert 0.4 < report.shed / len(ROWS) < 0.6
    kept = {row["i"] for row in out}
    amounts = [r["amount"] for r in ROWS]
    gone = [r["amount"] for r in ROWS if r["i"] not in kept]
    assert np.mean(gone) < 0.6 * np.mean(amounts)


def test_a_drop_behind_a_split_leaves_the_others_alone(engine: hg.Engine) -> None:
    app, one, other = hg.App("split"), list[dict[str, int]](), list[dict[str, int]]()
    shared = app.source("rows", testing.from_rows(ROWS)).filter("i >= 0", name="shared")
    shared.with_columns("i + 1 AS j", name="one").to("one", hg.to_list(one))
    shared.with_columns("i + 2 AS j", name="other").to("other", hg.to_list(other))
    queries = app.run(engine, Dropping("mc", {"one": 0.7})).queries
    assert queries["other"].shed == 0
    assert [row["i"] for row in other] == list(range(len(ROWS)))
    assert queries["one"].shed == len(ROWS) - len(one) > 0
    app.run(engine, Dropping("mc", {"shared": 0.7}))
    both = app.run(engine, Dropping("mc", {"shared": 0.7})).queries
    assert both["one"].shed == both["other"].shed > 0, "a drop counts for every query behind it"


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_union_does_not_wait_for_what_was_dropped(engine: hg.Engine, share: float) -> None:
    app, out = hg.App("union"), list[dict[str, int]]()
    one = app.source("one", testing.from_rows(ROWS)).with_columns("1 AS side", name="one box")
    two = app.source("two", testing.from_rows(ROWS)).with_columns("2 AS side", name="two box")
    one.union(two).filter("i >= 0", name="both").to("q", hg.to_list(out))
    report = app.run(engine, Dropping("lp", {"one box": share})).queries["q"]
    assert [row["i"] for row in out if row["side"] == 2] == list(range(len(ROWS)))
    left = [row["i"] for row in out if row["side"] == 1]
    assert left == sorted(left)
    assert len(left) == len(ROWS) - report.shed
    assert (not left) == (share == 1.0)


def test_the_end_closes_windows_though_all_was_dropped(engine: hg.Engine) -> None:
    app, out = hg.App("end"), list[dict[str, int]]()
    app.source("rows", testing.from_rows(ROWS)).filter("i >= 0", name="a").process(
        lambda row, state: row, schema=testing.batch(ROWS).schema, state=dict, name="b"
    ).to("q", hg.to_list(out))
    report = app.run(engine, Dropping("round_robin", {"a": 1.0})).queries["q"]
    assert out == []
    assert report.shed == report.tuples_in == len(ROWS)


def test_nothing_is_dropped_unless_asked(engine: hg.Engine) -> None:
    app, out = chain(importance="amount", qos=hg.QoS([(0, 1), (1e-6, 0)]))
    report = app.run(engine, "qos").queries["q"]
    assert (report.shed, report.shed_by, len(out)) == (0, {}, len(ROWS))


class Noting(Around):
    """Another policy, and whether it has had anything dropped."""

    def __init__(self, policy: Policy, sheds: list[Shed]) -> None:
        super().__init__(policy)
        self._sheds = sheds

    def handle(self, event: Event) -> Sequence[Decision]:
        decisions = self.policy.handle(event)
        self._sheds.extend(d for d in decisions if isinstance(d, Shed) and d.share > 0)
        return decisions


@pytest.mark.parametrize("strategy", ["random", "semantic"])
def test_the_shedder_itself_drops_and_accounts_for_it(
    engine: hg.Engine, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than twice what four cores can do in time; no engine here uses more, however many there are.

    What waits in a queue is not dropped, so the second half comes when the shedder has decided: on a busy
    machine all of it could be queued before the first call has told what a tuple costs.
    """
    monkeypatch.setattr("headgate.engines.spark.session.parallelism", lambda session: 2)
    app, out, sheds = hg.App("over"), list[dict[str, int]](), list[Shed]()
    slow = app.source("rows", Held(500, 500, 250, lambda: sheds)).universal(cost=0.01, name="slow")
    slow.to("q", hg.to_list(out), qos=hg.QoS([(0, 1), (0.15, 1), (0.3, 0)]), importance="value % 10")
    given = Noting(hg.policies.shedding("qos", strategy, period=0.05), sheds)
    report = app.run(engine, given).queries["q"]
    assert report.tuples_in == 500 == report.tuples_out + report.shed
    assert report.shed > 0
    assert set(report.shed_by) == {(strategy, "slow")}
    values = [row["value"] for row in out]
    assert values == sorted(values)


def test_markers_are_not_lost_with_their_tuples() -> None:
    """Every marker of the run comes out, though most of the tuples do not."""
    app = hg.App("markers")
    source = hg.from_batches([testing.batch([{"i": 0}])] * 3)
    app.source("rows", source).filter("i = 0", name="a").filter("i = 0", name="b").to(
        "q", hg.to_function(lambda query, batch: None)
    )
    with (
        mock.patch.object(admission, "MARKER_EVERY", 1),
        mock.patch.object(admission.Admission.__init__, "__defaults__", (1,)),
    ):
        report = app.run(hg.Simulated(workers=1), Dropping("lp", {"a": 1.0}))
    assert report.queries["q"].shed == 3
    assert report.queries["q"].end_to_end.count > 0


# --- random graphs ------------------------------------------------------------------------------------


class Changing(Policy):
    """Another policy, and drops before some boxes whose shares change all the time, but never end."""

    def __init__(self, inner: Policy | str, seed: int) -> None:
        self.inner = policies.get(inner)
        self.name, self.needs = self.inner.name, self.inner.needs
        self.draw = random.Random(seed)

    def workers(self, boxes: int, requested: int) -> int:
        return self.inner.workers(boxes, requested)

    def shed(self, place: int) -> Shed:
        reason = SEMANTIC if self.catalog.boxes[place].importance and self.draw.random() < 0.5 else RANDOM
        return Shed(place, self.draw.choice((1e-9, 0.3, 0.7, 1.0)), reason)

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        self.catalog = catalog
        self.places = [p for p in range(len(catalog.boxes)) if self.draw.random() < 0.5]
        return [*self.inner.start(catalog, workers, seed), *(self.shed(place) for place in self.places)]

    def handle(self, event: Event) -> Sequence[Decision]:
        decisions = list(self.inner.handle(event))
        if self.places and self.draw.random() < 0.3:
            decisions.append(self.shed(self.draw.choice(self.places)))
        return decisions


@settings(max_examples=examples(40), phases=UNSHRUNK)
@given(recipes(60, 6), ways, st.sampled_from(["threads", "simulated"]), st.integers(0, 1000))
def test_any_graph_with_any_drops_equals_serial_execution_without_the_dropped(
    recipe: Recipe, way: Way, engine: str, seed: int
) -> None:
    """Rows travel in order on every arrow, so what was dropped is known by its place there."""
    app, results = recipe.build()
    for output in app._pipeline.outputs:
        output.importance = "x"
    kept: dict[tuple[str, int], list[bool]] = {}
    names: dict[Gate, str] = {}
    begin, keep = Gate.__init__, Gate.keep

    def named(self: Gate, box: Box, ports: Sequence[int]) -> None:
        names[self] = box.name
        begin(self, box, ports)

    def recorded(self: Gate, packet: Packet, arrow: int) -> Packet:
        numbered = Packet(packet.batch, Order(packet.order.serials, 0.0, len(packet)), packet.markers)
        marked = Packet(packet.batch, packet.order.with_ordinals(np.arange(len(packet))), packet.markers)
        left = keep(self, marked, arrow)
        mask = np.zeros(len(numbered), dtype=bool)
        mask[left.order.ordinals] = True
        kept.setdefault((names[self], arrow), []).extend(mask.tolist())
        assert left.markers == packet.markers
        return Packet(left.batch, left.order.with_ordinals(None), left.markers)

    places: dict[tuple[str, int], int] = {}

    def keeps(box: Box, arrow: int, row: Packet) -> bool:
        found = kept.get((box.name, arrow))
        if found is None:
            return True
        at = places[box.name, arrow] = places.get((box.name, arrow), -1) + 1
        return found[at]

    given = Changing(policy(way.policy), seed)
    with (
        mock.patch.object(Gate, "__init__", named),
        mock.patch.object(Gate, "keep", recorded),
        mock.patch("test_order.policy", return_value=given),
        mock.patch.object(turns, "TURN", 4),
    ):
        report = getattr(way, engine)(app)()
    expected = serial(app.network, 4, keeps)
    for query, found in results.items():
        wrong = difference(found, expected[query])
        assert wrong is None, f"{query} on {engine}, {way}: {wrong}"
        assert report.queries[query].error is None
    assert {key: len(found) for key, found in kept.items() if found} == {
        key: at + 1 for key, at in places.items()
    }, "as many rows came to every gate as in serial execution"
    boxes = {name for name, _ in kept}
    gone = {box: sum(not k for (b, _), ks in kept.items() if b == box for k in ks) for box in boxes}
    for query, behind in app.network.queries.items():
        names_behind = {app.network.boxes[place].name for place in behind}
        assert report.queries[query].shed == sum(n for box, n in gone.items() if box in names_behind)


# --- importance ---------------------------------------------------------------------------------------


def stream() -> hg.Stream:
    return hg.App("shop").source("sales", testing.from_rows([{"item": "a", "price": 1.0, "n": 2}]))


def test_an_importance_that_can_be_computed_nowhere_names_the_query() -> None:
    sink = hg.to_list([])
    with pytest.raises(PipelineError, match=r"query 'big': importance='prize' .*none of its boxes.*prize"):
        stream().filter("n > 0").to("big", sink, importance="prize")
    with pytest.raises(PipelineError, match=r"query 'big': importance='item' .*not a number"):
        stream().filter("n > 0").to("big", sink, importance="item")
    with pytest.raises(PipelineError, match=r"query 'big': importance= takes an expression.*not 3"):
        stream().to("big", sink, importance=3)  # type: ignore[arg-type]
    # Where it stands matters: before the first box there is a price, behind it a total.
    stream().select("price * n AS total").filter("total > 0").to("first", sink, importance="price")
    stream().select("price * n AS total").filter("total > 0").to("second", sink, importance="total")


def test_queries_that_share_a_box_must_agree() -> None:
    from headgate.graph.importance import importances

    app = hg.App("shop")
    shared = app.source("sales", testing.from_rows([{"price": 1.0, "n": 2}])).filter("n > 0", name="shared")
    shared.filter("n > 1", name="one").to("one", hg.to_list([]), importance="price")
    shared.filter("n > 2", name="two").to("two", hg.to_list([]), importance="n")
    shared.filter("n > 3", name="three").to("three", hg.to_list([]))
    found = dict(zip([b.name for b in app.network.boxes], importances(app.network), strict=True))
    assert found == {"shared": False, "one": "price", "two": "n", "three": None}


# --- the drops themselves -----------------------------------------------------------------------------


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=300), st.floats(0, 1), st.integers(0, 50))
def test_a_semantic_drop_takes_the_share_and_nothing_that_matters_more(
    values: list[int], share: float, salt: int
) -> None:
    found = np.array(values, dtype=np.float64)
    packet = Packet(
        pa.RecordBatch.from_arrays([pa.array(values)], names=["v"]), Order(salt * 1000, 0.0, len(values))
    )
    drop = semantic(found, share)
    left = Dropper("box").keep(packet, drop, found).batch.column(0).to_pylist()
    gone = sorted(values)[: len(values) - len(left)] if left else sorted(values)
    assert not left or max(gone, default=-9) <= min(left)
    # Exact but for the ties, of which a hash chooses.
    sure = int(np.count_nonzero(found < drop.below))
    ties = int(np.count_nonzero(found == drop.below))
    assert sure <= share * len(values) + 1e-6
    assert share * len(values) <= sure + ties + 1e-6
    assert sure <= len(values) - len(left) <= sure + ties


def test_a_random_drop_takes_its_share_and_a_larger_one_takes_more_of_the_same() -> None:
    packet = Packet(pa.RecordBatch.from_arrays([pa.array(range(20_000))], names=["i"]), Order(7, 0.0, 20_000))
    left = {
        share: set(Dropper("box").keep(packet, Drop(RANDOM, share)).batch.column(0).to_pylist())
        for share in (0.0, 0.2, 0.9, 1.0)
    }
    assert (len(left[0.0]), len(left[1.0])) == (20_000, 0)
    assert len(left[0.2]) == pytest.approx(16_000, rel=0.02)
    assert len(left[0.9]) == pytest.approx(2_000, rel=0.06)
    assert left[0.9] < left[0.2]


def test_the_threshold_follows_the_tuples() -> None:
    recent = Recent(100)
    recent.add(np.arange(100.0))
    assert recent.drop(0.25).below == 25
    recent.add(np.arange(1000.0, 1100.0))
    assert recent.drop(0.25).below == 1025
    assert recent.sample(3).tolist() == [1000, 1049, 1099]


def test_importance_of_rows_that_have_none() -> None:
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1.0, None, float("nan"), 4.0]), pa.array([1, 1, 1, 0])], names=["a", "b"]
    )
    found = Importance("a / b", [batch.schema]).of(batch, 0)
    assert found.tolist() == [1.0, -np.inf, np.inf, -np.inf]
