"""The calendar queue against a heap, whatever times it is given."""

from __future__ import annotations

import heapq
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from headgate.scheduling.aurora.calendar import CalendarQueue

TIMES = st.one_of(
    st.floats(-1e9, 1e9),
    st.floats(0, 1e-6),
    st.integers(0, 5).map(float),
    st.floats(1e12, 1e12 + 1),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), TIMES, st.integers(0, 40)),
        st.tuples(st.just("delete"), st.just(0.0), st.integers(0, 40)),
        st.tuples(st.just("extract"), st.just(0.0), st.just(0)),
        st.tuples(st.just("until"), TIMES, st.just(0)),
    ),
    max_size=300,
)


class Heap:
    """The same by ``heapq``: entries that were struck out are passed over."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, int]] = []
        self.alive: dict[int, tuple[float, int, int]] = {}
        self.number = 0

    def insert(self, key: float, item: int) -> None:
        self.number += 1
        self.alive[item] = (key, self.number, item)
        heapq.heappush(self.entries, self.alive[item])

    def peek(self) -> tuple[float, int]:
        while self.alive.get(self.entries[0][2]) is not self.entries[0]:
            heapq.heappop(self.entries)
        return self.entries[0][0], self.entries[0][2]

    def extract_min(self) -> tuple[float, int]:
        key, item = self.peek()
        del self.alive[item]
        return key, item


@settings(max_examples=examples(300))
@given(STEPS)
def test_it_gives_what_a_heap_gives(steps: list[tuple[str, float, int]]) -> None:
    calendar, heap = CalendarQueue[int](), Heap()
    for kind, key, item in steps:
        if kind == "insert":
            calendar.insert(key, item)
            heap.insert(key, item)
        elif kind == "delete" and item in heap.alive:
            calendar.delete(item)
            del heap.alive[item]
        elif kind == "extract" and heap.alive:
            assert calendar.extract_min() == heap.extract_min()
        elif kind == "until":
            due = bool(heap.alive) and heap.peek()[0] <= key
            assert calendar.extract_until(key) == (heap.extract_min()[1] if due else None)
        assert len(calendar) == len(heap.alive)
        assert calendar.key(item) == (heap.alive[item][0] if item in heap.alive else None)
        if heap.alive:
            assert calendar.peek() == heap.peek()
    while heap.alive:
        assert calendar.extract_min() == heap.extract_min()
    assert not len(calendar)


def hold(draw: random.Random, calendar: CalendarQueue[int], steps: int, wait: float) -> int:
    """Brown's hold model: take the next out, put it back a while later.  Pages turned per step."""
    turned = 0
    for _ in range(steps):
        before = calendar._first
        key, item = calendar.extract_min()
        turned += max(0, calendar._first - before)
        calendar.insert(key + draw.expovariate(1 / wait), item)
    return turned


@pytest.mark.parametrize("count", [10, 1000, 20_000])
def test_few_pages_are_turned_however_many_entries_there_are(count: int) -> None:
    draw = random.Random(1)
    calendar = CalendarQueue[int]()
    for item in range(count):
        calendar.insert(draw.expovariate(1.0), item)
    assert hold(draw, calendar, 5000, 1.0) / 5000 < 5


@pytest.mark.parametrize(("before", "after"), [(1e-3, 1e3), (1e3, 1e-3)])
def test_it_measures_anew_when_times_change_their_scale_and_their_number_does_not(
    before: float, after: float
) -> None:
    draw = random.Random(1)
    calendar = CalendarQueue[int]()
    for item in range(1000):
        calendar.insert(draw.random() * before, item)
    length = calendar._length
    for item in range(1000):
        calendar.insert(2 * before + draw.random() * after, item)
    hold(draw, calendar, 20_000, after / 2)
    assert calendar._length / length == pytest.approx(after / before, rel=0.9)
    assert max(len(page) for page in calendar._days) < 32


def test_it_grows_and_shrinks() -> None:
    calendar = CalendarQueue[int]()
    for item in range(1000):
        calendar.insert(item * 0.5, item)
    assert len(calendar._days) >= 500
    for item in range(999):
        assert calendar.extract_min() == (item * 0.5, item)
    assert len(calendar._days) == 8


def test_of_equal_times_the_first_comes_first_and_one_that_is_put_back_last() -> None:
    calendar = CalendarQueue[str]()
    for item in "abc":
        calendar.insert(1.0, item)
    calendar.insert(1.0, "a")
    assert [calendar.extract_min()[1] for _ in range(3)] == ["b", "c", "a"]


def test_an_empty_one_has_no_next_and_no_day_for_never() -> None:
    calendar = CalendarQueue[int]()
    with pytest.raises(IndexError, match="empty"):
        calendar.peek()
    with pytest.raises(ValueError, match="no day"):
        calendar.insert(math.inf, 1)
    with pytest.raises(KeyError):
        calendar.delete(1)
    assert 1 not in calendar
