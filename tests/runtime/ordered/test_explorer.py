"""The explorer itself: it counts what can be counted by hand, and finds what is known to be wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from choice_points import Monitor, Run, Setup, Shared, Violation, Worker, World
from depth import examples
from instrumented import Cell, Counter, Flag, Lock, Queue
from interleavings import explore
from random_interleavings import replay, search

# --- counting -----------------------------------------------------------------------------------------


def stores(cell: Cell[int], count: int) -> Worker:
    def worker() -> None:
        number = 0
        while number < count:
            number += 1
            cell.store(number)

    return worker


@pytest.mark.parametrize("counts", [[1, 1], [3, 4], [2, 2, 2], [1, 2, 3]])
def test_workers_with_nothing_in_common(counts: list[int]) -> None:
    """The states are a grid, and the executions the ways through it."""
    found = explore(lambda: [stores(Cell(0), count) for count in counts])
    assert found.states == math.prod([count + 1 for count in counts])
    assert found.executions == math.factorial(sum(counts)) // math.prod(map(math.factorial, counts))


def test_workers_that_do_the_same_are_not_told_apart() -> None:
    def setup() -> Sequence[Worker]:
        numbers = Counter()

        def worker() -> None:
            numbers.fetch_add(1)
            numbers.fetch_add(1)

        return [worker] * 3

    assert explore(setup).states == math.comb(3 + 2, 2)  # how many of three are at each of three places


def test_trying_again_and_again_comes_back_to_the_same_state() -> None:
    def setup() -> Sequence[Worker]:
        ready: Cell[bool] = Cell(False)

        def waiter() -> None:
            while True:
                if ready.load():
                    return

        return [waiter, lambda: ready.store(True)]

    found = explore(setup)
    assert (found.states, found.steps) == (3, 3)  # one leads back to its own state
    assert found.executions == 1


# --- what is known to be wrong ------------------------------------------------------------------------


def two_increments(protected: bool) -> Setup:
    def setup() -> Sequence[Worker]:
        cell: Cell[int] = Cell(0)
        lock, done = Lock(), Counter()

        def worker() -> None:
            if protected:
                lock.acquire()
            cell.store(cell.load() + 1)
            if protected:
                lock.release()
            if done.fetch_add(1) == 1 and cell.load() != 2:
                raise AssertionError("an increment is lost")

        return [worker] * 2

    return setup


def test_a_lost_update_is_found() -> None:
    with pytest.raises(Violation, match="an increment is lost") as caught:
        explore(two_increments(protected=False))
    assert caught.value.kind == "error"
    assert caught.value.schedule[:2] == [0, 1]
    with pytest.raises(Violation, match="an increment is lost"):
        replay(two_increments(protected=False), caught.value.schedule)
    explore(two_increments(protected=True))


def test_a_lost_update_is_found_at_random_and_a_seed_fixes_where() -> None:
    schedules = []
    for _ in range(2):
        with pytest.raises(Violation, match="an increment is lost") as caught:
            search(two_increments(protected=False), seed=3, steps=1_000)
        schedules.append(caught.value.schedule)
    assert schedules[0] == schedules[1]
    assert search(two_increments(protected=True), seed=3, steps=1_000).executions > 50


def test_a_step_says_who_did_what() -> None:
    with pytest.raises(Violation) as caught:
        explore(two_increments(protected=False))
    lines = str(caught.value).splitlines()
    assert [line.strip() for line in lines if "cell" in line][:4] == [
        "0: cell.load() = 0",
        "1: cell.load() = 0",
        "0: cell.store(1) = None",
        "1: cell.store(1) = None",
    ]


@pytest.mark.parametrize("run", [explore, lambda setup: search(setup, seed=1, steps=1_000)])
def test_a_deadlock_is_found(run: Callable[[Setup], object]) -> None:
    def setup(same_order: bool = False) -> Sequence[Worker]:
        left, right = Lock(), Lock()

        def both(first: Lock, second: Lock) -> Worker:
            def worker() -> None:
                first.acquire()
                second.acquire()
                second.release()
                first.release()

            return worker

        return [both(left, right), both(left, right) if same_order else both(right, left)]

    with pytest.raises(Violation) as caught:
        run(setup)
    assert caught.value.kind == "deadlock"
    run(lambda: setup(same_order=True))


@pytest.mark.parametrize("run", [explore, lambda setup: search(setup, seed=1, steps=1_000, longest=500)])
def test_a_livelock_is_found(run: Callable[[Setup], object]) -> None:
    """The flag is left set now and then, and whoever comes next tries for ever."""

    def setup() -> Sequence[Worker]:
        flag, turn = Flag(), Counter()

        def worker() -> None:
            while flag.test_and_set():
                pass
            if turn.fetch_add(1) == 1:
                flag.clear()

        return [worker] * 2

    with pytest.raises(Violation) as caught:
        run(setup)
    assert caught.value.kind == "livelock"


def test_looking_for_one_kind_passes_over_others() -> None:
    def refuse(value: int, event: str) -> int:
        raise Violation(event, "must not happen")

    def setup() -> Sequence[Worker]:
        monitor = Monitor(0, refuse)
        return [lambda: monitor.tell("this"), lambda: monitor.tell("that")]

    for looking_for, kind in ((None, "this"), ("this", "this"), ("that", "that")):
        with pytest.raises(Violation) as caught:
            explore(setup, looking_for)
        assert caught.value.kind == kind
    explore(setup, "something else")


# --- other shared objects -----------------------------------------------------------------------------


class Semaphore(Shared):
    """As whoever parks workers would need it: an operation, and when it has to wait."""

    def acquire(self) -> None:
        self._do(_down)

    def release(self) -> None:
        self._do(_up)


def _down(value: int) -> tuple[int, None] | None:
    return (value - 1, None) if value else None


def _up(value: int) -> tuple[int, None]:
    return value + 1, None


@pytest.mark.parametrize("look_again", [True, False])
def test_a_wake_up_that_comes_too_early(look_again: bool) -> None:
    """A worker that parks after it has looked must look again, for what came in between woke nobody."""

    def setup() -> Sequence[Worker]:
        queue: Queue[int] = Queue()
        parked: Cell[bool] = Cell(False)
        wake = Semaphore(0)

        def worker() -> None:
            while queue.try_dequeue() is None:
                parked.store(True)
                if not look_again or not len(queue):
                    wake.acquire()

        def producer() -> None:
            queue.enqueue(1)
            if parked.load():
                wake.release()

        return [worker, producer]

    if look_again:
        assert explore(setup).waiting > 0
        search(setup, seed=1, steps=1_000)
    else:
        with pytest.raises(Violation) as caught:
            explore(setup)
        assert caught.value.kind == "deadlock"


# --- nothing is missed --------------------------------------------------------------------------------


HIDDEN = {
    "on the evaluation stack": "x = first.load() - second.load()",
    "in a variable": "x = first.load(); y = second.load(); x -= y",
    "in a comprehension": "x, y = [cell.load() for cell in (first, second)]; x -= y",
    "in sum": "x = sum(difference())",
    "in min": "x = min((first, second), key=lambda cell: cell.load()) is first",
    "in max": "x = max((first, second), key=lambda cell: cell.load()) is first",
    "in a generator": "g = kept(); next(g); third.load(); x = next(g); y = second.load(); x -= y",
    "in an iterator": "i = iter((first.load(),)); third.load(); x = next(i); y = second.load(); x -= y",
    "in a list": "i = [first.load()]; third.load(); x = i[0]; y = second.load(); x -= y",
    "in what is the same": "p = [0]; q = p if first.load() else [0]; third.load(); q[0] = 1; x = p[0]",
    "in a closure": "f = (lambda y: lambda: y)(first.load()); third.load(); x = f()",
    "in an exception": """
    try:
        raise ValueError(first.load())
    except ValueError as error:
        third.load()
        x = error.args[0]
""",
}
READER = """
def reader():
    {}
    result.store(x)

def difference():
    yield first.load()
    yield -second.load()

def kept():
    value = first.load()
    yield None
    yield value

def writer():
    first.store(1)
    second.store(1)
"""


@pytest.mark.parametrize("statement", HIDDEN.values(), ids=HIDDEN.keys())
def test_whatever_a_worker_keeps_belongs_to_the_state(statement: str) -> None:
    """What it found at first must not be forgotten, wherever it lies while the values change."""
    code = compile(READER.format(statement), "reader", "exec")

    def setup() -> Sequence[Worker]:
        cells: dict[str, Any] = {name: Cell(0) for name in ("first", "second", "third", "result")}
        exec(code, cells)
        return [cells["reader"], cells["writer"]]

    assert explore(setup).ends == every_execution(setup)[1]


def test_a_worker_that_changes_what_is_no_shared_object_is_refused() -> None:
    def setup() -> Sequence[Worker]:
        count, sent = Counter(), [0]

        def worker() -> None:
            count.fetch_add(1)
            sent[0] += 1
            count.fetch_add(1)

        return [worker] * 2

    with pytest.raises(TypeError, match="changed something common"):
        explore(setup)
    search(setup, seed=1, steps=100)


def test_a_worker_that_changes_its_default_argument_is_refused() -> None:
    def setup() -> Sequence[Worker]:
        count = Counter()

        def worker(seen: list[int] = []) -> None:  # noqa: B006
            seen.append(count.fetch_add(1))

        return [worker]

    with pytest.raises(TypeError, match="changed something common"):
        explore(setup)


def test_a_worker_that_passes_on_what_can_change_is_refused() -> None:
    def setup() -> Sequence[Worker]:
        queue: Queue[list[int]] = Queue()
        return [lambda: queue.enqueue([1])]

    with pytest.raises(TypeError, match="could change"):
        explore(setup)


STATEMENTS = {
    "x = {c}.load()": 1,
    "{c}.store(x)": 1,
    "{c}.store(x + 1)": 1,
    "{c}.store({c}.load() + {d}.load())": 3,
    "x = {c}.load() * 3 + {d}.load()": 2,
    "x = n.fetch_add(1)": 1,
    "y = [x, {c}.load()]; x = sum(y)": 1,
    "x = sum([cell.load() for cell in (a, b)])": 2,
    "x = sum(cell.load() for cell in (a, b))": 2,
    "x = 7 if {c}.load() == {d}.load() else x": 2,
    "x = max((a, b), key=lambda cell: cell.load()).load()": 3,
    "g = (cell.load() for cell in (a, b)); x = next(g) + 2 * next(g)": 2,
    "g = both(); {c}.store(next(g)); x += next(g)": 4,
    "z = iter((1, 2)); {c}.store(next(z)); x += next(z)": 1,
    "l.acquire(); {c}.store({c}.load() + 1); l.release()": 4,
    "f = lambda: {c}.load() + x; x = {d}.load(); x = f()": 2,
}
"""With the number of their operations."""
PROGRAM = """
def worker():
    x = 0
    {}
    out.enqueue(x)

def both():
    yield a.load()
    yield b.load() + n.load()
"""
MOST_EXECUTIONS = 500


@st.composite
def programs(draw: st.DrawFn) -> list[str]:
    """Some workers, of not too many interleavings."""
    made = []
    lengths: list[int] = []
    for _ in range(draw(st.integers(2, 3))):
        lines, length = [], 1
        for _ in range(draw(st.integers(1, 3))):
            statement = draw(st.sampled_from(list(STATEMENTS)))
            longer = [*lengths, length + STATEMENTS[statement]]
            if math.factorial(sum(longer)) // math.prod(map(math.factorial, longer)) <= MOST_EXECUTIONS:
                length += STATEMENTS[statement]
                c, d = draw(st.permutations("ab"))
                lines.append(statement.format(c=c, d=d))
        lengths.append(length)
        made.append(PROGRAM.format("\n    ".join(lines)))
    return made


def running(programs: Sequence[str], same: bool) -> Setup:
    """A worker for each program; or two run the last, and are not told apart."""
    compiled = [compile(program, "program", "exec") for program in programs]

    def setup() -> Sequence[Worker]:
        common: dict[str, Any] = {"a": Cell(0), "b": Cell(1), "n": Counter(), "l": Lock(), "out": Queue()}
        made = []
        for code in compiled:
            namespace = dict(common)
            exec(code, namespace)
            made.append(namespace["worker"])
        return made[-1:] * 2 if same else made

    return setup


def every_execution(setup: Setup) -> tuple[int, set[tuple[Any, ...]]]:
    """All executions one by one, each run from the start: how many, and the values at their ends."""
    count, ends = 0, set()
    to_do: list[list[int]] = [[]]
    while to_do:
        schedule = to_do.pop()
        world = World(setup)
        runs = [Run(worker) for worker in world.workers]
        done = 0
        while any(run.request is not None for run in runs):
            if done == len(schedule):
                able = []
                for who, run in enumerate(runs):
                    before = list(world.values)
                    if run.request is not None and world.take(run.request) is not None:
                        able.append(who)
                    world.values = before
                to_do += [[*schedule, who] for who in able[1:]]
                schedule.append(able[0])
            request = runs[schedule[done]].request
            assert request is not None
            outcome = world.take(request)
            assert outcome is not None
            runs[schedule[done]].go_on(outcome[1])
            done += 1
        count += 1
        ends.add(tuple(world.values))
    return count, ends


@given(programs(), st.booleans())
@settings(max_examples=examples(20))
def test_exploring_every_state_once_finds_what_trying_every_execution_finds(
    programs: list[str], same: bool
) -> None:
    setup = running(programs, same)
    count, ends = every_execution(setup)
    found = explore(setup)
    assert found.ends == ends
    assert same or found.executions == count
