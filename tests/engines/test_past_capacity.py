"""More arrives than can be done: tight goals stay met, loose ones wait, no query stops the source."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

import headgate as hg
from headgate import testing
from headgate.demo.ramp import Ramp
from headgate.engines.spool import SEGMENT, Spool
from headgate.errors import PipelineError
from headgate.graph.packet import Order, Packet

TIGHT, LOOSE = hg.QoS([(0, 1), (1, 1), (3, 0)]), hg.QoS([(0, 1), (5, 1), (30, 0)])
QUERIES, RATE, WORKERS = 12, 120, 2
PACKET = 32
SWITCH = 6.0


def overloaded(load: float, results: list[list[int]] | None = None) -> hg.App:
    """Twelve queries over one source that can do ``RATE`` rows a second, every third one tight."""
    app = hg.App("overloaded")
    rate = RATE * load
    start = datetime(2026, 1, 1, tzinfo=UTC)
    stream = app.source("numbers", Ramp([(0.0, rate)], max(1, round(rate / 20)), start))
    for number in range(QUERIES):
        out = stream.universal(cost=WORKERS / QUERIES / RATE, name=f"b{number}")
        sink = hg.to_list([] if results is None else results[number])
        out.to(f"q{number}", sink, qos=LOOSE if number % 3 else TIGHT)
    return app


def run(policy: str, load: float, until: float, **options: object) -> hg.Report:
    # Longer slices than by default: fewer decisions to simulate.
    qos = hg.policies.get("qos", time_slice=0.05)
    changes = [hg.Change(at=SWITCH, policy=qos)] if policy == "mc then qos" else []
    engine = hg.Simulated(workers=WORKERS, packet_rows=PACKET, **options)
    return overloaded(load).run(engine, qos if policy == "qos" else "mc", until=until, changes=changes)


def tight(report: hg.Report) -> float:
    """Mean utility of the tight queries; what has not been answered counts as 0."""
    return float(np.mean([report.queries[f"q{n}"].utility for n in range(0, QUERIES, 3)]))


@pytest.mark.parametrize(("load", "least"), [(1.2, 0.9), (2.0, 0.9)])
def test_tight_queries_stay_in_their_goals_past_capacity(load: float, least: float) -> None:
    """Where fair turns lose them.  The rows of the last second have no answer yet, and count as 0."""
    by_worth, by_turns = run("qos", load, 15), run("mc", load, 15)
    assert tight(by_worth) > least
    assert tight(by_turns) < 0.7
    assert by_worth.queries["q0"].latency.max < 3


def test_tight_queries_that_alone_are_too_much_are_not_all_lost() -> None:
    """At 3.3 times capacity they need a tenth more than there is: some are given up for others."""
    report = run("qos", 3.3, 24)
    assert sorted(report.queries[f"q{n}"].utility for n in range(0, QUERIES, 3))[-2] > 0.6


def test_a_switch_with_a_backlog_brings_tight_queries_back_within_seconds() -> None:
    before, after, end = (run("mc then qos", 2.0, until) for until in (SWITCH, 12.0, 16.0))
    worth = [sum(report.queries[f"q{n}"].worth for n in range(0, QUERIES, 3)) for report in (after, end)]
    rows = RATE * 2.0 * 4.0 * 4
    assert tight(before) < 0.5
    assert (worth[1] - worth[0]) / rows > 0.9  # from six seconds after the switch on


def test_a_loose_query_that_is_behind_does_not_hold_up_the_source() -> None:
    """The longest queue is far beyond the bound, and rows are as old as their queries let them become."""
    report = run("qos", 2.0, 15)
    assert report.queries["q1"].waiting > 16 * PACKET
    assert report.spooled > 0
    held = run("qos", 2.0, 15, spool=0)
    assert max(query.waiting for query in held.queries.values()) <= 17 * PACKET
    assert held.spooled == 0
    assert tight(report) > tight(held) + 0.1


def test_a_full_spool_holds_the_source_back_again() -> None:
    report = run("qos", 3.0, 15, spool=1)
    rows = SEGMENT // 24  # one segment is begun; value, timestamp and arrival of each row are in it
    assert max(query.waiting for query in report.queries.values()) <= rows + 17 * PACKET


def test_without_goals_queues_keep_their_bound() -> None:
    app = hg.App("bounded")
    stream = app.source("numbers", hg.from_rate(1_000, burst=50))
    for number in range(3):
        stream.universal(cost=0.01, name=f"b{number}").to(f"q{number}", hg.to_list([]))
    report = app.run(hg.Simulated(workers=1, packet_rows=PACKET), "fcfs", until=5.0)
    assert report.spooled == 0
    assert max(query.waiting for query in report.queries.values()) <= 17 * PACKET


@pytest.mark.parametrize("engine", [hg.Threads(2, packet_rows=32), hg.Simulated(workers=2, packet_rows=32)])
def test_spooled_rows_come_out_as_if_they_had_waited_in_memory(engine: hg.Engine) -> None:
    app, slow, fast = hg.App("late"), [], []
    numbers = app.source("numbers", hg.from_rate(1_000_000, limit=6_000, burst=100)).select(
        "value", "value % 7 AS k"
    )
    late = numbers.universal(cost=1e-5, name="slow").filter("k < 6")
    late.key_by("k").running("count(*) AS n").select("value", "n").to("slow", hg.to_list(slow), qos=LOOSE)
    numbers.filter("k = 1").select("value").to("fast", hg.to_list(fast), qos=TIGHT)
    report = app.run(engine, "fcfs")
    expected = [row for row in range(6_000) if row % 7 < 6]
    assert [row["value"] for row in slow] == expected
    assert [row["n"] for row in slow] == [row // 7 + 1 for row in expected]
    assert [row["value"] for row in fast] == list(range(1, 6_000, 7))
    assert report.spooled > 0


# --- the spool ----------------------------------------------------------------------------------------------


def packet(rows: int) -> Packet:
    batch = pa.record_batch(
        {"n": pa.array(range(rows)), "s": pa.array([f"text {row}" for row in range(rows)])}
    )
    order = Order(np.arange(rows) * 2, np.linspace(0, 1, rows), rows)
    return Packet(batch, order)


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_packet_is_the_same_afterwards_and_its_space_is_free_when_it_is_gone(in_memory: bool) -> None:
    spool, given = Spool(SEGMENT + 1, in_memory=in_memory), packet(1_000)
    kept = spool.keep(given)
    assert kept.batch.equals(given.batch)
    assert kept.order.serials.tolist() == given.order.serials.tolist()
    assert kept.order.arrival_array().tolist() == given.order.arrival_array().tolist()
    large = spool.keep(packet(400_000))
    assert spool.used > SEGMENT + 1
    assert not spool.has_room
    assert spool.keep(given) is given
    del large
    assert spool.used == SEGMENT
    assert spool.has_room
    del kept
    spool.close()
    assert spool.used == 0


def test_a_full_disk_is_no_crash(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def full(*given: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    spool, given = Spool(1 << 30), packet(10)
    assert spool.keep(given) is given
    assert not spool.has_room
    assert "No space left" in caplog.text


@pytest.mark.parametrize("made", [hg.Threads, hg.Simulated])
@pytest.mark.parametrize("given", [-1, 1.5, True, "1 GiB"])
def test_a_spool_is_a_number_of_bytes(made: type[hg.Engine], given: object) -> None:
    with pytest.raises(PipelineError, match=r"spool=.*give bytes"):
        made(spool=given)


# --- the default --------------------------------------------------------------------------------------------


def test_the_default_policy_honours_goals_where_there_are_any() -> None:
    found = []
    for qos in (None, TIGHT):
        app = hg.App("default")
        app.source("rows", hg.from_rate(10, limit=10)).to("all", hg.to_list([]), qos=qos)
        found.append(app.run("simulated").policy)
    assert found == ["lp", "qos"]
    assert testing.run([{"a": 1}], lambda s: s) == [{"a": 1}]
