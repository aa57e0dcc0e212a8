"""Replays of runs on threads predict a simulated run whose threads share an interpreter.

The truth is a simulation with known costs: of operators, of visits to the scheduler, of reading the source.
The recorder sees of it what it sees of a run on threads: processor time and when things happened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import headgate as hg
from headgate.control.line import Line
from headgate.engines.simulated.cores import Cores
from headgate.engines.simulated.costs import Costs
from headgate.engines.simulated.interpreter import Interpreter
from headgate.engines.simulated.kernel import Kernel
from headgate.recording.recorder import FEEDER, Recorder
from headgate.recording.replaying import Replayable
from headgate.recording.thread_costs import least_squares
from headgate.runtime.boxes import LiveBox, Work
from headgate.runtime.report import Overhead, Report
from headgate.scheduling import policies

FIXED, EACH = (0.0004, 0.0002, 0.0007, 0.0003), (2e-6, 4e-6, 1e-6, 3e-6)
"""By box, seconds of a call and of a tuple."""
VISIT, MEMBER, ADMISSION, ROW = 0.0005, 0.0001, 0.0003, 1e-7


class Truth(Costs):
    """What threads take; ``spent`` has it by worker, as a recorder would weigh it."""

    exact, threads = False, True

    def __init__(self) -> None:
        super().__init__(None)
        self.spent: dict[int, float] = {}

    def seconds(self, live: LiveBox, packets: int, tuples: int, results: int, keys: int = 0) -> float:
        return FIXED[live.place] * packets + EACH[live.place] * tuples

    def held(self, live: LiveBox, packets: int) -> float:
        return FIXED[live.place] * packets

    def overhead(self, work: Work, stated: float, *, follows: bool = False) -> float:
        for member in work.members.values():
            member.processor = member.seconds
        own = VISIT + MEMBER * len(work.members)
        self.spent[work.worker] = own + sum([member.seconds for member in work.members.values()])
        return own

    def admitting(self, rows: int) -> float:
        self.spent[FEEDER] = ADMISSION + ROW * rows
        return self.spent[FEEDER]


class Weighing(Recorder):
    """Weighs virtual threads."""

    truth: Truth

    def _weighed(self, thread: int) -> float:
        return self.truth.spent.get(thread, 0.0)


def app(rate: float) -> hg.App:
    made = hg.App("threads")
    rows = made.source("rows", hg.from_rate(rate, limit=int(rate / 2)))
    base = rows.map_packets(_same, schema=rows.schema)
    for n in range(3):
        own = base.map_packets(_same, schema=rows.schema)
        own.to(f"q{n}", hg.to_function(_drop), qos=hg.QoS([(0, 1), (0.02, 1), (0.2, 0)]))
    return made


def _same(batch: Any) -> Any:
    return batch


def _drop(name: str, batch: Any) -> None:
    pass


def run(policy: str, workers: int, rate: float = 60_000, record: Path | None = None) -> Report:
    truth, line = Truth(), Line()
    if record is not None:
        about = {"engine": "threads", "settings": {}, "policy": policy, "policy_spelled": True, "seed": 0}
        recorder = Weighing(record, about | {"drain": True})
        recorder.truth = truth
        line.onlookers.append(recorder)
    engine = hg.Simulated(costs=truth, cores=2, packet_rows=2048)
    network = app(rate).network
    report = engine.run(network, policies.get(policy), workers=workers, line=line)
    if record is not None:
        recorder.end(report)
    return report


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Replayable:
    path = tmp_path_factory.mktemp("recorded") / "run.hgr"
    # How long threads of this process waited for real cores says nothing of virtual ones.
    with mock.patch("headgate.recording.recorder._ran_and_waited", dict):
        run("mc", 2, record=path)
    found = Replayable(path)
    found.about["cores"] = 2
    return found


def middles(report: Report) -> list[float]:
    return [figure for own in report.queries.values() for figure in (own.latency.p50, own.latency.mean)]


@pytest.mark.parametrize(
    ("policy", "workers"), [("mc", 2), ("lp", 2), ("fcfs", 2), ("mc", 1), ("round_robin", 1)]
)
def test_a_run_on_threads_is_predicted(recorded: Replayable, policy: str, workers: int) -> None:
    assert recorded.on_threads is not None
    predicted, real = recorded.run(policy, workers), run(policy, workers)
    assert middles(predicted) == pytest.approx(middles(real), rel=0.02)
    assert predicted.trace.total == pytest.approx(real.trace.total, rel=0.1)


def test_processor_time_tells_what_calls_visits_and_admissions_cost(recorded: Replayable) -> None:
    costs = recorded.on_threads
    assert costs is not None
    for model, fixed, each in zip(recorded.models, FIXED, EACH, strict=True):
        assert (model.fixed, model.each) == pytest.approx((fixed, each), rel=0.01)
    assert costs.admitting(1000) == pytest.approx(ADMISSION + 1000 * ROW)
    assert costs._visit + costs._member == pytest.approx(VISIT + MEMBER)


def test_one_thread_at_a_time_holds_the_interpreter() -> None:
    """Two threads that each compute for 1 ms with it take 2 ms, in turns; kernels go on meanwhile."""
    kernel, ended = Kernel(), {}
    cores = Cores(kernel, Overhead(), 3, 3, 0.004, 0.0)
    interpreter = Interpreter(cores)
    for thread in (0, 1):
        interpreter.run(thread, 0.001, lambda thread=thread: ended.setdefault(thread, kernel.now()))
    cores.run(2, 0.001, lambda: ended.setdefault(2, kernel.now()))
    while kernel.next_time() is not None:
        kernel.step()
    assert ended == pytest.approx({0: 0.0015, 1: 0.002, 2: 0.001})


def test_a_fit_has_no_negative_parts() -> None:
    ones, size = np.ones(5), np.arange(1.0, 6.0)
    assert least_squares([ones, size], 3 * ones + 2 * size) == pytest.approx([3.0, 2.0])
    once, each = least_squares([ones, size], 2 * size - 1)
    assert (once, each >= 0) == (0.0, True)
    assert least_squares([ones, 0 * size], 4 * ones) == pytest.approx([4.0, 0.0])
