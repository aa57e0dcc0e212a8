"""``headgate.testing``: each tool, used as one would use it."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pyarrow as pa
import pytest

import headgate
import headgate as hg
from headgate import testing
from headgate.errors import PipelineError, RunError
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.events import Finished, Idle, QueueState, Spawned, Started
from headgate.scheduling.interface import Run, Wake


def test_the_example_of_the_module() -> None:
    """What its docstring shows works as it stands there."""
    text = testing.__doc__ or ""
    example = text[text.index("from headgate import testing") :]
    names: dict[str, object] = {}
    exec(compile(example, "the example", "exec"), names)
    tests = [name for name in names if name.startswith("test_")]
    assert tests
    for name in tests:
        names[name]()  # type: ignore[operator]


def modules() -> list[str]:
    found = pkgutil.walk_packages(headgate.__path__, "headgate.")
    return [m.name for m in found if "examples" not in m.name and not m.name.endswith("__main__")]


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0


# --- lists in, lists out --------------------------------------------------------------------------------


def test_run_sends_rows_through_a_pipeline() -> None:
    rows = [{"a": 1}, {"a": 5}, {"a": 7}]
    assert testing.run(rows, lambda s: s.filter("a > 2")) == [{"a": 5}, {"a": 7}]


def test_run_on_any_engine_and_policy(engine: hg.Engine) -> None:
    rows = [{"k": i % 2, "a": i} for i in range(6)]
    found = testing.run(
        rows, lambda s: s.key_by("k").running("sum(a) AS s"), engine=engine, policy="tuple_at_a_time"
    )
    assert [row["s"] for row in found] == [0, 1, 2, 4, 6, 9]


def test_run_raises_what_went_wrong() -> None:
    with pytest.raises(RunError, match="zero"):
        testing.run([{"a": 0}], lambda s: s.select("1 / a AS b"))


def test_run_with_a_schema_of_ones_own() -> None:
    schema = pa.schema([("a", pa.int32())])
    assert testing.run([], lambda s: s.filter("a > 2"), schema=schema) == []
    assert testing.run([{"a": 3}], lambda s: s.select("a + 1 AS b"), schema=schema) == [{"b": 4}]


def test_batch_guesses_the_schema_or_takes_one() -> None:
    assert testing.batch([{"a": 1, "b": "x"}]).schema == pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert testing.batch([], pa.schema([("a", pa.int8())])).num_rows == 0
    with pytest.raises(PipelineError, match="say what their schema would be"):
        testing.batch([])


# --- time turned by hand --------------------------------------------------------------------------------


def test_timed_rows_arrive_when_they_are_told_to() -> None:
    app, found = hg.App("timed"), []
    source = testing.Timed([(1.5, [{"a": 2}]), (0.0, [{"a": 0}, {"a": 1}])])
    app.source("rows", source).to("q", hg.to_list(found))
    report = app.run("simulated")
    assert found == [{"a": 0}, {"a": 1}, {"a": 2}]
    assert report.seconds == 1.5
    assert report.queries["q"].latency.max == 0.0
    with pytest.raises(PipelineError, match="at least one"):
        testing.Timed([])


def test_timed_rows_come_in_pieces_no_larger_than_asked() -> None:
    reader = testing.Timed([(0.0, [{"a": i} for i in range(5)])]).open()
    sizes = []
    while (chunk := reader.poll(0.0, 2)) is not None:
        sizes.append(chunk.batch.num_rows)  # type: ignore[union-attr]
    assert sizes == [2, 2, 1]


def test_a_crank_moves_an_application_on_by_hand() -> None:
    app, found = hg.App("crank"), []
    rows = testing.Timed([(0.0, [{"a": 0}, {"a": 1}]), (5.0, [{"a": 2}])])
    app.source("rows", rows).universal(cost=1.0, name="work").to("q", hg.to_list(found))
    with testing.Crank(app, "round_robin", workers=1) as crank:
        crank.advance(1.9)
        assert found == []
        assert crank.now == 1.9
        crank.advance(0.1)
        assert [row["a"] for row in found] == [0, 1]
        assert crank.calls == [("work", 2)]
        crank.advance(3.5)
        assert crank.now == 5.5
        assert len(found) == 2
        report = crank.drain()
    assert [row["a"] for row in found] == [0, 1, 2]
    assert testing.calls(report) == crank.calls == [("work", 2), ("work", 1)]
    assert report.seconds == crank.report.seconds == 6.0


def test_a_crank_takes_the_settings_of_the_engine() -> None:
    app = hg.App("crank")
    app.source("rows", testing.from_rows([{"a": 0}])).filter("a = 0", name="f").to("q", hg.to_list([]))
    with testing.Crank(app, call_overhead=0.5, costs={"f": 2.0}) as crank:
        assert crank.drain().seconds == 2.5


# --- policies -------------------------------------------------------------------------------------------


def test_a_recorder_writes_down_what_a_policy_saw_and_decided() -> None:
    recorder = testing.Recorder("round_robin")
    found = testing.run([{"a": 1}], lambda s: s.filter("a = 1"), policy=recorder, workers=1)
    assert found == [{"a": 1}]
    assert [type(event) for event, _ in recorder.log][:3] == [Spawned, Idle, Started]
    assert [d.plan[0].box for _, made in recorder.log for d in made if isinstance(d, Run)] == [0]
    assert any(isinstance(event, Finished) for event, _ in recorder.log)
    assert recorder.name == "round_robin"


def test_play_asks_a_policy_without_any_engine() -> None:
    boxes = [BoxEntry("only", 1, (), (), ("q",))]
    assert testing.play("round_robin", boxes, [Idle(0.0, 0), Spawned(1.0, 0, QueueState(3))]) == [Wake((0,))]
