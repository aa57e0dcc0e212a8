"""What the bench of operators calls, and with what; how long it takes is its own to say."""

from __future__ import annotations

import pyarrow as pa

from benchmarks.experiments import operators


def test_every_stateful_box_of_the_queries_is_called_with_packets_of_the_size() -> None:
    found = list(operators.cases(3_000))
    names = [case.name for case in found]
    assert {name.split()[0] for name in names} == {
        "q1",
        "q2",
        "q3",
        "q4",
        "q15",
        "sliding-1",
        "running-1",
        "join-1",
    }
    for case in found:
        for rows in (1, 100):
            cost = operators.measure(case, rows, calls=3)
            assert cost is None if case.rows - case.rows // 2 < rows else cost is not None and cost.mean > 0


def test_however_the_input_is_cut_the_box_gets_all_rows_once_and_in_order() -> None:
    for case in operators.cases(3_000):
        for rows in (7, 1_000):
            calls = list(operators._cut(case, rows))
            for port, packet in enumerate(case.inputs):
                parts = [call[port].batch for call in calls]
                together = pa.Table.from_batches(parts, packet.schema)
                assert together.equals(pa.Table.from_batches([packet.batch]))
