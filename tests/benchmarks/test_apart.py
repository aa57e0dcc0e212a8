"""Benchmarks in processes of their own run from any folder, also from one with a package of the same name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import apart


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").write_text("raise ImportError('another package')\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("elsewhere")
def test_a_program_finds_these_benchmarks() -> None:
    program = (
        "import json, sys; from benchmarks import apart as a; print(json.dumps([a.__file__, sys.argv[1]]))"
    )
    assert apart.found("it", program, "given") == [apart.__file__, "given"]


@pytest.mark.usefixtures("elsewhere")
def test_a_program_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)the run failed.*no luck"):
        apart.found("the run", "raise ValueError('no luck')")


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("worker", ["many_worker", "qos_worker"])
def test_workers_start(worker: str) -> None:
    command = [*apart.PYTHON, "-m", f"benchmarks.experiments.spark.{worker}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=apart.environment(), check=False)
    assert done.returncode == 0, done.stderr
    assert "--side" in done.stdout
