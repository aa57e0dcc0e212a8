"""The barrier of a scheduling task: phases one after the other, by whoever is there."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

from headgate.engines.threads.barrier import Meeting
from headgate.scheduling.interface import Phase
from waiting import SOON


def together(works: list[Callable[[], None]]) -> list[BaseException]:
    """Run these on threads of their own; what they raised."""
    raised: list[BaseException] = []

    def guard(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guard, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive(), "somebody still waits"
    return raised


@pytest.mark.parametrize("seed", range(20))
def test_every_slice_is_done_once_and_no_phase_begins_before_the_last_is_over(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.choice((0, 1, 1, 3, 5)) for _ in range(draw.randrange(1, 6))]
    log: list[tuple[str, int, int]] = []
    left: list[bool] = []

    def piece(phase: int, number: int, pause: float) -> Callable[[], int]:
        def work() -> int:
            log.append(("begin", phase, number))
            time.sleep(pause)
            log.append(("end", phase, number))
            return 1

        return work

    def adopt() -> None:
        assert not left, "nobody leaves before the schedule is in force"
        log.append(("adopt", len(sizes), 0))

    phases = [
        Phase(str(phase), tuple(piece(phase, n, draw.choice((0, 0, 0.003))) for n in range(size)))
        for phase, size in enumerate(sizes)
    ]
    meeting = Meeting(phases, adopt)

    def worker(pause: float) -> Callable[[], None]:
        def work() -> None:
            time.sleep(pause)
            meeting.join()
            left.append(True)

        return work

    assert together([worker(draw.choice((0, 0.002, 0.01))) for _ in range(draw.randrange(1, 5))]) == []
    done = [(phase, number) for what, phase, number in log if what == "begin"]
    assert sorted(done) == [(phase, n) for phase, size in enumerate(sizes) for n in range(size)]
    assert log[-1] == ("adopt", len(sizes), 0)
    assert [phase for _, phase, _ in log] == sorted(phase for _, phase, _ in log)


def test_slices_of_a_phase_are_done_at_the_same_time() -> None:
    """Each waits for the other, so one worker alone could never do both."""
    both = threading.Barrier(2, timeout=SOON)

    def piece() -> int:
        both.wait()
        return 1

    meeting = Meeting([Phase("p", (piece, piece))], lambda: None)
    assert together([meeting.join, meeting.join]) == []


def test_one_worker_alone_does_everything() -> None:
    done: list[int] = []
    pieces = tuple(lambda n=n: done.append(n) or 1 for n in range(4))
    Meeting([Phase("p", pieces), Phase("q", pieces[:1])], lambda: done.append(9)).join()
    assert done == [0, 1, 2, 3, 0, 9]


def test_who_comes_when_it_is_over_goes_on() -> None:
    done: list[int] = []
    meeting = Meeting([Phase("p", (lambda: done.append(1) or 1,))], lambda: None)
    meeting.join()
    meeting.join()
    assert done == [1]


def test_an_error_of_our_own_leaves_nobody_waiting() -> None:
    begun = threading.Event()

    def fail() -> int:
        begun.wait(SOON)
        raise RuntimeError("broken")

    def second() -> int:
        begun.set()
        return 1

    adopted: list[int] = []
    meeting = Meeting([Phase("p", (fail, second)), Phase("q", (second,))], lambda: adopted.append(1))
    raised = together([meeting.join, meeting.join, meeting.join])
    assert [str(error) for error in raised] == ["broken"]
    assert not adopted, "half a schedule does not come into force"


def test_nobody_waits_for_a_meeting_that_was_dissolved() -> None:
    """One is inside a slice, which takes long; the other, who waits for it, goes back to work."""
    inside, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def long() -> int:
        inside.set()
        assert go_on.wait(SOON)
        done.append("first")
        return 1

    def second() -> int:
        done.append("second")
        return 1

    meeting = Meeting([Phase("first", (long,)), Phase("second", (second,))], lambda: done.append("adopted"))

    def other() -> None:
        assert inside.wait(SOON)
        meeting.join()
        done.append("back")
        go_on.set()

    def dissolves() -> None:
        assert inside.wait(SOON)
        meeting.dissolve()

    assert together([meeting.join, other, dissolves]) == []
    assert done == ["back", "first"]
