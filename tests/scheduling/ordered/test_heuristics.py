"""The heuristics of ordered processing by their formulas, and the climb to the best number of workers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import headgate as hg
from brain import Brain
from brain import chosen as boxes_of
from headgate import testing
from headgate.errors import PipelineError
from headgate.scheduling import policies
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.events import Event, Finished, Idle, QueueState, Spawned, Started, Timer
from headgate.scheduling.interface import Policy, Run, SetTimer, Wake
from headgate.scheduling.ordered.heuristics import CurrentThroughput, EstimatedTime, QueueSizeThrottling
from headgate.scheduling.trains import Time
from headgate.scheduling.tuning.elastic import PERIODS
from headgate.testing import play


def chain(*, lanes: int = 4) -> list[BoxEntry]:
    """Three boxes, one after the other."""
    return [
        BoxEntry("a", lanes, (), (1,), ("q",), fed_by=(0,)),
        BoxEntry("b", lanes, (0,), (2,), ("q",)),
        BoxEntry("c", lanes, (1,), (), ("q",)),
    ]


def known(*measured: tuple[float, float]) -> list[Event]:
    """Each box has been called once: seconds per tuple, and tuples out per tuple in, of a thousand."""
    events: list[Event] = []
    for box, (cost, selectivity) in enumerate(measured):
        events += [
            Started(0.0, 0, box, 1000, QueueState(0)),
            Finished(0.0, 0, box, 1000, int(1000 * selectivity), 1000 * cost, 0.0),
        ]
    return events


def queued(*tuples: int) -> list[Event]:
    return [Spawned(0.0, box, QueueState(count)) for box, count in enumerate(tuples) if count]


def chosen(policy: Policy, boxes: list[BoxEntry], events: list[Event]) -> list[int]:
    return boxes_of(play(policy, boxes, events))


@pytest.mark.parametrize("policy", ["ct", "et", "qst", "lp(fused=False)"])
def test_a_slice_holds_from_the_first_call_on(policy: str) -> None:
    """A tuple takes 1 ms, which nobody has said: no call takes longer than a slice of 16 ms (O4)."""
    app = hg.App("slices")
    rows = app.source("rows", testing.Timed([(0.0, [{"n": number} for number in range(3_000)])]))
    rows.filter("n >= 0", name="unknown").to("q", hg.to_list([]))
    report = app.run(hg.Simulated(workers=1, costs={"unknown": 1e-3}), policy)
    assert max(call.end - call.start for call in report.trace) <= 0.0161


def test_plain_lp_gives_one_box_and_the_default_goes_on_with_its_results() -> None:
    events = [*known((1e-3, 1.0), (1e-3, 1.0), (1e-3, 1.0)), *queued(100, 100), Idle(1.0, 0)]
    plans = {}
    for policy in ("lp(fused=False)", "lp"):
        [run] = [made for made in play(policy, chain(), events) if isinstance(made, Run)]
        plans[policy] = [call.box for call in run.plan]
    assert plans == {"lp(fused=False)": [1], "lp": [1, 2]}


# --- queue-size throttling ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_b", "at_c", "box"), [(19, 0, 0), (20, 0, 1), (20, 39, 1), (20, 40, 2), (0, 999, 0)]
)
def test_qst_takes_the_earliest_box_whose_output_queue_is_below_its_share(
    at_b: int, at_c: int, box: int
) -> None:
    """Cumulative selectivities 0.5, 1 and 1 share a capacity of 100 as 20, 40 and 40."""
    events = [*known((1e-6, 0.5), (1e-6, 2.0), (1e-6, 1.0)), *queued(50, at_b, at_c), Idle(0.0, 0)]
    assert chosen(QueueSizeThrottling(capacity=100), chain(), events) == [box]


def test_qst_adds_up_what_comes_along_all_paths() -> None:
    """A diamond: two branches of 0.5 and 1.5 meet, so 2 tuples leave the last box for each of the source."""
    diamond = [
        BoxEntry("top", 1, (), (1, 2), ("q",), fed_by=(0,)),
        BoxEntry("left", 1, (0,), (3,), ("q",)),
        BoxEntry("right", 1, (0,), (3,), ("q",)),
        BoxEntry("bottom", 1, (1, 2), (4,), ("q",)),
        BoxEntry("last", 1, (3,), (), ("q",)),
    ]
    measured = known((1e-6, 1.0), (1e-6, 0.5), (1e-6, 1.5), (1e-6, 1.0), (1e-6, 1.0))
    # Of 70 the bottom's output gets 70 * 2 / (1 + 0.5 + 1.5 + 2 + 2) = 20.
    for waiting, box in ((19, 3), (20, 4)):
        events = [*measured, *queued(0, 0, 0, 9, waiting), Idle(0.0, 0)]
        assert chosen(QueueSizeThrottling(capacity=70), diamond, events) == [box]


def test_qst_parks_a_worker_rather_than_overfill_a_queue_that_is_being_worked_off() -> None:
    boxes = chain(lanes=1)
    events = [
        *known((1e-6, 1.0), (1e-6, 1.0), (1e-6, 1.0)),
        *queued(50, 90, 0),
        Idle(0.0, 0),
        Started(0.0, 0, 1, 10, QueueState(80)),
        Idle(0.0, 1),
    ]
    assert chosen(QueueSizeThrottling(capacity=100), boxes, events) == [1]


# --- estimated time -------------------------------------------------------------------------------------


def test_et_takes_the_queue_that_would_last_longest_with_one_worker_more() -> None:
    measured = known((1e-6, 1.0), (5e-6, 1.0), (1e-6, 1.0))
    # 100 µs, 150 µs, 60 µs; a second worker on b halves its 150, a third one divides by three.
    events = [*measured, *queued(100, 30, 60), Idle(0.0, 0)]
    assert chosen(EstimatedTime(), chain(), events) == [1]
    events += [Started(0.0, 0, 1, 0, QueueState(30)), Idle(0.0, 1)]
    assert chosen(EstimatedTime(), chain(), events) == [1, 0]


def test_et_passes_over_a_box_that_has_all_the_workers_it_may() -> None:
    events = [
        *known((1e-6, 1.0), (1.0, 1.0), (1e-6, 1.0)),
        *queued(9, 30, 60),
        Started(0.0, 0, 1, 1, QueueState(29)),
        Idle(0.0, 1),
    ]
    assert chosen(EstimatedTime(), chain(lanes=1), events) == [2]


# --- current throughput ---------------------------------------------------------------------------------


def spent(box: int, seconds: float, at: float) -> list[Event]:
    """A call of no tuples that took so long, which changes no cost and no selectivity."""
    return [
        Started(at, 0, box, 0, QueueState(99)),
        Finished(at, 0, box, 0, 0, seconds, 0.0),
        Spawned(at, box, QueueState(99)),
    ]


def test_ct_takes_the_box_with_least_effective_tuples_in_the_window() -> None:
    """Time over cost and over cumulative selectivity: b's 30 ms are worth 0.03 / (2e-6 * 1)."""
    measured = known((1e-6, 0.5), (2e-6, 2.0), (1e-6, 1.0))
    events = [*measured, *queued(99, 99, 99)]
    events += [*spent(0, 0.010, 1.0), *spent(1, 0.030, 1.0), *spent(2, 0.016, 1.0), Idle(1.0, 0)]
    # a: 0.010 / 0.5e-6 = 20,000; b: 0.030 / 2e-6 = 15,000; c: 0.016 / 1e-6 = 16,000.
    assert chosen(CurrentThroughput(window=10.0), chain(), events) == [1]
    # A worker on b counts for a slice more: 0.046 / 2e-6 = 23,000.
    events += [Started(1.0, 0, 1, 0, QueueState(99)), Idle(1.0, 1)]
    assert chosen(CurrentThroughput(time_slice=0.016, window=10.0), chain(), events) == [1, 2]


def test_ct_forgets_what_was_before_the_window() -> None:
    measured = known((1e-6, 1.0), (1e-6, 1.0), (1e-6, 1.0))
    events = [*measured, *queued(99, 99, 99), *spent(0, 5.0, 0.9), *spent(1, 0.02, 1.1), *spent(2, 0.01, 1.1)]
    assert chosen(CurrentThroughput(window=1.0), chain(), [*events, Idle(1.2, 0)]) == [0]


@pytest.mark.parametrize("policy", [QueueSizeThrottling(), EstimatedTime(), CurrentThroughput()])
def test_a_box_that_lets_nothing_through_is_no_division_by_zero(policy: Policy) -> None:
    events = [*known((1e-6, 0.0), (1e-6, 0.0), (1e-6, 1.0)), *queued(9, 9, 9), *[Idle(0.0, 0)] * 3]
    assert len(chosen(policy, chain(), events)) == 3


@pytest.mark.parametrize("name", ["qst", "et", "ct"])
def test_a_call_takes_a_slice_of_time_whose_length_can_be_set(name: str) -> None:
    made = {"qst": QueueSizeThrottling, "et": EstimatedTime, "ct": CurrentThroughput}[name](time_slice=0.5)
    events = [*queued(9), Idle(0.0, 0)]
    [run] = [d for d in play(made, chain(), events) if isinstance(d, Run)]
    assert (made.name, run.plan[0].train) == (name, Time(0.5))


def test_boxes_that_are_equal_take_turns() -> None:
    side_by_side = [BoxEntry(f"box-{i}", 1, (), (), (f"q{i}",), fed_by=(0,)) for i in range(3)]
    for policy in (QueueSizeThrottling(), EstimatedTime(), CurrentThroughput()):
        events = [*queued(5, 5, 5), *[Idle(0.0, 0)] * 6]
        assert chosen(policy, side_by_side, events) == [0, 1, 2, 0, 1, 2]


# --- the number of workers ------------------------------------------------------------------------------


def climb(
    rates: dict[int, float], judged: int, workers: int, noise: float = 0.0, disturbed: int = 0
) -> list[int]:
    """Active workers after every judgement, on a machine whose throughput with so many is given.

    ``disturbed``: every so many periods another program has the machine.
    """
    policy = policies.elastic("round_robin", period=1.0)
    brain = Brain(policy, [BoxEntry("a", workers, (), (), ("q",), fed_by=(0,))], workers)
    found: list[int] = []
    for period in range(1, PERIODS * judged + 1):
        done = int(rates[policy.active] * (1 + noise * (-1) ** period))
        if disturbed and period % disturbed == 0:
            done //= 4
        brain.tell(
            Started(period - 0.5, 0, 0, done, QueueState(1)),
            Finished(period - 0.5, 0, 0, done, done, 0.1, 0.0),
            Timer(float(period), "elastic"),
        )
        if period % PERIODS == 0:
            found.append(policy.active)
    return found


def test_workers_are_added_while_that_pays() -> None:
    """Linear up to five workers, and worse from then on."""
    rates = {n: 1000.0 * min(n, 5) - 300.0 * max(n - 5, 0) for n in range(1, 9)}
    found = climb(rates, 60, 8)
    assert found[-1] in (4, 5, 6)
    assert sum(n == 5 for n in found[20:]) > 0.7 * len(found[20:])


def test_workers_that_bring_nothing_are_sent_to_sleep() -> None:
    """The sources bring no more than two can do."""
    rates = {n: 2000.0 if n >= 2 else 1000.0 for n in range(1, 9)}
    found = climb(rates, 80, 8)
    assert sum(n == 2 for n in found[30:]) > 0.7 * len(found[30:])


def test_noise_below_the_margin_moves_little() -> None:
    rates = {n: 1000.0 * min(n, 3) for n in range(1, 5)}
    found = climb(rates, 200, 4, noise=0.01)
    assert sum(n == 3 for n in found[50:]) > 0.8 * len(found[50:])


@pytest.mark.parametrize("disturbed", [4, 5, 7])
def test_a_disturbed_period_decides_nothing(disturbed: int) -> None:
    """Judged by single periods, it makes steps that pay look bad and steps that do not look good."""
    rates = {n: 1000.0 * min(n, 5) - 300.0 * max(n - 5, 0) for n in range(1, 9)}
    assert climb(rates, 40, 8, disturbed=disturbed) == climb(rates, 40, 8)


def test_one_worker_stays_one() -> None:
    assert set(climb({1: 5.0}, 40, 1)) == {1}


def test_a_sleeping_worker_gets_no_plan_and_another_is_woken_in_its_place() -> None:
    policy = policies.elastic("round_robin", period=1.0)
    boxes = [BoxEntry(f"box-{i}", 1, (), (), ("q",), fed_by=(0,)) for i in range(3)]
    # Two of four work.  Three and two ask and are to sleep; nought and one find nothing yet.
    events: list[Event] = [Idle(0.0, 3), Idle(0.0, 2), Idle(0.0, 0), Idle(0.0, 1)]
    assert [d for d in play(policy, boxes, events, workers=4) if not isinstance(d, SetTimer)] == []
    decisions = play(policy, boxes, [*events, *queued(5, 5, 5)], workers=4)
    woken = [worker for d in decisions if isinstance(d, Wake) for worker in d.workers]
    assert sorted(woken) == [0, 1]
    # A third worker is tried when the first periods are over.
    done: list[Event] = []
    for period in range(PERIODS):
        done += [
            Started(period + 0.5, 0, 0, 1, QueueState(4 - period)),
            Finished(period + 0.6, 0, 0, 1, 1, 0.1, 0.0),
            Timer(period + 1.0, "elastic"),
        ]
    decisions = play(policy, boxes, [*events, *queued(5, 5, 5), *done], workers=4)
    assert policy.active == 3
    assert decisions[-2] == Wake((2,))


@pytest.mark.parametrize("given", [{"period": 0}, {"margin": 1.0}, {"margin": -0.1}])
def test_a_climb_that_cannot_work_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(PipelineError, match="elastic"):
        policies.elastic("lp", **given)


@pytest.mark.parametrize("made", [hg.Threads, hg.Simulated])
def test_answers_are_the_same_while_the_number_of_workers_changes(made: Callable[..., hg.Engine]) -> None:
    rows = [{"a": i, "k": i % 7} for i in range(5000)]
    app, found = hg.App("climbing"), list[dict[str, int]]()
    stream = app.source("numbers", testing.from_rows(rows)).universal(cost=2e-5)
    stream.key_by("k").running("count(*) AS n").to("counts", hg.to_list(found))
    app.run(made(workers=4, packet_rows=50), policies.elastic("ct", period=0.002))
    assert found == [{**row, "n": i // 7 + 1} for i, row in enumerate(rows)]
