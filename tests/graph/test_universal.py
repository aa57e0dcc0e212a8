"""The synthetic box: the same tuples for every cut, the share asked for, and its cost in CPU time."""

from __future__ import annotations

import pickle
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from headgate.errors import HeadgateError, PipelineError
from headgate.graph.operator import Kind
from headgate.graph.operators import universal
from headgate.graph.operators.universal import Universal, busy
from headgate.graph.packet import Order, Packet

SCHEMA = pa.schema([("v", pa.int64())])


def packet(first: int, rows: int) -> Packet:
    return Packet(
        pa.record_batch([pa.array(np.arange(first, first + rows))], schema=SCHEMA), Order(first, 0.0, rows)
    )


def box(selectivity: float, name: str = "b", **options: Any) -> Universal:
    return Universal(SCHEMA, name, 0.0, selectivity, **options)


def serials(operator: Universal, given: Packet) -> list[int]:
    [out] = operator.process([given], operator.open())
    assert out.batch.schema == operator.outputs[0]
    assert out.batch.column("v").to_pylist() == out.order.serials.tolist()
    return out.order.serials.tolist()


@settings(derandomize=True, deadline=None, max_examples=examples(60))
@given(st.floats(0, 3.5), st.integers(0, 2**62), st.integers(0, 200), st.integers(0, 200))
def test_which_tuples_leave_does_not_depend_on_cuts(sel: float, first: int, rows: int, cut: int) -> None:
    cut = min(cut, rows)
    whole = serials(box(sel), packet(first, rows))
    parts = pickle.loads(pickle.dumps(box(sel)))
    assert serials(parts, packet(first, cut)) + serials(parts, packet(first + cut, rows - cut)) == whole
    copies = [whole.count(s) for s in range(first, first + rows)]
    assert all(int(sel) <= c <= int(sel) + 1 for c in copies)


@pytest.mark.parametrize("selectivity", [0.0, 0.05, 0.5, 0.999, 1.0, 2.0, 2.25])
def test_the_share_is_the_one_asked_for(selectivity: float) -> None:
    out = len(serials(box(selectivity), packet(0, 100_000)))
    # Four standard deviations of a binomial of that many tuples are at most 633.
    assert abs(out - selectivity * 100_000) <= (633 if selectivity % 1 else 0)


def test_boxes_of_other_names_choose_independently() -> None:
    one, two = (set(serials(box(0.5, name), packet(0, 10_000))) for name in ("one", "two"))
    assert abs(len(one & two) - 2_500) < 200


def test_the_choice_is_stable_over_versions() -> None:
    assert serials(box(0.5, "stable"), packet(0, 20)) == [0, 1, 3, 4, 5, 6, 7, 9, 10, 11, 12, 14, 18]


def test_a_payload_of_the_size_asked_for() -> None:
    operator = box(0.5, tuple_bytes=100)
    [out] = operator.process([packet(0, 50)], None)
    assert {len(p) for p in out.batch.column("payload").to_pylist()} == {100}
    assert out.batch.schema == operator.outputs[0]
    after = Universal(operator.outputs[0], "next", 0.0, 1.0, 10)
    [out] = after.process([out], None)
    assert out.batch.schema.names == ["v", "payload"]
    assert {len(p) for p in out.batch.column("payload").to_pylist()} == {10}
    out.batch.validate(full=True)


def test_keyed_with_a_buffer_per_key() -> None:
    operator = box(1.0, keys=["v"], state_bytes=4)
    assert (operator.kind, box(1.0).kind) == (Kind.KEYED, Kind.STATELESS)
    assert pickle.loads(pickle.dumps(operator)).kind is Kind.KEYED
    state = operator.open()
    assert state is not None
    operator.process([packet(0, 3)], state)
    operator.process([packet(1, 100)], state)
    table = state.snapshot()
    assert table.column_names == ["v", "_buffer"]
    assert table.num_rows == 101
    again = operator.restore([table.slice(0, 50), table.slice(50)])
    assert again is not None
    assert again.snapshot().equals(table)
    touched = dict(zip(*(c.to_pylist() for c in table.columns), strict=True))
    assert (touched[0], touched[1], touched[50]) == (b"\1" * 4, b"\2" * 4, b"\1" * 4)


def test_without_keys_one_buffer() -> None:
    operator = box(1.0, state_bytes=3)
    assert operator.kind is Kind.STATEFUL
    state = operator.open()
    assert state is not None
    assert (state.nbytes, state.snapshot().num_rows) == (0, 0)
    operator.process([packet(0, 3)], state)
    operator.process([packet(3, 100)], state)
    assert state.nbytes == 3
    table = state.snapshot()
    assert table.to_pydict() == {"_buffer": [b"\2" * 3]}
    again = operator.restore([table])
    assert again is not None
    again.track()
    operator.process([packet(0, 1)], again)
    assert again.changes().to_pydict() == {"_buffer": [b"\3" * 3]}


def product(rows: Packet, matrix: int = 5, **options: Any) -> list[float]:
    operator = Universal(rows.batch.schema, "m", None, matrix=matrix, **options)
    [out] = operator.process([rows], operator.open())
    assert out.batch.schema == operator.outputs[0]
    out.batch.validate(full=True)
    return out.batch.column("product").to_pylist()


@pytest.mark.parametrize("options", [{}, {"keys": ["v"], "state_bytes": 4}, {"state_bytes": 9}])
def test_every_kind_can_work_on_the_tuple_itself_and_have_a_payload(options: dict[str, Any]) -> None:
    whole = product(packet(0, 40_000), tuple_bytes=7, **options)
    assert len(set(whole)) == 40_000
    parts = [product(packet(first, 8_000), tuple_bytes=7, **options) for first in range(0, 40_000, 8_000)]
    assert [value for part in parts for value in part] == whole
    assert set(product(packet(0, 50), matrix=6, **options)).isdisjoint(whole)
    # What leaves is of the tuple that caused it, also if tuples leave twice or not at all.
    assert set(product(packet(0, 100), selectivity=0.5, **options)) < set(whole[:100])
    twice = product(packet(0, 100), selectivity=2, **options)
    assert twice == [value for value in whole[:100] for _ in range(2)]


def test_all_columns_are_worked_on_and_a_product_is_replaced() -> None:
    given = packet(0, 4)
    named = Packet(
        pa.record_batch({"v": given.batch.column("v"), "w": ["a", "b", None, "a"]}), Order(0, 0.0, 4)
    )
    assert set(product(named)).isdisjoint(product(given))
    operator = Universal(SCHEMA, "m", None, matrix=3)
    again = Universal(operator.outputs[0], "m", None, matrix=3)
    assert again.outputs[0].names == ["v", "product"]
    [out] = again.process(operator.process([given], None), None)
    assert out.batch.schema == again.outputs[0]


def test_busy_spends_the_threads_cpu_time() -> None:
    begin = time.thread_time()
    busy(0.02)
    assert time.thread_time() - begin >= 0.02
    busy(0)
    busy(-1)


def test_the_cost_is_spent_only_if_the_engine_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[float] = []
    monkeypatch.setattr(universal, "busy", spent.append)
    operator = Universal(SCHEMA, "b", 0.25)
    operator.process([packet(0, 8)], None)
    operator.spin = False
    operator.process([packet(0, 8)], None)
    assert spent == [2.0]
    assert operator.cost == 0.25


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cost": -1}, ["cost", "-1"]),
        ({"cost": "1 ms"}, ["cost", "'1 ms'"]),
        ({"selectivity": float("nan")}, ["selectivity"]),
        ({"tuple_bytes": -5}, ["tuple_bytes"]),
        ({"keys": ["w"]}, ["'w'"]),
        ({"state_bytes": -5}, ["state_bytes"]),
        ({"matrix": 2}, ["either cost=", "matrix="]),
        ({"cost": None}, ["either cost=", "matrix="]),
        ({"cost": None, "matrix": -2}, ["matrix"]),
    ],
)
def test_a_box_that_makes_no_sense_is_refused(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(HeadgateError) as error:
        Universal(SCHEMA, "b", **{"cost": 0.0, **options})
    assert isinstance(error.value, PipelineError)
    for word in ["universal 'b'", *words]:
        assert word in str(error.value)
