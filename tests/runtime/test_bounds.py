"""Bounded queues (H9), in virtual time: whatever boxes make of a tuple, their results find room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import headgate as hg
from headgate import testing
from headgate.runtime.core import Core
from headgate.runtime.stimuli import Stimulus

PACKET = 8
CAPACITY = 16 * PACKET
NUMBERS = pa.schema([("a", pa.int64())])


@contextmanager
def longest() -> Iterator[dict[str, int]]:
    """The most rows that every box's queue has had, looked at after every stimulus."""
    found: dict[str, int] = {}
    handle = Core.handle

    def watched(self: Core, stimulus: Stimulus, now: float) -> Any:
        result = handle(self, stimulus, now)
        for live in self.live.boxes:
            assert live.inbox.capacity == CAPACITY
            found[live.box.name] = max(found.get(live.box.name, 0), live.inbox.rows)
        return result

    with mock.patch.object(Core, "handle", watched):
        yield found


def run(copies: Callable[[int], int], rows: int, policy: str, workers: int) -> dict[str, int]:
    """The longest queues while one box makes so many tuples of each, and the next ones are slow."""
    app, found = hg.App("bounded"), list[dict[str, int]]()
    stream = app.source("numbers", testing.from_rows([{"a": i} for i in range(rows)]))
    made = stream.flat_map_rows(lambda row: [row] * copies(row["a"]), schema=NUMBERS, name="makes")
    slow = made.select("a", name="slow").process(lambda row, state: row, schema=NUMBERS, name="last")
    slow.to("q", hg.to_list(found))
    engine = hg.Simulated(workers=workers, packet_rows=PACKET, costs={"slow": 0.01, "last": 0.02})
    with longest() as most:
        app.run(engine, policy)
    assert found == [{"a": i} for i in range(rows) for _ in range(copies(i))]
    return most


@pytest.mark.parametrize("policy", ["lp", "lp(fused=False)", "ct", "round_robin", "qos", "mc", "bobox"])
def test_a_queue_is_never_over_its_bound(policy: str) -> None:
    for copies in (1, 3, 20):
        for workers in (1, 3):
            most = run(lambda _, copies=copies: copies, 360 // copies, policy, workers)
            # A call takes one tuple at least, whatever comes of it.
            assert max(most.values()) < CAPACITY + copies, (copies, workers, most)
            assert most["slow"] > CAPACITY // 2 or policy in ("lp", "mc", "bobox", "qos"), most


@pytest.mark.parametrize("policy", ["ct", "round_robin"])
def test_a_sudden_rise_is_over_the_bound_once(policy: str) -> None:
    """Results per tuple rise from one to five: the calls under way are over it, none after them."""
    rise, copies = 600, 5
    most = run(lambda a: 1 if a < rise else copies, 1000, policy, 1)
    assert max(most.values()) <= copies * CAPACITY, most
