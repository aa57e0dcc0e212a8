"""The structures of ordered processing under all interleavings of small cases, and random ones of larger.

Each mutant is a line of the published algorithms gone wrong, and has to be found.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cases
import pytest

from choice_points import Setup, Violation
from headgate import atomics
from headgate.runtime.ordered import partitioning as partitioning_module
from headgate.runtime.ordered import reordering as reordering_module
from instrumented import ATOMICS, load
from interleavings import explore
from random_interleavings import replay, search

BUCKETS = [0, 1, 0, 0, 1]
"""Of five tuples."""
SEEN_DICT = {"self._waiting: dict[int, T] = {}": "self._waiting = Dict()"}

Replaced = Mapping[str, str]


def ring(replaced: Replaced | None = None, size: int = 2) -> cases.MakeReorder:
    made = load(reordering_module, replaced)
    return lambda send: made.NonBlocking(send, size)


def lock(replaced: Replaced | None = None) -> cases.MakeReorder:
    made = load(reordering_module, {**SEEN_DICT, **(replaced or {})})
    return lambda send: made.LockBased(send, 2)


def scheme(name: str, replaced: Replaced | None = None) -> cases.MakeScheme:
    made: cases.MakeScheme = getattr(load(partitioning_module, replaced), name)
    return made


# --- no violation, whatever the interleaving ----------------------------------------------------------


def test_the_ring_keeps_order_and_nobody_ever_waits() -> None:
    found = explore(cases.reordering(ring(), workers=3, tuples=5))
    print("\nring of 2, 3 workers, 5 tuples:", found)
    assert found.waiting == 0
    assert found.results("test_and_set") == {False, True}
    assert found.states > 50_000


@pytest.mark.parametrize(("workers", "tuples", "size"), [(2, 6, 1), (3, 5, 3), (4, 3, 2)])
def test_the_ring_in_other_shapes(workers: int, tuples: int, size: int) -> None:
    found = explore(cases.reordering(ring(size=size), workers, tuples))
    print(f"\nring of {size}, {workers} workers, {tuples} tuples:", found)


def test_a_result_whose_place_was_free_when_its_number_was_taken_is_not_refused() -> None:
    found = explore(cases.admitted(ring(), workers=3, tuples=5, size=2))
    print("\nring of 2 with admission, 3 workers, 5 tuples:", found)
    with pytest.raises(Violation) as caught:
        explore(cases.admitted(ring(), workers=3, tuples=5, size=3))
    assert "had a place" in caught.value.text


def test_the_lock_keeps_order_and_workers_wait_for_it() -> None:
    found = explore(cases.reordering(lock(), workers=3, tuples=5))
    print(f"\nlock, 3 workers, 5 tuples: {found}; somebody waits in {found.waiting:,} states")
    assert found.waiting > 0


@pytest.mark.parametrize("a_call", [None, 1])
@pytest.mark.parametrize("adding", [False, True])
def test_the_hybrid_queue_delegates_and_nobody_ever_waits(adding: bool, a_call: int | None) -> None:
    found = explore(cases.partitioning(scheme("Hybrid"), 3, BUCKETS, adding=adding, a_call=a_call))
    print(f"\nhybrid, 3 workers, 5 tuples, adding={adding}, a_call={a_call}:", found)
    assert found.waiting == 0
    # A worker came to a bucket that another held, with nothing or already one more left to do.
    assert found.results("fetch_add", 1) == {0, 1, 2}
    assert found.results("fetch_add", -1) == {1, 2, 3}


@pytest.mark.parametrize("adding", [False, True])
def test_the_hybrid_queue_and_the_ring_together(adding: bool) -> None:
    """A keyed box as in section 5: tuples go through the hybrid queue, their results through the ring."""
    found = explore(cases.partitioning(scheme("Hybrid"), 3, BUCKETS, adding=adding, reorder=ring()))
    print(f"\nhybrid and ring of 2, 3 workers, 5 tuples, adding={adding}:", found)
    assert found.waiting == 0
    assert found.results("fetch_add", 1) == {0, 1, 2}


def test_one_queue_for_all_makes_workers_wait() -> None:
    found = explore(cases.partitioning(scheme("Shared"), 3, BUCKETS, adding=True))
    print(f"\nshared, 3 workers, 5 tuples: {found}; somebody waits in {found.waiting:,} states")
    assert found.waiting > 0


def test_one_queue_for_all_and_the_ring_together() -> None:
    found = explore(cases.partitioning(scheme("Shared"), 3, BUCKETS, reorder=ring()))
    print("\nshared and ring of 2, 3 workers, 5 tuples:", found)


@pytest.mark.parametrize(
    ("workers", "buckets", "adding", "a_call"),
    [
        (2, BUCKETS, False, None),
        (3, [0, 1, 0, 1], False, None),
        (2, [0, 1, 0], True, None),
        (2, [0, 1, 0], True, 1),
    ],
)
def test_a_queue_per_worker(workers: int, buckets: list[int], adding: bool, a_call: int | None) -> None:
    found = explore(cases.partitioning(scheme("Partitioned"), workers, buckets, adding=adding, a_call=a_call))
    print(
        f"\npartitioned, {workers} workers, {len(buckets)} tuples, adding={adding}, a_call={a_call}:", found
    )
    assert found.waiting == 0
    assert found.results("test_and_set") == {False, True}


def test_a_queue_per_worker_and_a_ring_need_a_worker_for_every_queue() -> None:
    """Figure 6: whoever has a result that the ring refuses waits for one that lies in a queue of nobody's.

    With one worker fewer than queues it tries again for ever; with the hybrid queue one worker is enough.
    """
    buckets = [0, 1, 0, 0]

    def one_absent(make: cases.MakeScheme) -> cases.MakeScheme:
        return lambda buckets, workers: make(buckets, workers + 1)

    with pytest.raises(Violation) as caught:
        explore(cases.partitioning(one_absent(scheme("Partitioned")), 1, buckets, reorder=ring()))
    assert caught.value.kind == "livelock"
    explore(cases.partitioning(one_absent(scheme("Hybrid")), 1, buckets, reorder=ring()))


# --- mutants ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """Lines of a module, what stands in their place, and the violation that comes of it."""

    replaced: Replaced
    kind: str


RING = {
    "no re-check after clearing the flag": Mutant(
        {"            if self._ring.load(place) is None:\n                return\n": "            return\n"},
        "lost",
    ),
    "re-check before clearing the flag": Mutant(
        {
            "            self._sending.clear()\n": "",
            "            if self._ring.load(place) is None:\n                return\n": (
                "            nothing = self._ring.load(place) is None\n"
                "            self._sending.clear()\n"
                "            if nothing:\n"
                "                return\n"
            ),
        },
        "lost",
    ),
    "no upper bound": Mutant({"if first <= number < first + self._size:": "if first <= number:"}, "order"),
    "upper bound one too high": Mutant({"< first + self._size:": "<= first + self._size:"}, "order"),
    "no flag": Mutant(
        {
            "while not self._sending.test_and_set():": "while True:",
            "            self._sending.clear()\n": "",
        },
        "twice",
    ),
    "flag set by two steps": Mutant(
        {
            "while not self._sending.test_and_set():": (
                "while not self._sending.is_set() and not (self._sending.test_and_set() and False):"
            )
        },
        "twice",
    ),
    "next stored before the place is emptied": Mutant(
        {
            "                self._ring.store(place, None)\n": "",
            "                self._next.store(number + 1)\n": (
                "                self._next.store(number + 1)\n"
                "                self._ring.store(place, None)\n"
            ),
        },
        "lost",
    ),
    "place not emptied": Mutant({"                self._ring.store(place, None)\n": ""}, "twice"),
    "next read before the flag is set": Mutant(
        {
            "        while not self._sending.test_and_set():\n": (
                "        number = self._next.load()\n        while not self._sending.test_and_set():\n"
            ),
            "                number = self._next.load()\n": "",
            "self._next.store(number + 1)": "self._next.store(number := number + 1)",
        },
        "order",
    ),
    "a refused result taken for added": Mutant({"        return added\n": "        return True\n"}, "lost"),
}

LOCK = {
    "no lock": Mutant({"self._lock.acquire()": "pass", "self._lock.release()": "pass"}, "error"),
    "lock not released": Mutant({"self._lock.release()": "pass"}, "deadlock"),
    "only one sent": Mutant(
        {"while (first := self._next.load()) in": "if (first := self._next.load()) in"},
        "lost",
    ),
}

HYBRID = {
    "turn queued before the item": Mutant(
        {
            "        self._queues[bucket].enqueue(item)\n        self._master.enqueue(bucket)\n": (
                "        self._master.enqueue(bucket)\n        self._queues[bucket].enqueue(item)\n"
            )
        },
        "error",
    ),
    "counted before the item is worked on": Mutant(
        {
            "                    yield bucket, item\n"
            "                    more = self._counts[bucket].fetch_add(-1) > 1\n": (
                "                    more = self._counts[bucket].fetch_add(-1) > 1\n"
                "                    yield bucket, item\n"
            )
        },
        "exclusion",
    ),
    "counted before the item is taken": Mutant(
        {
            "                    more = self._counts[bucket].fetch_add(-1) > 1\n": "",
            "                    item = self._queues[bucket].try_dequeue()\n": (
                "                    more = self._counts[bucket].fetch_add(-1) > 1\n"
                "                    item = self._queues[bucket].try_dequeue()\n"
            ),
        },
        "exclusion",
    ),
    "works on what it should delegate": Mutant({".fetch_add(1) == 0:": ".fetch_add(1) >= 0:"}, "exclusion"),
    "counter read and raised in two steps": Mutant(
        {
            "if self._counts[bucket].fetch_add(1) == 0:": (
                "if (self._counts[bucket].load(), self._counts[bucket].fetch_add(1))[0] == 0:"
            )
        },
        "exclusion",
    ),
    "delegated items dropped": Mutant(
        {
            "more = self._counts[bucket].fetch_add(-1) > 1": (
                "self._counts[bucket].fetch_add(-1)\n                    more = False"
            )
        },
        "lost",
    ),
    "one delegated item dropped": Mutant({".fetch_add(-1) > 1": ".fetch_add(-1) > 2"}, "lost"),
    "works on one more than delegated": Mutant({".fetch_add(-1) > 1": ".fetch_add(-1) > 0"}, "error"),
}

PARTITIONED = {
    "queue not taken": Mutant(
        {" or self._taken[place].test_and_set():": ":", "            self._taken[place].clear()\n": ""},
        "exclusion",
    ),
    "queue never given back": Mutant({"            self._taken[place].clear()\n": ""}, "lost"),
}

SHARED = {
    "bucket locked after the queue is released": Mutant(  # figure 5
        {
            "            if found is not None:\n"
            "                self._buckets[found[0]].acquire()\n"
            "            self._taking.release()\n"
            "            if found is None:\n"
            "                return\n": (
                "            self._taking.release()\n"
                "            if found is None:\n"
                "                return\n"
                "            self._buckets[found[0]].acquire()\n"
            )
        },
        "order",
    ),
    "buckets not locked": Mutant(
        {
            "                self._buckets[found[0]].acquire()\n": "                pass\n",
            "            self._buckets[found[0]].release()\n": "",
        },
        "exclusion",
    ),
    "queue not released at the end": Mutant(
        {
            "            self._taking.release()\n            if found is None:\n                return\n": (
                "            if found is None:\n                return\n            self._taking.release()\n"
            )
        },
        "deadlock",
    ),
}


def mutants(of: Mapping[str, Mutant]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("mutant", of.values(), ids=of.keys())


def caught(mutant: Mutant, setup: Setup) -> None:
    """The mutant is found, and running the interleaving for real shows the same."""
    with pytest.raises(Violation) as found:
        explore(setup, looking_for=mutant.kind)
    print(f"\n{found.value}")
    with pytest.raises(Violation) as again:
        replay(setup, found.value.schedule, longest=2_000)
    assert (again.value.kind, again.value.schedule) == (mutant.kind, found.value.schedule)


@mutants(RING)
def test_mutants_of_the_ring(mutant: Mutant) -> None:
    caught(mutant, cases.reordering(ring(mutant.replaced), workers=3, tuples=4))


@mutants(LOCK)
def test_mutants_of_the_lock(mutant: Mutant) -> None:
    caught(mutant, cases.reordering(lock(mutant.replaced), workers=3, tuples=5))


@mutants(HYBRID)
def test_mutants_of_the_hybrid_queue(mutant: Mutant) -> None:
    caught(mutant, cases.partitioning(scheme("Hybrid", mutant.replaced), 3, BUCKETS, adding=True))


@mutants(PARTITIONED)
def test_mutants_of_the_queue_per_worker(mutant: Mutant) -> None:
    caught(mutant, cases.partitioning(scheme("Partitioned", mutant.replaced), 2, [0, 1, 0], adding=True))


@mutants(SHARED)
def test_mutants_of_the_shared_queue(mutant: Mutant) -> None:
    caught(mutant, cases.partitioning(scheme("Shared", mutant.replaced), 3, BUCKETS, adding=True))


def test_the_lower_bound_of_the_ring_is_never_reached() -> None:
    """No worker has a number that has left, so without that bound every state is the same: no mutant."""
    without = {"if first <= number < first + self._size:": "if number < first + self._size:"}
    same = explore(cases.reordering(ring(without), 3, 4)), explore(cases.reordering(ring(), 3, 4))
    assert same[0].states == same[1].states
    assert same[0].executions == same[1].executions


def test_a_mutant_never_is_the_original() -> None:
    with pytest.raises(ValueError, match="occurs 0 times"):
        load(reordering_module, {"no such line": ""})
    with pytest.raises(ValueError, match="occurs 2 times"):
        load(reordering_module, {"def next(self)": ""})


def test_the_instrumented_atomics_can_do_what_the_real_ones_can() -> None:
    def operations(made: type) -> set[str]:
        return {name for name, value in vars(made).items() if callable(value) and name != "__init__"} - {
            "__class_getitem__"
        }

    real = {
        name: made
        for name, made in vars(atomics).items()
        if getattr(made, "__module__", "") == atomics.__name__
    }
    assert {name: operations(made) for name, made in real.items() if isinstance(made, type)} == {
        name: operations(made) for name, made in ATOMICS.items()
    }


# --- larger cases -------------------------------------------------------------------------------------


def many_buckets(tuples: int, buckets: int) -> list[int]:
    """Half of the tuples fall to bucket 0."""
    draw = random.Random(7)
    return [
        *range(buckets),
        *(draw.choice([0] * buckets + [*range(buckets)]) for _ in range(tuples - buckets)),
    ]


LARGE: dict[str, Callable[[], Setup]] = {
    "ring": lambda: cases.reordering(ring(size=4), workers=6, tuples=40),
    "lock": lambda: cases.reordering(lock(), workers=6, tuples=40),
    **{
        f"{name} and ring": lambda name=name, workers=workers: cases.partitioning(  # type: ignore[misc]
            scheme(name), workers, many_buckets(40, 5), adding=True, a_call=3, reorder=ring(size=4)
        )
        for name, workers in (("Hybrid", 6), ("Partitioned", 6), ("Shared", 6))
    },
}


@pytest.mark.parametrize("case", LARGE)
def test_larger_cases_at_random(case: str) -> None:
    found = search(LARGE[case](), seed=1, steps=200_000)
    print(f"\n{case}, 6 workers, 40 tuples: {found}")
    assert found.executions >= 10


@mutants(RING)
def test_random_search_finds_mutants_of_the_ring(mutant: Mutant) -> None:
    with pytest.raises(Violation):
        search(cases.reordering(ring(mutant.replaced, size=4), 6, 12), seed=1, steps=1_000_000)


@mutants(HYBRID)
def test_random_search_finds_mutants_of_the_hybrid_queue(mutant: Mutant) -> None:
    made = scheme("Hybrid", mutant.replaced)
    with pytest.raises(Violation):
        search(cases.partitioning(made, 6, many_buckets(20, 5), adding=True), seed=1, steps=1_000_000)


# --- real threads -------------------------------------------------------------------------------------


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def on_threads(workers: int, work: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("name", ["nonblocking", "lock"])
def test_reordering_on_threads(name: str, ends: Callable[[Callable[[], None]], None]) -> None:
    sent: list[int] = []
    structure: Any = reordering_module.SCHEMES[name](sent.append, 4)
    numbers = atomics.Counter()

    def work() -> None:
        while (number := numbers.fetch_add(1)) < 2_000:
            while not structure.send(number, number):
                time.sleep(0)

    ends(lambda: on_threads(4, work))
    assert sent == list(range(2_000))


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("name", ["hybrid", "partitioned", "shared"])
def test_partitioning_on_threads(name: str, ends: Callable[[Callable[[], None]], None]) -> None:
    sent: list[int] = []
    buckets = many_buckets(2_000, 5)
    scheme: Any = partitioning_module.SCHEMES[name](5, 4)
    structure: Any = reordering_module.NonBlocking(sent.append, 2_000)
    held = [threading.Lock() for _ in range(5)]
    done: list[list[int]] = [[] for _ in range(5)]
    producing, added = atomics.Flag(), atomics.Cell(False)
    together = threading.Barrier(4)

    def work() -> None:
        together.wait()
        if not producing.test_and_set():
            for number, bucket in enumerate(buckets):
                scheme.add(bucket, number)
            added.store(True)
        last = False
        while not last:
            last = added.load() and not scheme.waiting()
            for bucket, number in scheme.consume(lambda: False):
                assert held[bucket].acquire(blocking=False)
                done[bucket].append(number)
                assert structure.send(number, number)
                held[bucket].release()

    ends(lambda: on_threads(4, work))
    assert done == [[n for n, at in enumerate(buckets) if at == bucket] for bucket in range(5)]
    assert sent == list(range(2_000))
