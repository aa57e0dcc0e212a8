"""Admission: one order for the tuples of all sources, which does not depend on how they are read."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate import testing
from headgate.connectors.source import Chunk, Reader, Source, Wait
from headgate.errors import SourceError
from headgate.graph import turns
from headgate.graph.network import Source as Node
from headgate.runtime.admission import Admission

NUMBERS = pa.schema([("a", pa.int64())])


def node(name: str, origin: Source) -> Node:
    return Node(name, origin.schema, origin)


def finite(name: str, count: int, cut: int | None = None) -> Node:
    """``count`` numbers in batches of ``cut`` rows."""
    rows = [{"a": i} for i in range(count)]
    cut = cut or max(count, 1)
    batches = [testing.batch(rows[i : i + cut], NUMBERS) for i in range(0, count, cut)]
    return node(name, hg.from_batches(batches, schema=NUMBERS))


def admitted(sources: list[Node], packet_rows: int) -> list[tuple[int, int]]:
    """(source, value) of every tuple, by serial; serials must be 0, 1, 2, … with none missing or twice."""
    under_test, found = Admission(sources, packet_rows), {}
    while not under_test.ended:
        packets = under_test.poll(0.0)
        assert not isinstance(packets, Wait)
        for place, packet in packets:
            for serial, value in zip(
                packet.order.serials.tolist(), packet.batch.column("a").to_pylist(), strict=True
            ):
                assert serial not in found
                found[serial] = (place, value)
        assert under_test.next_serial == len(found)
    assert sorted(found) == list(range(len(found)))
    return [found[serial] for serial in range(len(found))]


def in_turns(sizes: list[int], turn: int) -> list[tuple[int, int]]:
    expected = []
    for start in range(0, max(sizes, default=0), turn):
        for place, size in enumerate(sizes):
            expected += [(place, i) for i in range(start, min(start + turn, size))]
    return expected


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.integers(1, 8),
    st.integers(1, 50),
    st.integers(1, 9),
)
def test_finite_sources_take_turns_however_they_are_read(
    sizes: list[int], turn: int, packet_rows: int, cut: int
) -> None:
    with mock.patch.object(turns, "TURN", turn):
        found = admitted([finite(f"s{i}", size, cut) for i, size in enumerate(sizes)], packet_rows)
    assert found == in_turns(sizes, turn)


@given(st.lists(st.integers(0, 30), min_size=2, max_size=4), st.integers(1, 8))
def test_when_a_source_is_known_to_have_ended_does_not_depend_on_reading_ahead(
    sizes: list[int], turn: int
) -> None:
    """Joins close by it, so it must be a property of the order."""

    def ends(packet_rows: int) -> list[int | None]:
        under_test = Admission([finite(f"s{i}", size) for i, size in enumerate(sizes)], packet_rows)
        while not under_test.ended:
            under_test.poll(0.0)
        under_test.poll(0.0)
        return [entry.ended_at for entry in under_test.entries]

    with mock.patch.object(turns, "TURN", turn):
        assert ends(1) == ends(turn) == ends(3 * turn) == ends(1000)


def test_a_turn_is_1024_rows() -> None:
    assert turns.TURN == 1024
    assert admitted([finite("a", 3000), finite("b", 1500)], 8192) == in_turns([3000, 1500], 1024)


def test_live_sources_are_admitted_by_arrival() -> None:
    one = testing.Timed([(0.0, [{"a": 0}]), (2.0, [{"a": 1}])], NUMBERS)
    other = testing.Timed([(1.0, [{"a": 10}]), (2.0, [{"a": 11}])], NUMBERS)
    under_test = Admission([node("one", one), node("other", other)], 100)
    seen = []
    now = 0.0
    while not under_test.ended:
        packets = under_test.poll(now)
        if isinstance(packets, Wait):
            assert packets.until is not None
            assert packets.until > now, "a wait is for later"
            now = packets.until
            continue
        for place, packet in packets:
            seen += [
                (serial, place, arrival)
                for serial, arrival in zip(packet.order.serials, packet.order.arrival_array(), strict=True)
            ]
    assert sorted(seen) == [(0, 0, 0.0), (1, 1, 1.0), (2, 0, 2.0), (3, 1, 2.0)]


def test_a_rate_source_is_waited_for_and_not_spun_on() -> None:
    under_test = Admission([node("rate", hg.from_rate(10, limit=3))], 100)
    assert len(under_test.poll(0.0)) == 1  # type: ignore[arg-type]
    assert under_test.poll(0.05) == Wait(0.1)
    assert len(under_test.poll(0.25)) == 1  # type: ignore[arg-type]
    assert under_test.poll(0.25) == []
    assert under_test.ended


def test_a_source_is_idle_after_its_time_and_awake_again_with_its_next_tuple() -> None:
    slow = node("slow", testing.Timed([(0.0, [{"a": 0}]), (9.0, [{"a": 1}])], NUMBERS))
    slow.idle_after = 2.0
    under_test = Admission([slow, node("other", hg.from_rate(1))], 100)
    idle = []
    for now in (0.0, 1.0, 2.0, 3.0, 9.0, 10.0):
        under_test.poll(now)
        idle.append(under_test.entries[0].idle)
    assert idle == [False, False, True, True, False, False]


# --- failing --------------------------------------------------------------------------------------------


class Failing(Source):
    """Gives some rows, then fails."""

    schema = NUMBERS

    def __init__(self, error: Exception, rows: int = 0, at_open: bool = False, live: bool = False) -> None:
        self.error, self.rows, self.at_open = error, rows, at_open
        self.live, self.finite = live, not live

    def open(self) -> Reader:
        if self.at_open:
            raise self.error
        return _FailingReader(self)


class _FailingReader(Reader):
    def __init__(self, source: Failing) -> None:
        self.given, self.source = 0, source

    def poll(self, now: float, max_rows: int) -> Chunk | Wait | None:
        start = self.given
        if start == self.source.rows:
            raise self.source.error
        self.given = min(start + max_rows, self.source.rows)
        return Chunk(testing.batch([{"a": i} for i in range(start, self.given)], NUMBERS), 0.0)


def test_a_source_that_fails_is_over_and_its_error_names_it() -> None:
    under_test = Admission([node("broken", Failing(OSError("disk gone")))], 10)
    assert under_test.poll(0.0) == []
    error = under_test.entries[0].error
    assert isinstance(error, SourceError)
    assert str(error) == "Source 'broken' failed: OSError: disk gone"
    assert isinstance(error.__cause__, OSError)


def test_an_error_that_says_enough_is_left_as_it_is() -> None:
    mine = SourceError("from_files: 'x.csv' has no column 'a'.")
    under_test = Admission([node("broken", Failing(mine))], 10)
    under_test.poll(0.0)
    assert under_test.entries[0].error is mine


def test_a_live_source_that_fails_is_told_of_at_once() -> None:
    """Not only when another source happens to have something."""
    quiet = testing.Timed([(100.0, [{"a": 0}])], NUMBERS)
    under_test = Admission([node("broken", Failing(OSError("gone"), live=True)), node("quiet", quiet)], 10)
    assert under_test.poll(0.0) == [], "an empty list is what makes the engine look at errors"
    assert under_test.entries[0].error is not None


@pytest.mark.parametrize("at_open", [True, False])
@pytest.mark.parametrize("live", [True, False])
def test_a_source_that_fails_fails_the_queries_that_need_it(
    engine: hg.Engine, at_open: bool, live: bool
) -> None:
    app, found = hg.App("broken"), []
    broken = app.source("broken", Failing(OSError("disk gone"), at_open=at_open, live=live))
    good = app.source("good", testing.from_rows([{"a": i} for i in range(20)], NUMBERS))
    broken.union(good).to("both", hg.to_list([]))
    good.to("one", hg.to_list(found))
    report = app.run(engine)
    assert "disk gone" in str(report.queries["both"].error)
    assert report.queries["one"].error is None
    assert [row["a"] for row in found] == list(range(20))


@pytest.mark.parametrize("rows", [1, 5, 1024, 3000])
def test_a_source_that_fails_in_the_middle(engine: hg.Engine, rows: int) -> None:
    """What it gave and its error come in one breath; the query fails, the run goes on."""
    app, found, other = hg.App("broken"), [], []
    broken = app.source("broken", Failing(OSError("disk gone"), rows))
    good = app.source("good", testing.from_rows([{"a": i} for i in range(2000)], NUMBERS))
    broken.to("direct", hg.to_list(found))
    broken.filter("a >= 0").to("boxed", hg.to_list([]))
    good.filter("a >= 0").to("good", hg.to_list(other))
    report = app.run(engine)
    assert "disk gone" in str(report.queries["direct"].error)
    assert "disk gone" in str(report.queries["boxed"].error)
    assert [row["a"] for row in other] == list(range(2000))
    assert [row["a"] for row in found] == list(range(len(found))), "what was handed over before stays"


def test_markers_travel_with_every_so_many_tuples() -> None:
    under_test = Admission([finite("a", 10)], packet_rows=4, marker_every=3)
    markers: list[Any] = []
    while not under_test.ended:
        packets = under_test.poll(0.0)
        assert not isinstance(packets, Wait)
        markers += [marker.serial for _, packet in packets for marker in packet.markers]
    assert markers == [0, 3, 6, 9]
