"""Policies that queue tasks, on engines: what they are told, what they cost, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headgate as hg
from headgate import testing
from headgate.machine import host as topology
from headgate.scheduling.events import Idle, Spawned
from headgate.scheduling.interface import Run, Wake

Run_ = Callable[[], hg.Report]
Ends = Callable[[Run_], hg.Report]
NAMES = ["bobox", "bobox_baseline", "las", "nls"]


def shop(rows: int, found: dict[str, list[Any]]) -> hg.App:
    """Two requests with a box in common, and one alone that was declared between them."""
    app = hg.App("shop")
    stream = app.source("clicks", testing.from_rows([{"a": i, "k": i % 3} for i in range(rows)]))
    other = app.source("others", testing.from_rows([{"a": i, "k": i % 5} for i in range(rows)]))
    both = stream.filter("a % 2 = 0", name="both")
    late = both.key_by("k").running("count(*) AS n", name="late")
    for name, made in (
        ("alone", other.with_columns("a + 1 AS a", name="alone")),
        ("first", both.select("a", name="first")),
        ("second", late),
    ):
        made.to(name, hg.to_list(found.setdefault(name, [])))
    return app


def spawned(engine: hg.Engine) -> dict[str, set[tuple[bool, bool, int]]]:
    """By box: whether its tasks were immediate, whether a worker made them, and of which request."""
    app = shop(200, {})
    recorder = testing.Recorder("bobox")
    app.run(engine, recorder)
    names = [box.name for box in app.network.boxes]
    told: dict[str, set[tuple[bool, bool, int]]] = {}
    for event, _ in recorder.log:
        if isinstance(event, Spawned):
            by = event.worker is not None
            told.setdefault(names[event.box], set()).add((event.immediate, by, event.request))
    return told


@pytest.mark.parametrize("engine", [hg.Simulated(workers=1, packet_rows=10), hg.Threads(1, packet_rows=10)])
def test_what_a_source_brings_is_deferred_and_what_a_worker_sends_immediate(engine: hg.Engine) -> None:
    """And a box that several requests need is the oldest one's."""
    told = spawned(engine)
    assert told["both"] <= {(False, False, 1), (False, True, 1)}
    assert told["alone"] <= {(False, False, 0), (False, True, 0)}
    assert (False, False, 1) in told["both"]
    assert (True, True, 1) in told["first"]
    assert (True, True, 2) in told["late"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("machine", ["e5310", "e7540"])
def test_on_the_papers_machines_nothing_is_lost(name: str, machine: str) -> None:
    """Also with few workers, so that some nodes and groups have none, and queues of a few rows."""
    expected: dict[str, list[Any]] = {}
    shop(90, expected).run(hg.Simulated(workers=1), "lp")
    for workers in (2, 7, None):
        found: dict[str, list[Any]] = {}
        costs = {"both": 0.001, "late": 0.01, "alone": 0.003}
        engine = hg.Simulated(topology=machine, workers=workers, packet_rows=1, costs=costs)
        shop(90, found).run(engine, name)
        assert found == expected


def test_the_newest_request_moves_to_a_node_that_idles() -> None:
    """Four requests on one node are too much for its workers; a tenth of a second later another helps."""
    machine = topology.get('name = "two"\nnode = [{cores = "0"}, {cores = "1"}]\n')
    app, found = hg.App("moving"), []
    source = app.source("s", testing.from_rows([{"a": i} for i in range(100)]))
    first = source.filter("a >= 0", name="first")
    for number in range(4):
        first.universal(cost=0.01, name=f"work-{number}").to(f"q{number}", hg.to_list(found))
    report = app.run(hg.Simulated(topology=machine, packet_rows=1), "bobox")
    assert len(found) == 400
    elsewhere = [call for call in report.trace if call.worker == 1]
    assert min(call.start for call in elsewhere) >= 0.1
    assert {call.box for call in elsewhere} >= {"work-3"}, "the newest"
    assert report.seconds < 4.0 * 0.8, "it takes 4 seconds on one"


# --- sleeping -----------------------------------------------------------------------------------------


def load(requests: int, work: Callable[[Any], Any]) -> hg.App:
    app = hg.App("load")
    for number in range(requests):
        stream = app.source(f"s{number}", testing.from_rows([{"a": i} for i in range(400)]))
        stream = stream.map_packets(work, schema=stream.schema, name=f"work-{number}")
        stream.filter("a >= 0").to(f"q{number}", hg.to_function(lambda query, batch: None))
    return app


@pytest.mark.parametrize("name", ["bobox", "las", "nls"])
def test_under_full_load_nobody_sleeps_and_nobody_is_woken(name: str) -> None:
    """Eight requests for two workers: who asks is given a task, up to the last ones of the run."""
    recorder = testing.Recorder(name)
    app = load(8, lambda batch: batch)
    engine = hg.Simulated(workers=2, packet_rows=10, costs={f"work-{n}": 0.001 for n in range(8)})
    report = app.run(engine, recorder)
    asked = [(event, made) for event, made in recorder.log if isinstance(event, Idle)]
    refused = [event.time for event, made in asked if not any(isinstance(d, Run) for d in made)]
    assert len(asked) > 8 * 40 * 2
    assert all(time > report.seconds - 0.02 for time in refused), "only when there is nothing left to do"
    woken = [event.time for event, made in recorder.log if any(isinstance(d, Wake) for d in made)]
    assert all(time > report.seconds - 0.02 for time in woken)


def test_semaphores_are_touched_for_every_task_by_the_baseline_only(ends: Ends) -> None:
    """The others touch one when a worker lies down for want of work, and when it is woken."""
    engine = hg.Threads(workers=2, packet_rows=10)
    calls = 4 * 40 * 2
    for name in NAMES:
        recorder = testing.Recorder(name)
        report = ends(lambda recorder=recorder: load(4, lambda batch: batch).run(engine, recorder))
        if name == "bobox_baseline":
            assert report.semaphores > calls
            continue
        lay_down = sum(
            isinstance(event, Idle) and not any(isinstance(d, Run) for d in made)
            for event, made in recorder.log
        )
        woken = sum(len(d.workers) for _, made in recorder.log for d in made if isinstance(d, Wake))
        assert report.semaphores <= lay_down + woken, name


def test_bobox_and_las_keep_workers_on_their_groups() -> None:
    pinned = {name for name in ("bobox", "bobox_baseline", "las", "nls") if hg.policies.get(name).pins}
    assert pinned == {"bobox", "las"}
