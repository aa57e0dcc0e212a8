"""Recordings, replays of them, and advice: predictions of simulated runs are exact, under any policy."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import headgate as hg
from headgate.errors import PipelineError
from headgate.recording import format as file
from headgate.recording.replaying import Replayable, compared

TIGHT = hg.QoS([(0, 1), (0.01, 1), (0.1, 0)])


def nowhere(name: str, batch: pa.RecordBatch) -> None:
    """Takes results."""


def busy_app() -> hg.App:
    """Two sources, shared boxes, a union and a window, loaded to about nine tenths of two workers."""
    app = hg.App("busy")
    one = app.source("one", hg.from_rate(500, limit=400))
    two = app.source("two", hg.from_rate(300, limit=200, burst=20))
    few = one.universal(cost=0.0008, selectivity=0.4)
    many = few.universal(cost=0.0005, selectivity=1.7)
    few.to("few", hg.to_function(nowhere), qos=TIGHT)
    many.to("many", hg.to_function(nowhere))
    both = many.union(two).universal(cost=0.001)
    both.to("both", hg.to_function(nowhere), qos=hg.QoS([(0, 1), (1, 0)]))
    counted = two.key_by("value").window(hg.tumbling("100 ms", on="timestamp")).agg("count(*) AS n")
    counted.universal(cost=0.0003).to("counted", hg.to_function(nowhere))
    return app


def simulated() -> hg.Simulated:
    costs = {box.name: 0.00001 for box in busy_app().network.boxes if box.operator.cost is None}
    return hg.Simulated(workers=2, call_overhead=0.0002, costs=costs, packet_rows=64)


def figures(report: hg.Report) -> dict[str, float]:
    """All that a prediction is about, by query and figure."""
    found: dict[str, float] = {}
    for name, own in report.queries.items():
        found |= {f"{name} mean": own.latency.mean, f"{name} p50": own.latency.p50}
        found |= {f"{name} p99": own.latency.p99, f"{name} qos": own.qos or 0.0}
        found[f"{name} results"] = own.tuples_out
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, hg.Report]:
    path = tmp_path_factory.mktemp("recorded") / "run.hgr"
    return path, busy_app().run(simulated(), "mc", record=path)


def test_a_replay_of_a_simulated_run_is_that_run(recorded: tuple[Path, hg.Report]) -> None:
    path, report = recorded
    replayed = hg.replay(path)
    assert figures(replayed) == pytest.approx(figures(report), abs=1e-12)
    assert replayed.seconds == pytest.approx(report.seconds)
    assert replayed.queued_bytes > 0


@pytest.mark.parametrize("policy", ["qos", "fcfs", "mc(train=3)", "lp"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_replay_under_another_policy_is_what_that_policy_does(
    recorded: tuple[Path, hg.Report], policy: str, workers: int
) -> None:
    real = busy_app().run(simulated(), policy, workers)
    predicted = hg.replay(recorded[0], policy=policy, workers=workers)
    assert figures(predicted) == pytest.approx(figures(real), abs=1e-12)
    assert figures(real) != figures(recorded[1])


def test_replays_choose_machines_packets_and_trains(recorded: tuple[Path, hg.Report]) -> None:
    path, _ = recorded
    assert hg.replay(path, topology="e5310").workers == 8
    assert hg.replay(path, packet_rows=7).packet_rows == 7
    short, whole = (max(call.tuples for call in hg.replay(path, train=n).trace) for n in (2, 64))
    assert short < whole
    for wrong in ({"train": 0}, {"workers": 0}, {"packet_rows": 0}, {"policy": "mcc"}):
        with pytest.raises(PipelineError):
            hg.replay(path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="says itself how long its trains are"):
        hg.replay(path, policy="lp", train=5)


def test_a_run_on_threads_is_recorded_without_its_data(tmp_path: Path) -> None:
    path = tmp_path / "run.hgr"
    app, out = hg.App("shop"), []
    rows = pa.table({"k": [n % 7 for n in range(5000)], "secret": ["whisper"] * 5000})
    stream = app.source("rows", hg.from_batches(rows)).filter("k > 1")
    stream.to("kept", hg.to_list(out), qos=TIGHT)
    stream.key_by("k").running("count(*) AS n").to("counted", hg.to_function(nowhere))
    report = app.run(hg.Threads(packet_rows=500), "qos", 2, record=path)
    assert b"whisper" not in path.read_bytes()
    recorded = Replayable(path)
    assert int(recorded.models[0].tuples.sum()) == 5000
    assert recorded.measured is not None
    assert recorded.measured["queries"]["kept"]["tuples_out"] == report.queries["kept"].tuples_out == len(out)
    replayed = recorded.run("mc", 1, packet_rows=100)
    assert {name: own.tuples_out for name, own in replayed.queries.items()} == {
        name: own.tuples_out for name, own in report.queries.items()
    }
    table = compared(recorded.measured, recorded.measured)
    assert {one.what for one in table} >= {"p50", "p99", "utility", "throughput"}
    assert all(one.error == 0 for one in table)


def test_what_was_written_before_a_kill_can_be_read(recorded: tuple[Path, hg.Report], tmp_path: Path) -> None:
    cut = tmp_path / "cut.hgr"
    with pa.OSFile(str(recorded[0])) as whole:
        stream = pa.ipc.open_stream(whole)
        table = stream.read_all()
    batches = table.combine_chunks().to_batches(max_chunksize=200)
    assert len(batches) > 4
    with pa.OSFile(str(cut), "wb") as made, pa.ipc.new_stream(made, table.schema) as writer:
        for batch in batches[:3]:
            writer.write_batch(batch)
        size = made.tell()
        for batch in batches[3:]:
            writer.write_batch(batch)
    for length in (size, size + 100):
        cut.write_bytes(cut.read_bytes()[:length])
        found = file.read(cut)
        assert (len(found.rows), found.whole) == (600, False)
    # What is left still predicts, up to its last moment.
    assert sum(own.tuples_out for own in hg.replay(cut).queries.values()) > 0


def test_files_that_are_no_recording_are_named(recorded: tuple[Path, hg.Report], tmp_path: Path) -> None:
    foreign, text, later = tmp_path / "foreign.arrow", tmp_path / "notes.txt", tmp_path / "later.hgr"
    with pa.OSFile(str(foreign), "wb") as out, pa.ipc.new_stream(out, pa.schema([("a", pa.int64())])):
        pass
    text.write_text("This is no Arrow at all, but long enough to be looked at.")
    schema = pa.schema([("a", pa.int64())], {b"headgate": json.dumps({"version": 99}).encode()})
    with pa.OSFile(str(later), "wb") as out, pa.ipc.new_stream(out, schema):
        pass
    for path, why in (
        (tmp_path / "none.hgr", "There is no file"),
        (text, "is not a recording"),
        (foreign, "not a recording of a run"),
        (later, "version 99"),
    ):
        with pytest.raises(PipelineError, match=why):
            hg.replay(path)
    with pytest.raises(PipelineError, match="there is no folder"):
        busy_app().run("simulated", record=tmp_path / "nowhere" / "run.hgr")


def test_an_object_as_policy_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "run.hgr"
    busy_app().run(simulated(), hg.policies.get("mc", train=hg.trains.Count(9)), record=path)
    with pytest.raises(PipelineError, match="say which policy to replay"):
        hg.replay(path)
    assert hg.replay(path, policy="mc(train=9)").policy == "mc"


def test_a_change_is_recorded_and_told(tmp_path: Path) -> None:
    path = tmp_path / "run.hgr"
    busy_app().run(simulated(), "mc", record=path, changes=[hg.Change(at=0.3, policy="qos")])
    assert Replayable(path).changes == [{"policy": "qos"}]
    assert any("changed while it went on (policy)" in problem for problem in hg.replay(path).problems)


def test_advice_finds_a_better_setting_and_says_when_there_is_none(
    recorded: tuple[Path, hg.Report], tmp_path: Path
) -> None:
    heard: list[float] = []
    found = hg.advise(recorded[0], replays=8, most_workers=4, tell=lambda what, part: heard.append(part))
    assert found.replays <= 8
    assert heard == sorted(heard)
    best = found.best[0]
    assert best.score > found.recorded.score
    assert best.setting.workers == 4  # two are loaded to nine tenths
    assert "--workers 4" in best.options
    before, after = found.recorded.report.queries, best.report.queries
    assert best.gains["few"] == pytest.approx((after["few"].utility or 0) - (before["few"].utility or 0))
    idle = hg.App("idle")
    alone = idle.source("rows", hg.from_rate(10, limit=20)).universal(cost=0.001)
    alone.to("alone", hg.to_function(nowhere), qos=TIGHT)
    idle.run(hg.Simulated(workers=1), "mc", record=tmp_path / "idle.hgr")
    nothing = hg.advise(tmp_path / "idle.hgr", replays=4, most_workers=1)
    assert nothing.best == []
    assert "nothing to gain" in repr(nothing)
