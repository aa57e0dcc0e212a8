"""Threads: bounded queues, workers that sleep, runs that stop cleanly, failures that stay where they are.

Orders of events are forced with events inside the user's functions, never with sleeps.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from graphs import graphs
from headgate import testing
from headgate.connectors.source import Chunk, Reader, Source, Wait
from headgate.errors import RunError, SinkError
from headgate.runtime import starting
from headgate.runtime.core import QUEUE_PACKETS, Core
from headgate.runtime.instructions import Deliver, RunCall
from headgate.runtime.network import LiveNetwork
from headgate.runtime.starting import Starting
from headgate.runtime.stimuli import Admitted, CallEnded, Free, Stimulus
from headgate.scheduling.events import Event, Idle
from headgate.scheduling.interface import Call, Decision, Plan, Reschedule, Run, Wake
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import WHOLE_QUEUE, Count
from waiting import PATIENCE, SOON, eventually

NUMBERS = pa.schema([("a", pa.int64())])
Ends = Callable[[Callable[[], hg.Report]], hg.Report]
Rows = list[dict[str, Any]]


def numbers(count: int) -> Rows:
    return [{"a": i} for i in range(count)]


def values(rows: Rows) -> list[int]:
    return [row["a"] for row in rows]


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Any:
    """Every test here leaves as many threads as it found."""
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and t.name.startswith("headgate-")]
    assert not left


class Counted(Source):
    """Numbers, with a count of how many were handed out."""

    schema = NUMBERS
    finite = True
    live = False

    def __init__(self, count: int, ended: threading.Event | None = None) -> None:
        self.count = count
        self.given = 0
        self.ended = ended
        """Set when the last row is gone."""

    def open(self) -> Reader:
        self.given = 0
        return _CountedReader(self)


class _CountedReader(Reader):
    def __init__(self, source: Counted) -> None:
        self.source = source

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        source = self.source
        start = source.given
        if start == source.count:
            if source.ended is not None:
                source.ended.set()
            return None
        source.given = min(start + max_rows, source.count)
        return Chunk(testing.batch([{"a": i} for i in range(start, source.given)], NUMBERS), 0.0)


@pytest.fixture
def pressure(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the sources have been told for the first time that there is no room."""
    felt = threading.Event()
    real = LiveNetwork.room

    def room(self: LiveNetwork, source: int) -> int:
        rows = real(self, source)
        if rows <= 0:
            felt.set()
        return rows

    monkeypatch.setattr(LiveNetwork, "room", room)
    return felt


# --- order under chosen interleavings -----------------------------------------------------------------


def test_results_of_a_packet_that_was_overtaken_leave_first(ends: Ends) -> None:
    """Two workers are inside one stateless box; the second is done before the first, and waits for it.

    It is done when it comes with another packet.
    """
    overtaken = threading.Event()

    def first_waits(batch: pa.RecordBatch) -> pa.RecordBatch:
        first = batch.column("a")[0].as_py()
        if first == 0:
            assert overtaken.wait(SOON), "no second worker came through the box"
        elif first == 2:
            overtaken.set()
        return batch

    app, found = hg.App("overtaken"), []
    stream = app.source("numbers", testing.from_rows(numbers(10)))
    stream.map_packets(first_waits, schema=NUMBERS).to("q", hg.to_list(found))
    report = ends(lambda: app.run(hg.Threads(workers=2), "tuple_at_a_time"))
    assert values(found) == list(range(10))
    ended = [call.start for call in report.trace]
    assert ended != sorted(ended), "calls were meant to end in another order than they began"


class Script(Pull):
    """Plans in the order in which workers ask; after the last, whatever is ready."""

    name = "script"

    def __init__(self, *plans: Plan) -> None:
        self.plans = list(plans)

    def choose(self, worker: int, now: float) -> Plan | None:
        if not self.catalog.ready:
            return None
        return self.plans.pop(0) if self.plans else (Call(self.catalog.ready[0], WHOLE_QUEUE),)


def test_a_superbox_does_not_overtake_a_call_before_it(ends: Ends) -> None:
    """One worker is in the first box with tuple 0; the other's plan takes tuple 1 through both boxes.

    The second box has a state: it must not see 1 before 0.  The plan is over when tuple 2 comes.
    """
    overtaken = threading.Event()

    def first_waits(batch: pa.RecordBatch) -> pa.RecordBatch:
        first = batch.column("a")[0].as_py()
        if first == 0:
            assert overtaken.wait(SOON), "no second worker came through the box"
        elif first == 2:
            overtaken.set()
        return batch

    def remember(row: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        state.setdefault("seen", []).append(row["a"])
        return {"seen": list(state["seen"])}

    app, found = hg.App("superbox"), []
    stream = app.source("numbers", testing.from_rows(numbers(3)))
    stateless = stream.map_packets(first_waits, schema=NUMBERS)
    schema = pa.schema([("seen", pa.list_(pa.int64()))])
    stateless.process(remember, schema=schema, state=dict).to("q", hg.to_list(found))
    alone = (Call(0, Count(1)),)
    superbox = (Call(0, Count(1)), Call(1, WHOLE_QUEUE))
    ends(lambda: app.run(hg.Threads(workers=2), Script(alone, superbox)))
    assert [row["seen"] for row in found] == [[0], [0, 1], [0, 1, 2]]


def test_a_union_waits_for_the_slower_branch(ends: Ends) -> None:
    """The fast branch is through with everything before the slow one has given anything."""
    fast_is_done = threading.Event()

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        assert fast_is_done.wait(SOON)
        return batch

    def fast(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column("a")[-1].as_py() == 19:
            fast_is_done.set()
        return batch

    app, found = hg.App("branches"), []
    stream = app.source("numbers", testing.from_rows(numbers(20)))
    one = stream.map_packets(slow, schema=NUMBERS)
    other = stream.map_packets(fast, schema=NUMBERS)
    one.union(other).to("q", hg.to_list(found))
    ends(lambda: app.run(hg.Threads(workers=2)))
    assert values(found) == [i for i in range(20) for _ in range(2)]


@pytest.mark.parametrize("policy", hg.policies.names())
def test_a_box_with_state_never_has_two_workers_inside(ends: Ends, policy: str) -> None:
    door = threading.Lock()

    def alone(row: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        assert door.acquire(blocking=False), "two workers are inside"
        try:
            state["sum"] = state.get("sum", 0) + row["a"]
            return {"a": state["sum"]}
        finally:
            door.release()

    app, found = hg.App("alone"), []
    stream = app.source("numbers", testing.from_rows(numbers(200)))
    stream.process(alone, schema=NUMBERS, state=dict).to("q", hg.to_list(found))
    ends(lambda: app.run(hg.Threads(workers=4, packet_rows=2), policy))
    assert values(found) == [i * (i + 1) // 2 for i in range(200)]


# --- back-pressure ------------------------------------------------------------------------------------


def test_a_slow_box_holds_the_source_back(ends: Ends, pressure: threading.Event) -> None:
    """While a box works on its first packet, queues fill up to their bound and the source stops."""
    packet, rows = 4, 10_000
    source, seen = Counted(rows, ended=pressure), []

    def slow(row: dict[str, Any]) -> dict[str, Any]:
        if not seen:
            assert pressure.wait(SOON)
            seen.append(source.given)
        return row

    app, found = hg.App("slow box"), []
    stream = app.source("numbers", source).filter("a >= 0")
    stream.flat_map_rows(slow, schema=NUMBERS).to("q", hg.to_list(found))
    ends(lambda: app.run(hg.Threads(workers=2, packet_rows=packet), "round_robin"))
    # Either queue is full with one train on top, and either box has as much in hand.
    assert seen[0] <= 4 * (2 * QUEUE_PACKETS + 2) * packet < rows
    assert values(found) == list(range(rows))


@pytest.mark.parametrize("workers", [1, 3])
def test_a_slow_sink_holds_the_source_back(ends: Ends, pressure: threading.Event, workers: int) -> None:
    packet, rows = 4, 10_000
    source, seen, found = Counted(rows, ended=pressure), [], []

    def slow(query: str, batch: pa.RecordBatch) -> None:
        if not seen:
            assert pressure.wait(SOON)
            seen.append(source.given)
        found.extend(batch.column("a").to_pylist())

    app = hg.App("slow sink")
    app.source("numbers", source).filter("a >= 0").to("q", hg.to_function(slow))
    ends(lambda: app.run(hg.Threads(workers=workers, packet_rows=packet), "round_robin"))
    # Both queues are full, with one train on top, and each worker has as much in hand.
    assert seen[0] <= 4 * (2 * QUEUE_PACKETS + 1 + workers) * packet < rows
    assert found == list(range(rows))


@pytest.mark.parametrize("policy", hg.policies.names())
@pytest.mark.parametrize("workers", [1, 3])
def test_queues_stay_within_their_bound_for_the_whole_run(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, policy: str, workers: int
) -> None:
    """No queue is ever over its bound, though one box makes three tuples of each (H9)."""
    packet = 8
    longest: dict[str, int] = {}

    handle = Core.handle

    def watched(self: Core, stimulus: Stimulus, now: float) -> Any:
        result = handle(self, stimulus, now)
        for live in self.live.boxes:
            longest[live.box.name] = max(longest.get(live.box.name, 0), live.inbox.rows)
        return result

    monkeypatch.setattr(Core, "handle", watched)
    app, found = hg.App("bounded"), []
    stream = app.source("numbers", testing.from_rows(numbers(800)))
    one_lane = stream.process(lambda row, state: row, schema=NUMBERS, name="first")
    thrice = one_lane.flat_map_rows(lambda row: [row] * 3, schema=NUMBERS, name="second")
    thrice.select("a", name="third").process(lambda row, state: row, schema=NUMBERS, name="last").to(
        "q", hg.to_list(found)
    )
    ends(lambda: app.run(hg.Threads(workers=workers, packet_rows=packet), policy))
    assert max(longest.values()) <= QUEUE_PACKETS * packet, longest
    assert values(found) == [number for number in range(800) for _ in range(3)]


def test_a_full_ring_holds_back_its_box_and_no_worker(ends: Ends) -> None:
    """One worker stays in the first call of a stateless box, the ring of four fills up behind it, and the
    other worker goes on with the other query (O12): the first call is over when that query is done.
    """
    packet, rows, behind, calls, others, found = 4, 60, [0], [0], [], []

    def first_waits(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column("a")[0].as_py() == 0:
            eventually(lambda: len(others) == rows, "the other query did not go on")
            behind[0] = calls[0]
        calls[0] += 1
        return batch

    app = hg.App("overtaken")
    stream = app.source("numbers", testing.from_rows(numbers(rows)))
    stream.map_packets(first_waits, schema=NUMBERS).to("q", hg.to_list(found))
    stream.process(lambda row, state: row, schema=NUMBERS).to("other", hg.to_list(others))
    engine = hg.Threads(workers=2, packet_rows=packet, ring=4)
    report = ends(lambda: app.run(engine, hg.policies.get("round_robin", train=Count(packet))))
    assert values(found) == values(others) == list(range(rows))
    assert behind[0] == 3, "what overtakes a call waits in the ring, and no more is taken than fits there"
    assert report.ring_full > 0


def test_a_query_that_fails_no_longer_holds_the_source_back(ends: Ends, pressure: threading.Event) -> None:
    """Its queue is full and the source waits for it; the other query has nothing to do.  Then it fails."""
    source, found = Counted(500), []
    more = threading.Event()

    def collect(query: str, batch: pa.RecordBatch) -> None:
        found.extend(batch.column("a").to_pylist())
        more.set()

    def fails(row: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        assert pressure.wait(SOON)
        while len(found) < source.given:
            more.wait(0.01)
        raise ValueError("boom")

    app = hg.App("fails")
    stream = app.source("numbers", source)
    stream.process(fails, schema=NUMBERS).to("bad", hg.to_list([]))
    stream.filter("a >= 0").to("good", hg.to_function(collect))
    report = ends(lambda: app.run(hg.Threads(workers=2, packet_rows=1), "tuple_at_a_time"))
    assert "boom" in str(report.queries["bad"].error)
    assert report.queries["good"].error is None
    assert found == list(range(500))


# --- sleeping -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", hg.policies.names())
def test_workers_without_work_sleep(ends: Ends, policy: str) -> None:
    """A worker asks at the start, after a plan, and when it is woken; never in between."""
    recorder = testing.Recorder(policy)
    app, found = hg.App("sleepy"), []
    arrivals = [(i * 0.03, [{"a": i}]) for i in range(5)]
    app.source("slow", testing.Timed(arrivals)).filter("a >= 0").to("q", hg.to_list(found))
    report = ends(lambda: app.run(hg.Threads(workers=3), recorder))
    asked = sum(isinstance(event, Idle) for event, _ in recorder.log)
    decisions: Sequence[Decision] = [d for _, made in recorder.log for d in made]
    plans = sum(isinstance(d, Run) for d in decisions)
    woken = sum(len(d.workers) for d in decisions if isinstance(d, Wake))
    woken += sum(report.workers for d in decisions if isinstance(d, Reschedule))
    assert asked <= report.workers + plans + woken
    assert plans <= 5 * report.workers, "for each of 5 tuples one call, and workers that came too late for it"
    assert values(found) == list(range(5))


# --- stopping -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["round_robin", "thread_per_box", "qos", "fcfs", "bobox", "las"])
def test_an_endless_source_stops_after_the_time_given(ends: Ends, policy: str) -> None:
    """What has come out is a beginning of what would have come, and nothing open was closed.

    One policy of each way to park and wake workers; how a run stops is the engine's.
    """
    app, found, closed = hg.App("endless"), [], []
    stream = app.source("rate", hg.from_rate(2000))
    stream.filter("value >= 0").to("q", hg.to_list(found))
    stream.window(hg.tumbling("1 day", on="timestamp")).agg("count(*) AS n").to("days", hg.to_list(closed))
    report = ends(lambda: app.run(hg.Threads(workers=2), policy, until=0.2))
    assert [row["value"] for row in found] == list(range(len(found)))
    assert closed == []
    assert report.queries["q"].error is None
    assert report.tuples >= len(found)


def test_a_run_without_end_is_stopped_by_ctrl_c(tmp_path: Path) -> None:
    """The report comes all the same, the program goes on, and there is no traceback."""
    program = """
        import headgate as hg
        app = hg.App("endless")
        def say(query, batch):
            print("first", flush=True)
        app.source("rate", hg.from_rate(1000)).filter("value >= 0").to("q", hg.to_function(say))
        report = app.run("threads", until=None)
        print("results", report.queries["q"].tuples_out > 0)
    """
    out, errors, code = interrupted([sys.executable, "-c", textwrap.dedent(program)], tmp_path)
    assert code == 0, errors
    assert out.splitlines()[-1] == "results True"
    assert "Traceback" not in errors


def test_the_command_line_is_stopped_by_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        textwrap.dedent("""
        import headgate as hg
        app = hg.App("endless")
        def say(query, batch):
            print("first", flush=True)
        app.source("rate", hg.from_rate(1000)).to("ticks", hg.to_function(say))
        """)
    )
    command = [sys.executable, "-c", "from headgate.cli import main; main()"]
    out, errors, code = interrupted(
        [*command, "run", "app.py", "--engine", "threads", "--until", "stopped"], tmp_path
    )
    assert code == 0, errors
    assert "ticks" in out
    assert "policy" in out
    assert "Traceback" not in errors


def interrupted(command: list[str], folder: Path) -> tuple[str, str, int]:
    """Run a program, interrupt it once it has said something, and return what it said."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        # Tests that were started in the background ignore ctrl-c, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return first + out, errors, process.returncode


# --- failing ------------------------------------------------------------------------------------------


class Broken(Pull):
    """A policy with a bug: its first decision, or its first decision after some calls, raises."""

    name = "broken"

    def __init__(self, after: int) -> None:
        self.left = after

    def choose(self, worker: int, now: float) -> Plan | None:
        if not self.catalog.ready:
            return None
        self.left -= 1
        if self.left < 0:
            raise ZeroDivisionError("a bug in the policy")
        return (Call(self.catalog.ready[0], WHOLE_QUEUE),)


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_crash_inside_ends_the_run_and_is_raised(ends: Ends, after: int, workers: int) -> None:
    app, found = hg.App("crash"), []
    app.source("rate", hg.from_rate(5000)).filter("value >= 0").to("q", hg.to_list(found))
    with pytest.raises(ZeroDivisionError, match="a bug in the policy"):
        ends(lambda: app.run(hg.Threads(workers=workers), Broken(after), until=None))


def test_a_crash_in_the_policys_start_is_raised_before_any_thread_starts() -> None:
    class Refuses(Pull):
        def handle(self, event: Event) -> Sequence[Decision]:
            return ()

        def begin(self, workers: int) -> None:
            raise ZeroDivisionError("cannot start")

    app = hg.App("crash")
    app.source("numbers", testing.from_rows(numbers(3))).to("q", hg.to_list([]))
    with pytest.raises(ZeroDivisionError, match="cannot start"):
        app.run("threads", Refuses())


def test_a_function_that_exits_ends_the_run(ends: Ends) -> None:
    """SystemExit is no ordinary failure of a query: it ends the run, and no thread stays."""

    def leave(row: dict[str, Any]) -> None:
        raise SystemExit(3)

    app = hg.App("exit")
    app.source("numbers", testing.from_rows(numbers(3))).flat_map_rows(leave, schema=NUMBERS).to(
        "q", hg.to_list([])
    )
    with pytest.raises(SystemExit):
        ends(lambda: app.run("threads"))


def test_results_that_wait_when_their_query_fails_are_forgotten() -> None:
    """One worker has queued results for the sink, another finds the query's error before they are taken."""

    def fails_on_two(row: dict[str, Any]) -> dict[str, Any]:
        if row["a"] == 2:
            raise ValueError("two")
        return row

    app = hg.App("waiting")
    stream = app.source("numbers", testing.from_rows(numbers(4)))
    stream.flat_map_rows(fails_on_two, schema=NUMBERS).to("bad", hg.to_list([]))
    stream.to("good", hg.to_list([]))
    core = Core(app.network, hg.policies.get("tuple_at_a_time"), workers=1, packet_rows=4, drain=True)
    core.start()
    packets = core.admission.poll(0.0)
    assert not isinstance(packets, Wait)
    core.handle(Admitted(packets, core.admission.version), 0.0)
    waiting = {}
    for _ in range(3):
        [work] = [one.work for one in core.handle(Free(0), 0.0) if isinstance(one, RunCall)]
        core.calls.execute(work)
        core.calls.send(work)
        ended = core.handle(CallEnded(work), 0.0)
        waiting |= {one.output.output.name: one.output for one in ended if isinstance(one, Deliver)}
    assert waiting["bad"].failed
    assert waiting["bad"].take() == []
    assert not waiting["good"].failed if "good" in waiting else True


def test_a_sink_that_cannot_be_opened_fails_its_query_only(engine: hg.Engine) -> None:
    class Closed(type(hg.to_list([]))):  # type: ignore[misc]
        def open(self, query: str, schema: pa.Schema) -> Any:
            raise PermissionError("locked")

    app, found = hg.App("closed"), []
    stream = app.source("numbers", testing.from_rows(numbers(5)))
    stream.to("shut", Closed([]))
    stream.to("open", hg.to_list(found))
    report = app.run(engine)
    error = report.queries["shut"].error
    assert isinstance(error, SinkError)
    assert "'shut'" in str(error)
    assert "locked" in str(error)
    assert values(found) == list(range(5))


def test_if_all_queries_fail_the_run_raises_and_no_thread_stays(ends: Ends) -> None:
    def fails(row: dict[str, Any]) -> None:
        raise KeyError("nothing")

    app = hg.App("all")
    stream = app.source("rate", hg.from_rate(1000))
    stream.flat_map_rows(fails, schema=NUMBERS).to("one", hg.to_list([]))
    stream.flat_map_rows(fails, schema=NUMBERS).to("two", hg.to_list([]))
    with pytest.raises(RunError, match="'one', 'two'"):
        ends(lambda: app.run("threads", until=None))


def test_a_query_that_is_behind_does_not_hold_other_sources_back(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One query's queue is full until all of the other's tuples, which come only then, are answered."""
    full, answered, packet = threading.Event(), threading.Event(), 4
    real = LiveNetwork.room

    def room(self: LiveNetwork, source: int) -> int:
        rows = real(self, source)
        if source == 0 and rows < packet:  # a call takes any number of rows, so some room may be left
            full.set()
        return rows

    monkeypatch.setattr(LiveNetwork, "room", room)

    class Later(testing.Timed):
        """Arrives when the other source has been told that there is no room."""

        def open(self) -> Reader:
            reader = super().open()
            poll = reader.poll
            reader.poll = lambda now, most: poll(now, most) if full.is_set() else Wait(now + 0.01)  # type: ignore[method-assign]
            return reader

    def slow(row: dict[str, Any], state: Any) -> dict[str, Any]:
        assert answered.wait(SOON), "the quick query has not been answered"
        return row

    behind, ahead = [], []

    def collect(query: str, batch: pa.RecordBatch) -> None:
        ahead.extend(batch.column("a").to_pylist())
        if len(ahead) == 60:
            answered.set()

    app = hg.App("two sources")
    first = app.source("slow", testing.Timed([(0.0, numbers(1_200))]))
    first.process(slow, schema=NUMBERS).to("behind", hg.to_list(behind))
    app.source("quick", Later([(0.0, numbers(60))])).filter("a >= 0").to("ahead", hg.to_function(collect))
    ends(lambda: app.run(hg.Threads(workers=2, packet_rows=packet), "qos"))
    assert values(behind) == list(range(1_200))
    assert ahead == list(range(60))


def test_in_virtual_time_a_query_that_is_behind_does_not_slow_another_down() -> None:
    """The slow query's queue is full all the time; the other's tuples are answered as they arrive."""
    app = hg.App("two sources")
    slow = app.source("slow", hg.from_rate(2_000, limit=1_200)).universal(cost=0.001, name="slow box")
    slow.to("behind", hg.to_function(ignore))
    quick = app.source("quick", hg.from_rate(100, limit=60)).universal(cost=1e-5, name="quick box")
    quick.to("ahead", hg.to_function(ignore), qos=hg.QoS([(0, 1), (0.1, 1), (0.5, 0)]))
    report = app.run(hg.Simulated(workers=1, packet_rows=4), "qos")
    assert report.queries["behind"].tuples_out == 1_200
    assert report.queries["ahead"].tuples_out == 60
    assert report.queries["behind"].latency.p50 > 0.2
    assert report.queries["ahead"].latency.p50 < report.queries["behind"].latency.p50 / 2


def ignore(query: str, batch: pa.RecordBatch) -> None:
    pass


def test_a_keyed_box_is_not_split_for_packets_that_hold_too_little_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long its calls take: a part for each of a hundred buckets would be a call of its own."""
    opened: list[str] = []
    monkeypatch.setattr(Starting, "_open_buckets", lambda self, live, entry: opened.append(live.box.name))
    monkeypatch.setattr(starting, "DEAR_MEASURED", 0.0)
    app, found = graphs(120)
    app.run(hg.Threads(workers=4, packet_rows=3), "qos")
    assert len(found["pairs"]) > 10
    assert opened == []
