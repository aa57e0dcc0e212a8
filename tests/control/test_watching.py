"""Watching a run: rates and reasons between two looks, the last minute, and events, all in virtual time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import headgate as hg
from headgate.control.watching import WAITING, Event, Watch
from headgate.runtime.change import Change
from headgate.runtime.observing import Observation, observe
from headgate.testing import Crank


class Looked:
    """A simulated run that another look is taken of whenever the test has moved its time."""

    def __init__(self, crank: Crank, engine: str = "simulated") -> None:
        self._crank, self._engine = crank, engine

    def observe(self, calls_seen: int) -> Observation:
        return observe(self._crank._run.core, self._engine, self._crank.now, calls_seen)


@contextmanager
def watched(app: hg.App) -> Iterator[tuple[Crank, Watch, list[Event]]]:
    heard: list[Event] = []
    with Crank(app) as crank:
        watch = Watch(lambda: Looked(crank))
        watch.listen([heard.append], 20.0)
        yield crank, watch, heard


def shop(cost: float, goal: hg.QoS | None) -> hg.App:
    """Ten rows a second through a box of that cost."""
    app = hg.App("shop")
    work = app.source("rows", hg.from_rate(10, first=0.05)).universal(cost=cost, selectivity=1.0, name="work")
    work.to("all", hg.to_function(lambda query, batch: None), qos=goal)
    return app


def test_a_look_says_what_happened_since_the_last_one() -> None:
    with watched(shop(0.01, hg.QoS([(0, 1), (0.5, 1), (1, 0)]))) as (crank, watch, heard):
        watch.look()
        crank.advance(5.0)
        watch.look()  # from here on every hand-over is counted
        crank.advance(10.0)
        sample = watch.look()
        assert sample is not None
        own = sample.queries["all"]
        assert own.seen.tuples_in == own.seen.tuples_out == 150
        assert (own.delivered.rows, own.delivered.late, own.delivered.worth) == (100, 0, 100.0)
        assert own.delivered.mean == pytest.approx(0.01)
        turn, work, source, sink = own.why
        assert (work, source, sink) == (pytest.approx(0.01), pytest.approx(0), 0)
        assert turn == pytest.approx(0)
        assert len(sample.seen.calls) == 100
        assert watch.last("all") == {"rows": 150, "late": 0, "p50": pytest.approx(0.01)} | {
            "p99": pytest.approx(0.01),
            "utility": 1.0,
        }
        assert heard == []


def test_results_that_are_seen_before_their_step_is_counted_are_waited_for() -> None:
    """On Spark a step counts when it is over, and its results may be looked at before that."""
    with Crank(shop(0.01, None)) as crank:
        watch = Watch(lambda: Looked(crank, engine="spark"))
        watch.look()
        crank.advance(5.0)
        watch.look()
        crank.advance(5.0)
        sample = watch.look()
        assert sample is not None
        own = sample.queries["all"]
        assert own.delivered.rows
        assert own.why == (pytest.approx(own.delivered.mean), 0, pytest.approx(0), 0)


def test_a_query_that_waits_for_its_turn_is_told_apart_from_one_that_works_long() -> None:
    with watched(shop(0.2, hg.QoS([(0, 1), (0.5, 1), (1, 0)]))) as (crank, watch, _):
        watch.look()
        crank.advance(20.0)
        watch.look()
        crank.advance(20.0)
        sample = watch.look()
        assert sample is not None
        own = sample.queries["all"]
        turn, work, source, sink = own.why
        assert turn + work + source + sink == pytest.approx(own.delivered.mean)
        assert turn > 10 * work > 0  # twice as much comes as can be worked on


def test_a_goal_that_is_missed_for_long_is_an_event_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with watched(shop(0.01, hg.QoS([(0, 1), (0.001, 1), (0.002, 0)]))) as (crank, watch, heard):
        for _ in range(24):
            crank.advance(1.0)
            with caplog.at_level(logging.INFO, "headgate.run"):
                watch.look()
        assert [(event.kind, event.query) for event in heard] == [("goal missed", "all")]
        assert 20 <= heard[0].at <= 24
        assert "query 'all' goal missed" in caplog.text
        assert caplog.records[0].headgate["query"] == "all"  # type: ignore[attr-defined]
        crank._run._change(Change(qos={"all": hg.QoS([(0, 1), (1, 0)])}), ())
        for _ in range(12):
            crank.advance(1.0)
            watch.look()
        assert [event.kind for event in heard] == ["goal missed", "goal met"]


def test_a_hook_that_raises_is_dropped_and_a_failure_is_told_once() -> None:
    app = hg.App("shop")
    rows = app.source("rows", hg.from_rate(10, limit=100))
    rows.filter("1 / (value - 50) < 2").to("bad", hg.to_list([]))
    rows.to("good", hg.to_list([]))
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise ValueError

    app.on_event(broken)
    app.on_event(heard.append)
    report = app.run("simulated")
    assert report.queries["bad"].error is not None
    assert [(event.kind, event.query) for event in heard] == [("failed", "bad")]
    assert "division by zero" in heard[0].message.lower()


def test_another_qos_graph_judges_what_comes_after_it(engine: str) -> None:
    """On every engine; what a query gave before it had a goal is not judged."""
    app = hg.App("shop")
    rows = app.source("rows", hg.from_rate(1_000, limit=1_000))
    rows.filter("TRUE").to("all", hg.to_list([]))
    change = Change(at=0.0, qos={"all": hg.QoS([(0, 0.5)])})
    report = app.run(engine, changes=[change, Change(at=0.0, qos={"nobody": hg.QoS([(0, 1)])})])
    query = report.queries["all"]
    assert query.tuples_out == 1_000
    assert query.qos == pytest.approx(0.5)
    assert ["no query 'nobody'" in problem for problem in report.problems] == [True]


class Stopped(Looked):
    """The one query has failed, and so many rows wait for it."""

    rows = 0

    def observe(self, calls_seen: int) -> Observation:
        seen = super().observe(calls_seen)
        seen.queries = {n: q._replace(state="failed", backlog=self.rows) for n, q in seen.queries.items()}
        return seen


def test_rows_that_wait_for_a_stopped_query_raise_an_alarm_and_again_when_they_have_doubled() -> None:
    heard: list[Event] = []
    with Crank(shop(0.01, None)) as crank:
        run = Stopped(crank)
        watch = Watch(lambda: run)
        watch.listen([heard.append], 20.0)
        for rows in (WAITING - 1, WAITING, 2 * WAITING - 1, 2 * WAITING):
            crank.advance(1.0)
            run.rows = rows
            watch.look()
    told = [event.message for event in heard if event.kind == "backlog"]
    assert told == [
        f"{rows:,} rows wait for it; restart it, or remove it and let them go"
        for rows in (WAITING, 2 * WAITING)
    ]
