"""Room for results (H9): calls that began before it was known what comes of a tuple overfill no queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import headgate as hg
from headgate import testing
from headgate.runtime.core import QUEUE_PACKETS, Core
from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import Count

PACKET, WORKERS, COPIES = 8, 3, 4
NUMBERS = pa.schema([("a", pa.int64())])


class AllAtOnce(Pull):
    """Every worker calls the box that makes more of a tuple; what comes of it is called last."""

    name = "all at once"

    def choose(self, worker: int, now: float) -> Plan | None:
        ready: Sequence[int] = self.catalog.ready
        return (Call(min(ready), Count(PACKET)),) if ready else None


def test_calls_under_way_keep_the_room_that_the_first_one_shows_to_be_needed(monkeypatch: Any) -> None:
    """The first calls begin together and expect one result of a tuple.  When the first has ended, the others
    keep room for four, and no call may take what then is theirs.
    """
    kept: list[int] = []
    longest = [0]
    handle = Core.handle

    def watched(self: Core, stimulus: Any, now: float) -> Any:
        found = handle(self, stimulus, now)
        makes, slow = self.live.boxes[:2]
        units = [unit for unit in makes.open_work.values() if unit.promised]
        if makes.entry.calls:
            kept.extend(rows / unit.promised_for for unit in units for _, _, rows in unit.promised)
        longest[0] = max(longest[0], slow.inbox.rows)
        return found

    monkeypatch.setattr(Core, "handle", watched)
    app = hg.App("room")
    rows = app.source("numbers", testing.from_rows([{"a": i} for i in range(200)]))
    made = rows.flat_map_rows(lambda row: [row] * COPIES, schema=NUMBERS, name="makes")
    made.select("a", name="slow").to("q", hg.to_list([]))
    engine = hg.Simulated(workers=WORKERS, packet_rows=PACKET, costs={"makes": 0.001, "slow": 0.01})
    app.run(engine, AllAtOnce())
    assert kept
    assert min(kept) == COPIES
    assert longest[0] <= QUEUE_PACKETS * PACKET
