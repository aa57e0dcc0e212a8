"""Workers that keep state answer whoever knows the run's secret, and nobody holds them up."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from headgate.engines.spark import holders

SECRET = b"of this run"


@pytest.fixture(params=["unix", "tcp"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)  # names of Unix sockets are short
    monkeypatch.setenv("SPARK_LOCAL_HOSTNAME", "localhost")
    return "." if request.param == "unix" else ""


def answer(request: Any) -> list[holders.Row]:
    if request == "mistake":
        raise ValueError("no such box")
    return [(0, 1, f"{request}!".encode())]


def test_a_worker_is_asked_and_its_errors_are_raised(folder: str) -> None:
    address = holders.own_address(folder, SECRET, answer)
    assert address is not None
    assert holders.ask(address, SECRET, "work") == [(0, 1, b"work!")]
    with pytest.raises(ValueError, match="no such box"):
        holders.ask(address, SECRET, "mistake")
    assert holders.ask(address, SECRET, "more") == [(0, 1, b"more!")]


def test_a_caller_without_the_secret_does_its_work_itself(folder: str) -> None:
    address = holders.own_address(folder, b"one", answer)
    assert address is not None
    assert holders.ask(address, b"another", "work") is None


def test_a_caller_that_says_nothing_holds_up_only_itself(folder: str) -> None:
    address = holders.own_address(folder, b"a run with a silent caller", answer)
    assert address is not None
    kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(kind) as silent:
        silent.connect(address)
        assert holders.ask(address, b"a run with a silent caller", "work") == [(0, 1, b"work!")]


def test_the_next_run_closes_the_door_of_the_one_before(folder: str) -> None:
    before = holders.own_address(folder, b"first run", answer)
    after = holders.own_address(folder, b"second run", answer)
    assert before is not None
    assert after is not None
    assert holders.ask(before, b"first run", "work") is None
    assert holders.ask(after, b"second run", "work") == [(0, 1, b"work!")]
