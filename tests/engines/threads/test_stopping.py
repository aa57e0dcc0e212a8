"""A run on threads ends when it is told to, whatever an operator, a source or a sink does.

What blocks is held by a gate, which a test opens at its end.  The grace that a run gives passes when only
threads at the gate are not back (``tests/support/grace.py``), so no test depends on how fast the others are.
"""

from __future__ import annotations

import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import grace
import headgate as hg
from grace import Held, pass_by_hand
from headgate.connectors.sink import Sink, Writer
from headgate.connectors.source import Chunk, Reader, Source, Wait
from headgate.engines import worker_pool
from headgate.engines.clock import WallClock
from headgate.errors import RunError
from waiting import PATIENCE, eventually

pytestmark = pytest.mark.usefixtures("sockets")
GRACE = 3
SUPPORT = os.path.dirname(os.path.abspath(grace.__file__))
Rows = list[dict[str, Any]]
Ends = Callable[[Callable[[], hg.Report]], hg.Report]


class Gate:
    """Blocks whoever passes until it is opened; knows whether somebody is there."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()
        self.held = Held()

    def packet(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.held.enter()
        self.reached.set()
        self._open.wait()
        self.held.leave()
        return batch

    def sink(self, query: str, batch: pa.RecordBatch) -> None:
        self.packet(batch)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    before = set(threading.enumerate())
    made = Gate()
    pass_by_hand(made.held, monkeypatch.setattr)
    yield made
    made.open()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("headgate-"):
            threading.Thread.join(thread, PATIENCE)
            assert not thread.is_alive(), f"{thread.name} has not ended, although nothing blocks it"


def engine(**options: Any) -> hg.Threads:
    return hg.Threads(workers=2, grace=GRACE, **options)


def application(gate: Gate) -> tuple[hg.App, Rows, Rows]:
    app, stuck, good = hg.App("stopping"), [], []
    ticks = app.source("ticks", hg.from_rate(1000))
    blocked = ticks.map_packets(gate.packet, schema=ticks.schema, name="blocking")
    blocked.filter("value >= 0", name="after").to("stuck", hg.to_list(stuck))
    ticks.filter("value % 2 = 0", name="even").to("good", hg.to_list(good))
    return app, stuck, good


def stop_when(gate: Gate) -> Callable[[hg.Report], None]:
    """Ctrl-C as soon as something hangs."""

    def progress(report: hg.Report) -> None:
        if gate.reached.is_set():
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("how", ["until", "interrupt", "halt"])
def test_an_operator_that_blocks_does_not_keep_a_run(
    gate: Gate, ends: Ends, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, stuck, good = application(gate)
    if how == "until":  # its time is over as soon as something hangs, by a clock that is put forward
        real = WallClock.now
        monkeypatch.setattr(WallClock, "now", lambda c: 301.0 if gate.reached.is_set() else real(c))
        report = ends(lambda: app.run(engine(), until=300))
    elif how == "interrupt":
        report = ends(lambda: app.run(engine(), until=None, progress=stop_when(gate)))
    else:
        running = app.start(engine())
        assert gate.reached.wait(PATIENCE)
        running.stop()
        report = running.wait(PATIENCE)
    error = str(report.queries["stuck"].error)
    for part in ("'blocking'", f"{GRACE} seconds", "did not come back"):
        assert part in error
    assert report.queries["good"].error is None
    assert [row["value"] for row in good] == [2 * i for i in range(len(good))]
    counted = report.queries["stuck"].tuples_out, len(stuck)
    gate.open()
    for thread in threading.enumerate():
        if thread.name.startswith("headgate-worker"):
            thread.join(PATIENCE)
    assert (report.queries["stuck"].tuples_out, len(stuck)) == counted == (0, 0), "a run that is over is over"


def test_the_grace_passes_by_itself(ends: Ends) -> None:
    """By the clock, as it is for users: whoever else is not back in that time, the run ends."""
    never = threading.Event()

    def block(batch: pa.RecordBatch) -> pa.RecordBatch:
        reached.set()
        never.wait(PATIENCE)
        return batch

    app, reached = hg.App("stopping"), threading.Event()
    ticks = app.source("ticks", hg.from_rate(1000))
    ticks.map_packets(block, schema=ticks.schema, name="blocking").to("stuck", hg.to_list([]))
    running = app.start(hg.Threads(workers=1, grace=0.1))
    assert reached.wait(PATIENCE)
    running.stop()
    with pytest.raises(RunError, match=r"'blocking'.*did not come back within 0\.1 seconds"):
        ends(lambda: running.wait(PATIENCE))
    never.set()


def test_a_thread_is_waited_for_until_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(worker_pool.time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(worker_pool, "LOOK", 1e-3)
    release = threading.Event()
    thread = threading.Thread(target=release.wait, daemon=True)
    worker_pool.join(thread, 3.0)  # it has not been started
    thread.start()
    worker_pool.join(thread, 3.0)
    assert thread.is_alive()
    assert next(seconds) == 4, "it has looked at the clock until that moment came"
    release.set()
    worker_pool.join(thread)
    assert not thread.is_alive()


def test_if_every_query_hangs_the_run_says_where(gate: Gate, ends: Ends) -> None:
    app = hg.App("stopping")
    ticks = app.source("ticks", hg.from_rate(1000))
    ticks.map_packets(gate.packet, schema=ticks.schema, name="blocking").to("stuck", hg.to_list([]))
    with pytest.raises(RunError, match="'blocking'"):
        ends(lambda: app.run(engine(), until=None, progress=stop_when(gate)))


def test_a_box_of_a_superbox_that_blocks_is_the_one_that_is_named(gate: Gate, ends: Ends) -> None:
    app = hg.App("stopping")
    ticks = app.source("ticks", hg.from_rate(1000))
    before = ticks.filter("value >= 0", name="before")
    before.map_packets(gate.packet, schema=ticks.schema, name="blocking").filter(
        "value > 1", name="after"
    ).to("stuck", hg.to_list([]))
    ticks.to("good", hg.to_list([]))
    report = ends(lambda: app.run(engine(), "lp", until=None, progress=stop_when(gate)))
    assert "'blocking'" in str(report.queries["stuck"].error)
    assert "'before'" not in str(report.queries["stuck"].error)


def test_a_keyed_box_that_blocks_in_a_bucket_does_not_keep_a_run(gate: Gate, ends: Ends) -> None:
    def count(row: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        gate.packet(pa.record_batch({"a": [1]}))
        return row

    app = hg.App("stopping")
    ticks = app.source("ticks", hg.from_rate(1000))
    keyed = ticks.with_columns("value % 7 AS k").key_by("k")
    keyed.process(count, schema=ticks.with_columns("value % 7 AS k").schema, name="blocking").to(
        "stuck", hg.to_list([])
    )
    ticks.to("good", hg.to_list([]))
    report = ends(lambda: app.run(engine(split=True), until=None, progress=stop_when(gate)))
    assert "'blocking'" in str(report.queries["stuck"].error)


def test_a_sink_that_blocks_does_not_keep_a_run_and_others_are_finished(
    gate: Gate, ends: Ends, tmp_path: Path
) -> None:
    app = hg.App("stopping")
    ticks = app.source("ticks", hg.from_rate(1000))
    ticks.to("stuck", hg.to_function(gate.sink))
    ticks.filter("value >= 0").to("good", hg.to_parquet(tmp_path / "good"))

    def progress(report: hg.Report) -> None:
        if gate.reached.is_set() and report.queries["good"].tuples_out:
            raise KeyboardInterrupt

    report = ends(lambda: app.run(engine(), until=None, progress=progress))
    for part in ("'stuck'", "sink", f"{GRACE} seconds"):
        assert part in str(report.queries["stuck"].error)
    assert report.queries["good"].error is None
    assert [path.name for path in (tmp_path / "good").iterdir()] == ["part-000000.parquet"]
    written = pq.read_table(tmp_path / "good").column("value").to_pylist()
    assert written == list(range(report.queries["good"].tuples_out))


def test_a_slow_sink_is_not_waited_for_once_the_run_is_stopped(ends: Ends) -> None:
    """Of the packets that wait for it, none is handed over after the one that it has."""
    inside, release, given = threading.Event(), threading.Event(), []

    def slow(query: str, batch: pa.RecordBatch) -> None:
        given.extend(batch.column("value").to_pylist())
        inside.set()
        assert release.wait(PATIENCE)

    app = hg.App("stopping")
    app.source("ticks", hg.from_rate(100_000)).filter("value >= 0").to("slow", hg.to_function(slow))
    running = app.start(hg.Threads(workers=2, packet_rows=10, grace=PATIENCE))
    assert inside.wait(PATIENCE)
    eventually(lambda: running.report().tuples >= 100)  # so that packets wait for it
    first, runner = len(given), running._line.runner
    runner.halt()
    release.set()
    report = running.wait(PATIENCE)
    assert len(given) == first == report.queries["slow"].tuples_out


class Unclosable(Sink, Writer):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def open(self, query: str, schema: pa.Schema) -> Writer:
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def close(self, error: bool) -> None:
        self._gate.packet(pa.record_batch({"a": [1]}))


def test_a_sink_whose_close_blocks_keeps_neither_the_run_nor_other_sinks(
    gate: Gate, ends: Ends, tmp_path: Path
) -> None:
    app = hg.App("stopping")
    ticks = app.source("ticks", hg.from_rate(1000))
    ticks.to("stuck", Unclosable(gate))
    ticks.filter("value >= 0").to("good", hg.to_parquet(tmp_path / "good"))

    def progress(report: hg.Report) -> None:
        if report.queries["good"].tuples_out:
            raise KeyboardInterrupt

    report = ends(lambda: app.run(engine(), until=None, progress=progress))
    assert "'stuck': its sink was not closed" in str(report.queries["stuck"].error)
    assert report.queries["good"].error is None
    assert parts(tmp_path / "good") == ["part-000000.parquet"]


def test_a_run_that_is_done_does_not_wait_for_a_query_that_was_removed(gate: Gate, ends: Ends) -> None:
    def block(row: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """With state, so that one worker is inside, and not all of them."""
        gate.packet(pa.record_batch({"a": [1]}))
        return row

    app, good = hg.App("stopping"), []
    ticks = app.source("ticks", hg.from_rate(1000, limit=2000))
    ticks.process(block, schema=ticks.schema, name="blocking").to("stuck", hg.to_list([]))
    ticks.filter("value >= 0", name="all").to("good", hg.to_list(good))
    running = app.start(engine(), until="drained")
    assert gate.reached.wait(PATIENCE)
    eventually(lambda: len(good) == 2000)  # then nothing is left to do but in the query that hangs
    running.remove("stuck")
    report = running.wait(PATIENCE)
    assert report.queries["stuck"].error is None
    assert [row["value"] for row in good] == list(range(2000))


class Hanging(Source):
    schema = pa.schema([("a", pa.int64())])
    finite, live = False, True

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def open(self) -> Reader:
        return HangingReader(self.gate)


class HangingReader(Reader):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        self._gate.packet(pa.record_batch({"a": [1]}))
        return None

    def close(self) -> None:
        assert not self._gate.reached.is_set(), "closed while it was being read"


def test_a_source_that_blocks_does_not_keep_a_run(gate: Gate, ends: Ends) -> None:
    app = hg.App("stopping")
    app.source("hanging", Hanging(gate)).to("stuck", hg.to_list([]))
    app.source("ticks", hg.from_rate(1000)).to("good", hg.to_list([]))
    report = ends(lambda: app.run(engine(), until=None, progress=stop_when(gate)))
    assert "Source 'hanging'" in str(report.queries["stuck"].error)
    assert report.queries["good"].error is None


def test_a_run_that_is_done_waits_for_its_sinks_however_slow(gate: Gate, ends: Ends) -> None:
    """The grace is for runs that are stopped: one that has drained hands everything over."""
    given: list[int] = []

    def slow(query: str, batch: pa.RecordBatch) -> None:
        gate.packet(batch)
        given.extend(batch.column("value").to_pylist())

    app = hg.App("stopping")
    app.source("ticks", hg.from_rate(1_000_000, limit=100)).to("slow", hg.to_function(slow))
    running = app.start(hg.Threads(workers=2, packet_rows=10, grace=0.0), until="drained")
    assert gate.reached.wait(PATIENCE)
    gate.open()
    report = running.wait(PATIENCE)
    assert report.queries["slow"].error is None
    assert given == list(range(100))


@pytest.mark.parametrize("grace", [0.0, 86_400.0])
def test_a_second_interrupt_ends_a_run_in_a_program_of_ones_own(
    start: Callable[..., Process], grace: float
) -> None:
    """It comes when the first has been noticed; the exception then reaches the program, and only then."""
    process = start(PROGRAM, blocks=True, engine=f"hg.Threads(workers=3, grace={grace})")
    process.until("BLOCKED")
    process.process.send_signal(signal.SIGINT)
    if not grace:  # boxes that happen to be inside a call then count as hanging: the report, or its error
        assert process.ended() in (0, 1), process.text
        assert "KeyboardInterrupt" not in process.text
        return
    while process.process.poll() is None:
        process.process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    process.ended()
    assert "REPORTED" not in process.text
    assert "KeyboardInterrupt" in process.text


def test_grace_is_a_time(ends: Ends) -> None:
    for wrong in (-1, float("inf"), float("nan"), True, "5 s"):
        with pytest.raises(hg.HeadgateError, match="grace="):
            hg.Threads(grace=wrong)  # type: ignore[arg-type]


# --- signals --------------------------------------------------------------------------------------------

APP = """
import sys
import threading
import headgate as hg

sys.path.insert(0, SUPPORT)
from grace import Held, pass_by_hand

never, held = threading.Event(), Held()
if BY_HAND:
    pass_by_hand(held)

def block(batch):
    held.enter()
    print("BLOCKED", flush=True)
    never.wait()

def tell(query, batch):
    print("ROWS", flush=True)

app = hg.App("signals")
ticks = app.source("ticks", hg.from_rate(1000))
ticks.filter("value >= 0", name="all").to("kept", hg.to_parquet(OUT))
ticks.filter("value >= 0", name="told").to("told", hg.to_function(tell))
if BLOCKS:
    ticks.map_packets(block, schema=ticks.schema, name="blocking").to("stuck", hg.to_list([]))
"""
PROGRAM = APP + 'report = app.run(ENGINE, until=None)\nprint("REPORTED", report.engine, flush=True)\n'


class Process:
    """A program whose lines can be waited for."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A shell that started the tests in the background may have had it ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            env={**os.environ, "COLUMNS": "200"},
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.said: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def until(self, start: str) -> None:
        """Wait for a line that begins so, unless it has come already."""
        while not any(line.startswith(start) for line in self.said):
            line = self.lines.get(timeout=PATIENCE)
            assert line is not None, f"it ended without saying {start}: {''.join(self.said)}"
            self.said.append(line)

    def ended(self) -> int:
        code = self.process.wait(PATIENCE)
        while (line := self.lines.get(timeout=PATIENCE)) is not None:
            self.said.append(line)
        return code

    @property
    def text(self) -> str:
        return "".join(self.said)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def run(
        text: str, *arguments: str, blocks: bool = False, engine: str = "", by_hand: bool = False
    ) -> Process:
        file = tmp_path / "app.py"
        filled = text.replace("OUT", repr(str(tmp_path / "out"))).replace("BLOCKS", str(blocks))
        filled = filled.replace("SUPPORT", repr(SUPPORT)).replace("BY_HAND", str(by_hand))
        file.write_text(filled.replace("ENGINE", engine))
        command = ["-c", "from headgate.cli.main import main; main()", "run"] if arguments else []
        started.append(Process(*command, str(file), *arguments))
        return started[-1]

    yield run
    for process in started:
        process.process.kill()
        process.process.wait()


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("signal_", "blocks"),
    [(signal.SIGTERM, False), (signal.SIGINT, True)],
    ids=["SIGTERM", "SIGINT where a box blocks"],
)
def test_a_signal_ends_headgate_run_and_files_are_finished(
    start: Callable[..., Process], tmp_path: Path, signal_: signal.Signals, blocks: bool
) -> None:
    """SIGINT where nothing blocks is in test_threads.py."""
    options = ("--engine", "threads", "--workers", "3", "--until", "stopped", "--grace", str(GRACE))
    process = start(APP, *options, blocks=blocks, by_hand=True)
    process.until("ROWS")
    if blocks:
        process.until("BLOCKED")
    process.process.send_signal(signal_)
    assert process.ended() == (1 if blocks else 0), process.text
    assert ("Box 'blocking'" in process.text) == blocks
    assert parts(tmp_path / "out") == ["part-000000.parquet"]
    values = pq.read_table(tmp_path / "out").column("value").to_pylist()
    assert values == list(range(len(values)))


def test_sigterm_ends_a_run_in_a_program_of_ones_own(start: Callable[..., Process], tmp_path: Path) -> None:
    """SIGINT is in test_threads.py."""
    process = start(PROGRAM, engine='"threads"', by_hand=True)
    process.until("ROWS")
    process.process.send_signal(signal.SIGTERM)
    assert process.ended() == 0, process.text
    assert "REPORTED threads" in process.text
    assert parts(tmp_path / "out") == ["part-000000.parquet"]


@pytest.mark.xdist_group("spark")
def test_sigterm_ends_a_run_on_spark_in_order(tmp_path: Path) -> None:
    """This process gets it, so that it need not start a Spark of its own."""
    assert threading.current_thread() is threading.main_thread(), "only there can signals be handled"
    before, sent = signal.getsignal(signal.SIGTERM), []

    def progress(report: hg.Report) -> None:
        if report.queries["kept"].tuples_out and not sent:
            sent.append(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    app = hg.App("signals")
    app.source("ticks", hg.from_rate(1000)).filter("value >= 0").to("kept", hg.to_parquet(tmp_path / "out"))
    report = app.run(hg.Spark(workers=1), until=PATIENCE, progress=progress)
    assert sent == [signal.SIGTERM]
    assert report.queries["kept"].error is None
    values = pq.read_table(tmp_path / "out").column("value").to_pylist()
    assert values == list(range(report.queries["kept"].tuples_out))
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_ends_at_once(start: Callable[..., Process]) -> None:
    options = ("--engine", "threads", "--workers", "3", "--until", "stopped", "--grace", "86400")
    process = start(APP, *options, blocks=True)
    process.until("BLOCKED")
    process.process.send_signal(signal.SIGINT)
    process.until("Stopping")
    process.process.send_signal(signal.SIGINT)
    assert process.ended() == 130, process.text
