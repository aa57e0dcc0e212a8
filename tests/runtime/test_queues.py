"""Inboxes: first in, first out; and merges that release rows only when nothing earlier can come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headgate.graph.packet import Marker, Order, Packet
from headgate.runtime.queues import Fifo, Inbox, Merge, coalesce

SCHEMA = pa.schema([("serial", pa.int64()), ("arrow", pa.int64())])


def packet(serials: Sequence[int], arrow: int = 0, markers: tuple[Marker, ...] = ()) -> Packet:
    """Rows that say in their columns what their order keys are."""
    batch = pa.record_batch([list(serials), [arrow] * len(serials)], schema=SCHEMA)
    return Packet(batch, Order(np.array(serials, dtype=np.int64), 0.0, len(serials)), markers)


def rows(packets: Sequence[Packet]) -> list[tuple[int, int]]:
    for p in packets:
        assert p.order.serials.tolist() == p.batch.column("serial").to_pylist()
    return [(r["serial"], r["arrow"]) for p in packets for r in p.batch.to_pylist()]


def taken(inbox: Inbox, count: int) -> list[tuple[int, int]]:
    return rows([p for (p,) in inbox.take(count)])


# --- fifo -----------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 9), max_size=8),
    st.lists(st.integers(1, 12), max_size=12),
    st.sampled_from([1, 4, 64]),
)
def test_a_fifo_gives_every_row_once_in_order(sizes: list[int], takes: list[int], packet_rows: int) -> None:
    inbox, total = Fifo(100, packet_rows), sum(sizes)
    start = 0
    for size in sizes:
        inbox.put(0, packet(range(start, start + size)))
        start += size
    found: list[tuple[int, int]] = []
    for count in takes:
        before = inbox.rows
        got = taken(inbox, count)
        assert len(got) <= count
        assert bool(got) == bool(before), "a take from a queue that is not empty takes something"
        found += got
        assert inbox.rows == total - len(found) == inbox.available()
        assert inbox.first_serial() == (len(found) if inbox.rows else None)
    found += taken(inbox, max(inbox.rows, 1))
    assert found == [(i, 0) for i in range(total)]


def test_a_fifo_is_full_at_its_capacity() -> None:
    inbox = Fifo(4, 2)
    inbox.put(0, packet([0, 1, 2]))
    assert not inbox.full(0)
    inbox.put(0, packet([3]))
    assert inbox.full(0)
    inbox.clear()
    assert (inbox.rows, inbox.full(0), inbox.packets()) == (0, False, [])


def test_small_packets_are_put_together() -> None:
    small = [packet([i]) for i in range(7)]
    assert [len(p) for p in coalesce(small, 3)] == [3, 3, 1]
    assert rows(coalesce(small, 3)) == [(i, 0) for i in range(7)]
    big = [packet(range(5)), packet(range(5, 10))]
    assert coalesce(big, 3) is big


def test_a_queues_ages_are_measured_only_if_somebody_asks() -> None:
    inbox = Fifo(10, 4)
    batch = packet([0, 1, 2]).batch
    inbox.put(0, Packet(batch, Order(0, np.array([1.0, 2.0, 6.0]), 3)))
    inbox.put(0, Packet(batch, Order(3, 5.0, 3)))
    plain, aged = inbox.measure(False, frozenset()), inbox.measure(True, frozenset({3}))
    assert (plain.tuples, plain.oldest, plain.mean) == (6, 0.0, 0.0)
    assert (aged.tuples, aged.full, aged.oldest, aged.mean) == (6, frozenset({3}), 1.0, 4.0)


def test_markers_without_a_tuple_are_taken_once() -> None:
    inbox, marker = Fifo(10, 4), Marker(7, 0.0)
    inbox.loose.append(marker)
    assert (inbox.rows, inbox.take_loose(), inbox.take_loose()) == (0, (marker,), ())


# --- merge ----------------------------------------------------------------------------------------------


class Bound:
    """Below this serial no arrow can bring anything new."""

    def __init__(self) -> None:
        self.serial = 0

    def __call__(self) -> int:
        return self.serial


def merge(arrows: int, bound: Bound, packet_rows: int = 4) -> Merge:
    return Merge([0] * arrows, [SCHEMA], bound, 100, packet_rows)


def test_a_merge_holds_rows_back_until_nothing_earlier_can_come() -> None:
    bound = Bound()
    inbox = merge(2, bound)
    inbox.put(0, packet([0, 2, 4], 0))
    assert (inbox.rows, inbox.available(), inbox.take(9)) == (3, 0, [])
    bound.serial = 3
    assert inbox.available() == 2
    inbox.put(1, packet([1, 2], 1))
    assert taken(inbox, 9) == [(0, 0), (1, 1), (2, 0), (2, 1)]
    assert (inbox.rows, inbox.available(), inbox.first_serial()) == (1, 0, 4)


def test_rows_of_one_serial_are_never_parted() -> None:
    """A join must see all rows of a serial in one call, on whichever inputs they are."""
    bound = Bound()
    inbox = merge(2, bound, packet_rows=2)
    inbox.put(0, packet([0, 1, 1, 1], 0))
    inbox.put(1, packet([1, 2], 1))
    bound.serial = 9
    [(first,)] = inbox.take(2)
    assert rows([first]) == [(0, 0), (1, 0), (1, 0), (1, 0), (1, 1)]


def test_each_arrow_has_room_of_its_own() -> None:
    inbox = Merge([0, 0], [SCHEMA], Bound(), 3, 4)
    inbox.put(0, packet([0, 1, 2], 0))
    assert inbox.full(0)
    assert not inbox.full(1), "one that waits must not shut the other out"


def test_ports_get_their_own_packets_of_one_range_of_serials() -> None:
    bound = Bound()
    inbox = Merge([0, 1], [SCHEMA, SCHEMA], bound, 100, 2)
    inbox.put(0, packet([0, 1, 5], 0))
    inbox.put(1, packet([1, 3], 1))
    bound.serial = 6
    rounds = [[rows([p]) for p in round_] for round_ in inbox.take(9)]
    assert rounds == [
        [[(0, 0), (1, 0)], [(1, 1)]],
        [[(5, 0)], [(3, 1)]],
    ]


serial_lists = st.lists(st.integers(0, 30), max_size=12).map(sorted)


@given(st.lists(serial_lists, min_size=2, max_size=4), st.data(), st.sampled_from([1, 3, 50]))
def test_a_merge_gives_what_sorting_gives(
    arrows: list[list[int]], data: st.DataObject, packet_rows: int
) -> None:
    """Rows come in pieces, the bound rises as it may, and takes are of any size."""
    bound = Bound()
    inbox = merge(len(arrows), bound, packet_rows)
    left = [list(serials) for serials in arrows]
    found: list[tuple[int, int]] = []
    while any(left):
        arrow = data.draw(st.sampled_from([i for i, serials in enumerate(left) if serials]))
        count = data.draw(st.integers(1, len(left[arrow])))
        inbox.put(arrow, packet(left[arrow][:count], arrow))
        del left[arrow][:count]
        bound.serial = max(bound.serial, min([s[0] for s in left if s], default=31))
        if data.draw(st.booleans()):
            found += taken(inbox, data.draw(st.integers(1, 20)))
    while inbox.rows:
        found += taken(inbox, data.draw(st.integers(1, 20)))
    assert found == sorted((serial, arrow) for arrow, serials in enumerate(arrows) for serial in serials)


def test_clearing_a_merge_forgets_everything() -> None:
    bound = Bound()
    inbox = merge(2, bound)
    inbox.put(0, packet([0, 1], 0))
    bound.serial = 1
    inbox.available()
    inbox.clear()
    bound.serial = 5
    assert (inbox.rows, inbox.available(), inbox.first_serial(), inbox.packets()) == (0, 0, None, [])
    assert not inbox.full(0)
