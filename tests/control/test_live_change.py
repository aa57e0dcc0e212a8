"""Live change (Haren): policy, period, batch, workers and queries, while tuples flow, on every engine.

Whatever changes and whenever, every query gives what serial execution gives, in order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headgate as hg
from depth import examples
from graphs import graphs
from headgate import testing
from headgate.engines.threads.barrier import Meeting
from headgate.errors import RunError
from headgate.runtime.policy_driver import PolicyDriver
from headgate.scheduling.aurora.round_robin import RoundRobin
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Event, Idle
from headgate.scheduling.haren.feature_table import BoxView
from headgate.scheduling.interface import Decision
from serial import serial
from waiting import PATIENCE, SOON, Held, eventually

Rows = list[dict[str, Any]]
NAMES = hg.policies.names()
SETTINGS = {name: hg.policies.get(name).settings for name in NAMES}


# --- in simulation, at any time -------------------------------------------------------------------------


@st.composite
def changes(draw: st.DrawFn) -> list[hg.Change]:
    """Policies with what can be set of them, workers and settings, at times of which some are equal."""
    found, policy = [], "lp"
    times = sorted(draw(st.lists(st.integers(0, 40), min_size=1, max_size=12)))
    for at in times:
        options: dict[str, Any] = {}
        if draw(st.booleans()):
            policy = options["policy"] = draw(st.sampled_from(NAMES))
        if draw(st.booleans()):
            options["workers"] = draw(st.integers(1, 5))
        if "period" in SETTINGS[policy] and draw(st.booleans()):
            options["period"] = draw(st.sampled_from([0.0002, 0.001, 10.0]))
        if "batch" in SETTINGS[policy] and draw(st.booleans()):
            options["batch"] = draw(st.integers(1, 50))
        found.append(hg.Change(at=at * 0.0004, **options))
    return found


@settings(max_examples=examples(30))
@given(changes(), st.integers(1, 3), st.sampled_from([2, 50]), st.sampled_from([0.0, 3e-5]))
def test_any_sequence_of_changes_gives_the_answers_of_serial_execution(
    planned: Sequence[hg.Change], workers: int, packet_rows: int, reschedule_cost: float
) -> None:
    """With scheduling tasks that take time, so that some changes come while one is under way."""

    def run() -> tuple[dict[str, Rows], hg.Report]:
        app, found = graphs(40)
        made = hg.Simulated(
            workers=workers, packet_rows=packet_rows, call_overhead=1e-4, reschedule_cost=reschedule_cost
        )
        again = [_fresh(change) for change in planned]
        return found, app.run(made, "lp", changes=again)

    found, report = run()
    assert report.problems == []
    expected = serial(graphs(40)[0].network)
    for query, results in found.items():
        assert results == expected[query], query
    assert list(run()[1].trace) == list(report.trace), "the same changes at the same times, the same run"


def _fresh(change: hg.Change) -> hg.Change:
    """With a policy of its own, as a policy remembers."""
    name = None if change.chosen is None else change.chosen.name
    return hg.Change(change.at, name, change.period, change.batch, change.workers)


def test_the_policy_that_takes_over_sees_everything_as_it_is() -> None:
    """Queues with their ages and sizes, though the policy before needed neither, and the time."""
    seen: list[Any] = []

    class Looks(RoundRobin):
        def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
            box = catalog.boxes[0]
            seen.append((catalog.since, workers, box.queue, box.running, box.tuple_bytes, box.calls))
            return super().start(catalog, workers, seed)

    app = hg.App("looks")
    out: Rows = []
    rows = testing.Timed([(0.5, [{"a": i} for i in range(10)]), (1.5, [{"a": i} for i in range(10, 20)])])
    app.source("numbers", rows).universal(cost=0.2, name="slow").to("q", hg.to_list(out))
    app.run(
        hg.Simulated(workers=1),
        "tuple_at_a_time",
        changes=[hg.Change(1.6, Looks()), hg.Change(1.7, workers=2)],
    )
    (since, workers, queue, running, size, calls), later = seen
    assert (since, workers, running, size, calls) == (1.6, 1, 1, 8.0, 5)
    assert (queue.tuples, queue.oldest, queue.mean) == (14, 0.5, pytest.approx((4 * 0.5 + 10 * 1.5) / 14))
    assert later[:2] == (1.7, 2)
    assert [row["a"] for row in out] == list(range(20))


def test_a_change_of_settings_is_in_force_at_once() -> None:
    """A period of an hour becomes one of a tenth of a second, and calls shorter."""
    times: list[float] = []

    def priority(box: BoxView) -> float:
        times.append(box.now)
        return 0.0

    app = hg.App("settings")
    bursts = [(i / 10, [{"a": j} for j in range(20)]) for i in range(50)]
    app.source("numbers", testing.Timed(bursts)).universal(cost=0.002, name="work").to("q", hg.to_list([]))
    report = app.run(
        hg.Simulated(workers=1),
        hg.policies.haren(prioritize=priority, period=3600.0, batch=10),
        changes=[hg.Change(2.0, period=0.1), hg.Change(3.0, batch=5), hg.Change(4.0, period="1 hour")],
    )
    assert report.problems == []
    tasks = [time for time in times if time > 0]
    assert tasks[0] == pytest.approx(2.1)
    assert 18 <= len(tasks) <= 21
    assert max(tasks) <= 4.1
    sizes = {call.start >= 3.0: call.tuples for call in report.trace}
    assert sizes == {False: 10, True: 5}


def test_workers_come_and_go() -> None:
    app = hg.App("workers")
    source = app.source("numbers", testing.Timed([(i / 100, [{"a": i}]) for i in range(400)]))
    source.universal(cost=0.05, name="work").to("q", hg.to_list([]))
    report = app.run(
        hg.Simulated(workers=1, packet_rows=1),
        "tuple_at_a_time",
        changes=[hg.Change(1.0, workers=3), hg.Change(3.0, workers=2), hg.Change(3.5, workers=4)],
    )
    used = [
        {call.worker for call in report.trace if low <= call.start < low + 0.4}
        for low in (0.5, 2.0, 3.05, 3.55)
    ]
    assert used == [{0}, {0, 1, 2}, {0, 1}, {0, 1, 2, 3}]
    assert report.workers == 4


# --- on every engine ------------------------------------------------------------------------------------


@pytest.fixture
def carried_out(monkeypatch: pytest.MonkeyPatch) -> list[hg.Change]:
    """Planned changes, each when it is in force or has been refused."""
    done: list[hg.Change] = []
    planned = PolicyDriver.planned

    def carries_out(self: PolicyDriver, change: hg.Change, carry_out: Callable[[], None]) -> None:
        planned(self, change, carry_out)
        done.append(change)

    monkeypatch.setattr(PolicyDriver, "planned", carries_out)
    return done


def two_queries(limit: int, released: Callable[[], object]) -> tuple[hg.App, Rows, Rows]:
    """Numbers, the last hundred of which come once that is allowed, however slow the engine is."""
    app, all_of_it, counted = hg.App("flowing"), [], []
    source = app.source("numbers", Held(500, limit, 100, released))
    kept = source.filter("value % 3 < 2", name="keep")
    kept.with_columns("value * 2 AS twice", name="twice").to("all", hg.to_list(all_of_it))
    kept.with_columns("value % 5 AS k", name="k").key_by("k").running("count(*) AS n", name="count").to(
        "counted", hg.to_list(counted)
    )
    return app, all_of_it, counted


def test_policy_and_workers_change_while_tuples_flow(engine: hg.Engine, carried_out: list[hg.Change]) -> None:
    app, every, counted = two_queries(700, lambda: len(carried_out) == 10)
    turns = ["qos_bucketed", "fcfs", "thread_per_box", "mc", "multi_class", "ct", "random", "qos", "chain"]
    planned = [hg.Change(0.1 * (i + 1), policy, workers=i % 3 + 1) for i, policy in enumerate(turns)]
    report = app.run(engine, "lp", changes=[*planned, hg.Change(1.05, period=0.02, batch=40)])
    assert report.problems == []
    assert (report.policy, report.workers) == ("chain", 3)
    kept = [value for value in range(700) if value % 3 < 2]
    assert [(row["value"], row["twice"]) for row in every] == [(value, 2 * value) for value in kept]
    seen = dict.fromkeys(range(5), 0)
    for row, value in zip(counted, kept, strict=True):
        seen[value % 5] += 1
        assert (row["value"], row["n"]) == (value, seen[value % 5])


def test_queries_come_and_go_while_tuples_flow(engine: hg.Engine, carried_out: list[hg.Change]) -> None:
    """One that joins counts from where it began, with a state of its own; one that leaves has a prefix.

    How much has come by the time of a change is the engine's to say; the last hundred come after both.
    """
    app, every, counted = two_queries(700, lambda: len(carried_out) == 2)
    late: Rows = []
    more = app.source("more", Held(500, 700, 100, lambda: len(carried_out) == 2))
    stream = more.filter("value % 2 = 0", name="even")
    stream.to("even", hg.to_list([]))
    stream.with_columns("value % 2 AS k", name="k-late").key_by("k").running(
        "count(*) AS n", name="count-late"
    ).to("late", hg.to_list(late), start="now")
    planned = [hg.Change(0.5, add="late"), hg.Change(0.9, remove="counted", policy="fcfs")]
    report = app.run(engine, "lp", changes=planned)
    assert report.problems == []
    assert [row["value"] for row in every] == [value for value in range(700) if value % 3 < 2]
    assert report.queries["counted"].removed
    assert report.queries["counted"].error is None
    values = [row["value"] for row in counted]
    assert values == [value for value in range(600) if value % 3 < 2][: len(values)]
    first = late[0]["value"]
    assert first <= 600
    if engine.name == "simulated":
        assert len(values) > 0
        assert 240 <= first <= 260
    assert [(row["value"], row["n"]) for row in late] == [(first + 2 * i, i + 1) for i in range(len(late))]
    assert late[-1]["value"] == 698


def test_queries_are_asked_to_come_and_go_while_tuples_flow(engine: hg.Engine) -> None:
    """Each when the one before has given something; the last rows come when all is done."""
    done: list[bool] = []  # an event could not be sent to Spark's workers
    app, every, counted = two_queries(700, lambda: done)
    late: Rows = []
    stream = app.source("more", Held(500, 700, 100, lambda: done)).filter("value % 2 = 0", name="even")
    stream.to("even", hg.to_list([]))
    with app.start(engine, "lp", until="drained") as running:
        eventually(lambda: counted or running.over, "the first query gives nothing", PATIENCE)
        stream.select("value", name="later").to("late", hg.to_list(late), start="now")
        running.add("late")
        running.remove("counted")
        done.append(True)
        report = running.wait(PATIENCE)
    assert [row["value"] for row in every] == [value for value in range(700) if value % 3 < 2]
    values = [row["value"] for row in counted]
    assert values == [value for value in range(600) if value % 3 < 2][: len(values)]
    assert report.queries["counted"].removed
    first = late[0]["value"]
    assert 0 < first <= 600, "what had been admitted when it came is not its own"
    assert [row["value"] for row in late] == list(range(first, 700, 2))


def test_bad_rows_of_a_query_that_joins_are_letters_too() -> None:
    app, letters, late = hg.App("letters"), [], []
    app.dead_letter(hg.to_list(letters))
    source = app.source("numbers", testing.Timed([(i / 10, [{"a": i}]) for i in range(20)]))
    source.filter("100 / a > 0", name="first").to("q", hg.to_list([]))
    source.select("100 / (a - 15) AS b", name="second").to("late", hg.to_list(late))
    report = app.run(hg.Simulated(workers=1), "fcfs", changes=[hg.Change(1.05, add="late")])
    assert report.problems == []
    assert [(letter["box"], letter["serial"]) for letter in letters] == [("first", 0), ("second", 15)]
    assert len(late) == 8
    assert report.queries["late"].tuples_in == 9


# --- what cannot be -------------------------------------------------------------------------------------


def endless() -> tuple[hg.App, Rows]:
    app, out = hg.App("endless"), []
    app.source("numbers", hg.from_rate(2000)).filter("value % 2 = 0", name="even").to("q", hg.to_list(out))
    return app, out


def test_mistakes_are_raised_and_change_nothing() -> None:
    app, _ = endless()
    app.source("unread", hg.from_rate(1)).to("far", hg.to_list([]))
    with app.start("threads", "lp", 2, changes=[hg.Change(1e9, add="far")]) as running:
        for options, message in (
            ({"policy": "qoss"}, "There is no policy 'qoss'. Did you mean 'qos'"),
            ({"period": 0.1}, "Policy 'lp' has no period to set; these have: chain"),
            ({"policy": "ct", "batch": 3}, "Policy 'ct' has no batch to set"),
            ({"period": "soon"}, "'soon' is not a duration"),
            ({"period": 0}, "period=0"),
            ({"workers": 0}, "workers=0: it must be a whole number of at least 1"),
            ({"batch": 0}, "batch=0"),
            ({"workers": 99_999_999}, "workers=99999999: there can be at most 1,024"),
            ({"workers": 1025}, "workers=1025: there can be at most 1,024"),
            ({"workers": True}, "workers=True: it must be a whole number"),
            ({"policy": "fcfs", "batch": 10**12}, "batch=1000000000000: .* at most 1,000,000,000 tuples"),
            ({"policy": "fcfs", "period": "1 us"}, "period='1 us': .* from 0.1 ms to 1 day"),
            ({"policy": "fcfs", "period": "2 days"}, "period='2 days': .* from 0.1 ms to 1 day"),
            ({"policy": "fcfs", "period": float("inf")}, "period: 'inf' is not a duration"),
            ({"policy": "fcfs", "period": float("nan")}, "period: 'nan' is not a duration"),
            ({"policy": "fcfs", "period": "9" * 400 + " days"}, "period: .* is not a duration"),
            ({}, "say what to change"),
        ):
            with pytest.raises(hg.HeadgateError, match=message):
                running.set(**options)  # type: ignore[arg-type]
        with pytest.raises(hg.HeadgateError, match="has no query 'new'"):
            running.add("new")
        with pytest.raises(hg.HeadgateError, match="reads source 'unread', which no query of this run does"):
            running.add("far")
        with pytest.raises(hg.HeadgateError, match="This run has or had a query 'q'"):
            running.add("q")
        with pytest.raises(hg.HeadgateError, match="There is no query 'p' that runs"):
            running.remove("p")
        with pytest.raises(hg.HeadgateError, match="'q' is the only one"):
            running.remove("q")
        report = running.report()
        assert (report.policy, report.workers, report.problems) == ("lp", 2, [])
    with pytest.raises(hg.HeadgateError, match="The run is over"):
        running.set(workers=3)


@pytest.mark.parametrize("engine", [hg.Threads, hg.Spark, hg.Simulated])
def test_a_number_of_workers_without_sense_is_refused_at_the_start(engine: type[hg.Engine]) -> None:
    app, _ = endless()
    for workers in (1025, 99_999_999, 0, -1, True, 1.5):
        with pytest.raises(hg.HeadgateError, match=rf"workers={workers}\): "):
            engine(workers=workers)  # type: ignore[call-arg]
        with pytest.raises(hg.HeadgateError, match=f"workers={workers}: "):
            app.run(engine(), workers=workers)  # type: ignore[arg-type]


def more(out: Rows) -> None:
    """Rows still come."""
    seen = len(out)
    eventually(lambda: len(out) > seen, "no more rows have come")


def test_threads_are_not_started_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all workers, status and stop would wait until the last one has started."""
    free: list[bool] = []
    start = threading.Thread.start
    app, out = endless()
    with app.start("threads", "lp", 2) as running:
        lock = running._line.runner.lock  # type: ignore[attr-defined]

        def started(thread: threading.Thread) -> None:
            if thread.name.startswith("headgate-worker"):
                free.append(lock.acquire(timeout=SOON))
                if free[-1]:
                    lock.release()
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", started)
        running.set(workers=20)
        assert running.report().workers == 20
        assert free == [True] * 18
        more(out)


def test_if_threads_cannot_be_started_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("headgate-worker") and int(thread.name.rpartition("-")[2]) >= 5:
            raise RuntimeError("can't start new thread")
        start(thread)

    app, out = endless()
    with app.start("threads", "lp", 2) as running:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(hg.HeadgateError, match=r"no more threads .* stays as it was"):
            running.set(workers=20, policy="round_robin")
        assert (running.report().workers, running.report().policy) == (2, "lp")
        running.set(workers=4)
        assert running.report().workers == 4
        more(out)
        monkeypatch.undo()
        running.set(workers=8)
        assert running.report().workers == 8
        more(out)
    assert [row["value"] for row in out] == [2 * i for i in range(len(out))]


def test_a_run_that_failed_tells_why_whatever_is_asked_of_it() -> None:
    """Also who comes later than ``wait``: 'The run is over' is true of runs that ended well."""

    def broken(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no such page")

    app = hg.App("failing")
    numbers = app.source("numbers", testing.from_rows([{"a": 1}]))
    numbers.flat_map_rows(broken, schema=numbers.schema, name="page").to("q", hg.to_list([]))
    numbers.to("later", hg.to_list([]))
    running = app.start("threads", changes=[hg.Change(1e9, add="later")])
    with pytest.raises(RunError, match="no such page"):
        running.wait(120)
    for ask in (
        running.report,
        running.wait,
        lambda: running.set(workers=2),
        lambda: running.add("later"),
        lambda: running.remove("q"),
    ):
        with pytest.raises(RunError, match="no such page"):
            ask()
    assert running.stop() is None


def test_a_run_whose_report_is_asked_for_while_it_ends_gives_it() -> None:
    app, _ = endless()
    running = app.start("threads", until=0.001)
    while not running.over:
        running.report()
    assert running.report() is running.wait()
    with pytest.raises(hg.HeadgateError, match="The run is over"):
        running.remove("q")


class Refuses(RoundRobin):
    """Cannot start, or cannot make its first plan."""

    name = "refuses"

    def __init__(self, at_once: bool) -> None:
        super().__init__()
        self.at_once = at_once

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        if self.at_once:
            raise ValueError("not today")
        return super().start(catalog, workers, seed)

    def handle(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Idle):
            raise ValueError("nor tomorrow")
        return super().handle(event)


def test_a_policy_that_fails_at_first_leaves_the_one_before_in_force(
    engine: hg.Engine, carried_out: list[hg.Change]
) -> None:
    """At its start, in its first plan, or in one of Haren's two functions."""

    def bad(box: BoxView) -> float:
        return float("nan")

    app, every, counted = two_queries(400, lambda: len(carried_out) == 3)
    planned = [
        hg.Change(0.2, Refuses(at_once=True)),
        hg.Change(0.3, Refuses(at_once=False)),
        hg.Change(0.4, hg.policies.haren(prioritize=bad), workers=2),
    ]
    report = app.run(engine, "mc", changes=planned)
    assert report.policy == "mc"
    assert (len(every), len(counted)) == (267, 267)
    first, second, third = sorted(
        report.problems, key=lambda text: ("day" not in text, "haren" in text, text)
    )[:3]
    told = " ".join([first, second, third])
    for part in ("ValueError: not today", "ValueError: nor tomorrow", "'haren' cannot take over", "nan"):
        assert part in told
    assert len(report.problems) == 3


def test_what_a_policy_had_dropped_is_let_through_by_the_next() -> None:
    app = hg.App("shed")
    out: Rows = []
    bursts = [(i / 100, [{"a": j} for j in range(10)]) for i in range(800)]
    app.source("numbers", testing.Timed(bursts)).universal(cost=0.002, name="work").to("q", hg.to_list(out))

    def run(*planned: hg.Change, until: float) -> int:
        policy = hg.policies.shedding("round_robin", latency=0.1)
        report = app.run(hg.Simulated(workers=1), policy, until=until, changes=planned)
        assert report.problems == []
        return report.queries["q"].shed

    assert run(until=8.0) > run(until=6.0) > 0
    assert run(hg.Change(6.0, "round_robin"), until=8.0) == run(until=6.0)


# --- on threads -----------------------------------------------------------------------------------------


def test_a_change_does_not_wait_for_a_scheduling_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is inside one of the old policy's phases, the other waits for the next one to begin."""
    inside, go_on, first = threading.Event(), threading.Event(), threading.Lock()
    went_on: list[bool] = []
    there: list[Meeting] = []
    join = Meeting.join

    def joins(meeting: Meeting) -> None:
        there.append(meeting)
        join(meeting)

    monkeypatch.setattr(Meeting, "join", joins)

    def slow(box: BoxView) -> float:
        if box.now > 0 and first.acquire(blocking=False):
            inside.set()
            went_on.append(go_on.wait(SOON))
        return 0.0

    app, out = endless()
    with app.start(hg.Threads(workers=2), hg.policies.haren(prioritize=slow, period=0.01)) as running:
        assert inside.wait(SOON)
        eventually(lambda: there.count(there[-1]) == 2, "the other worker does not come to the task")
        running.set(policy="round_robin")
        seen = len(out)
        eventually(lambda: len(out) > seen, "the other worker does not go on")
        running.set(policy="fcfs")
        go_on.set()
        before = len(out)
        eventually(lambda: len(out) > before + 100, "the run does not go on")
    assert went_on == [True], "a change or the other worker waited for it"
    report = running.stop()
    assert report is not None
    assert (report.policy, report.problems) == ("fcfs", [])
    assert [row["value"] for row in out] == [2 * i for i in range(len(out))]


def test_many_changes_under_load_lose_nothing() -> None:
    """A change of policy and of workers every few milliseconds, with more to do than can be done.

    The last tuples come when there have been enough of them.
    """

    turns = 0

    def load() -> tuple[hg.App, list[Rows]]:
        app, found = hg.App("load"), []
        numbers = Held(1e9, 30_000, 1_000, lambda: app is still or turns > 10)
        source = app.source("numbers", numbers).select("value AS a", name="a")
        for query in range(4):
            found.append([])
            first = source.universal(cost=1e-6 * (query + 1), selectivity=0.8, name=f"first-{query}")
            keyed = first.with_columns("a % 7 AS k", name=f"k-{query}").key_by("k")
            keyed.running("sum(a) AS s", name=f"sum-{query}").to(
                f"q{query}", hg.to_list(found[query]), qos=hg.QoS([(0, 1), (1, 0)]), query_class=query % 2
            )
        return app, found

    still, expected = load()
    still.run(hg.Simulated(workers=1), "round_robin")
    app, found = load()
    running = app.start(hg.Threads(packet_rows=500), "lp", 2, until="drained")
    over = threading.Event()
    usual = [name for name in NAMES if name != "tuple_at_a_time"]
    while not running.over:
        with suppress(hg.HeadgateError):  # it may be over
            running.set(policy=usual[turns % len(usual)], workers=turns % 4 + 1)
            turns += 1
        over.wait(0.005)
    report = running.wait()
    assert report.problems == []
    assert found == expected
