"""Imports point down only, and each layer knows only what it is allowed to know."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate

ROOT = Path(headgate.__file__).parent
LAYERS = ["errors", "graph", "scheduling", "engines", "app", "testing", "demo", "cli"]
"""From the bottom up; a module may import its own layer and those before it."""
BESIDE = {"memory": "engines"}
"""A utility of a layer: it may import what that layer may, and that layer may import it."""
ABOVE = {"testing", "demo", "cli"}
NO_WORLD = {"threading", "concurrent", "multiprocessing", "asyncio", "time", "pathlib", "os", "io", "pyspark"}
"""No thread, no clock, no file, no Spark."""
ALLOWED = {("graph/operators/universal.py", "time")}
"""The synthetic box counts its own CPU time (``time.thread_time``), which is no clock."""
MODULES = sorted(path for path in ROOT.rglob("*.py") if "examples" not in path.relative_to(ROOT).parts)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def layer(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return BESIDE.get(first, first.removesuffix(".py"))


def imports(path: Path) -> Iterator[str]:
    """Full names of what a module imports, for type checking or not, at the top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)} imports relatively; write full names"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(path: Path) -> Iterator[tuple[str, ...]]:
    for imported in imports(path):
        parts = imported.split(".")
        if parts[0] == "headgate":
            yield tuple(parts[1:])


def roots(path: Path) -> set[str]:
    return {imported.split(".")[0] for imported in imports(path)}


def test_every_module_belongs_to_a_layer() -> None:
    assert {layer(path) for path in MODULES} <= {*LAYERS, "__init__", "__main__", "page"}
    assert len(MODULES) > 50


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_imports_point_down(path: Path) -> None:
    own = layer(path)
    if own in ("__init__", "__main__"):
        return
    for full in ours(path):
        parts = (BESIDE.get(full[0], full[0]), *full[1:]) if full else full
        if not parts:
            assert own in ABOVE, f"{name(path)} imports the whole of headgate, which rests on it"
            continue
        assert parts[0] in LAYERS, f"{name(path)} imports headgate.{'.'.join(parts)}, which is no layer"
        down = LAYERS.index(parts[0]) <= LAYERS.index(own)
        if own not in ABOVE:
            assert down, f"{name(path)} is in '{own}' and must not import headgate.{'.'.join(parts)} above it"
        else:
            assert parts[0] not in ABOVE - {own} or own == "cli" or down


@pytest.mark.parametrize("path", [p for p in MODULES if layer(p) in ("graph", "scheduling")], ids=name)
def test_graph_and_scheduling_know_no_thread_no_clock_no_file_and_no_spark(path: Path) -> None:
    known = {root for root in roots(path) & NO_WORLD if (name(path), root) not in ALLOWED}
    assert not known, f"{name(path)} imports {', '.join(sorted(known))}"


@pytest.mark.parametrize("path", [p for p in MODULES if layer(p) in ("graph", "scheduling")], ids=name)
def test_graph_and_scheduling_open_no_files(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    assert not [call.lineno for call in calls if call.func.id == "open"]  # type: ignore[attr-defined]


def test_the_one_clock_in_graph_is_the_threads_own_cpu_time() -> None:
    tree = ast.parse((ROOT / "graph/operators/universal.py").read_text(encoding="utf-8"))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"
    }
    assert used == {"thread_time"}


@pytest.mark.parametrize("path", [p for p in MODULES if layer(p) == "scheduling"], ids=name)
def test_scheduling_knows_no_tuples(path: Path) -> None:
    """Its tests need no Arrow."""
    assert not roots(path) & {"pyarrow", "numpy", "pandas"}
    assert not [parts for parts in ours(path) if parts[0] == "graph"]


def test_engines_do_not_know_each_other() -> None:
    folders = [p.name for p in (ROOT / "engines").iterdir() if p.is_dir() and (p / "engine.py").exists()]
    assert {"threads", "simulated"} <= set(folders)
    for path in MODULES:
        own = path.relative_to(ROOT).parts
        if own[0] == "engines":
            mine = own[1] if own[1] in folders else None
            others = {
                parts[1]
                for parts in ours(path)
                if parts[:1] == ("engines",) and parts[1:2] and parts[1] in folders
            }
            assert others <= {mine}, f"{name(path)} imports another engine"


MODEL = {"costs.py", "doors.py"}
"""What takes its time by itself on threads, and in simulation has to be told how long."""


def test_engines_mirror_each_others_file_names() -> None:
    files = {
        folder: {p.name for p in (ROOT / "engines" / folder).glob("*.py")}
        for folder in ("threads", "simulated")
    }
    assert files["threads"] | MODEL == files["simulated"]


def test_only_the_spark_engine_knows_spark() -> None:
    for path in MODULES:
        if "pyspark" in roots(path):
            assert name(path).startswith("engines/spark/"), f"{name(path)} imports pyspark"


def test_the_package_imports_no_benchmark() -> None:
    """They are not in the wheel; ``cli/checkout.py`` finds them by name where they are."""
    for path in MODULES:
        assert "benchmarks" not in roots(path), f"{name(path)} imports benchmarks"


@pytest.mark.parametrize("package", ["", "graph", "scheduling", "memory", "engines", "app", "cli"])
def test_every_layer_says_what_it_is(package: str) -> None:
    tree = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))
    assert len((ast.get_docstring(tree) or "").split()) >= 8
