"""Workers are forks of a daemon that has what tasks import; where that is not safe it is Spark's own."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import headgate as hg
from headgate.engines.spark import daemon
from headgate.engines.spark.java import find_java, require_java
from headgate.engines.spark.session import open_session
from headgate.errors import RunError

NOT_IN_TASKS = (
    "typer",
    "rich",
    "headgate.api",
    "headgate.cli",
    "headgate.scheduling",
    "headgate.engines.threads",
)


class Replaced(Exception):
    """This process would be another program now."""


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The programs that the daemon becomes."""
    became: list[list[str]] = []

    def become(program: str, arguments: list[str]) -> None:
        became.append(arguments)
        raise Replaced

    monkeypatch.setattr(daemon.os, "execv", become)
    monkeypatch.setattr(sys, "argv", ["daemon", "pyspark.worker"])
    return became


@pytest.fixture
def one_more_thread() -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield
    over.set()
    thread.join()


def test_what_tasks_need_is_loaded_without_a_thread_and_without_the_rest() -> None:
    program = (
        "import json, os, sys; from headgate.engines.spark import daemon; daemon.preload(); "
        "print(json.dumps([sorted(sys.modules), len(os.listdir('/proc/self/task')), dict(os.environ)]))"
    )
    # Spark gives its daemon this variable, by which numpy's BLAS starts no threads.
    env = {**daemon.os.environ, "OMP_NUM_THREADS": "1"}
    said = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    modules, threads, left = json.loads(said.stdout)
    assert threads == 1
    assert {*daemon.TASKS, "headgate.graph.operators.running", "pandas"} <= set(modules)
    assert not set(NOT_IN_TASKS) & set(modules)
    assert "JE_ARROW_MALLOC_CONF" not in left, "what users' functions start is not told how to allocate"


def test_with_another_thread_it_becomes_sparks_own_daemon(
    replaced: list[list[str]], one_more_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "preload", lambda: None)
    with pytest.raises(Replaced):
        daemon.main()
    assert replaced == [[sys.executable, "-m", "pyspark.daemon", "pyspark.worker"]]


def test_if_something_cannot_be_imported_it_becomes_sparks_own_daemon(
    replaced: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "TASKS", ("no_such_module",))
    with pytest.raises(Replaced):
        daemon.main()
    assert replaced == [[sys.executable, "-m", "pyspark.daemon", "pyspark.worker"]]


@pytest.mark.xdist_group("spark")
def test_a_session_made_here_has_workers_that_import_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of a worker before its first task of ours: they came with the fork."""
    session = open_session("local[2]", "daemon", {"spark.ui.enabled": "false"}, list)

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import sys

        import pyarrow as pa

        loaded = "headgate.engines.spark.task" in sys.modules
        with open(f"/proc/{os.getppid()}/cmdline") as file:
            parent = file.read()
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"loaded": [loaded], "parent": [parent]})

    # Workers of another environment come from a daemon of their own: none of them has run a task.
    monkeypatch.setitem(session.sparkContext.environment, "HEADGATE_TESTS_FRESH", str(os.getpid()))
    found = session.range(0, 2, 1, 2).mapInArrow(look, "loaded boolean, parent string").collect()
    assert len(found) == 2
    for row in found:
        assert row["loaded"]
        assert "headgate.engines.spark.daemon" in row["parent"]


def test_java_that_is_absent_or_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(RunError, match="where there is no Java"):
        find_java()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    assert find_java() == str(java)
    with pytest.raises(RunError, match=r"is Java 11\. Spark needs Java 17"):
        require_java()


def test_public_names_come_from_where_type_checkers_find_them() -> None:
    tree = ast.parse(Path(str(hg.__file__)).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {
        alias.name: statement.module
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    modules = {name for name, place in hg._PLACES.items() if place.endswith(f".{name}")}
    given = {n: p.removesuffix(f".{n}") if n in modules else p for n, p in hg._PLACES.items()}
    assert given == typed
    assert {*typed, "__version__"} == set(hg.__all__)
    for name in hg.__all__:
        assert getattr(hg, name) is not None
    with pytest.raises(AttributeError, match="module 'headgate' has no attribute 'nothing'"):
        _ = hg.nothing


def test_a_worker_whose_socket_spark_has_closed_ends_without_a_word() -> None:
    calls: list[bytes] = []
    main = daemon.quiet(lambda infile, outfile: calls.append(infile.read(4)))
    ours, sparks = socket.socketpair()
    with ours, ours.makefile("rb") as infile:
        sparks.sendall(b"task")
        main(infile, None)
        sparks.close()
        with pytest.raises(SystemExit) as end:
            main(infile, None)
    assert calls == [b"task"]
    assert end.value.code, "a worker that exits with 0 waits for its next task"
