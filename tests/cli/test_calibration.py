"""What ``headgate calibrate`` measures and writes, and how a simulation uses it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate import testing
from headgate.cli.calibration import calibrate as calibrating
from headgate.cli.calibration import operator_costs, yardstick
from headgate.cli.calibration.yardstick import Yardstick
from headgate.connectors.source import Chunk, Reader, Source, Wait
from headgate.errors import PipelineError
from headgate.graph.packet import Packet
from headgate.machine.calibration import Calibration, OperatorCost
from headgate.machine.topology import MIB
from waiting import SOON

MEMORY = hg.MemoryModel("here", {1: 0.0, 2: 1e-11, 3: 3e-11}, 1e-10, bandwidth=2e10, notes=('a "note"',))
COSTS = {
    "filter(a > 0)": OperatorCost(1e-3, 2e-3, 4e-3),
    'filter(s = "x")': OperatorCost(1e-6, 2e-9, 0.0, 3e-9),
    "tumbling window: count(*) AS n": OperatorCost(0.0, 0.0, 1.0),
}
FOUND = Calibration(MEMORY, COSTS, call_overhead=5e-5, scale=1.25)


def test_a_calibration_is_what_was_written(tmp_path: Path) -> None:
    FOUND.save(tmp_path / "host.costs")
    read = Calibration.load(tmp_path / "host.costs")
    assert (read.call_overhead, read.scale) == (pytest.approx(FOUND.call_overhead), FOUND.scale)
    assert read.operators.keys() == COSTS.keys()
    for label, cost in COSTS.items():
        assert read.operators[label] == pytest.approx(cost)
    assert read.memory.levels == pytest.approx(MEMORY.levels)
    assert (read.memory.memory, read.memory.bandwidth) == (pytest.approx(1e-10), pytest.approx(2e10))
    assert (read.memory.name, read.memory.link, read.memory.notes) == ("here", None, MEMORY.notes)
    assert hg.Simulated(topology="host", memory=tmp_path / "host.costs").memory == read.memory


def test_a_simulation_takes_operators_costs_from_the_file(tmp_path: Path) -> None:
    """Two of three rows pass: 1 ms for the packet, 3 × 2 for tuples, 2 × 4 for results, a quarter more."""
    FOUND.save(tmp_path / "host.costs")
    app, found = hg.App("one"), []
    rows = testing.from_rows([{"a": 0}, {"a": 1}, {"a": 2}])
    app.source("s", rows).filter("a > 0", name="box").to("q", hg.to_list(found))
    for costs in (FOUND, tmp_path / "host.costs", str(tmp_path / "host.costs")):
        report = app.run(hg.Simulated(workers=1, costs=costs), "round_robin")
        (call,) = report.trace
        assert call.end - call.start == pytest.approx(5e-5 + 1.25 * (0.001 + 3 * 0.002 + 2 * 0.004))
    assert len(found) == 6
    report = app.run(hg.Simulated(workers=1, costs=replace(FOUND, operators={})), "round_robin")
    assert report.seconds == pytest.approx(5e-5)  # an operator that was not measured costs nothing


def test_what_is_closed_at_the_end_costs_too() -> None:
    app = hg.App("end")
    rows = [{"k": i % 2, "t": i} for i in range(6)]
    times = app.source("s", testing.from_rows(rows)).select("k", "timestamp_seconds(t) AS t", name="times")
    windows = times.key_by("k").window(hg.tumbling("1 minute", on="t")).agg("count(*) AS n", name="box")
    windows.to("q", hg.to_list([]))
    report = app.run(hg.Simulated(workers=1, costs=FOUND), "round_robin")
    assert report.seconds == pytest.approx(2 * 1.25, rel=0.01)


def test_a_keyed_box_pays_for_the_keys_of_every_packet() -> None:
    """Null is a key too; two columns are one key."""
    app = hg.App("keys")
    rows = [{"a": a, "b": b} for a, b in ((1, "x"), (1, "y"), (None, "x"), (1, "x"), (2, None), (None, "x"))]
    keyed = app.source("s", testing.from_rows(rows)).key_by("a", "b")
    keyed.running("count(*) AS n", name="box").to("q", hg.to_list([]))
    costs = Calibration(MEMORY, {app.network.boxes[0].operator.label: OperatorCost(0.0, 0.0, 0.0, 1.0)})
    report = app.run(hg.Simulated(workers=1, costs=costs), "round_robin")
    assert report.seconds == pytest.approx(4)


def test_workers_inside_a_keyed_box_share_its_measured_cost() -> None:
    app = hg.App("keyed")
    rows = [{"a": i} for i in range(100)]
    keyed = app.source("s", testing.from_rows(rows)).key_by("a")
    keyed.running("sum(a) AS s", name="box").to("q", hg.to_list([]))
    label = app.network.boxes[0].operator.label
    costs = Calibration(MEMORY, {label: OperatorCost(0.0, 1.0, 2.0)})
    one = app.run(hg.Simulated(workers=1, costs=costs), "lp")
    four = app.run(hg.Simulated(workers=4, costs=costs, split=True, buckets=20), "lp")
    assert one.seconds == pytest.approx(300)
    assert four.boxes["box"].busy == pytest.approx(300)
    assert four.seconds < 200


# --- mistakes --------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="'headgate calibrate' measures the host's"):
        hg.Simulated(costs=tmp_path / "none.costs")
    with pytest.raises(PipelineError, match="cannot be written to"):
        FOUND.save(tmp_path / "none" / "host.costs")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("[engine]", "[engine"), "cannot be read as TOML"),
        (lambda text: text.replace("[engine]", "[motor]"), r"no table \[engine\]"),
        (lambda text: text.replace("scale = 1.25", "scale = 'much'"), "'scale' must be a number"),
        (lambda text: text.replace("[read]", "[write]"), r"no table \[read\]"),
        (lambda text: text + '"top 5" = [1.0, 2.0]\n', r"'top 5' must be \[call, tuple, result, key\]"),
        (lambda text: text + '"top 5" = [1.0, 2.0, -1.0, 0.0]\n', "'top 5' must be a number"),
    ],
)
def test_a_broken_file_is_told_with_what_is_wrong(tmp_path: Path, change, said: str) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "host.costs"
    FOUND.save(file)
    file.write_text(change(file.read_text()))
    with pytest.raises(PipelineError, match=said):
        hg.Simulated(costs=file)


# --- measuring -------------------------------------------------------------------------------------------

_COST = st.floats(1e-9, 1e-3)


@given(_COST, _COST, _COST)
def test_the_line_through_exact_times_is_their_cost(call: float, tuple_: float, result: float) -> None:
    made = np.array([(1.0, n, n * share) for n in (100.0, 1000.0, 30000.0) for share in (0.1, 0.7)])
    found = _line(made, made @ np.array([call, tuple_, result]))
    assert made @ np.array(found) == pytest.approx(made @ np.array([call, tuple_, result]), rel=1e-3)


def test_no_cost_is_negative_however_times_fall() -> None:
    made = np.array([(1.0, n, n / 2) for n in (10.0, 100.0, 1000.0)])
    assert min(_line(made, np.array([3.0, 2.0, 1.0]))) >= 0


def test_times_that_tuples_explain_are_not_said_to_be_results() -> None:
    """With as many results of every tuple the two cannot be told apart; with more or fewer they can."""
    same = np.array([(1.0, n, n / 4, 0.0) for n in (100.0, 1000.0, 30000.0)])
    assert _line(same, same @ (0.0, 3e-6, 0.0, 0.0)) == pytest.approx([0.0, 3e-6, 0.0, 0.0])
    assert _line(same, same @ (1e-3, 0.0, 4e-6, 0.0)) == pytest.approx([1e-3, 1e-6, 0.0, 0.0])
    other = np.array([*same, (0.0, 0.0, 500.0, 0.0)])
    assert _line(other, other @ (1e-3, 0.0, 4e-6, 0.0)) == pytest.approx([1e-3, 0.0, 4e-6, 0.0])


def test_a_line_is_right_for_usual_packets_where_none_is_right_for_all() -> None:
    """As with a sort, whose rows cost more in larger packets."""
    made = np.array([(1.0, n, 0.0, 0.0) for n in (100.0, 1_000.0, 10_000.0)])
    seconds = made[:, 1] * (10 + np.log(made[:, 1]))
    weighed = operator_costs.line(made, seconds, np.array([1.0, 1.0, operator_costs.USUAL]))
    errors = [abs(made[-1] @ np.array(costs) / seconds[-1] - 1) for costs in (weighed, _line(made, seconds))]
    assert errors[0] < 0.03 < 0.1 < errors[1]


def _line(made: Any, seconds: Any) -> list[float]:
    return operator_costs.line(made, seconds, np.ones(len(made)))


def test_a_round_that_was_disturbed_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    app = hg.App("disturbed")
    app.source("s", testing.from_rows([{"a": i} for i in range(40)])).filter("a > 0").to("q", hg.to_list([]))
    (share,) = operator_costs.inputs(app.network)
    stick, speeds = Yardstick(), iter([2.0, 50.0, 3.0])
    calls = operator_costs.OperatorCalls(share, stick)
    monkeypatch.setattr(
        calls, "_pass", lambda count: [((1.0, 10.0, 5.0, 0.0), 1.0), ((1.0, 9.0, 5.0, 0.0), 2.0)]
    )
    monkeypatch.setattr(stick, "seconds", lambda yards: yards)
    for speed in speeds:
        monkeypatch.setattr(stick, "yards", lambda seconds, speed=speed: seconds * speed)
        calls.again()
    usual = operator_costs.USUAL
    assert calls.calls == [((1.0, 10.0, 5.0, 0.0), 3.0, usual), ((1.0, 9.0, 5.0, 0.0), 6.0, usual)]


@pytest.fixture
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every core of the machine reads an array of its own; with many cores or large caches that is much."""
    monkeypatch.setattr(calibrating, "_LARGEST", 4 * MIB)


@pytest.mark.usefixtures("_little_memory")
def test_every_operator_of_an_application_is_measured() -> None:
    app = hg.App("all")
    stream = app.source("s", hg.from_rate(10, limit=5000))
    windows = stream.key_by("value").window(hg.session("1 minute", on="timestamp"))
    sessions = windows.agg("collect_list(value) AS l", "avg(value) AS m")
    sessions.filter("m > 3").top(3, by="m", every="1 hour", on="window_start").to("q", hg.to_list([]))
    stream.with_columns("CAST(value AS STRING) AS s").key_by("s").running("max(value) AS x").to(
        "r", hg.to_list([])
    )
    before = os.sched_getaffinity(0)
    told: list[float] = []
    found = calibrating.calibrate([app.network], True, lambda what, part: told.append(part), Yardstick())
    assert os.sched_getaffinity(0) == before
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert found.operators.keys() == {box.operator.label for box in app.network.boxes}
    for cost in found.operators.values():
        assert min(cost) >= 0
        assert cost.seconds(1, 1000, 1000, 1000) > 0
    prices = [price for _, price in sorted(found.memory.levels.items())] + [found.memory.memory]
    assert prices == sorted(prices)


@pytest.mark.usefixtures("_little_memory")
def test_operators_are_measured_on_what_would_come_to_them() -> None:
    """Through unions, joins and windows, to the end of the stream, as in a run."""
    app = hg.App("sampled")
    one = app.source("one", testing.from_rows([{"k": i % 3, "t": i} for i in range(50)]))
    two = app.source("two", testing.from_rows([{"k": i % 5, "t": i} for i in range(40)]))
    both = one.union(two).select("k", "timestamp_seconds(t) AS t", name="times")
    both.key_by("k").window(hg.tumbling("10 seconds", on="t", lateness="1 hour")).agg(
        "count(*) AS n", name="windows"
    ).filter("n > 3", name="many").to("q", hg.to_list([]))
    left, right = (s.select("k", "timestamp_seconds(t) AS t") for s in (one, two))
    joined = left.key_by("k").join(right.key_by("k"), within="3 seconds", on="t", name="pairs")
    joined.filter("k < 2", name="low").to("r", hg.to_list([]))
    report = app.run(hg.Simulated(workers=1), "lp")
    shares = list(operator_costs.inputs(app.network))
    found = {share.box.name: sum(map(len, share.rows)) for share in shares}
    assert found == {name: box.tuples_in for name, box in report.boxes.items()}
    for share in shares:
        whole = [packet.batch.to_pylist() for packet in share.rows]
        cut = operator_costs._cut(share, operator_costs._borders(share, 3))
        parts = [[packet.batch.to_pylist() for packet in packets] for packets in cut]
        assert [list(chain.from_iterable(rows)) for rows in zip(*parts, strict=True)] == whole


def test_packets_grow_on_their_way_as_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a box that makes three rows of one, packets have three times the rows; cut alike."""
    monkeypatch.setattr(operator_costs, "default_packet_rows", lambda: 10)
    app = hg.App("growing")
    rows = app.source("s", testing.from_rows([{"a": i} for i in range(36)]))
    rows.flat_map_rows(lambda row: [row] * 3, schema=rows.schema).filter("a >= 0", name="box").to(
        "q", hg.to_list([])
    )
    _, share = operator_costs.inputs(app.network)
    calls = operator_costs.OperatorCalls(share, Yardstick())
    calls.again()
    of_each = [about for about, *_ in calls.calls]
    assert [packets for packets, *_ in of_each[:4]] == [1, 1, 1, 1]
    assert [tuples for _, tuples, *_ in of_each[:4]] == [27, 27, 27, 27]
    assert sum(packets for packets, *_ in of_each[4:8]) == 18, "a quarter of a packet is two rows"
    assert sum(packets for packets, *_ in of_each[8:]) == 36, "and a 64th is one at least"
    monkeypatch.setattr(operator_costs, "CALLS", 5)
    calls = operator_costs.OperatorCalls(share, Yardstick())
    calls.again()
    of_each = [about for about, *_ in calls.calls]
    assert [sum(packets for packets, *_ in of_each[at : at + 4]) for at in (0, 4, 8)] == [4, 5, 5]


def test_small_packets_find_as_much_state_as_there_usually_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls in the middle of the rows, after all rows before them; what comes later is not needed."""
    monkeypatch.setattr(operator_costs, "default_packet_rows", lambda: 8)
    monkeypatch.setattr(operator_costs, "SMALLER", (1, 8))
    monkeypatch.setattr(operator_costs, "CALLS", 10)
    app = hg.App("middle")
    stream = app.source("s", testing.from_rows([{"k": 0, "a": i} for i in range(40)]))
    stream.key_by("k").running("count(*) AS n").to("q", hg.to_list([]))
    (share,) = operator_costs.inputs(app.network)
    worked: list[list[int]] = []
    process = share.box.operator.process

    def watched(packets: Sequence[Packet], state: Any) -> list[Packet]:
        worked.append(packets[0].batch.column("a").to_pylist())
        return process(packets, state)

    monkeypatch.setattr(share.box.operator, "process", watched)
    calls = operator_costs.OperatorCalls(share, Yardstick())
    assert sum(about[0] for about, _ in calls._pass(40)) == 10
    assert [len(rows) for rows in worked] == [8, 7] + [1] * 10
    assert list(chain.from_iterable(worked)) == list(range(25))


class Silent(Source):
    schema = pa.schema([("a", pa.int64())])
    finite = False
    live = True

    def open(self) -> Reader:
        return SilentReader()


class SilentReader(Reader):
    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        return Wait()


def test_a_source_that_gives_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_costs, "PATIENCE", 0.01)
    app = hg.App("silent")
    app.source("quiet", Silent()).filter("a > 0").to("q", hg.to_list([]))
    with pytest.raises(PipelineError, match="'quiet' has given no row within"):
        list(operator_costs.inputs(app.network))


def test_a_yardstick_takes_the_speed_of_the_moment_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that was half as fast for half of the time did three quarters of what it can do."""
    monkeypatch.setattr(yardstick, "EVERY", 1000.0)
    stick, loops = Yardstick(), iter([1.0, 2.0, 1.0, 1.0])

    def loop() -> float:
        stick._least = min(stick._least, spent := next(loops))
        return spent

    monkeypatch.setattr(stick, "_loop", loop)
    with stick:
        pass
    slow = stick.yards(12.0)
    with stick:
        pass
    assert slow == stick.yards(9.0) == 9.0
    assert stick.seconds(slow) == 9.0, "seconds of the fastest loop"


def test_a_yardstick_looks_while_something_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moment in the middle counts too, and looking is no part of what is measured."""
    stick, looked = Yardstick(), threading.Event()
    speeds, processor = iter([1.0, 0.5]), iter([10.0, 10.5])
    monkeypatch.setattr(yardstick, "EVERY", 0.0)
    clocks = SimpleNamespace(thread_time=lambda: 0.2, process_time=lambda: next(processor))
    monkeypatch.setattr(yardstick, "time", clocks)

    def loop() -> float:
        if threading.current_thread() is threading.main_thread():
            return next(speeds)
        stick._over.set()
        looked.set()
        return 0.25

    monkeypatch.setattr(stick, "_loop", loop)
    found, yards = stick.of_process(lambda: looked.wait(SOON))
    assert found
    assert stick.yards(3.0) == 1 + 2 + 4
    assert yards == pytest.approx(stick.yards(10.5 - 10.0 - 0.2))
