"""The wheel works from outside the checkout, and threads need neither pyspark nor Java."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import headgate as hg

ROOT = Path(__file__).parents[1]

WITHOUT_SPARK = """
import runpy, sys

class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "py4j"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, NoSpark())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script in a Python that has no pyspark."""

COMMANDS = """
from headgate.cli.main import cli

for command in ("--version", "policies", "run app.py --engine threads", "simulate app.py"):
    cli(command.split(), standalone_mode=False)
"""

SMALL = """
import headgate as hg

app = hg.App("small")
app.source("numbers", hg.from_rate(1000, limit=10)).filter("value < 3").to("q", hg.to_console())
"""

pytestmark = pytest.mark.xdist_group("wheel")
"""One worker builds the wheel, once."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without the network."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, text=True)
    [found] = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the installed wheel; its dependencies are those of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True, text=True)
    return folder


def python(installed: Path, folder: Path, *arguments: str) -> str:
    """What a Python prints that finds the installed package first, and has no Java."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")
    }
    environment |= {"PYTHONPATH": str(installed), "PATH": "/nonexistent", "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_version_has_one_place(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        assert message_from_bytes(archive.read(metadata))["Version"] == hg.__version__


def test_the_wheel_holds_the_package_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"headgate/__init__.py", "headgate/py.typed"} <= names
    assert {name.split("/")[0] for name in names} == {"headgate", f"headgate-{hg.__version__}.dist-info"}
    data = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and path.suffix in (".topology", ".memory")
    }
    assert data
    assert data <= names


def test_the_first_example_runs_without_pyspark_and_java(installed: Path, tmp_path: Path) -> None:
    """As a newcomer would run it: in another folder, from the installed wheel."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    where = "\nimport sys\nprint(hg.__file__, *sorted({m.split('.')[0] for m in sys.modules}))\n"
    (tmp_path / "first.py").write_text(found.group(1) + where)
    (tmp_path / "without.py").write_text(WITHOUT_SPARK)
    printed = python(installed, tmp_path, "without.py", "first.py").splitlines()
    place, *modules = printed[-1].split()
    assert Path(place).is_relative_to(installed)
    assert not {"pyspark", "py4j", "confluent_kafka"} & set(modules)
    assert len([line for line in printed if line.startswith("revenue  ")]) == 12
    assert printed[-3].startswith("revenue: 12 results")


def test_the_command_line_runs_without_pyspark_and_java(installed: Path, tmp_path: Path) -> None:
    """Several commands in one process, since starting one is what takes the time."""
    (tmp_path / "without.py").write_text(WITHOUT_SPARK)
    (tmp_path / "commands.py").write_text(COMMANDS)
    (tmp_path / "app.py").write_text(SMALL)
    printed = python(installed, tmp_path, "without.py", "commands.py")
    assert printed.startswith(f"headgate {hg.__version__}\n")
    assert "The default is qos if a query has a goal" in printed
    assert printed.count("q  value=") == 6
