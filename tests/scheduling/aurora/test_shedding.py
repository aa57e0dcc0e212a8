"""The load shedder: when it drops, where, how much, and when it stops; alone, and in simulation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import headgate as hg
from brain import Brain
from headgate import testing
from headgate.errors import PipelineError
from headgate.scheduling.aurora.monitor import Monitor
from headgate.scheduling.aurora.shedding import FILL, MOST, Shedding
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.events import (
    Arrived,
    Changed,
    Event,
    Finished,
    Idle,
    QueueState,
    Spawned,
    Started,
    Timer,
)
from headgate.scheduling.interface import Decision, Policy, Run, SetTimer, Shed

TIGHT = hg.QoS([(0, 1), (0.5, 1), (2, 0)])
LOOSE = hg.QoS([(0, 1), (5, 1), (20, 0)])


class Nothing(Policy):
    """Decides nothing; the test says what happens."""

    name = "nothing"

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        return ()

    def handle(self, event: Event) -> Sequence[Decision]:
        assert not isinstance(event, Arrived), "it did not ask for arrivals"
        return (Run(event.worker, ()),) if isinstance(event, Idle) else ()


class Overload(Brain):
    """A shedder with made-up measurements: each period so many tuples come, and so many are done."""

    def __init__(
        self, boxes: list[BoxEntry], goals: dict[str, hg.QoS] | None = None, **options: object
    ) -> None:
        self.shedder = Shedding(Nothing(), **options)  # type: ignore[arg-type]
        super().__init__(self.shedder, boxes, goals=goals)
        self.now = 0.0
        assert self.decisions == [SetTimer(0.5, "shedding")]

    def period(
        self, came: dict[int, int], waiting: dict[int, tuple[int, float]], done: dict[int, int]
    ) -> dict[int, Shed]:
        """By source, tuples; by box, those queued and the age of the oldest, and those processed."""
        self.now += 0.5
        for source, tuples in came.items():
            self.tell(Arrived(self.now, source, tuples, self.now))
        for box, tuples in done.items():
            self.tell(Started(self.now, 0, box, tuples, QueueState(0)))
            seconds = tuples * self.catalog.boxes[box].cost
            self.tell(Finished(self.now, 0, box, tuples, tuples, seconds, 0.0))
        for box, (tuples, age) in waiting.items():
            self.tell(Changed(self.now, box, QueueState(tuples, frozenset(), self.now - age, self.now - age)))
        decisions = self.tell(Timer(self.now, "shedding"))
        assert decisions[-1] == SetTimer(self.now + 0.5, "shedding")
        return {d.box: d for d in decisions if isinstance(d, Shed)}

    def periods(self, count: int, *given: dict[int, object]) -> dict[int, Shed]:
        """Several alike; what was decided last for each box."""
        found: dict[int, Shed] = {}
        for _ in range(count):
            found |= self.period(*given)  # type: ignore[arg-type]
        return found


def box(
    name: str,
    queries: tuple[str, ...] = ("q",),
    up: tuple[int, ...] = (),
    down: tuple[int, ...] = (),
    cost: float = 0.01,
    source: int | None = None,
    importance: bool | None = None,
) -> BoxEntry:
    fed_by = () if source is None else (source,)
    return BoxEntry(name, 1, up, down, queries, cost, fed_by=fed_by, importance=importance)


def test_overload_alone_drops_nothing_while_queries_have_room() -> None:
    """Three times as much comes as can be done, but results are not yet late."""
    brain = Overload([box("a", source=0)], {"q": LOOSE})
    assert brain.periods(10, {0: 150}, {0: (100, 0.3)}, {0: 50}) == {}


def test_a_late_query_alone_drops_nothing_while_the_system_can_cope() -> None:
    """Somebody else's box is late in a system with time to spare: dropping would not help."""
    brain = Overload([box("a", source=0)], {"q": TIGHT})
    # 0.1 s of work a second arrives and a worker does 1; what is queued is old, but little.
    brain.periods(4, {0: 50}, {}, {0: 50})
    assert brain.periods(10, {0: 5}, {0: (2, 1.0)}, {0: 5}) == {}


def test_what_is_too_much_is_dropped_at_the_entry() -> None:
    """3 seconds of work a second against a capacity of 1: two thirds must go, and a little more."""
    brain = Overload([box("a", down=(1,), cost=0.005, source=0), box("b", up=(0,), cost=0.005)], {"q": TIGHT})
    brain.periods(2, {0: 150}, {0: (10, 0.4)}, {0: 50, 1: 50})
    shed = brain.periods(10, {0: 150}, {0: (1, 0.45)}, {0: 50, 1: 50})
    assert set(shed) == {0}
    assert shed[0].share == pytest.approx(1 - FILL / 3, abs=0.02)
    assert shed[0].reason == "random"


def test_a_source_that_is_held_back_counts_with_all_that_arrived() -> None:
    """Back-pressure lets in a third of what arrives: the rate is counted on the tuples' own clock."""
    brain = Overload([box("a", source=0)], {"q": TIGHT})
    for period in range(1, 21):
        brain.now = (period - 1) * 0.5
        brain.tell(Arrived(brain.now, 0, 50, brain.now / 3))
        brain.period({}, {0: (10, brain.now * 2 / 3)}, {0: 50})
    assert brain.shedder.monitor.sources[0].rate == pytest.approx(300, rel=0.05)
    assert brain.shedder.monitor.sources[0].lag == pytest.approx(brain.now * 2 / 3, rel=0.2)
    assert brain.shedder.shares[0] == MOST  # the backlog in the source has to go too


def test_the_drop_stands_behind_the_split_if_a_query_before_it_has_room() -> None:
    """A shared box feeds a tight query, which is late, and a loose one, which is not."""
    boxes = [
        box("shared", ("tight", "loose"), down=(1, 2), source=0),
        box("to tight", ("tight",), up=(0,)),
        box("to loose", ("loose",), up=(0,)),
    ]
    brain = Overload(boxes, {"tight": TIGHT, "loose": LOOSE})
    given = ({0: 20}, {1: (20, 1.0), 2: (5, 0.1)}, {0: 17, 1: 16, 2: 17})
    assert set(brain.periods(8, *given)) == {1}
    # Now both are late: the entry is the place, and the drop behind the split comes to its end.
    later = brain.periods(12, {0: 20}, {1: (20, 1.0), 2: (500, 6.0)}, {0: 17, 1: 16, 2: 17})
    assert later[0].share > 0
    assert later[1].share == 0
    assert set(brain.shedder.shares) == {0}


def test_the_drop_goes_where_a_second_saved_loses_the_least() -> None:
    """Equal tuples at ten times the cost: dropping these saves more for each result lost."""
    boxes = [box("dear", ("a",), cost=0.02, source=0), box("cheap", ("b",), cost=0.002, source=1)]
    brain = Overload(boxes, latency=0.5)
    shed = brain.periods(10, {0: 50, 1: 50}, {0: (30, 1.0), 1: (30, 1.0)}, {0: 20, 1: 50})
    assert shed[0].share > 0.5
    assert 1 not in brain.shedder.shares or shed[1].share < shed[0].share


def test_equal_places_share_the_drop_alike() -> None:
    boxes = [box(f"b{i}", (f"q{i}",), source=i) for i in range(4)]
    brain = Overload(boxes, {f"q{i}": TIGHT for i in range(4)})
    came, waiting = dict.fromkeys(range(4), 50), dict.fromkeys(range(4), (5, 0.6))
    shed = brain.periods(10, came, waiting, dict.fromkeys(range(4), 12))
    shares = [shed[place].share for place in range(4)]
    assert max(shares) - min(shares) < 0.05
    assert min(shares) > 0.5


def test_it_stops_when_the_load_falls_and_does_not_flap() -> None:
    brain = Overload([box("a", source=0)], {"q": TIGHT})
    brain.periods(12, {0: 150}, {0: (5, 0.6)}, {0: 50})
    assert brain.shedder.shares[0] > 0.5
    changes = [brain.period({0: 150}, {0: (1, 0.1)}, {0: 48}) for _ in range(12)]
    assert sum(map(bool, changes)) <= 2, "the load is the same: the share stays"
    shares = []
    for _ in range(12):
        brain.period({0: 20}, {0: (0, 0.0)}, {0: 20})
        shares.append(brain.shedder.shares.get(0, 0.0))
    assert shares == sorted(shares, reverse=True), "it only falls"
    assert shares[-1] == 0.0
    assert brain.shedder._bearing == set()


def test_by_importance_only_where_it_can_be_told() -> None:
    """The entry cannot tell, the second box can; a query that says nothing is dropped at random."""
    boxes = [
        box("entry", ("a",), down=(1,), source=0, importance=False),
        box("second", ("a",), up=(0,), importance=True),
        box("other", ("b",), source=1),
    ]
    brain = Overload(boxes, {"a": TIGHT, "b": TIGHT}, strategy="semantic")
    given = ({0: 50, 1: 50}, {0: (30, 0.8), 2: (30, 0.8)}, {0: 17, 1: 16, 2: 17})
    shed = brain.periods(8, *given)
    assert {place: d.reason for place, d in shed.items()} == {1: "semantic", 2: "random"}
    plain = Overload(boxes, {"a": TIGHT, "b": TIGHT}).periods(8, *given)
    assert {place: d.reason for place, d in plain.items()} == {0: "random", 2: "random"}


def test_where_importance_can_be_told_nowhere_the_drop_is_random() -> None:
    """Two queries that share all their boxes disagree."""
    brain = Overload([box("a", ("q", "r"), source=0, importance=False)], latency=0.2, strategy="semantic")
    shed = brain.periods(8, {0: 150}, {0: (30, 0.8)}, {0: 50})
    assert shed[0].reason == "random"


def test_mistakes_are_named() -> None:
    with pytest.raises(PipelineError, match=r"strategy='best'.*'random' or 'semantic'"):
        hg.policies.shedding(strategy="best")
    with pytest.raises(PipelineError, match="period=0, latency=1"):
        hg.policies.shedding(period=0)
    shedder = hg.policies.shedding("lp")
    assert shedder.name == "shedding(lp)"
    assert shedder.needs == {"latency", "arrivals"}


# --- in simulation ----------------------------------------------------------------------------------------


class Spell(testing.Source):
    """A rate for a while, then another: rows of ``value`` and of what they are worth."""

    live, finite = True, True
    schema = testing.batch([{"value": 1, "worth": 1}]).schema

    def __init__(self, *spells: tuple[float, float]) -> None:
        self.times: list[float] = []
        start = 0.0
        for seconds, rate in spells:
            self.times += [start + i / rate for i in range(int(seconds * rate))]
            start += seconds

    def open(self) -> testing.Reader:
        rows = [(at, [{"value": i, "worth": i * 7919 % 100}]) for i, at in enumerate(self.times)]
        return testing.Timed(rows).open()


def overloaded(tight: Spell, loose: Spell) -> hg.App:
    app = hg.App("over")
    for name, spell, qos in (("tight", tight, TIGHT), ("loose", loose, LOOSE)):
        stream = app.source(f"in {name}", spell).universal(cost=0.02, name=f"first {name}")
        stream.universal(cost=0.02, name=f"second {name}").to(
            name, hg.to_function(lambda query, batch: None), qos=qos
        )
    return app


def test_a_load_that_rises_and_falls() -> None:
    """At three times the capacity for a while: utility holds, and afterwards nothing is dropped."""
    app = overloaded(Spell((5, 5), (40, 15), (20, 5)), Spell((5, 5), (40, 60), (20, 5)))
    with testing.Crank(app, hg.policies.shedding("qos"), workers=1) as crank:
        crank.advance(5.0)
        assert [q.shed for q in crank.report.queries.values()] == [0, 0]
        crank.advance(40.0)
        during = {name: q.shed for name, q in crank.report.queries.items()}
        assert during["loose"] > 0.5 * 40 * 60
        crank.advance(8.0)
        after = {name: q.shed for name, q in crank.report.queries.items()}
        report = crank.drain()
    assert {name: q.shed for name, q in report.queries.items()} == after, "nothing since the load fell"
    for name, query in report.queries.items():
        assert query.tuples_in == query.tuples_out + query.shed
        assert query.shed_by == ({("random", f"first {name}"): query.shed} if query.shed else {})
    tight, loose = report.queries["tight"], report.queries["loose"]
    # Tight tuples need 0.6 of the capacity: once the others' backlog is gone there is room for all of them.
    assert tight.shed < 0.2 * tight.tuples_in
    assert tight.qos is not None
    assert tight.qos > 0.99
    assert loose.qos is not None
    assert loose.qos > 0.99


def test_without_it_nothing_is_dropped_and_utility_is_lost() -> None:
    app = overloaded(Spell((15, 15)), Spell((15, 60)))
    report = app.run("simulated", "round_robin", workers=1)
    for query in report.queries.values():
        assert query.shed == 0
        assert query.shed_by == {}
        assert query.tuples_in == query.tuples_out
    assert report.queries["tight"].qos < 0.5  # type: ignore[operator]


def test_the_schedule_is_fixed_by_the_seed() -> None:
    app = overloaded(Spell((10, 15)), Spell((10, 60)))
    traces = [list(app.run("simulated", hg.policies.shedding("qos"), workers=2).trace) for _ in range(2)]
    assert traces[0] == traces[1]


def test_a_worker_that_another_was_quicker_than_is_spare_as_soon_as_nothing_waits() -> None:
    """It asked while the tuples were still queued, and does not ask again before it is woken."""
    catalog = Catalog([box("a", source=0)])
    monitor = Monitor(catalog, 2, 1.0)
    for event in (
        Spawned(0.0, 0, QueueState(10)),
        Idle(0.0, 1),
        Started(0.0, 0, 0, 10, QueueState(0)),
        Finished(0.1, 0, 0, 10, 10, 0.1, 0.0),
        Idle(0.1, 0),
    ):
        catalog.apply(event)
        monitor.note(event, ())
    monitor.close(1.0)
    assert monitor.capacity == pytest.approx(2.0)
