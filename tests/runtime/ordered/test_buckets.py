"""Several workers on one keyed box, results that overtake each other, and what people may ask of both."""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import headgate as hg
from headgate import testing
from headgate.connectors.source import Wait
from headgate.errors import PipelineError
from headgate.graph.operators import universal
from headgate.runtime.core import Core
from headgate.runtime.instructions import RunCall
from headgate.runtime.stimuli import Admitted, Free
from headgate.scheduling.trains import Count
from waiting import SOON, eventually

SCHEMES = ["hybrid", "partitioned", "shared"]
ROWS = [{"a": i, "k": (i * 37) % 11} for i in range(3000)]
NUMBERS = pa.schema([("a", pa.int64()), ("k", pa.int64())])


def counted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seen: dict[int, int] = {}
    found = []
    for row in rows:
        seen[row["k"]] = seen.get(row["k"], 0) + 1
        found.append({**row, "n": seen[row["k"]]})
    return found


def counts(engine: hg.Engine, cost: float = 1e-4, ranges: list[int] | None = None) -> tuple[Any, hg.Report]:
    app, found = hg.App("keyed"), list[dict[str, Any]]()
    numbers = app.source("numbers", testing.from_rows(ROWS))
    dear = numbers.key_by("k", ranges=ranges).universal(cost=cost, name="dear")
    dear.key_by("k", ranges=ranges).running("count(*) AS n").to("counts", hg.to_list(found))
    return found, app.run(engine, "ct")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ranges", [None, [3, 6]])
def test_workers_share_a_keyed_box_and_answers_are_those_of_one(
    scheme: str, ranges: list[int] | None
) -> None:
    inside: set[int] = set()

    def together(seconds: float) -> None:
        """In place of being busy: nobody goes on before a second worker is in the box."""
        inside.add(threading.get_ident())
        eventually(lambda: len(inside) > 1, "no second worker came into the box")

    engine = hg.Threads(workers=3, packet_rows=100, partitioning=scheme, buckets=8, split=True)
    with mock.patch.object(universal, "busy", together):
        found, report = counts(engine, ranges=ranges)
    assert found == counted(ROWS)
    calls = [call for call in report.trace if call.box == "dear"]
    assert len({call.worker for call in calls}) > 1
    assert sum(call.tuples for call in calls) == len(ROWS)


@pytest.mark.parametrize("scheme", ["hybrid", "partitioned"])
def test_in_simulation_workers_inside_one_keyed_box_make_it_as_much_faster(scheme: str) -> None:
    """Eleven keys on four workers, each tuple 1 ms: the whole takes about a quarter of three seconds."""
    one, many = (
        counts(hg.Simulated(workers=n, packet_rows=500, partitioning=scheme, buckets=44), 1e-3)
        for n in (1, 4)
    )
    assert many[0] == one[0] == counted(ROWS)
    assert one[1].seconds == pytest.approx(3.0, rel=0.01)
    assert many[1].seconds < (1.1 if scheme == "hybrid" else 1.7)


def test_a_cheap_box_is_not_split_and_a_dear_one_is() -> None:
    for cost, most in ((1e-7, 1), (1e-3, 4)):
        _, report = counts(hg.Simulated(workers=4, packet_rows=500), cost)
        calls = sorted(
            (c for c in report.trace if c.box == "dear" and c.end > c.start), key=lambda c: c.start
        )
        at_once = max(sum(o.start <= c.start < o.end for o in calls) for c in calls)
        assert (at_once > 1) == (most > 1), f"{at_once} at once at {cost:g} s per tuple"


def test_split_says_whether_a_keyed_box_is_shared() -> None:
    _, report = counts(hg.Simulated(workers=4, packet_rows=500, split=False), 1e-3)
    assert report.seconds == pytest.approx(3.0, rel=0.01)


def test_one_key_has_one_worker_however_many_there_are() -> None:
    app, found = hg.App("one"), list[dict[str, Any]]()
    inside, most = [0], [0]

    def slow(row: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        state["n"] = state.get("n", 0) + 1
        inside[0] -= 1
        return {"a": row["a"], "k": state["n"]}

    stream = app.source("numbers", testing.from_rows([{"a": i, "k": 1} for i in range(500)]))
    stream.key_by("k").process(slow, schema=NUMBERS).to("numbered", hg.to_list(found))
    app.run(hg.Threads(workers=4, packet_rows=10, split=True), "et")
    assert most == [1]
    assert found == [{"a": i, "k": i + 1} for i in range(500)]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_failure_in_one_bucket_fails_the_query_and_what_left_before_is_a_beginning(scheme: str) -> None:
    def fails(row: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        if row["a"] == 1234:
            raise ValueError("no")
        return row

    app, found, others = hg.App("bad"), list[dict[str, Any]](), list[dict[str, Any]]()
    numbers = app.source("numbers", testing.from_rows(ROWS))
    numbers.key_by("k").process(fails, schema=NUMBERS).to("bad", hg.to_list(found))
    numbers.filter("a >= 0").to("good", hg.to_list(others))
    engine = hg.Threads(workers=3, packet_rows=50, partitioning=scheme, buckets=5, split=True)
    report = app.run(engine, "qst")
    assert "no" in str(report.queries["bad"].error)
    assert found == ROWS[: len(found)]
    assert len(found) <= 1234
    assert others == ROWS


@pytest.mark.parametrize("reorder", ["nonblocking", "lock"])
def test_nothing_is_sent_behind_a_call_that_failed(reorder: str) -> None:
    """The first packet fails when the second, which another worker has, is done already."""

    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column("a")[0].as_py() == 0:
            raise ValueError("first")
        return batch

    app = hg.App("failing")
    app.source("numbers", testing.from_rows(ROWS[:200])).map_packets(fails, schema=NUMBERS).to(
        "bad", hg.to_list([])
    )
    policy = hg.policies.get("round_robin", train=Count(100))
    core = Core(app.network, policy, workers=2, packet_rows=100, drain=True, reorder=reorder)
    core.start()
    for _ in range(2):
        packets = core.admission.poll(0.0)
        assert not isinstance(packets, Wait)
        core.handle(Admitted(packets, core.admission.version), 0.0)
    calls = []
    for worker in (0, 1):
        calls += [one.work for one in core.handle(Free(worker), 0.0) if isinstance(one, RunCall)]
    assert len(calls) == 2
    for work in reversed(calls):
        core.calls.execute(work)
        core.calls.send(work)
    assert [unit.ticket for unit in core.live.boxes[0].sent] == [0, 1]
    assert core.live.outputs[0].inbox.rows == 0


@pytest.mark.parametrize("reorder", ["nonblocking", "lock"])
def test_results_that_overtake_one_wait_for_it(reorder: str) -> None:
    """The first packet is held until so many others are done that the ring of two is full, and no more."""
    done, enough = [0], threading.Event()

    def held(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column("a")[0].as_py() == 0:
            assert enough.wait(SOON)
        else:
            done[0] += 1
            if done[0] == (1 if reorder == "nonblocking" else 3):
                enough.set()
        return batch

    app, found = hg.App("overtaking"), list[dict[str, Any]]()
    stream = app.source("numbers", testing.from_rows(ROWS))
    stream.map_packets(held, schema=NUMBERS).to("all", hg.to_list(found))
    engine = hg.Threads(workers=2, packet_rows=100, reorder=reorder, ring=2)
    report = app.run(engine, hg.policies.get("round_robin", train=Count(100)))
    assert found == ROWS
    assert (report.ring_full > 0) == (reorder == "nonblocking")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reorder": "blocking"}, "nonblocking, lock"),
        ({"partitioning": "hibrid"}, "Did you mean 'hybrid'"),
        ({"buckets": 0}, "buckets=0"),
        ({"ring": 0}, "ring=0"),
    ],
)
def test_a_scheme_that_there_is_not_is_said_at_once(given: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        hg.Threads(**given)


@pytest.mark.parametrize(
    ("columns", "ranges", "said"),
    [
        (("a", "k"), [1], "one column"),
        (("k",), ["x"], "column 'k', which is int64"),
        (("k",), [5, 3], "ascending"),
        (("k",), [3, 3], "once"),
        (("k",), [None], "once"),
    ],
)
def test_ranges_that_are_none_are_refused(columns: tuple[str, ...], ranges: list[Any], said: str) -> None:
    stream = hg.App("keyed").source("numbers", testing.from_rows(ROWS))
    with pytest.raises(PipelineError, match=said):
        stream.key_by(*columns, ranges=ranges)


@pytest.mark.parametrize(("scheme", "seconds"), [("hybrid", 2.0), ("shared", 3.0)])
def test_in_virtual_time_shared_workers_wait_for_each_other(scheme: str, seconds: float) -> None:
    """Two tuples of one key and two of another, a second each: with one queue for all, the second worker
    waits for the first key, though the other one could be worked on."""
    app, found = hg.App("waiting"), list[dict[str, Any]]()
    keys = app.source("keys", testing.from_rows([{"k": k} for k in (0, 0, 1, 1)])).key_by("k")
    keys.universal(cost=1.0).to("all", hg.to_list(found))
    engine = hg.Simulated(workers=2, packet_rows=1, partitioning=scheme, buckets=8, split=True)
    report = app.run(engine, "mc(train=1)")
    assert found == [{"k": k} for k in (0, 0, 1, 1)]
    assert report.seconds == seconds
