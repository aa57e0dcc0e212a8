"""Imports point down only, no module is in a cycle, and each layer knows only what it is allowed to know."""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import headgate

ROOT = Path(headgate.__file__).parent
NO_WORLD = {"threading", "concurrent", "multiprocessing", "asyncio", "time", "pathlib", "os", "io", "pyspark"}
"""No thread, no clock, no file, no Spark."""
PURE = ("sql", "graph", "scheduling", "runtime")
CPU_TIME = "headgate.graph.operators.universal"
"""The synthetic box counts its own CPU time (``time.thread_time``), which is no clock."""


def script(name: str) -> ModuleType:
    """A module of ``scripts/``, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT.parents[1] / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


drawing = script("import_graph")
LAYERS: list[str] = drawing.LAYERS


@functools.cache
def graph() -> dict[str, set[str]]:
    """By module what it imports of ours: for type checking or not, at the top or inside a function."""
    found: dict[str, set[str]] = drawing.imports(ROOT)
    return found


@functools.cache
def foreign() -> dict[str, set[str]]:
    """By module the packages that it imports and that are not ours."""
    found: dict[str, set[str]] = drawing.imports(ROOT, ours=False)
    return found


def layer(module: str) -> str:
    found: str = drawing.layer(module)
    return found


def test_every_module_belongs_to_a_layer() -> None:
    assert {layer(module) for module in graph()} <= set(LAYERS)
    assert len(graph()) > 200


def test_imports_point_down() -> None:
    up = [
        f"{module} ({layer(module)}) imports {other} ({layer(other)})"
        for module, others in graph().items()
        for other in sorted(others)
        if LAYERS.index(layer(other)) > LAYERS.index(layer(module))
    ]
    assert up == []


def test_no_module_is_in_a_cycle() -> None:
    assert drawing.cycles(graph()) == []


@pytest.mark.parametrize("pure", PURE)
def test_the_core_knows_no_thread_no_clock_no_file_and_no_spark(pure: str) -> None:
    known = {
        module: sorted(roots & NO_WORLD)
        for module, roots in foreign().items()
        if layer(module) == pure and roots & NO_WORLD
    }
    known.pop(CPU_TIME, None)
    assert known == {}


def test_the_one_clock_in_graph_is_the_threads_own_cpu_time() -> None:
    tree = ast.parse((ROOT / "graph/operators/universal.py").read_text(encoding="utf-8"))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"
    }
    assert used == {"thread_time"}
    assert foreign()[CPU_TIME] & NO_WORLD == {"time"}


@pytest.mark.parametrize("pure", PURE)
def test_the_core_opens_no_files(pure: str) -> None:
    opened = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sorted((ROOT / pure).rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "open"
    ]
    assert opened == []


def test_of_connectors_the_runtime_knows_only_the_contracts() -> None:
    known = {other for module, others in graph().items() if layer(module) == "runtime" for other in others}
    assert {other for other in known if layer(other) == "connectors"} <= {
        "headgate.connectors.source",
        "headgate.connectors.sink",
        "headgate.connectors.refused",
    }


def test_scheduling_knows_no_tuples() -> None:
    """Its tests need no Arrow."""
    for module, roots in foreign().items():
        if layer(module) == "scheduling":
            assert not roots & {"pyarrow", "numpy", "pandas"}, module
            assert not {other for other in graph()[module] if layer(other) in ("graph", "sql")}, module


def test_engines_do_not_know_each_other() -> None:
    folders = {p.name for p in (ROOT / "engines").iterdir() if (p / "engine.py").exists()}
    assert folders == {"threads", "simulated", "spark"}
    for module, others in graph().items():
        own = module.split(".")[2:3] if layer(module) == "engines" else []
        if not own:
            continue
        others_files = {
            o for o in others if layer(o) == "engines" and set(o.split(".")[2:3]) & (folders - set(own))
        }
        assert others_files == set(), module


MODEL = {"costs.py", "cores.py", "doors.py", "kernel.py", "interpreter.py", "memory.py"}
"""What takes its time by itself on threads, and in simulation has to be told how long."""
REAL = {"ending.py"}
"""Calls that hang, which a simulation does not have."""


def test_engines_mirror_each_others_file_names() -> None:
    files = {
        folder: {p.name for p in (ROOT / "engines" / folder).glob("*.py")}
        for folder in ("threads", "simulated")
    }
    assert files["threads"] | MODEL == files["simulated"] | REAL


def test_folders_of_tests_mirror_the_package() -> None:
    tests, beside = Path(__file__).parent, {"benchmarks", "examples"}
    for file in tests.rglob("test_*.py"):
        folder = file.parent.relative_to(tests)
        place = ROOT.parents[1] if folder.parts and folder.parts[0] in beside else ROOT
        assert (place / folder).is_dir(), f"{file.relative_to(tests)} is in a folder that mirrors none"


def test_only_the_spark_engine_knows_spark() -> None:
    for module, roots in foreign().items():
        if "pyspark" in roots:
            assert module.startswith("headgate.engines.spark."), f"{module} imports pyspark"


def test_the_package_does_not_import_the_benchmarks() -> None:
    assert [module for module, roots in foreign().items() if "benchmarks" in roots] == []


@pytest.mark.parametrize("package", ["", *(p.parent.name for p in sorted(ROOT.glob("*/__init__.py")))])
def test_every_layer_says_what_it_is(package: str) -> None:
    tree = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))
    assert len((ast.get_docstring(tree) or "").split()) >= 8


def test_the_committed_picture_is_that_of_the_code() -> None:
    page = (ROOT.parents[1] / "docs" / "imports.md").read_text(encoding="utf-8")
    assert drawing.picture(graph()) in page, "run scripts/import_graph.py"
