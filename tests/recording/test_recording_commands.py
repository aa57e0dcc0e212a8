"""``headgate run --record``, ``replay`` and ``advise``; recordings of runs that are killed, and on Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import headgate as hg
from headgate.cli import main
from headgate.errors import PipelineError
from headgate.recording import format as file
from headgate.recording.replaying import Replayable
from tests.support.waiting import eventually

APP = """
import headgate as hg

app = hg.App("told")
rows = app.source("rows", hg.from_rate(200, limit=LIMIT))
rows.universal(cost=0.004, selectivity=0.5).to(
    "tight", hg.to_function(lambda *_: None), qos=hg.QoS([(0, 1), (0.1, 1), (1, 0)])
)
rows.universal(cost=0.002).to("loose", hg.to_function(lambda *_: None))
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "told.py"
    path.write_text(APP.replace("LIMIT", "200"))
    return path


def told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object, code: int = 0
) -> str:
    """What a command says, on one line; it exits with ``code``."""
    monkeypatch.setattr(sys, "argv", ["headgate", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0) == code
    said = capsys.readouterr()
    return " ".join((said.out + said.err).split())


def calls(path: Path) -> int:
    """Calls in a recording that is being written."""
    try:
        return len(file.read(path).of(file.CALL))
    except PipelineError:  # it has not even begun
        return 0


@pytest.mark.usefixtures("wide")
def test_commands_record_replay_check_and_advise(
    app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.hgr"

    def headgate(*arguments: object, code: int = 0) -> str:
        return told(capsys, monkeypatch, *arguments, code=code)

    headgate("simulate", app, "--policy", "mc(train=8)", "--workers", 1, "--record", path)
    assert "told, predicted" in headgate("replay", path, "--policy", "qos", "--workers", 2)
    checked = json.loads(headgate("replay", path, "--check", "--json"))["check"]
    assert {one["query"] for one in checked} == {"tight", "loose", ""}
    assert all(abs(one["error"]) < 1e-9 for one in checked)
    assert re.search(r"tight\W+p99\W.*\+0%", headgate("replay", path, "--check"))
    assert "give no other setting with it" in headgate("replay", path, "--check", "--workers", 2, code=1)
    assert "there is no box" not in headgate("replay", path, "--train", 4)
    advice = headgate("advise", path, "--replays", 8, "--most-workers", 2)
    assert "1. headgate run APP --policy" in advice
    assert "--workers 2" in advice
    data = json.loads(headgate("advise", path, "--replays", 8, "--most-workers", 2, "--json"))
    assert set(data["best"][0]["gains"]) == {"tight", "loose"}
    assert "There is no file" in headgate("replay", tmp_path / "no.hgr", code=1)


def test_a_recording_of_a_killed_run_can_be_read(tmp_path: Path) -> None:
    path, app = tmp_path / "run.hgr", tmp_path / "told.py"
    app.write_text(APP.replace("LIMIT", "None").replace("cost=0.00", "cost=0.000"))  # no overload
    command = "import sys; from headgate.cli import main; sys.argv[0] = 'headgate'; main()"
    options = ["--engine", "threads", "--workers", "1", "--policy", "mc", "--record", str(path)]
    environment = os.environ | {"HEADGATE_RUNTIME": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", command, "run", str(app), *options],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: calls(path) > 20)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    recorded = Replayable(path)
    assert (recorded.measured, recorded.recording.whole) == (None, False)
    assert recorded.run("qos").queries["loose"].tuples_out > 0


@pytest.mark.xdist_group("spark")
def test_a_run_on_spark_is_recorded_by_steps(tmp_path: Path) -> None:
    path = tmp_path / "run.hgr"
    app = hg.App("sparked")
    rows = app.source("rows", hg.from_batches(pa.table({"a": list(range(1000))})))
    few = rows.filter("a < 100")
    few.to("few", hg.to_list([]), qos=hg.QoS([(0, 1), (60, 1)]))
    report = app.run(hg.Spark(workers=2), "mc", record=path)
    recorded = Replayable(path)
    steps = recorded.recording.of(file.STEP).texts
    assert len(steps) == report.steps
    assert all(step["all"] > 0 for step in steps)
    assert sum(step["tuples"] for step in steps) == 1000
    assert int(recorded.models[0].tuples.sum()) == 1000
    assert recorded.run("fcfs").queries["few"].tuples_out == report.queries["few"].tuples_out == 100
