"""Savepoints and the commands that look at a checkpoint: without Spark, over states of real operators."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import headgate as hg
from headgate.checkpoint.identity import identity
from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.owner import claim
from headgate.checkpoint.savepoint import begin_from, savepoint, told
from headgate.cli.main import cli
from headgate.errors import RunError
from stepping import Driver, Rows, forget_states

SCHEMA = pa.schema([("k", pa.int64()), ("x", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])
APP = """
import headgate as hg, pyarrow as pa
SCHEMA = pa.schema([("k", pa.int64()), ("x", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])
app = hg.App("saved")
rows = app.source("rows", hg.from_files({folder!r}, format="json", schema=SCHEMA, follow=True))
rows.key_by("k").running({running}).to("sums", hg.to_list([]))
windows = rows.key_by("k").window(hg.tumbling("1 minute", on="ts"))
windows.agg("count(*) AS n", "sum(x) AS total").to("windows", hg.to_list([]))
"""


def write(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    rows = [
        {"k": i % 2, "x": i, "ts": f"2026-01-01T00:00:{i:02d}Z"} for i in range(number * 10, number * 10 + 10)
    ]
    (folder / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def app(tmp_path: Path, running: str = '"count(*) AS n", "sum(x) AS total"') -> hg.App:
    space: dict[str, Any] = {}
    text = APP.format(folder=str(tmp_path / "in"), running=running)
    (tmp_path / "app.py").write_text(text)
    exec(text, space)
    made = space["app"]
    assert isinstance(made, hg.App)
    return made


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Ten rows taken, ten more admitted and waiting."""
    write(tmp_path / "in", 0)
    driver = Driver(app(tmp_path), tmp_path / "checkpoint", {})
    driver.poll(1.0)
    driver.step()
    write(tmp_path / "in", 1)
    driver.poll(2.0)
    driver.step(upto=12)
    return tmp_path / "checkpoint"


def go_on(tmp_path: Path, folder: Path) -> dict[str, Rows]:
    forget_states()
    out: dict[str, Rows] = {}
    driver = Driver(app(tmp_path), folder, out)
    driver.poll(3.0)
    driver.step()
    return out


def test_a_new_checkpoint_goes_on_from_a_savepoint_whatever_became_of_the_old_one(
    tmp_path: Path, checkpoint: Path
) -> None:
    old, saved, new = (Folder(str(path)) for path in (checkpoint, tmp_path / "saved", tmp_path / "new"))
    label = savepoint(old, saved)
    assert label["queries"] == ["sums", "windows"]
    wanted = go_on(tmp_path, checkpoint)
    assert [row["n"] for row in wanted["sums"]] == [7, 7, 8, 8, 9, 9, 10, 10]
    for name in ("states", "spool"):
        for file in (checkpoint / name).iterdir():
            file.unlink()
    new.prepare()
    begin_from(saved, new)
    begin_from(saved, new)  # as by a service that starts it again
    assert go_on(tmp_path, tmp_path / "new") == wanted
    assert identity(new) != identity(old)
    begin_from(saved, new)
    assert go_on(tmp_path, tmp_path / "new") == {}, "it goes on where it was, not at the savepoint again"
    other = Folder(str(tmp_path / "other"))
    other.prepare()
    begin_from(saved, other)
    assert go_on(tmp_path, tmp_path / "other") == wanted, "a savepoint serves more than once"


def test_only_what_the_log_names_is_copied(tmp_path: Path, checkpoint: Path) -> None:
    (checkpoint / "states" / "000000099-left.arrow").write_bytes(b"x")
    (checkpoint / "spool" / "left.arrow").write_bytes(b"x")
    savepoint(Folder(str(checkpoint)), Folder(str(tmp_path / "saved")))
    found = {str(path.relative_to(tmp_path / "saved")) for path in (tmp_path / "saved").rglob("*.arrow")}
    assert found
    assert not any("left" in name for name in found)
    assert not (tmp_path / "saved" / "log").exists()
    assert len(list((tmp_path / "saved" / "snapshots").iterdir())) == 1


def test_folders_that_are_something_else_are_refused(tmp_path: Path, checkpoint: Path) -> None:
    old, saved = Folder(str(checkpoint)), Folder(str(tmp_path / "saved"))
    with pytest.raises(RunError, match="has a checkpoint or a savepoint already"):
        savepoint(old, old)
    savepoint(old, saved)
    with pytest.raises(RunError, match="has a checkpoint or a savepoint already"):
        begin_from(saved, old)
    with pytest.raises(RunError, match="no savepoint in"):
        begin_from(old, Folder(str(tmp_path / "new")))
    with pytest.raises(RunError, match="no checkpoint in"):
        savepoint(Folder(str(tmp_path / "nothing")), Folder(str(tmp_path / "more")))


def test_what_a_run_has_claimed_outside_stays_with_it(tmp_path: Path, checkpoint: Path) -> None:
    driver = Driver(app(tmp_path), checkpoint, {})
    driver.log.append({"kind": "change", "claims": {"sums": {"folder": "/results", "number": 3}}})
    old, saved, new = (Folder(str(path)) for path in (checkpoint, tmp_path / "saved", tmp_path / "new"))
    savepoint(old, saved)
    new.prepare()
    begin_from(saved, new)
    assert told(old).claims == {"sums": {"folder": "/results", "number": 3}}
    assert told(new).claims == {}


# --- commands ---------------------------------------------------------------------------------------------


def test_plan_tells_before_it_is_done(
    tmp_path: Path, checkpoint: Path, headgate: Callable[..., str], wide: None
) -> None:
    before = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    more = '"count(*) AS n", "sum(x) AS total", "max(x) AS high"'
    app(tmp_path, more)
    said = headgate("plan", tmp_path / "app.py", "--checkpoint", checkpoint)
    assert "'running-1' keeps its state, max(x) AS high from now on" in said
    assert "The upgrade would be accepted." in said
    app(tmp_path, '"max(x) AS high"')
    arguments = ["plan", str(tmp_path / "app.py"), "--checkpoint", str(checkpoint)]
    refused = CliRunner().invoke(cli, [*arguments, "--json"])
    assert refused.exit_code == 1
    answer = json.loads(refused.output)
    assert answer["accepted"] is False
    verdicts = {one["query"]: one["what"] for one in answer["queries"]}
    assert verdicts == {"sums": "refused", "windows": "goes on"}
    assert any("--reset sums" in offer for offer in answer["queries"][0]["offers"])
    assert "as you said" in headgate(*arguments, "--reset", "sums")
    assert {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()} == before


def test_state_is_a_table(tmp_path: Path, checkpoint: Path, headgate: Callable[..., str], wide: None) -> None:
    found = json.loads(headgate("state", checkpoint, "windows", "--json"))
    [windows] = found
    assert windows["at"] == 12
    assert [(row["k"], row["n"], row["total"]) for row in windows["state"]] == [(0, 6, 30), (1, 6, 36)]
    [sums] = json.loads(headgate("state", checkpoint, "sums", "--json", "--limit", 1))
    assert (sums["rows"], len(sums["state"])) == (2, 1)
    assert sums["state"][0]["total"] == "30"
    assert "The first 1 rows" in headgate("state", checkpoint, "sums", "--limit", 1)
    savepoint(Folder(str(checkpoint)), Folder(str(tmp_path / "saved")))
    assert json.loads(headgate("state", tmp_path / "saved", "windows", "--json")) == found


def test_a_savepoint_of_a_checkpoint_that_is_in_use_is_refused(
    tmp_path: Path, checkpoint: Path, headgate: Callable[..., str]
) -> None:
    held = claim(Folder(str(checkpoint)), "saved")
    try:
        with pytest.raises(RunError, match="is in use: application 'saved'"):
            headgate("savepoint", tmp_path / "saved", "--checkpoint", checkpoint)
    finally:
        held.release()
    assert "2 queries" in headgate("savepoint", tmp_path / "saved", "--checkpoint", checkpoint)
