"""The benchmarks are found in a checkout; without one a command says how to get them, and help helps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.cli import checkout, main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package as if from a wheel, in a folder that is no checkout; ``benchmarks`` not importable."""
    monkeypatch.setattr(checkout, "_INSTALLED_FROM", tmp_path / "lib")
    # Nor is the folder of tests on the path: it has one of that name, with the benchmarks' tests.
    hidden = (ROOT, ROOT / "tests")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry).resolve() not in hidden])
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["headgate", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "command",
    [
        ["bench", "overhead", "--quick"],
        ["generate", "tpcx-bb", "data"],
        ["generate", "aurora", "net.py"],
        ["demo", "--compare"],
    ],
    ids=" ".join,
)
def test_without_a_checkout_a_command_says_how_to_get_one(
    command: list[str], installed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "git clone" in refused(monkeypatch, capsys, *command)
    assert list(installed.iterdir()) == []


def test_without_a_checkout_an_application_that_imports_the_benchmarks_says_so(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (installed / "net.py").write_text("from benchmarks.workloads import aurora\napp = aurora.network()\n")
    said = refused(monkeypatch, capsys, "simulate", "net.py")
    assert "net.py imports the benchmarks" in said
    assert "git clone" in said


@pytest.mark.parametrize("command", ["bench", "generate", "generate tpcx-bb", "generate aurora"])
def test_without_a_checkout_help_still_helps(
    command: str, installed: Path, headgate: Callable[..., str]
) -> None:
    assert f"headgate {command}" in headgate(*command.split(), "--help")


def test_the_current_folder_may_be_the_checkout(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkout.find() is None
    monkeypatch.chdir(ROOT)
    assert checkout.find() == ROOT
    assert "overhead" in checkout.benchmarks("registry").BENCHES


def test_the_checkout_that_the_package_comes_from_is_found_from_any_folder(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout, "_INSTALLED_FROM", ROOT)
    assert Path(str(checkout.benchmarks("registry").__file__)).is_relative_to(ROOT)


def test_the_command_line_imports_no_benchmark() -> None:
    """Nor does its help: who only looks does not wait for them."""
    program = (
        "import sys; from typer.testing import CliRunner; from headgate.cli.main import cli; "
        "[CliRunner().invoke(cli, given, catch_exceptions=False) for given in "
        "(['--help'], ['bench', '--help'], ['generate', '--help'])]; "
        "sys.exit(any(name.split('.')[0] == 'benchmarks' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-P", "-c", program], check=False).returncode == 0
