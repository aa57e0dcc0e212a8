"""What every test shares: reproducible properties, and the ways of running for behavioural tests."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from typer.testing import CliRunner

import headgate as hg
import memory_disk
import pretended_machine
from depth import examples
from headgate.cli import display
from headgate.cli.main import cli
from headgate.engines.spark.class_archive import java_options
from headgate.engines.spark.java import SMALL
from object_stores import Way, s3_server
from waiting import PATIENCE

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background deaf to Ctrl-C, and tests press it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

memory_disk.use()
os.environ["HEADGATE_RUNTIME"] = tempfile.mkdtemp(prefix="headgate-tests-")
"""Sockets of running applications: tests at the same time must not meet each other's."""

os.environ.setdefault("HEADGATE_KAFKA_FALLBACK", "4.2.0,4.0.0")
"""A mirror may not have the connector of this Spark; the tests then run with what is known to do for them."""
os.environ.setdefault("SPARK_SUBMIT_OPTS", SMALL + java_options())
"""Sessions that a test makes without Headgate live for seconds, too: their Java need not compile much."""
pretended_machine.pretend()

settings.register_profile(
    "headgate",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(100),
)
settings.load_profile("headgate")


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The address of a server of S3 that keeps preconditions."""
    with s3_server() as address:
        yield address


@pytest.fixture
def way(s3: str) -> Iterator[Way]:
    """A way to it on which requests are seen, and can be lost."""
    with Way(s3) as found:
        yield found


ENGINES: dict[str, Callable[[], hg.Engine]] = {
    "threads-1": lambda: hg.Threads(workers=1),
    "threads-2": lambda: hg.Threads(workers=2),
    "threads-4-small-packets": lambda: hg.Threads(workers=4, packet_rows=3),
    "spark": lambda: hg.Spark(workers=2),
    "simulated-1": lambda: hg.Simulated(workers=1),
    "simulated-3-small-packets": lambda: hg.Simulated(workers=3, packet_rows=2, call_overhead=0.001),
}
"""A way of running is one line here; every behavioural test then runs on it."""


T = TypeVar("T")


def _ends(run: Callable[[], T]) -> T:
    """What ``run`` returns or raises; a run that hangs fails the test instead of hanging with it.

    The threads that it starts are daemons, as they inherit that, so a hanging one does not outlive the tests.
    """
    outcome: list[T | BaseException] = []

    def work() -> None:
        try:
            outcome.append(run())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert outcome, f"the run has not ended within {PATIENCE:g} seconds"
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


@pytest.fixture(scope="session")
def ends() -> Callable[[Callable[[], T]], T]:
    """``ends(lambda: app.run(...))`` for runs that a bug could make hang."""
    return _ends


gc.disable()
"""Until all tests are collected: what collecting makes stays, so looking through it again is for nothing."""


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks when its turn comes
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need Spark share one worker, and so one Spark session."""
    for item in items:
        given = getattr(item, "callspec", None)
        engine = str(given.params.get("engine", "")) if given is not None else ""
        if "spark" in getattr(item, "fixturenames", ()) or engine.startswith("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> hg.Engine:
    """Each way of running in turn.  What a test says of one engine it says of all."""
    made = ENGINES[request.param]()
    run = made.run
    made.run = lambda *given, **options: _ends(lambda: run(*given, **options))  # type: ignore[method-assign]
    return made


@pytest.fixture(autouse=True)
def _no_second_spark(request: pytest.FixtureRequest) -> Iterator[None]:
    """A Spark in each process of tests costs more than all tests that need one: only one group starts it."""
    before = _spark_runs()
    yield
    if _spark_runs() and not before:
        groups = [mark.args[0] for mark in request.node.iter_markers("xdist_group")]
        assert groups, "It has started Spark: mark it with pytest.mark.xdist_group('spark')."


def _spark_runs() -> bool:
    core = sys.modules.get("pyspark.core.context")
    return core is not None and core.SparkContext._active_spark_context is not None


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No application runs but those that the test starts."""
    folder = tempfile.mkdtemp(prefix="hg-")
    monkeypatch.setenv("HEADGATE_RUNTIME", folder)
    yield
    shutil.rmtree(folder)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in which nothing has to be folded."""
    for console in (display.console, display.errors):
        monkeypatch.setattr(console, "width", 200)


@pytest.fixture
def headgate(wide: None) -> Callable[..., str]:
    """``headgate(...)``: what a command prints; a mistake is raised as it is."""

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return run
