"""The local allocator: classes, reuse, blocks freed by other threads, finalisers at any point, whole runs."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.errors import PipelineError
from headgate.graph import arrays
from headgate.machine import host as machines
from headgate.memory import Allocator, allocator
from headgate.memory.classes import LINE, SIZES, class_of
from headgate.memory.local import Pool
from headgate.memory.superblocks import SUPERBLOCK, SuperblockAllocator

KIB = 1024


def address(array: Any) -> int:
    return int(array.ctypes.data)


# --- classes --------------------------------------------------------------------------------------------


def test_the_classes_are_those_of_the_paper() -> None:
    assert len(SIZES) == 63
    assert SIZES[0] == 8 * KIB
    assert SIZES[-2] < 512 * KIB <= SIZES[-1]
    assert all(size % LINE == 0 for size in SIZES)
    for i, size in enumerate(SIZES):
        assert 8192 * 1.07**i <= size < 8192 * 1.07**i + LINE


@given(st.integers(8 * KIB, SIZES[-1]))
def test_less_than_seven_per_cent_of_a_block_is_wasted(size: int) -> None:
    which = class_of(size)
    assert which is not None
    assert SIZES[which] >= size
    assert which == 0 or SIZES[which - 1] < size
    assert (SIZES[which] - size) / SIZES[which] < 0.07


@pytest.mark.parametrize("size", [0, 1, 8 * KIB - 1, SIZES[-1] + 1])
def test_other_sizes_have_no_class(size: int) -> None:
    assert class_of(size) is None


# --- one thread -----------------------------------------------------------------------------------------


def test_the_block_freed_last_is_used_first() -> None:
    local = Allocator()
    held = [local.array(10_000, np.int64) for _ in range(4)]
    places = [address(array) for array in held]
    assert len(set(places)) == 4
    assert all(place % LINE == 0 for place in places)
    held.pop(1)
    held.pop(2)
    assert address(local.array(10_000, np.int64)) == places[3]
    one, two = local.array(10_000, np.int64), local.array(10_000, np.int64)
    assert [address(one), address(two)] == [places[3], places[1]]


def test_arrow_and_views_use_the_block_without_a_copy_and_keep_it() -> None:
    local = Allocator()
    array = local.array(4_000, np.int64)
    array[:] = np.arange(4_000)
    place = address(array)
    column = pa.array(array)
    assert column.buffers()[1].address == place
    view = array[100:200]
    del array
    other = local.array(4_000, np.int64)
    assert address(other) != place
    part = column.slice(10, 5)
    del column, view
    assert address(local.array(4_000, np.int64)) != place
    assert part.to_pylist() == [10, 11, 12, 13, 14]
    del part
    assert address(local.array(4_000, np.int64)) == place
    assert pc.sum(pa.array(other)).as_py() is not None


def test_a_buffer_for_arrow() -> None:
    local = Allocator()
    buffer = local.buffer(20_000)
    assert buffer.is_mutable
    assert buffer.size == 20_000
    np.frombuffer(buffer, np.uint8)[:] = 7
    column = pa.Array.from_buffers(pa.uint8(), 20_000, [None, buffer])
    del buffer
    assert pc.sum(column).as_py() == 140_000
    assert local.statistics().outstanding == 1
    del column
    assert local.recollected().outstanding == 0


def test_small_and_large_are_left_to_the_system() -> None:
    local = Allocator()
    held = [local.array(100, np.int64), local.array(1_000_000, np.int64), local.array(0, np.int64)]
    assert [len(array) for array in held] == [100, 1_000_000, 0]
    found = local.statistics()
    assert (found.allocations, found.passed, found.passed_bytes) == (0, 3, 8_000_800)
    assert found.superblocks == 0


def test_the_fullest_superblock_is_used_first_and_an_empty_one_goes_back() -> None:
    size = 4 * SIZES[0]
    source = SuperblockAllocator(size)
    pool = Pool(source, threading.get_ident())

    def take() -> Any:
        return pool.allocate(0, 1024, np.dtype(np.int64))

    def superblock(array: Any) -> int:
        return next(at for at, found in enumerate(pool.superblocks) if found.memory is array.base)

    held = [take() for _ in range(12)]
    assert [superblock(array) for array in held] == [0] * 4 + [1] * 4 + [2] * 4
    for at in (0, 1, 2, 4, 8, 9):  # leaves one, three and two blocks in use
        held[at] = None
    again = [take() for _ in range(4)]
    assert [superblock(array) for array in again] == [1, 2, 2, 0]
    # What was not needed of late goes back: at once to the node, and to the system what waits too long there.
    del again, held[8:]
    for _ in range(40):
        pool.recollect()
    assert len(pool.superblocks) == 2
    assert source.claimed <= 2 * size


def test_superblocks_wait_on_a_stack_which_is_small_beside_what_is_in_use() -> None:
    source = SuperblockAllocator(size=64 * KIB)
    held = [source.take() for _ in range(10)]
    one, two, three = held[:3]
    for superblock in (three, one, two):
        source.give(superblock)
    source.trim()
    assert (source.cached, source.claimed) == (1, 8 * 64 * KIB)
    assert source.take() is two
    assert (source.mapped, source.reused, source.most) == (10, 1, 10 * 64 * KIB)
    assert len(SuperblockAllocator().take().memory) == SUPERBLOCK == 10 << 20


# --- fragmentation --------------------------------------------------------------------------------------


def test_one_live_block_of_every_class_holds_less_than_twice_its_bytes() -> None:
    local = Allocator()
    held = [local.array(size, np.uint8) for size in SIZES]
    found = local.statistics()
    assert found.live_bytes == found.live_bytes_most == sum(len(array) for array in held) == sum(SIZES)
    assert found.claimed_bytes == found.claimed_bytes_most == SUPERBLOCK
    assert found.fragmentation == found.claimed_bytes / found.live_bytes < 2


def test_memory_claimed_stays_under_twice_the_memory_in_use() -> None:
    """All classes come and go; then most of it goes, and leaves a few blocks in each superblock."""
    local = Allocator()
    draw = random.Random(1)
    held: list[Any] = []

    def ratio() -> float:
        found = local.recollected()
        assert found.live_bytes == sum(array.nbytes for array in held)
        return found.claimed_bytes / found.live_bytes

    for number in range(2_000):
        if len(held) == 100:
            held.pop(draw.randrange(100))
        held.append(local.array(draw.randrange(SIZES[0], SIZES[-1]), np.uint8))
        if number % 20 == 0:
            local.recollect()
        if number >= 200 and number % 100 == 0:
            assert ratio() < 2
    held += [local.array(draw.randrange(SIZES[0], SIZES[-1]), np.uint8) for _ in range(500)]
    for array in held:
        array[:] = 1
    draw.shuffle(held)
    del held[30:], array
    for _ in range(60):  # what was needed of late is kept for a while
        local.recollect()
    assert ratio() < 2
    assert all(bool((array == 1).all()) for array in held)
    assert local.statistics().fragmentation < 2  # of the peaks


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 62)), max_size=40), st.integers(0, 40))
def test_blocks_do_not_overlap_when_memory_goes_back_and_comes_again(
    steps: list[tuple[int, int]], at: int
) -> None:
    """In one superblock: blocks are put back, joined, released, cut anew."""
    superblock = SuperblockAllocator(4 << 20).take()
    held: dict[int, tuple[int, int]] = {}
    for number, (place, which) in enumerate(steps):
        if place in held:
            superblock.put(*held.pop(place))
        if number == at:
            superblock.release()
        size = SIZES[which]
        begin = superblock.take(size)
        if begin is None:
            superblock.join()
            begin = superblock.cut(size)
        assert begin is not None
        held[place] = begin, size
        ends = sorted((begin, begin + size) for begin, size in held.values())
        assert all(one[1] <= two[0] for one, two in pairwise(ends))
        assert ends[-1][1] <= len(superblock.memory)
        assert superblock.used == sum(size for _, size in held.values())
        assert superblock.used <= len(superblock.memory) - superblock.away


def test_full_superblocks_are_no_garbage() -> None:
    """Nothing can be taken from one, but its blocks come back there."""
    local = Allocator(superblock=2 * SIZES[0])
    held = [local.array(1024, np.int64) for _ in range(6)]
    places = {address(array) for array in held}
    gc.collect()
    held.clear()
    assert local.recollected().outstanding == 0
    assert {address(array) for array in [local.array(1024, np.int64) for _ in range(6)]} == places


def test_a_block_freed_twice_is_noticed() -> None:
    pool = Pool(SuperblockAllocator(), threading.get_ident())
    array = pool.allocate(0, 1024, np.dtype(np.int64))
    assert array is not None
    handle: Any = next(iter(pool.superblocks[0].handles.values()))
    del array
    pool.bins.give(pool.owner, handle)
    with pytest.raises(AssertionError, match="not in use"):
        pool.recollect()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 90_000)), max_size=60))
def test_no_two_arrays_overlap_and_all_come_back(steps: list[tuple[int, int]]) -> None:
    """Take an array for a place in a row of ten, which frees what was there; values stay what they were."""
    local = Allocator(superblock=1 << 20)
    held: dict[int, tuple[Any, int]] = {}
    for number, (place, count) in enumerate(steps):
        array = local.array(count, np.int64)
        array[:] = number
        held[place] = array, number
        assert all(bool((array == value).all()) for array, value in held.values())
    found = local.statistics()
    assert found.rounding < 0.07
    assert found.requested_bytes + found.passed_bytes == sum(8 * count for _, count in steps)
    array = None
    held.clear()
    assert local.recollected().outstanding == 0


# --- several threads ------------------------------------------------------------------------------------


def on_thread(work: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def test_a_block_that_another_thread_frees_comes_back_when_its_owner_collects() -> None:
    local = Allocator()
    held = [local.array(10_000, np.int64)]
    place = address(held[0])
    local.array(10_000, np.int64)  # freed here: the pool has one that waits
    on_thread(held.clear)
    other = local.array(10_000, np.int64)
    assert address(other) != place
    local.recollect()
    assert address(local.array(10_000, np.int64)) == place
    assert local.statistics().recollected == 1


def test_the_bins_are_looked_into_before_a_superblock_is_asked_for() -> None:
    local = Allocator(superblock=4 * SIZES[0])
    held = [local.array(1024, np.int64) for _ in range(4)]
    on_thread(held.clear)
    again = [local.array(1024, np.int64) for _ in range(4)]
    assert local.statistics().superblocks == 1
    assert local.statistics().recollected == 4
    assert len(again) == 4


def test_every_thread_has_a_pool_of_its_own() -> None:
    local = Allocator()
    mine = local.array(10_000, np.int64)
    theirs: list[Any] = []
    on_thread(lambda: theirs.append(local.array(10_000, np.int64)))
    assert abs(address(mine) - address(theirs[0])) >= SIZES[0]
    assert (local.statistics().threads, local.statistics().superblocks) == (2, 2)


def test_superblocks_are_of_the_threads_node(monkeypatch: pytest.MonkeyPatch) -> None:
    local = Allocator(machines.get("e7540"))

    def use() -> None:
        local.array(10_000, np.int64)

    for core in (0, 13, 14, 40):
        monkeypatch.setattr(allocator, "current_core", lambda core=core: core)
        on_thread(use)
    assert [node.mapped for node in local._nodes] == [1, 2, 0, 1]


def test_threads_that_pass_arrays_around_lose_none_and_mix_up_none() -> None:
    """Each takes arrays, gives them to anybody, and drops what it was given, after a look at its values."""
    local = Allocator(superblock=1 << 20)
    mailboxes: list[list[Any]] = [[] for _ in range(4)]
    wrong: list[int] = []

    def work(me: int) -> None:
        draw = random.Random(me)
        for number in range(400):
            array = local.array(draw.randrange(1024, 20_000), np.int64)
            array[:] = me * 1000 + number
            mailboxes[draw.randrange(4)].append((array, me * 1000 + number))
            while mailboxes[me]:
                array, value = mailboxes[me].pop()
                if not bool((array == value).all()):
                    wrong.append(value)
            if number % 10 == 0:
                local.recollect()

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mailboxes.clear()
    found = local.close()
    assert not wrong
    assert found.allocations == 1600
    assert (found.freed, found.outstanding) == (1600, 0)
    assert 0 < found.recollected < 1600


# --- finalisers at any point ----------------------------------------------------------------------------


class _Circle:
    """Holds an array in a circle, so that only collecting garbage frees it; allocates when it goes."""

    def __init__(self, local: Allocator, array: Any) -> None:
        self.me, self.local, self.array = self, local, array

    def __del__(self) -> None:
        self.local.array(3_000, np.int64)[:] = -1


def test_garbage_may_be_collected_in_the_middle_of_allocating() -> None:
    local = Allocator(superblock=1 << 18)
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        held: list[tuple[Any, int]] = []
        for number in range(300):
            _Circle(local, local.array(2_000 + number, np.int64))
            array = local.array(3_000, np.int64)
            array[:] = number
            held.append((array, number))
            held = held[-20:]
            assert all(bool((array == value).all()) for array, value in held)
    finally:
        gc.set_threshold(*before)
    held.clear()
    del array
    gc.collect()
    assert local.recollected().outstanding == 0


def test_a_thread_that_is_already_allocating_gets_its_memory_elsewhere() -> None:
    pool = Pool(SuperblockAllocator(), threading.get_ident())
    pool._busy = True
    assert pool.allocate(0, 1024, np.dtype(np.int64)) is None
    pool.recollect()


# --- the end --------------------------------------------------------------------------------------------


def test_after_the_end_memory_goes_back_when_the_last_block_of_it_does() -> None:
    local = Allocator()
    kept = local.array(10_000, np.int64)
    kept[:] = 5
    memory = weakref.ref(local._pools[0].superblocks[0].memory)
    found = local.close()
    assert found.outstanding == 1
    del local
    gc.collect()
    assert memory() is not None
    assert int(kept.sum()) == 50_000
    del kept
    assert memory() is None


def test_a_closed_allocator_gives_ordinary_arrays() -> None:
    local = Allocator()
    local.close()
    assert local.array(10_000, np.int64).base is None


# --- arrays of packets ----------------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**62), 2**62), max_size=50), st.data())
def test_provided_arrays_hold_what_numpys_would(values: list[int], data: st.DataObject) -> None:
    array = np.array(values, dtype=np.int64)
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), dtype=bool
    )
    top = max(len(values) - 1, 0)
    places = np.array(data.draw(st.lists(st.integers(0, top), max_size=9 if values else 0)), dtype=np.int64)
    start = data.draw(st.integers(-(10**12), 10**12))
    asked: list[int] = []

    def empty(count: int, dtype: Any) -> Any:
        asked.append(count)
        return np.full(count, 77, dtype)

    def made() -> list[list[int]]:
        floats = array.astype(np.float64)
        return [
            arrays.arange(start, start + len(values)).tolist(),
            arrays.selected(array, mask).tolist(),
            arrays.selected(array, places).tolist(),
            arrays.concatenated([array, array]).tolist(),
            arrays.concatenated([array, floats]).tolist(),
        ]

    expected = made()
    assert not asked
    with arrays.provided(empty):
        assert made() == expected
    assert len(asked) == 4
    assert arrays.arange(0, 3).tolist() == [0, 1, 2]


# --- runs -----------------------------------------------------------------------------------------------


def shop(out: list[Any], rows: int = 60_000) -> hg.App:
    app = hg.App("shop")
    numbers = app.source("numbers", hg.from_rate(1e9, limit=rows)).with_columns("value % 7 AS k")
    numbers.filter("value % 3 <> 0").key_by("k").running("sum(value) AS s").to("sums", hg.to_list(out))
    numbers.filter("k = 1").union(numbers.filter("k = 2")).to("some", hg.to_list(out))
    return app


@pytest.mark.parametrize("name", ["local", "system", "mimalloc"])
def test_answers_do_not_depend_on_the_allocator(name: str, ends: Callable[[Callable[[], Any]], Any]) -> None:
    rows: dict[str, list[Any]] = {}
    for given_ in ("default", name):
        out: list[Any] = []
        report = ends(lambda out=out, given_=given_: shop(out).run(hg.Threads(workers=2, allocator=given_)))
        assert report.memory.allocator == given_
        assert report.memory.arrow_bytes > 0
        rows[given_] = sorted(out, key=lambda row: (len(row), row["value"]))
        before = pa.default_memory_pool().backend_name
    assert rows["default"] == rows[name]
    assert len(out) == 40_000 + 17_144
    assert pa.default_memory_pool().backend_name == before


def test_a_run_says_what_it_allocated_and_leaks_nothing(ends: Callable[[Callable[[], Any]], Any]) -> None:
    report = ends(lambda: shop([]).run(hg.Threads(workers=2, allocator="local")))
    found = report.memory
    assert found.allocations > 0
    assert found.outstanding == 0
    assert found.freed == found.allocations == sum(found.by_class.values())
    assert found.recollected > 0  # the feeder builds what workers free
    assert found.rounding < 0.07
    assert 0 < found.share < 1
    assert found.page_faults > 0


def test_what_a_sink_keeps_is_told_and_stays_good(ends: Callable[[Callable[[], Any]], Any]) -> None:
    kept: list[pa.RecordBatch] = []
    app = hg.App("kept")
    source = app.source("numbers", hg.from_rate(1e9, limit=50_000))
    source.to("all", hg.to_function(lambda query, batch: kept.append(batch)))
    report = ends(lambda: app.run(hg.Threads(workers=1, allocator="local")))
    assert report.memory.outstanding > 0
    values = pa.concat_arrays([batch.column("value") for batch in kept])
    assert values.to_pylist() == list(range(50_000))


def test_an_allocator_that_there_is_not() -> None:
    with pytest.raises(PipelineError, match=r"allocator='loca'.* Did you mean 'local'\?"):
        hg.Threads(allocator="loca")
