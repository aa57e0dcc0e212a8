"""``headgate bench spark-state``: both sides fill a state and go on from it, with right answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from benchmarks.experiments.spark import state, state_worker
from benchmarks.experiments.spark.state import Found, claims
from headgate.errors import HeadgateError

KEYS, ROWS = 500, 20_000


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("side", ["structured", "headgate"])
def test_a_side_fills_its_state_and_goes_on_from_it(
    side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, which has a session already; the benchmark takes a new process for each run."""
    monkeypatch.setattr(state, "FILE_ROWS", ROWS // 4)
    given = tmp_path / "in"
    given.mkdir()
    answer = state_worker.headgate if side == "headgate" else state_worker.structured
    state.load(given, KEYS)
    answer(state.request(side, tmp_path, KEYS))
    state.update(given, KEYS, 0, ROWS, np.random.default_rng(2))
    found = Found(**answer(state.request(side, tmp_path, ROWS)))
    assert found.memory["jvm"] > 0
    if side == "headgate":
        answers = tmp_path / "answers-headgate"
        assert state._right(given, answers)
        assert pq.read_table(answers).num_rows == -(-(KEYS + ROWS) // 1000)
        next(answers.glob("*.parquet")).unlink()
        assert not state._right(given, answers)
    else:
        assert len(found.steps) == 3, "a batch for each file, the first of which is the restart"


def test_a_side_that_fails_is_said_and_nothing_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(side: str, folder: Path, new: int) -> None:
        raise HeadgateError(f"{side} is out of memory.")

    monkeypatch.setattr(state, "ask", fail)
    console = Console(record=True, width=200)
    (result,) = state.run(True, console, rows=1_000)
    assert result.holds is False
    assert "headgate is out of memory." in console.export_text()


def test_hits_are_claimed_where_the_engine_counts_them() -> None:
    found = {
        (10, "headgate"): Found(1.0, [0.1, 0.3, 0.2], {"jvm": 1.0, "python": 2.0}, 100.0, 0.95),
        (10, "structured"): Found(2.0, [0.4], {"jvm": 6.0}, 50.0),
        (20, "headgate"): Found(1.0, [0.1], {"jvm": 1.0}, None, 0.5),
        (30, "headgate"): Found(None, [], {"jvm": 1.0}),
    }
    told = {(result.name, result.claim): result for result in claims(found, True)}
    assert told["spark-state, 10 keys", "longest step, s"].ratio == pytest.approx(0.75)
    assert told["spark-state, 10 keys", "MiB of JVM and Python workers"].ratio == pytest.approx(0.5)
    hits = {name: result.holds for (name, _), result in told.items() if name.endswith("hits")}
    assert hits == {"spark-state, 10 keys, hits": True, "spark-state, 20 keys, hits": False}
