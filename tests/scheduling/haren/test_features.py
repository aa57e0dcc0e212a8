"""Features are computed for whoever asks, when they may have changed, and never otherwise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headgate as hg
from headgate import testing
from headgate.errors import PipelineError
from headgate.machine import host as machines
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.events import Changed, Event, Finished, QueueState, Spawned, Started
from headgate.scheduling.haren import features
from headgate.scheduling.haren.feature_table import BoxView, FeatureTable


@pytest.fixture(autouse=True)
def own_features() -> Iterator[None]:
    """What a test defines is gone after it."""
    before = dict(features._FEATURES)
    yield
    features._FEATURES.clear()
    features._FEATURES.update(before)


def chain(count: int = 4) -> list[BoxEntry]:
    """Boxes one after the other."""
    return [
        BoxEntry(
            f"b{i}",
            1,
            (i - 1,) if i else (),
            (i + 1,) if i + 1 < count else (),
            ("q",),
            fed_by=() if i else (0,),
        )
        for i in range(count)
    ]


def table(entries: list[BoxEntry], *events: Event) -> FeatureTable:
    catalog = Catalog(entries)
    for event in events:
        catalog.apply(event)
    made = FeatureTable(catalog.boxes, 1)
    made.begin(0.0)
    return made


def ran(
    box: int, seconds: float, out: float = 1.0, tuples: int = 1000, queue: QueueState | None = None
) -> list[Event]:
    return [
        Started(0.0, 0, box, tuples, queue or QueueState(0)),
        Finished(0.0, 0, box, tuples, int(out * tuples), seconds * tuples, 0.0),
    ]


def test_load_and_rates_count_tuples_inside_calls_and_are_never_negative() -> None:
    """A box is stuck in a call with all its tuples: its work is not done, and nothing has left (H10)."""
    entries = chain(2)
    catalog = Catalog(entries)
    for event in [*ran(0, 0.01, tuples=100), Spawned(0.0, 0, QueueState(500))]:
        catalog.apply(event)
    made = FeatureTable(catalog.boxes, 1)
    made.begin(1.0)
    box = made.boxes[0]
    assert (box.arrival_rate, box.load) == (600.0, pytest.approx(0.01 * (500 + 600)))
    catalog.apply(Started(1.0, 0, 0, 500, QueueState(0)))
    refresh(made, {0}, now=2.0)
    assert (box.arrival_rate, box.load) == (0.0, pytest.approx(0.01 * 500))
    catalog.apply(Spawned(2.0, 0, QueueState(50)))
    refresh(made, {0}, now=3.0)
    assert (box.arrival_rate, box.load) == (50.0, pytest.approx(0.01 * (550 + 50)))
    catalog.apply(Finished(3.5, 0, 0, 500, 500, 5.0, 0.0))
    refresh(made, {0}, now=4.0)
    assert (box.arrival_rate, box.load) == (0.0, pytest.approx(0.01 * 50))
    catalog.apply(Changed(4.5, 0, QueueState(0), removed=True))
    refresh(made, {0}, now=5.0)
    assert (box.arrival_rate, box.load) == (0.0, 0.0)


def refresh(made: FeatureTable, touched: set[int], now: float = 1.0) -> None:
    """What a scheduling task does to the table."""
    made.begin(now)
    made.refresh_own(touched)
    made.refresh_timed(range(len(made.boxes)))
    made.refresh_dependent()


def counting(counts: Counter[tuple[str, str]], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with its calls counted by box."""
    if function.__code__.co_argcount == 2:

        def both(box: BoxView, others: list[BoxView]) -> Any:
            counts[name, box.name] += 1
            return function(box, others)

        return both

    def alone(box: BoxView) -> Any:
        counts[name, box.name] += 1
        return function(box)

    return alone


# --- values -------------------------------------------------------------------------------------------


def test_the_shipped_features_of_a_box_are_what_was_measured() -> None:
    entries = chain(3)
    entries[1].tuple_bytes = 8.0
    entries[1].query_class = 2
    made = table(
        entries,
        *ran(0, 2e-3, 0.5),
        *ran(1, 1e-3, 2.0),
        *ran(2, 4e-3),
        Spawned(0.0, 1, QueueState(6, oldest=3.0, mean=4.0)),
    )
    made.begin(10.0)
    box = made.boxes[1]
    assert (box.cost, box.selectivity) == pytest.approx((1e-3, 2.0))
    assert (box.queue_length, box.queued_bytes, box.tuple_bytes) == (6, 48.0, 8.0)
    assert (box.head_arrival, box.head_latency, box.mean_latency) == (3.0, 7.0, 6.0)
    assert box.query_class == 2
    assert box.downstream_cost == pytest.approx(1e-3 + 2.0 * 4e-3)
    assert made.boxes[0].downstream_cost == pytest.approx(2e-3 + 0.5 * (1e-3 + 2.0 * 4e-3))
    assert made.boxes[0].downstream_selectivity == pytest.approx(0.5 * 2.0 * 1.0)
    assert made.boxes[2].head_arrival == math.inf
    assert made.boxes[2].head_latency == made.boxes[2].mean_latency == 0.0
    box.last_run, box.last_worker = 4.0, 0
    assert (box.age, box.worker_last_run_on) == (6.0, 0)
    made.boxes[0].last_worker = 0
    assert (box.cache_level_shared, made.boxes[2].cache_level_shared) == (1, 0)


def test_rates_are_those_since_the_last_task() -> None:
    entries = chain(1)
    made = table(entries, *ran(0, 1e-3, 0.5, tuples=100, queue=QueueState(20)))
    made.begin(2.0)
    box = made.boxes[0]
    assert (box.arrival_rate, box.output_rate) == (60.0, 25.0)
    entries[0].tuples_in, entries[0].tuples_out = 300, 150
    refresh(made, {0}, now=4.0)
    assert (box.arrival_rate, box.output_rate) == (100.0, 50.0)
    refresh(made, set(), now=5.0)
    assert (box.arrival_rate, box.output_rate) == (0.0, 0.0)


def test_results_that_leave_in_the_middle_count_where_they_leave() -> None:
    """Box 0 feeds box 1 and a query of its own."""
    entries = chain(2)
    entries[0].outlets = entries[1].outlets = 1
    made = table(entries, *ran(0, 1e-3, 0.5), *ran(1, 1e-3, 0.1))
    assert made.boxes[0].downstream_selectivity == pytest.approx(0.5 * (1 + 0.1))


# --- only what is asked, only what may have changed ---------------------------------------------------------


def test_what_nobody_asks_for_is_never_computed() -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for name in ("wanted", "unwanted"):
        hg.feature(name=name)(counting(counts, name, lambda box: box.entry.cost))
    made = table(chain(), *ran(0, 1e-3))
    assert made.boxes[1].wanted == 0.0
    refresh(made, {0, 1, 2, 3})
    assert set(counts) == {("wanted", "b1")}, "neither the other feature, nor the other boxes"
    assert made.asked == ["wanted"]


def test_own_features_are_computed_again_only_for_boxes_that_were_touched() -> None:
    counts: Counter[tuple[str, str]] = Counter()
    hg.feature(name="own")(counting(counts, "own", lambda box: box.entry.calls))
    hg.feature(name="fixed", depends_on="constant")(counting(counts, "fixed", lambda box: box.number))
    hg.feature(name="clock", depends_on="time")(counting(counts, "clock", lambda box: box.now))
    made = table(chain(3))
    for box in made.boxes:
        assert (box.own, box.fixed, box.clock) == (0, box.number, 0.0)
    made.boxes[1].entry.calls = 7
    refresh(made, {1})
    assert [box.own for box in made.boxes] == [0, 7, 0]
    assert [counts["own", b] for b in ("b0", "b1", "b2")] == [1, 2, 1]
    assert [counts["fixed", b] for b in ("b0", "b1", "b2")] == [1, 1, 1]
    assert [counts["clock", b] for b in ("b0", "b1", "b2")] == [2, 2, 2]


@pytest.mark.parametrize(("direction", "again"), [("downstream", {0, 1, 2}), ("upstream", {2, 3, 4})])
def test_dependent_features_are_computed_again_where_a_change_reaches(
    direction: str, again: set[int]
) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    hg.feature(name="level")(lambda box: box.entry.calls)

    def total(box: Any, others: Any) -> Any:
        return box.level + sum(other.total for other in others)

    hg.feature(name="total", depends_on=direction)(counting(counts, "total", total))
    made = table(chain(5))
    assert [box.total for box in made.boxes] == [0] * 5
    counts.clear()
    made.boxes[2].entry.calls = 3
    refresh(made, {2})
    assert set(counts) == {("total", f"b{i}") for i in again}
    assert [box.total for box in made.boxes] == [3 if i in again else 0 for i in range(5)]
    counts.clear()
    refresh(made, {2})
    assert not counts, "it ran, but nothing has changed"


def test_a_feature_of_both_directions_follows_every_change() -> None:
    """The share of a box in all the cost of its chain: up to its first box, and from there down."""
    hg.feature(name="all_below", depends_on="downstream")(
        lambda box, downstream: box.entry.calls + sum(b.all_below for b in downstream)
    )
    hg.feature(name="whole", depends_on="upstream")(
        lambda box, upstream: upstream[0].whole if upstream else box.all_below
    )
    made = table(chain(4))
    assert made.boxes[3].whole == 0
    made.boxes[1].entry.calls = 5
    refresh(made, {1})
    assert [box.whole for box in made.boxes[2:]] == [5, 5]


def test_what_depends_on_features_of_time_is_always_computed_again() -> None:
    hg.feature(name="oldest_ahead", depends_on="downstream")(
        lambda box, downstream: max([box.age, *(b.oldest_ahead for b in downstream)])
    )
    made = table(chain(3))
    assert made.boxes[0].oldest_ahead == 0.0
    made.boxes[0].last_run = made.boxes[1].last_run = 8.0
    refresh(made, set(), now=9.0)
    assert made.boxes[0].oldest_ahead == 9.0


def test_a_measured_value_that_trembles_changes_nothing_that_follows() -> None:
    made = table(chain(2), *ran(0, 1e-3), *ran(1, 1e-3))
    assert made.boxes[0].downstream_cost == pytest.approx(2e-3)
    entry = made.boxes[1].entry
    for seconds, expected in ((1.04e-3, 2e-3), (1.2e-3, 2.2e-3)):
        entry.stated_cost = seconds
        refresh(made, {1})
        assert made.boxes[0].downstream_cost == pytest.approx(expected)


def test_measurements_that_cost_something_are_asked_for_with_the_feature() -> None:
    made = table(chain(1))
    assert made.boxes[0].queue_length == 0
    made.begin(0.0)
    assert made.needs == set()
    assert made.boxes[0].head_latency == made.boxes[0].queued_bytes == 0.0
    made.begin(0.0)
    assert made.needs == {"head", "bytes"}
    assert made.boxes[0].mean_latency == 0.0
    made.begin(0.0)
    assert made.needs == {"head", "latency", "bytes"}


# --- mistakes -----------------------------------------------------------------------------------------


def test_an_unknown_feature_is_told_with_the_nearest() -> None:
    with pytest.raises(PipelineError, match=r"no feature 'queue_lenght'. Did you mean 'queue_length'\?"):
        _ = table(chain()).boxes[0].queue_lenght


def test_features_in_a_circle_are_refused_where_the_circle_is_closed() -> None:
    hg.feature(name="first")(lambda box: box.second + 1)  # not there yet
    with pytest.raises(PipelineError, match="'second' depends on itself in a circle: second -> first"):
        hg.feature(name="second")(lambda box: box.first * 2)
    assert "second" not in features.features()


def test_a_circle_over_neighbours_is_one_too() -> None:
    hg.feature(name="from_above", depends_on="upstream")(
        lambda box, upstream: sum(b.from_below for b in upstream)
    )
    with pytest.raises(PipelineError, match="circle: from_below -> from_above -> from_below"):
        hg.feature(name="from_below", depends_on="downstream")(
            lambda box, downstream: sum(b.from_above for b in downstream)
        )


def test_a_feature_that_reads_itself_of_its_own_box_is_told_when_it_is_asked_for() -> None:
    hg.feature(name="selfish", depends_on="downstream")(lambda box, downstream: box.selfish + 1)
    with pytest.raises(PipelineError, match="'selfish' depends on itself in a circle, on box 'b0'"):
        _ = table(chain()).boxes[0].selfish


@pytest.mark.parametrize(
    ("options", "function", "message"),
    [
        ({"depends_on": "upstreams"}, lambda box: 1, "depends_on='upstreams': use one of 'constant'"),
        ({"depends_on": "downstream"}, lambda box: 1, r"takes \(box, downstream\), not 1"),
        ({}, lambda box, others: 1, r"takes \(box\), not 2"),
        ({"name": "cost"}, lambda box: 1, "one of Headgate's own"),
        ({"name": "worker"}, lambda box: 1, "every box has that already"),
        ({"name": None}, lambda box: 1, "give the function a name"),
        ({"needs": "luck"}, lambda box: 1, "use one of bytes, head, latency"),
        ({}, lambda box: box.downstream_cost, "reads 'downstream_cost', which depends on 'downstream'"),
        ({}, lambda box: box.age, "reads 'age', which depends on 'time'"),
        ({"depends_on": "constant"}, lambda box: box.cost, "reads 'cost', which depends on 'own'"),
    ],
)
def test_a_feature_that_cannot_work_is_refused_when_it_is_defined(
    options: dict[str, Any], function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        hg.feature(**{"name": "mine", **options})(function)
    assert "mine" not in features.features()


def test_a_feature_can_be_defined_again_and_without_brackets() -> None:
    @hg.feature
    def mine(box: BoxView) -> int:
        return 1

    @hg.feature(depends_on="constant", name="mine")
    def better(box: BoxView) -> int:
        return 2

    assert table(chain()).boxes[0].mine == 2


def test_the_cache_that_workers_share_is_that_of_their_cores() -> None:
    machine = machines.get("e5310")
    made = FeatureTable(chain(3), 4, machine, machine.placed(4))
    for box, worker in zip(made.boxes, (0, 1, 3), strict=True):
        box.last_worker = worker
    made.begin(0.0)
    assert [box.cache_level_shared for box in made.boxes] == [0, 2, 0], "L2 is shared by two cores"
    assert [made.boxes[0].shared_level(*pair) for pair in ((0, 0), (2, 3), (0, 2), (-1, 2))] == [1, 2, 0, 0]


def test_on_another_machine_another_box_goes_first() -> None:
    """Worker 3 has two boxes; what feeds the one was made by worker 0, what feeds the other by worker 2."""
    order = {"far": 0, "near": 2}

    def decisions(topology: str | None) -> list[str]:
        app = hg.App("caches")
        for name in order:
            bursts = [(i / 10, [{"a": j} for j in range(10)]) for i in range(10)]
            source = app.source(name, testing.Timed(bursts))
            source.universal(cost=1e-4, name=f"before-{name}").universal(cost=2e-3, name=name).to(
                f"q-{name}", hg.to_list([])
            )
        policy = hg.policies.haren(
            assign=lambda box, workers: 3 if box.name in order else order[box.name.removeprefix("before-")],
            prioritize=lambda box: box.cache_level_shared,
            period=0.01,
            batch=5,
        )
        report = app.run(hg.Simulated(workers=4, topology=topology), policy)
        assert report.problems == []
        return [call.box for call in report.trace if call.worker == 3][4:]

    on_one_cache, on_pairs = decisions(None), decisions("e5310")
    assert on_pairs[:4] == ["near", "near", "far", "far"], "what is in its own group's cache comes first"
    assert on_one_cache[:4] == ["far", "near", "far", "near"]
