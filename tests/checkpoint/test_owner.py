"""A checkpoint has one owner, and one that was replaced commits nothing, whenever it wakes up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.checkpoint import owner as owners
from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.log import Log, decode
from headgate.checkpoint.owner import LEASE, RENEW, Claim, claim
from headgate.checkpoint.storage import Hold, Storage
from headgate.engines.spark import engine
from headgate.errors import RunError
from waiting import eventually


def app() -> Nodes:
    made = hg.App("shop")
    made.source("ticks", hg.from_rate(1)).to("ticks", hg.to_list([]))
    return Nodes(made.network)


NODES = app()
START = {"pipeline": NODES.describe()}


class NoLocks(Folder):
    """A store: nothing tells whether a process lives."""

    def hold(self, name: str, data: bytes) -> Hold | None:
        return Storage.hold(self, name, data)

    def held(self, name: str) -> bool | None:
        return None

    def lock(self, name: str) -> Hold | None:
        return Hold()


class Cranked:
    """Time that passes when somebody sleeps; ``during`` is what others do meanwhile."""

    def __init__(self, during: Callable[[], object] = lambda: None) -> None:
        self.now, self._during = 0.0, during

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._during()


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewed by hand only; each claim is made on a machine of its own, whose processes no other sees."""
    monkeypatch.setattr(os, "fsync", lambda file: None)  # no power is cut here
    monkeypatch.setattr(Claim, "keep_renewing", lambda self: None)
    machines = iter(range(10_000))
    monkeypatch.setattr(owners, "_machine", lambda: f"machine {next(machines)}")


def step(log: Log, text: str) -> int:
    return log.append({"kind": "change", "failed": {text: ""}})


def begun(storage: Storage, **options: Any) -> tuple[Claim, Log]:
    """An owner that has read the log and can append to it."""
    storage.prepare()
    held = claim(storage, "shop", **options)
    log = Log(storage)
    log.take(held)
    log.recover(NODES, "shop")
    return held, log


def committed(folder: Path) -> list[str]:
    """What the log says, in order."""
    return list(Log(Folder(str(folder))).recover(NODES, "shop")[0].failed)


# --- who may take it --------------------------------------------------------------------------------------


def test_a_live_owner_is_named_and_one_that_let_go_is_followed_at_once(tmp_path: Path) -> None:
    first, _ = begun(Folder(str(tmp_path)))
    with pytest.raises(RunError, match=rf"in use: application 'shop', process {os.getpid()} of.* since 20"):
        claim(Folder(str(tmp_path)), "shop")
    with pytest.raises(RunError, match=r"belongs to application 'shop', not to 'other'"):
        claim(Folder(str(tmp_path)), "other", take_over=True)
    first.release()
    second, _ = begun(Folder(str(tmp_path)))
    assert (first.owner.number, second.owner.number) == (1, 2)
    assert not second.disputed
    assert os.listdir(tmp_path / "owners") == ["000000000002.json"]


def test_without_locks_an_owner_that_renews_is_not_followed(tmp_path: Path) -> None:
    first, _ = begun(NoLocks(str(tmp_path)))
    clock = Cranked(first.renew)
    with pytest.raises(RunError, match="in use: application 'shop'"):
        claim(NoLocks(str(tmp_path)), "shop", sleep=clock.sleep)
    assert clock.now == RENEW


def test_without_locks_a_silent_owner_is_followed_after_its_lease(tmp_path: Path) -> None:
    begun(NoLocks(str(tmp_path)))
    clock = Cranked()
    second, _ = begun(NoLocks(str(tmp_path)), sleep=clock.sleep)
    assert clock.now == LEASE
    assert second.disputed  # it may only have been slow


def test_without_locks_an_owner_that_ends_while_one_waits_is_followed_at_once(tmp_path: Path) -> None:
    first, _ = begun(NoLocks(str(tmp_path)))
    clock = Cranked(first.release)
    second, _ = begun(NoLocks(str(tmp_path)), sleep=clock.sleep)
    assert clock.now == RENEW
    assert not second.disputed


def test_of_two_that_take_over_at_once_one_is_refused(tmp_path: Path) -> None:
    """The other one comes between the look at the last owner and the new record."""
    begun(NoLocks(str(tmp_path)))
    others: list[Claim] = []

    class Late(NoLocks):
        def hold(self, name: str, data: bytes) -> Hold | None:
            if not others:
                others.append(claim(NoLocks(str(tmp_path)), "shop", take_over=True))
            return super().hold(name, data)

    clock = Cranked(lambda: others[0].renew())
    with pytest.raises(RunError, match="in use"):
        claim(Late(str(tmp_path)), "shop", take_over=True, sleep=clock.sleep)
    assert others[0].owner.number == 2


def test_a_checkpoint_that_an_earlier_version_runs_on_is_refused(tmp_path: Path) -> None:
    place = Folder(str(tmp_path))
    place.prepare()
    held = place.lock("owner")
    assert held is not None
    with pytest.raises(RunError, match="earlier version"):
        claim(Folder(str(tmp_path)), "shop")
    held.release()
    now = claim(Folder(str(tmp_path)), "shop")
    assert now.owner.number == 1
    assert Folder(str(tmp_path)).lock("owner") is None, "an earlier version must see this one, too"


def test_an_owner_without_locks_renews_by_itself_until_it_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(owners, "RENEW", 0.001)
    held, _ = begun(NoLocks(str(tmp_path)))
    eventually(lambda: held.owner.beat > 2)
    held.release()
    assert json.loads((tmp_path / "owners" / "000000000001.json").read_text())["released"]


# --- who may commit ---------------------------------------------------------------------------------------


class Paused(Folder):
    """A process that is stopped before its ``left``-th call to the storage, while another one works."""

    left = -1
    meanwhile: Callable[[], None]
    calls = 0

    def _call(self) -> None:
        self.calls += 1
        self.left -= 1
        if self.left == 0:
            self.meanwhile()

    def create(self, name: str, data: bytes) -> bool:
        self._call()
        return super().create(name, data)

    def names(self, folder: str) -> list[str]:
        self._call()
        return super().names(folder)

    def remove(self, *names: str) -> None:
        for name in names:
            self._call()
            super().remove(name)


def first_run(place: Paused, log: Log, told: list[str]) -> None:
    """Commits and compacts; ``told``: what it believes to have committed."""
    position = _position(place)
    for number in range(6):
        step(log, f"first {number}")
        told.append(f"first {number}")
        position.failed[f"first {number}"] = ""
        if number % 2:
            log.compact(position, START, "shop")


def _position(place: Storage) -> Any:
    """As another process reads it, without a call of the one that is watched."""
    return Log(Folder(place.root)).recover(NODES, "shop")[0]


@pytest.mark.parametrize("compactions", [0, 3])
def test_an_owner_that_was_replaced_commits_nothing_wherever_it_was_stopped(
    tmp_path: Path, compactions: int
) -> None:
    """Before each of its calls in turn; the new owner may go so far that its first records are gone."""
    before, point, fenced = -1, 0, 0
    while True:
        point += 1
        folder = tmp_path / str(point)
        place = Paused(str(folder))
        _, log = begun(place)
        told: list[str] = []
        taken: list[str] = []
        why = ""

        def meanwhile(folder: Path = folder, taken: list[str] = taken) -> None:
            _, other = begun(Folder(str(folder)), take_over=True)
            taken += committed(folder)
            for number in range(3 * max(compactions, 1)):
                step(other, f"second {number}")
                if number < compactions:
                    other.compact(_position(other.storage), START, "shop")
            taken += [f"second {number}" for number in range(3 * max(compactions, 1))]

        place.meanwhile, place.left, place.calls = meanwhile, point, 0
        try:
            first_run(place, log, told)
        except RunError as error:
            why = str(error)
            fenced += 1
        if not taken:
            break  # it was over before
        before = place.calls
        assert not why or ("taken it over since 20" in why and "owner 2; this run was owner 1" in why)
        assert committed(folder) == taken, "only the new owner has committed since"
        assert taken[: len(told)] == told, "what it told to be committed is"
    assert before > 0
    assert fenced > 6


@pytest.mark.parametrize("compacts", [False, True])
def test_a_new_owner_waits_for_a_commit_that_is_under_way(tmp_path: Path, compacts: bool) -> None:
    """The old owner commits between the new one's look at the log and its record, or makes that name free."""
    _, log = begun(Folder(str(tmp_path)))
    place = Paused(str(tmp_path))
    held = claim(place, "shop", take_over=True)

    def meanwhile() -> None:
        step(log, "late")
        if compacts:
            log.compact(_position(log.storage), START, "shop")

    place.meanwhile = meanwhile
    place.left = 3  # both listings, then the record
    new = Log(place)
    new.take(held)
    assert list(new.recover(NODES, "shop")[0].failed) == ["late"]
    with pytest.raises(RunError, match="has taken it over"):
        step(log, "too late")


def test_records_of_owners_whose_predecessor_has_surely_ended_are_compacted(tmp_path: Path) -> None:
    for _ in range(3):
        held, log = begun(Folder(str(tmp_path)))
        step(log, "x")
        held.release()
    log.compact(_position(log.storage), START, "shop")
    assert os.listdir(tmp_path / "log") == []


@pytest.mark.parametrize(
    ("known", "named"),
    [
        (engine._OF_STEP, "000000012-{}.0a1b2c3d-0-0a1b2c3d.arrow"),
        (engine._SPOOLED, "orders-000003-f{}-77-1700000000.crc-0a1b2c3d.arrow"),
        (engine._PIPELINE, "{}-0123456789abcdef0123456789abcdef"),
        (engine._SLOT, "{}-3"),
    ],
)
def test_an_owner_removes_no_file_of_a_later_one(known: re.Pattern[str], named: str) -> None:
    """Those of versions that had no numbers are anyone's; what has another name is nobody's."""
    assert [engine._ours(known.match(named.format(number)), 7) for number in (6, 7, 8, 12)] == [
        True, True, False, False,
    ]  # fmt: skip
    assert engine._ours(known.match(re.sub(r"f?\{\}[.-]", "", named)), 0)
    assert not engine._ours(known.match("README"), 99)


CHILD = """
import sys
from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.log import Log
from headgate.checkpoint.owner import claim
place = Folder(sys.argv[1])
place.prepare()
log = Log(place)
held = claim(place, "shop")
log.take(held)
log.next = 1
print("ready", flush=True)
for line in sys.stdin:
    try:
        log.append({"kind": "change", "failed": {line.strip(): ""}})
        print("committed", flush=True)
    except Exception as error:
        print(error, flush=True)
"""


def test_a_process_that_was_stopped_and_goes_on_commits_nothing(tmp_path: Path) -> None:
    """The real thing: SIGSTOP, a take-over, SIGCONT."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        child.stdin.write("before\n")
        child.stdin.flush()
        assert child.stdout.readline() == "committed\n"
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        child.stdin.write("while stopped\n")
        child.stdin.flush()
        with pytest.raises(RunError, match=rf"in use: application 'shop', process {child.pid} "):
            claim(Folder(str(tmp_path)), "shop")
        _, log = begun(Folder(str(tmp_path)), take_over=True)
        step(log, "after")
        child.send_signal(signal.SIGCONT)
        said = child.stdout.readline()
        assert f"process {os.getpid()} " in said
        assert "has taken it over since" in said
        assert committed(tmp_path) == ["before", "after"]
    finally:
        child.kill()
        child.wait()


def test_records_carry_their_owner(tmp_path: Path) -> None:
    held, log = begun(Folder(str(tmp_path)))
    held.release()
    held, log = begun(Folder(str(tmp_path)))
    number = step(log, "x")
    assert decode((tmp_path / "log" / f"{number:012d}.json").read_bytes())["fence"] == 2
