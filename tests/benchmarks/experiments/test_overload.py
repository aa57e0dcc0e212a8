"""What ``headgate bench overload`` measures with: its source, and its sums."""

from __future__ import annotations

from benchmarks.experiments.overload import Case, Spells, _all_worth, _grows, _results
from headgate.connectors.source import Chunk, Wait


def test_rows_arrive_at_the_rate_of_their_spell() -> None:
    reader = Spells([(2.0, 100.0), (1.0, 10.0)]).open()
    first = reader.poll(1.0, 1000)
    assert isinstance(first, Chunk)
    assert first.batch.num_rows == 101
    assert isinstance(reader.poll(1.0, 1000), Wait)
    rest = reader.poll(10.0, 1000)
    assert isinstance(rest, Chunk)
    assert rest.batch.num_rows == 109
    assert reader.poll(10.0, 1000) is None


def test_the_worth_of_all_that_came_is_the_same_however_it_is_read() -> None:
    source = Spells([(2.0, 100.0)])
    assert _all_worth(source, 50) < _all_worth(source, 200) == _all_worth(source, 500)


def test_memory_that_grows_is_noticed() -> None:
    assert _grows([1.0, *[100.0] * 8]) == (100.0, 100.0)
    assert _grows([float(i) for i in range(10)]) == (5.0, 9.0)


def test_a_tuple_that_is_lost_and_not_counted_is_noticed() -> None:
    good = Case(tight=1, loose=1, tuples=10, results=6, shed=4, memory=[1.0] * 10)
    bad = Case(tight=1, loose=1, tuples=10, results=6, shed=3, memory=[1.0] * 10)
    lost = {own.shed: _results({"off": good, "random": own, "semantic": good}, 1.0)[2] for own in (good, bad)}
    assert (lost[4].holds, lost[3].holds) == (True, False)
    assert lost[3].measured == 1
