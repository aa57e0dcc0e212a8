"""What ``headgate bench haren`` measures with: its bursts, its chains, and how much is held at a time."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from rich.console import Console

import headgate as hg
from benchmarks.experiments.haren.change import Answers, changes
from benchmarks.experiments.haren.experiment import GOALS, QUICK, bursty
from benchmarks.experiments.haren.load import Bursts, Chain, Watched, application, bursts, chains, measure
from headgate.connectors.source import Chunk, Wait


def test_bursts_come_at_their_times_and_none_is_lost() -> None:
    reader = Bursts([0.5, 2.0], 5).open()
    assert reader.poll(0.0, 10) == Wait(0.5)
    seen = []
    for now, rows in ((0.5, 3), (0.5, 9), (3.0, 9)):
        chunk = reader.poll(now, rows)
        assert isinstance(chunk, Chunk)
        seen.append((chunk.batch.column(0).to_pylist(), set(chunk.arrivals)))
    assert seen == [([0, 1, 2], {0.5}), ([3, 4], {0.5}), ([5, 6, 7, 8, 9], {2.0})]
    assert reader.poll(9.0, 9) is None


def test_bursts_have_the_rate_that_was_asked_for() -> None:
    times = bursts(1000.0, 10, 200.0, 1)
    assert len(times) * 10 / 200.0 == pytest.approx(1000.0, rel=0.05)
    assert times == sorted(times)
    assert times == bursts(1000.0, 10, 200.0, 1) != bursts(1000.0, 10, 200.0, 2)


def test_a_load_is_the_share_of_the_cores_that_was_asked_for() -> None:
    queries = chains(10, 5)
    assert len({query.operators for query in queries}) == 10
    load = bursty(queries, 0.5, 2, 300.0)
    work = sum(chain.seconds * len(times) * rows for chain, times, rows in load)
    assert work / 300.0 == pytest.approx(1.0, rel=0.2)


def test_what_is_held_is_what_waits_and_what_is_under_way() -> None:
    """Two tuples of a second each, one after the other: two are held for one second, one for the next."""
    app = application([(Chain("c", ((1.0, 1.0),)), [0.0], 2)])
    watched = Watched(hg.policies.haren(batch=1))
    app.run(hg.Simulated(workers=1), watched)
    assert (watched.mean, watched.most) == (pytest.approx(1.5), 2)


def test_every_policy_with_a_goal_is_measured_at_it() -> None:
    load = bursty(chains(2, 2), 0.5, 1, QUICK.seconds)
    for policy, (_, figure, _) in GOALS.items():
        measured = measure(application(load), hg.Simulated(workers=1), policy)
        assert measured.policy == policy
        assert figure(measured) > 0


def test_scheduling_tasks_are_counted_and_calls_weighed_against_what_they_cost() -> None:
    load = [(Chain("c", ((0.01, 1.0), (0.02, 1.0))), [0.0, 0.5], 20)]
    measured = measure(application(load), hg.Simulated(workers=1), hg.policies.haren(period=0.1))
    assert 1 < measured.tasks <= measured.report.seconds / 0.1
    assert measured.crowded == pytest.approx(1.0)
    slow = replace(
        measured.report,
        boxes={name: replace(box, busy=3 * box.busy) for name, box in measured.report.boxes.items()},
    )
    assert replace(measured, report=slow).crowded == pytest.approx(3.0)
    assert measure(application(load), hg.Simulated(workers=1), "round_robin").tasks == 0


def test_changes_of_policy_under_load_are_measured() -> None:
    """A second of it; the full minute is part of ``headgate bench haren``."""
    (found,) = changes(1.0, 2, Console(quiet=True))
    assert found.holds
    assert found.measured == found.baseline
    assert found.measured > 100


def test_answers_are_compared_by_order_and_not_by_cut() -> None:
    rows = pa.record_batch({"value": [1, 2, 3], "n": [1, 1, 2]})
    one, other, turned = Answers(), Answers(), Answers()
    one.take("q", rows)
    other.take("q", rows.slice(0, 1))
    other.take("q", rows.slice(1))
    turned.take("q", rows.take([1, 0, 2]))
    assert one.digests == other.digests != turned.digests
