"""A checkpoint belongs to one run at a time and to one user, and a stray file in it harms nothing."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from checkpoints import Crash, crashing, read, write_orders
from headgate.errors import RunError
from killed_driver import QUICK, Trains

pytestmark = pytest.mark.xdist_group("spark")
FOLDERS = ("log", "snapshots", "states", "queues", "pipelines", "slots", "spool")


def spark(tmp_path: Path) -> hg.Spark:
    return hg.Spark(checkpoint=tmp_path / "checkpoint", workers=2, options=QUICK)


def sums(tmp_path: Path) -> hg.App:
    """Sums over files, with state, queues and kept history; and rows of a spool."""
    app = hg.App("sums")
    orders = app.source("orders", hg.from_files(tmp_path / "orders"))
    low = orders.filter("amount < 50").key_by("user").running("sum(amount) AS total")
    low.to("sums", hg.to_parquet(tmp_path / "out"), keep="1 day")
    more = app.source("more", hg.from_batches([pa.RecordBatch.from_pydict({"x": list(range(2000))})]))
    more.filter("x >= 0").to("more", hg.to_list([]))
    return app


def half_way(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", 2, 500, seed=1)
    with pytest.raises(Crash), crashing(7):
        sums(tmp_path).run(spark(tmp_path), Trains(100, 1))


# --- one run at a time ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:No commands to this run")
def test_a_second_run_is_refused_while_the_first_is_alive(tmp_path: Path, ends: Any) -> None:
    """The second says who has the checkpoint; the first does not even notice, and then it is free."""
    begun, over = threading.Event(), threading.Event()
    outcomes: list[BaseException | hg.Report] = []

    def app() -> hg.App:
        made = hg.App("shop")
        made.source("ticks", hg.from_rate(100)).to("ticks", hg.to_list([]))
        return made

    def show(report: hg.Report) -> None:
        if report.queries["ticks"].tuples_out:
            begun.set()
        if over.is_set():
            raise KeyboardInterrupt

    def first() -> None:
        try:
            outcomes.append(app().run(spark(tmp_path), until=None, progress=show))
        except BaseException as error:
            outcomes.append(error)

    thread = threading.Thread(target=first, daemon=True)
    thread.start()
    assert begun.wait(100)
    try:
        with pytest.raises(
            RunError, match=rf"is in use.*application 'shop'.*process {os.getpid()} .*since 20\d\d-"
        ):
            ends(lambda: app().run(spark(tmp_path), until=1))
    finally:
        over.set()
        thread.join(100)
    [outcome] = outcomes
    assert isinstance(outcome, hg.Report), outcome
    assert outcome.queries["ticks"].error is None
    app().run(spark(tmp_path), until=1)


HOLD = """
import os, sys, time
from headgate.checkpoint.owner import claim
from headgate.checkpoint.local_folder import Folder
place = Folder(sys.argv[1])
place.prepare()
held = claim(place, "shop")
if os.fork() == 0:  # a process of the user's that outlives the driver owns nothing
    print(os.getpid(), flush=True)
    time.sleep(300)
time.sleep(300)
"""


def test_a_killed_run_leaves_the_checkpoint_free_at_once(tmp_path: Path) -> None:
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "checkpoint")], stdout=subprocess.PIPE, text=True
    )
    assert held.stdout is not None
    child = int(held.stdout.readline())
    app = hg.App("shop")
    app.source("rows", hg.from_batches([pa.RecordBatch.from_pydict({"x": [1]})])).to("rows", hg.to_list([]))
    try:
        with pytest.raises(RunError, match=rf"process {held.pid} "):
            app.run(spark(tmp_path))
        held.send_signal(signal.SIGKILL)
        held.wait()
        assert app.run(spark(tmp_path)).queries["rows"].error is None
    finally:
        held.kill()
        os.kill(child, signal.SIGKILL)


# --- one user ---------------------------------------------------------------------------------------------


def modes(root: Path) -> dict[str, str]:
    """Of everything in a checkpoint, what others than the owner may do."""
    paths = [root, *root.rglob("*")]
    found = {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) & 0o077 for path in paths}
    return {name: oct(mode) for name, mode in found.items() if mode}


def test_a_checkpoint_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        half_way(tmp_path)
        found = modes(tmp_path / "checkpoint")
        sums(tmp_path).run(spark(tmp_path), Trains(100, 2))
    finally:
        os.umask(before)
    assert found == {}
    assert modes(tmp_path / "checkpoint") == {}
    kinds = {path.name for path in (tmp_path / "checkpoint").iterdir() if path.is_dir()}
    assert {"log", "states", "queues", "pipelines", "slots", "spool", "history"} <= kinds


def test_folders_of_an_older_checkpoint_are_closed(tmp_path: Path) -> None:
    half_way(tmp_path)
    checkpoint = tmp_path / "checkpoint"
    for path in checkpoint.iterdir():
        path.chmod(0o755 if path.is_dir() else 0o644)
    sums(tmp_path).run(spark(tmp_path))
    assert {name for name in modes(checkpoint) if (checkpoint / name).is_dir()} == set()


@pytest.mark.parametrize("place", ["", "log", "pipelines", "states"])
def test_a_checkpoint_that_others_can_write_is_refused(tmp_path: Path, place: str) -> None:
    half_way(tmp_path)
    (tmp_path / "checkpoint" / place).chmod(0o777)
    with pytest.raises(RunError, match=r"others can write to.*chmod go-w"):
        sums(tmp_path).run(spark(tmp_path))


def test_a_folder_made_in_advance_is_taken_and_closed_if_it_is_empty(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", 1, 100, seed=1)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint").chmod(0o775)
    sums(tmp_path).run(spark(tmp_path))
    assert modes(tmp_path / "checkpoint") == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    half_way(tmp_path)
    os.chown(tmp_path / "checkpoint" / "pipelines", 12345, -1)
    with pytest.raises(RunError, match=r"pipelines' belongs to another user \(12345\)"):
        sums(tmp_path).run(spark(tmp_path))


# --- stray files ------------------------------------------------------------------------------------------


def test_stray_files_are_left_alone(tmp_path: Path) -> None:
    """Copies of an editor, notes of an admin, a folder: none of them is a record, nor in the way."""
    half_way(tmp_path)
    stray = []
    for folder in FOLDERS:
        place = tmp_path / "checkpoint" / folder
        place.mkdir(mode=0o700, exist_ok=True)
        for name in ("README", "notes.json", "000000000002.json~", "zzz.arrow.bak"):
            (place / name).write_text("not ours")
            stray.append(place / name)
        (place / "backup").mkdir()
        stray.append(place / "backup")
    sums(tmp_path).run(spark(tmp_path))
    assert [path for path in stray if not path.exists()] == []
    found = read(tmp_path / "out")
    threads = hg.App("sums")
    orders = threads.source("orders", hg.from_files(tmp_path / "orders"))
    low = orders.filter("amount < 50").key_by("user").running("sum(amount) AS total")
    wanted: list[Any] = []
    low.to("sums", hg.to_list(wanted))
    threads.run("threads")
    assert found == wanted
