"""How a step's results reach sinks before the commit, without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from headgate.engines.spark.workers import Workers


class Outlet:
    """Notes who was given rows, on which thread; waits for ``others`` first."""

    def __init__(self, target: str, said: list[Any], others: threading.Barrier | None = None) -> None:
        self.target, self._said, self._others = target, said, others

    def hand_over(self, parts: list[Any], step: int, repeated: bool) -> None:
        if self._others is not None:
            self._others.wait(60.0)
        for part in parts:
            if isinstance(part, Exception):
                raise part
            self._said.append((self.target, part, threading.get_ident()))


def given(outlets: list[Outlet], parts: list[list[Any]]) -> dict[int, Any]:
    names = [SimpleNamespace(name=f"q{place}") for place in range(len(outlets))]
    run: Any = SimpleNamespace(
        outlets=dict(enumerate(outlets)), nodes=SimpleNamespace(all=names), guard=lambda work, worker: None
    )
    step: Any = SimpleNamespace(number=1)
    return Workers(run, 1, False)._hand_over(step, dict(enumerate(parts)), False)


def test_tables_are_written_at_the_same_time() -> None:
    """None of the three returns before all have begun."""
    said: list[Any] = []
    together = threading.Barrier(3)
    outlets = [Outlet(f"table {n}", said, together) for n in range(3)]
    assert given(outlets, [["a"], ["b"], ["c"]]) == {}
    assert sorted(part for _, part, _ in said) == ["a", "b", "c"]


def test_a_table_of_two_queries_is_written_by_one_after_the_other() -> None:
    said: list[Any] = []
    outlets = [Outlet("one", said), Outlet("other", said), Outlet("one", said)]
    assert given(outlets, [["a", "b"], ["x"], ["c"]]) == {}
    mine = [(part, thread) for target, part, thread in said if target == "one"]
    assert [part for part, _ in mine] == ["a", "b", "c"]
    assert len({thread for _, thread in mine}) == 1


def test_sinks_in_this_process_get_their_rows_in_order_on_the_workers_thread() -> None:
    said: list[Any] = []
    outlets = [Outlet("", said), Outlet("table", []), Outlet("", said)]
    assert given(outlets, [["a", "b"], ["x"], ["c"]]) == {}
    assert said == [("", part, threading.get_ident()) for part in ("a", "b", "c")]


def test_a_sink_that_fails_is_named_and_the_others_get_their_rows() -> None:
    said: list[Any] = []
    outlets = [Outlet("one", said), Outlet("other", said), Outlet("", said)]
    failed = given(outlets, [[ValueError("full")], ["b"], ["c"]])
    assert list(failed) == [0]
    assert "Query 'q0': its sink failed: ValueError: full" in str(failed[0])
    assert sorted(part for _, part, _ in said) == ["b", "c"]
