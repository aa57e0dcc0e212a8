"""Policies decide alike for the same events; none of these tests needs a thread, a clock or a tuple."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import headgate as hg
from brain import TinyEngine
from headgate import testing
from headgate.errors import PipelineError
from headgate.scheduling import policies
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.events import Changed, Event, Idle, QueueState, Spawned, Started, Timer
from headgate.scheduling.interface import ANYONE, Call, Policy, Run, SetTimer, Wake
from headgate.scheduling.trains import WHOLE_QUEUE, Count, Share, Time
from headgate.testing import play


def boxes(count: int) -> list[BoxEntry]:
    """Boxes side by side, all fed by sources."""
    return [BoxEntry(f"box-{i}", 1, (), (), ("q",)) for i in range(count)]


def born(*places: int, tuples: int = 5) -> list[Event]:
    return [Spawned(0.0, place, QueueState(tuples)) for place in places]


def called(policy: str | Policy, count: int, events: list[Event], **options: int) -> list[tuple[int, object]]:
    decisions = play(policy, boxes(count), events, **options)
    return [(d.plan[0].box, d.plan[0].train) for d in decisions if isinstance(d, Run)]


# --- round robin ----------------------------------------------------------------------------------------


def test_round_robin_takes_boxes_in_turn_with_all_their_tuples() -> None:
    events = [*born(0, 1, 2), *[Idle(0.0, 0)] * 5]
    assert called("round_robin", 3, events) == [(box, WHOLE_QUEUE) for box in (0, 1, 2, 0, 1)]


def test_round_robin_passes_over_boxes_that_cannot_run() -> None:
    events = [*born(0, 2, 3), *[Idle(0.0, 0)] * 2, Started(0.0, 0, 3, 5, QueueState(0)), *[Idle(0.0, 0)] * 2]
    assert [box for box, _ in called("round_robin", 4, events)] == [0, 2, 0, 2]


def test_round_robin_goes_on_where_it_was_when_a_box_before_comes_back() -> None:
    events = [*born(1, 2), Idle(0.0, 0), *born(0), Idle(0.0, 0), Idle(0.0, 0)]
    assert [box for box, _ in called("round_robin", 3, events)] == [1, 2, 0]


def test_tuple_at_a_time_is_round_robin_with_one_tuple_per_call() -> None:
    events = [*born(0, 1), *[Idle(0.0, 0)] * 3]
    assert called("tuple_at_a_time", 2, events) == [(0, Count(1)), (1, Count(1)), (0, Count(1))]


# --- thread per box -------------------------------------------------------------------------------------


def test_thread_per_box_wants_a_worker_for_every_box() -> None:
    policy = policies.get("thread_per_box")
    assert policy.workers(boxes=7, requested=2) == 7
    assert policy.workers(boxes=0, requested=2) == 1


def test_thread_per_box_gives_every_worker_its_own_box() -> None:
    events = [*born(0, 2), Idle(0.0, 2), Idle(0.0, 1), Idle(0.0, 0)]
    decisions = play("thread_per_box", boxes(3), events, workers=3)
    assert decisions == [Run(2, (Call(2, WHOLE_QUEUE),)), Run(0, (Call(0, WHOLE_QUEUE),))]


def test_thread_per_box_wakes_the_worker_whose_box_has_work() -> None:
    events = [*[Idle(0.0, worker) for worker in range(3)], *born(1), *born(0)]
    assert play("thread_per_box", boxes(3), events, workers=3) == [Wake((1,)), Wake((0,))]


# --- last in pipeline -----------------------------------------------------------------------------------


def test_last_in_pipeline_takes_the_box_furthest_from_the_sources_and_on() -> None:
    chain = [
        BoxEntry("a", 1, (), (1,), ("q",)),
        BoxEntry("b", 1, (0,), (2,), ("q",)),
        BoxEntry("c", 1, (1,), (), ("q",)),
    ]
    [run] = play("lp", chain, [*born(0, 1), Idle(0.0, 0)])
    assert isinstance(run, Run)
    assert [call.box for call in run.plan] == [1, 2]
    assert run.plan[1].train == WHOLE_QUEUE


# --- parking and waking ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", policies.names())
def test_a_worker_that_finds_nothing_is_parked_and_woken(name: str) -> None:
    decisions = play(name, boxes(1), [Idle(0.0, 0), *born(0)])
    woken = ANYONE if policies.get(name).one_semaphore else 0
    assert [d for d in decisions if not isinstance(d, SetTimer)] == [Wake((woken,))]


def test_as_many_workers_are_woken_as_there_are_boxes_longest_parked_first() -> None:
    parked = [Idle(0.0, worker) for worker in (2, 0, 1)]
    assert play("round_robin", boxes(4), [*parked, *born(3)], workers=3) == [Wake((2,))]
    full: list[Event] = [
        Spawned(0.0, 0, QueueState(1)),
        Spawned(0.0, 1, QueueState(1)),
    ]
    assert play("round_robin", boxes(4), [*parked, *full], workers=3) == [Wake((2,)), Wake((0, 1))]


def test_nobody_is_woken_without_need() -> None:
    events = [Idle(0.0, 0), Timer(0.0, "t"), Changed(0.0, 0, QueueState(0))]
    assert play("round_robin", boxes(1), events) == []


@pytest.mark.parametrize("name", policies.names())
@pytest.mark.parametrize("seed", range(5))
def test_no_worker_sleeps_while_a_box_could_run(name: str, seed: int) -> None:
    """Random arrivals and ends of calls; everything is worked off."""
    draw = random.Random(seed)
    policy, count = policies.get(name), 4
    entries = [BoxEntry(f"b{i}", draw.randint(1, 2), (), (), ("q",)) for i in range(count)]
    engine = TinyEngine(policy, entries, policy.workers(count, 2), seed=seed)
    to_come = [draw.randrange(1, 6) for _ in range(count)]
    while any(to_come) or engine.awake or engine.working:
        kinds = [*(["come"] if any(to_come) else []), *(["ask"] if engine.awake else [])]
        kind = draw.choice([*kinds, *(["end"] if engine.working else [])])
        if kind == "come":
            box = draw.choice([b for b in range(count) if to_come[b]])
            to_come[box] -= 1
            engine.arrive(box)
        elif kind == "ask":
            engine.ask(draw.choice(list(engine.awake)))
        else:
            engine.finish(draw.choice(list(engine.working)))
    assert engine.queued == [0] * count


@pytest.mark.parametrize("name", policies.names())
def test_the_same_events_give_the_same_decisions(name: str) -> None:
    events = [*born(0, 1, 2), *[Idle(float(i), i % 2) for i in range(6)], Timer(1.0, "t")]
    first = play(name, boxes(3), events, workers=2, seed=5)
    assert first == play(name, boxes(3), events, workers=2, seed=5)
    assert first


# --- names ----------------------------------------------------------------------------------------------


def test_every_policy_has_a_name_and_says_what_it_is_for() -> None:
    assert policies.DEFAULT in policies.names()
    for name in policies.names():
        assert policies.get(name).name == name
        assert len(policies.describe(name)) > 20


def test_the_list_of_policies_has_each_once_by_its_short_name() -> None:
    """The names are a contract: people, examples and checks rely on them."""
    aurora = ["round_robin", "tuple_at_a_time", "thread_per_box", "mc", "ml", "mm", "auto_traversal", "top_k"]
    goals, ordered = ["qos", "qos_bucketed"], ["qst", "lp", "et", "ct"]
    haren = ["fcfs", "queue_size", "highest_rate", "chain", "random", "multi_class"]
    locality = ["bobox", "bobox_baseline", "las", "nls"]
    assert policies.names() == sorted([*aurora, *goals, *ordered, *haren, *locality])


def test_a_long_name_is_the_same_policy_and_stays_its_name() -> None:
    assert policies.aliases()["min_cost"] == "mc"
    for long, short in policies.aliases().items():
        assert type(policies.get(long)) is type(policies.get(short))
        assert (policies.get(long).name, policies.get(short).name) == (long, short)
        assert policies.describe(long) == policies.describe(short)
    assert policies.get("min_cost", train=Count(9)).train == Count(9)
    assert policies.elastic("last_in_pipeline").name == "elastic(last_in_pipeline)"
    assert policies.haren(prioritize="first_come_first_served").prioritize is policies.haren().prioritize
    with pytest.raises(PipelineError, match="Did you mean 'min_cost'"):
        policies.get("min_costs")
    with pytest.raises(PipelineError, match="'min_cost' has no option 'k'; it takes train"):
        policies.get("min_cost", k=3)


def test_a_run_takes_long_names_and_its_report_shows_the_name_that_was_given() -> None:
    rows = [{"n": number} for number in range(5)]
    for given in ("min_cost", "mc"):
        app = hg.App("names")
        app.source("rows", testing.Timed([(0.0, rows)])).filter("n > 2").to("q", hg.to_list([]))
        assert app.run("simulated", policy=given).policy == given


def test_an_unknown_policy_is_told_with_the_nearest_and_all_others() -> None:
    with pytest.raises(
        PipelineError, match=r"no policy 'round_robbin'. Did you mean 'round_robin'\?.*tuple_at_a_time"
    ):
        policies.get("round_robbin")


def test_scheduling_needs_neither_threads_nor_arrow() -> None:
    """A fresh interpreter that imports the policies has loaded nothing of either world."""
    program = (
        "import sys, importlib.util as u, types, pathlib\n"
        "root = pathlib.Path(u.find_spec('headgate').submodule_search_locations[0])\n"
        "package = types.ModuleType('headgate'); package.__path__ = [str(root)]\n"
        "sys.modules['headgate'] = package\n"
        "import headgate.scheduling.policies, headgate.scheduling.pull\n"
        "print(sorted({'pyarrow', 'numpy', 'pyspark'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "like"),
    [
        ("mc(train=64)", lambda p: p.train == Count(64)),
        ("mc(train=time(0.01))", lambda p: p.train == Time(0.01)),
        ("min_cost(train=per_box({'dear': count(2)}, share(0.5)))", lambda p: p.train.others == Share(0.5)),
        ("lp(fused=False)", lambda p: not p.fused),
        ("top_k(k=5)", lambda p: p.name == "top_k" and p.k == 5),
        ("tuned(mc(train=9))", lambda p: p.policy.train == Count(9)),
        ("shedding(qos, strategy=semantic)", lambda p: p.policy.name == "qos"),
        ("haren(prioritize=then(chain, reverse(fcfs)), batch=7, period=0.5)", lambda p: p.batch == 7),
        ("haren(prioritize=mine.py:cost, assign=mine.py:home)", lambda p: p.assign == ("mine.py", "home")),
        ("multi_class({1: fcfs}, otherwise=chain)", lambda p: p.name == "multi_class"),
        ("lp", lambda p: p.name == "lp"),
    ],
)
def test_a_policy_is_spelled_with_its_options(text: str, like: Callable[[Any], bool]) -> None:
    class Named(tuple):  # type: ignore[type-arg]
        def __call__(self, *given: Any) -> int:
            return 0

    assert like(policies.spelled(text, lambda path, name: Named((path, name))))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mc(trains=64)", "'mc' has no option 'trains'; it takes train"),
        ("mc(64)", "options of 'mc' by their names"),
        ("mc(train=64", "cannot be read"),
        ("top_kk(k=5)", "no policy 'top_kk'. Did you mean 'top_k'"),
        ("tuned(mc, perod=1)", "'tuned' has no option 'perod'; Did you mean 'period'"),
        ("shedding(qos, strategy=cheap)", "cheap"),
        ("count(5)", "is no policy"),
        ("mc(train=1 + open('x'))", "is no value"),
        ("mc(train=0)", "at least one tuple"),
        ("haren(prioritize=mine.py:cost)", "'headgate run' only"),
    ],
)
def test_a_misspelled_policy_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(said)):
        policies.get(text)
