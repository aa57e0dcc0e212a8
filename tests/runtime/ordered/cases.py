"""What is tried: workers as a box has them, on the structures of ordered processing, and what must hold.

Tuples are numbers, from 0; so are their results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from choice_points import Monitor, Setup, Violation, Worker
from instrumented import Cell, Counter, Lock

MakeReorder = Callable[[Callable[[int], None]], Any]
"""A reordering structure, of the function that it sends results on with."""
MakeScheme = Callable[[int, int], Any]
"""A partitioning scheme, for a number of buckets and of workers."""
Progress = tuple[tuple[int, bool], ...]
"""Of each bucket, how many tuples are done, and whether one is being worked on."""


def in_order(tuples: int) -> Monitor:
    """Told every number that is sent: each leaves once, in order, and none is missing at the end."""

    def step(due: int, number: int) -> int:
        if number != due:
            raise Violation("order" if number > due else "twice", f"{number} is sent when {due} is due")
        return due + 1

    def end(due: int) -> None:
        if due != tuples:
            raise Violation("lost", f"everybody has returned, and {due} has not been sent")

    return Monitor(0, step, end)


def one_at_a_time(buckets: Sequence[int]) -> Monitor:
    """Told which tuple is begun and ended; ``buckets`` says whose each is.

    Of a bucket one is worked on at a time, each once, in order, and at the end all have been.
    """
    expected = [[n for n, at in enumerate(buckets) if at == bucket] for bucket in range(max(buckets) + 1)]

    def step(value: Progress, event: tuple[str, int, int]) -> Progress:
        what, bucket, number = event
        done, held = value[bucket]
        if what == "end":
            return (*value[:bucket], (done + 1, False), *value[bucket + 1 :])
        if held:
            raise Violation("exclusion", f"bucket {bucket} is held when another worker begins {number}")
        if number in expected[bucket][:done]:
            raise Violation("twice", f"{number} of bucket {bucket} has been done before")
        if number != expected[bucket][done]:
            raise Violation("order", f"{number} of bucket {bucket} is begun before {expected[bucket][done]}")
        return (*value[:bucket], (done, True), *value[bucket + 1 :])

    def end(value: Progress) -> None:
        for bucket, (done, _) in enumerate(value):
            if done != len(expected[bucket]):
                raise Violation(
                    "lost", f"everybody has returned, and {expected[bucket][done]} has not been done"
                )

    return Monitor(((0, False),) * len(expected), step, end)


def reordering(make: MakeReorder, workers: int, tuples: int) -> Setup:
    """Workers take the next number and send its result, again and again until it is taken."""

    def setup() -> Sequence[Worker]:
        structure = make(in_order(tuples).tell)
        numbers = Counter()

        def worker() -> None:
            while (number := numbers.fetch_add(1)) < tuples:
                while not structure.send(number, number):
                    pass

        return [worker] * workers

    return setup


def admitted(make: MakeReorder, workers: int, tuples: int, size: int) -> Setup:
    """Workers take the next number only if the ring of that size has a place for it, as a split box does."""

    def setup() -> Sequence[Worker]:
        structure = make(in_order(tuples).tell)
        scheduler, numbers = Lock(), Counter()

        def worker() -> None:
            while True:
                scheduler.acquire()
                number = numbers.load()
                has_place = number - structure.next < size
                if has_place:
                    numbers.fetch_add(1)
                scheduler.release()
                if number >= tuples:
                    return
                if has_place and not structure.send(number, number):
                    raise Violation("refused", f"{number} had a place when it was taken")

        return [worker] * workers

    return setup


def partitioning(
    make: MakeScheme,
    workers: int,
    buckets: Sequence[int],
    *,
    adding: bool = False,
    a_call: int | None = None,
    reorder: MakeReorder | None = None,
) -> Setup:
    """Workers call again as long as something waits for them.

    The tuples are there from the start, or ``adding`` is left to one more worker.  A call of ``consume`` ends
    after ``a_call`` tuples.  With ``reorder`` the results are sent on by number, as in section 5.
    """

    def setup() -> Sequence[Worker]:
        work = one_at_a_time(buckets)
        scheme = make(max(buckets) + 1, workers)
        structure = reorder(in_order(len(buckets)).tell) if reorder is not None else None
        added: Cell[bool] = Cell(False)

        def producer() -> None:
            number = 0
            while number < len(buckets):
                scheme.add(buckets[number], number)
                number += 1
            added.store(True)

        def worker() -> None:
            taken = 0

            def enough() -> bool:
                return a_call is not None and taken >= a_call

            while True:
                last = not adding or added.load()
                if scheme.waiting():
                    taken = 0
                    given = scheme.consume(enough)
                    while (found := next(given, None)) is not None:
                        bucket, number = found
                        taken += a_call is not None
                        work.tell(("begin", bucket, number))
                        while structure is not None and not structure.send(number, number):
                            pass
                        work.tell(("end", bucket, number))
                elif last:
                    return

        if adding:
            return [*[worker] * workers, producer]
        producer()
        return [worker] * workers

    return setup
