"""Simulation with a memory model: what caches hold, where memory is, and what a call then costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.engines.simulated.memory import Block, Contents
from headgate.errors import PipelineError
from headgate.machine import host as machines
from headgate.machine import memory_model
from headgate.machine.topology import Topology
from headgate.machine.topology_format import parse
from headgate.scheduling.interface import Call, Decision, Plan, Wake
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import Count

KB = 1024
ROWS = 1024
"""Of 8 bytes: a packet of 8 kB."""
PACKET = 8 * KB

MACHINE = parse(
    """
    name = "small"
    node = [{cores = "0-3", factors = [1.0, 2.0]}, {cores = "4-7", factors = [3.0, 1.0]}]
    cache = [
        {level = 1, size = "4 kB", cores = "each"},
        {level = 2, size = "32 kB", cores = "by 2"},
        {level = 3, size = "64 kB", cores = "by 4"},
    ]
    """
)
"""Cores 0 and 1 share L2, 0 to 3 share L3, 4 to 7 are on another node."""
PRICES = hg.MemoryModel("prices", {1: 0.0, 2: 1.0, 3: 10.0}, 100.0)
"""Seconds per byte, so that times show where bytes were."""


class By(Pull):
    """Says which workers run a box: its first call the first of them, and so on in turns."""

    name = "by"

    def __init__(
        self, workers_of: Sequence[int | Sequence[int]], train: int = ROWS, *, last_first: bool = True
    ) -> None:
        self.workers_of = [[one] if isinstance(one, int) else one for one in workers_of]
        self.train = train
        self.order = range(len(workers_of))[:: -1 if last_first else 1]

    def wake(self) -> Sequence[Decision]:
        woken, self._parked = tuple(self._parked), {}
        return (Wake(woken),)

    def choose(self, worker: int, now: float) -> Plan | None:
        for box in self.order:
            turn = self.catalog.boxes[box].calls % len(self.workers_of[box])
            if self.workers_of[box][turn] == worker and self.catalog.can_run(box):
                return (Call(box, Count(self.train)),)
        return None


def numbers(packets: int = 1) -> Any:
    return hg.from_batches(
        [pa.RecordBatch.from_pydict({"a": np.arange(ROWS) + ROWS * i}) for i in range(packets)]
    )


def chain(boxes: int, packets: int = 1, **options: Any) -> hg.App:
    app = hg.App("chain")
    stream = app.source("s", numbers(packets))
    for box in range(boxes):
        stream = stream.universal(cost=0.0, name=f"box{box}", **options)
    stream.to("q", hg.to_list([]))
    return app


def run(
    app: hg.App,
    workers: Sequence[int | Sequence[int]],
    model: hg.MemoryModel | None = PRICES,
    machine: Topology = MACHINE,
    **options: Any,
) -> hg.Report:
    engine = hg.Simulated(topology=machine, memory=model, packet_rows=ROWS)
    return app.run(engine, By(workers, **options))


def times(report: hg.Report) -> list[tuple[str, float]]:
    """How long each call took, per byte of a packet."""
    return [(call.box, (call.end - call.start) / PACKET) for call in report.trace]


# --- where a packet is ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reader", "price"),
    [(0, 1.0), (1, 1.0), (2, 10.0), (3, 10.0), (4, 300.0), (7, 300.0)],
    ids=["itself", "shares L2", "shares L3", "shares L3 too", "other node", "other node too"],
)
def test_a_packet_costs_its_reader_by_the_nearest_cache_they_share(reader: int, price: float) -> None:
    """Written into L2 of core 0; whoever reads it writes its own result into its own L2."""
    report = run(chain(2), [0, reader])
    first, second = times(report)
    assert first == ("box0", pytest.approx(100 + 1))
    assert second == ("box1", pytest.approx(price + 1))


def test_first_touch_is_the_node_of_whoever_wrote_it() -> None:
    """A packet that is larger than every cache is read from memory, by a core of its node or of the other."""
    machine = replace(MACHINE, caches=())
    local, remote = run(chain(2), [4, 5], machine=machine), run(chain(2), [4, 0], machine=machine)
    assert times(local)[1] == ("box1", pytest.approx(100 + 100))
    assert times(remote)[1] == ("box1", pytest.approx(200 + 100))
    assert local.traffic is not None
    assert remote.traffic is not None
    assert local.traffic.bytes == {"memory": 3 * PACKET, "remote": PACKET}  # the source's is on node 0
    assert remote.traffic.bytes == {"memory": 2 * PACKET, "remote": 2 * PACKET}


def test_memory_can_be_on_one_node_or_on_all_in_turns() -> None:
    machine = replace(MACHINE, caches=())
    there = run(chain(2), [0, 0], replace(PRICES, placement=1), machine)
    assert times(there) == [("box0", pytest.approx(200 + 200)), ("box1", pytest.approx(200 + 200))]
    turns = run(chain(3), [0, 0, 0], replace(PRICES, placement="interleaved"), machine)
    assert times(turns) == [  # the source's is on node 0, what box0 writes on 1, then 0 and 1 again
        ("box0", pytest.approx(100 + 200)),
        ("box1", pytest.approx(200 + 100)),
        ("box2", pytest.approx(100 + 200)),
    ]


def test_sources_packets_are_on_all_nodes_in_turns_and_in_no_cache() -> None:
    report = run(chain(1, packets=4), [0])
    assert [cost for _, cost in times(report)] == pytest.approx([101, 201, 101, 201])


def test_a_packet_that_two_boxes_read_is_in_the_cache_for_the_second() -> None:
    app = hg.App("fork")
    stream = app.source("s", numbers())
    stream.universal(cost=0.0, name="A").to("a", hg.to_list([]))
    stream.universal(cost=0.0, name="B").to("b", hg.to_list([]))
    assert times(run(app, [0, 0], last_first=False)) == [("A", pytest.approx(101)), ("B", pytest.approx(2))]


def test_two_boxes_that_pass_the_same_packet_on_write_it_twice() -> None:
    app = hg.App("fork")
    stream = app.source("s", numbers())
    for name in ("A", "B"):
        again = stream.universal(cost=0.0, name=name).universal(cost=0.0, name=f"after {name}")
        again.to(name, hg.to_list([]))
    report = run(app, [0, 0, 1, 1])
    assert report.traffic is not None
    assert sum(report.traffic.bytes.values()) == 8 * PACKET


def test_a_packet_that_was_displaced_is_read_from_farther_away() -> None:
    """Five packets of 8 kB do not fit into an L2 of 32 kB: the oldest is only in L3 when it is read."""

    def second(packets: int) -> list[float]:
        report = run(chain(2, packets), [0, 0], last_first=False)
        return [cost for box, cost in times(report) if box == "box1"]

    assert second(3) == pytest.approx([2, 2, 2])
    assert second(5)[0] == pytest.approx(10 + 1)
    assert second(9)[0] == pytest.approx(100 + 1)


def test_what_is_displaced_from_the_last_cache_is_carried_to_memory() -> None:
    """L3 has room for 8: the 8th and the 9th, with what they read, displace one each; reading one a third."""
    report = run(chain(2, packets=9), [0, 0], last_first=False)
    assert report.traffic is not None
    assert report.traffic.written_back == 3 * PACKET
    assert run(chain(2, packets=6), [0, 0], last_first=False).traffic.written_back == 0  # type: ignore[union-attr]


def test_what_is_read_for_the_last_time_makes_room() -> None:
    """A call for every packet, the second box's right after the first's: there are never two of them."""
    report = run(chain(2, packets=40), [0, 1])
    assert {round(cost, 6) for box, cost in times(report) if box == "box1"} == {2.0}
    cold = run(chain(2, packets=40), [0, 1], replace(PRICES, recycles=False))
    assert min(cost for box, cost in times(cold) if box == "box1") == pytest.approx(1 + 100)


def test_what_only_another_cache_has_may_be_dearer_than_memory_and_goes_there() -> None:
    """From then on it is in memory too; what a cache of one's own has costs what it costs."""
    app = hg.App("readers")
    first = app.source("s", numbers()).universal(cost=0.0, name="writer")
    for name in ("one", "two"):
        first.universal(cost=0.0, name=name).to(name, hg.to_list([]))
    costs = dict(times(run(app, [0, 4, 6], replace(PRICES, dirty=1.5), last_first=False)))
    assert costs["one"] == pytest.approx(1.5 * 300 + 1)
    assert costs["two"] == pytest.approx(10 + 1), "of the L3 that it shares with the first reader"
    report = run(app, [0, 4, 0], replace(PRICES, dirty=1.5), last_first=False)
    assert dict(times(report))["two"] == pytest.approx(1 + 1)
    assert report.traffic is not None
    assert report.traffic.written_back == PACKET
    assert dict(times(run(app, [0, 4, 0], last_first=False)))["one"] == pytest.approx(300 + 1)


def test_part_of_a_packet_costs_its_part() -> None:
    report = run(chain(1), [0], train=ROWS // 4)
    assert [call.tuples for call in report.trace] == [ROWS // 4] * 4
    first, *others = [(call.end - call.start) / (PACKET / 4) for call in report.trace]
    assert first == pytest.approx(100 + 0)  # 2 kB of results fit into L1
    assert others == pytest.approx([1, 1, 1])  # the rest came along


def test_the_state_of_a_box_follows_its_workers() -> None:
    """8 kB of state: written by the first call, then in the caches of whoever had it last, and only there."""
    local = replace(PRICES, placement=0)
    same = [pa.RecordBatch.from_pydict({"a": np.arange(ROWS)})] * 4

    def state_costs(batches: Sequence[pa.RecordBatch], workers: Sequence[int]) -> list[float]:
        app = hg.App("state")
        keyed = app.source("s", hg.from_batches(batches)).key_by("a")
        keyed.universal(cost=0.0, name="box", state_bytes=8).to("q", hg.to_list([]))
        pairs = zip(times(run(app, [workers], local)), times(run(chain(1, 4), [workers], local)), strict=True)
        return [with_state - without for (_, with_state), (_, without) in pairs]

    assert state_costs(same, [0]) == pytest.approx([1, 1, 1, 1], rel=0.01)
    assert state_costs(same, [0, 4]) == pytest.approx([1, 300, 100, 300], rel=0.01)
    growing = [pa.RecordBatch.from_pydict({"a": np.arange(ROWS) + ROWS * i}) for i in range(4)]
    assert state_costs(growing, [0]) == pytest.approx([1, 2, 3, 40], rel=0.01)  # at last too large for L2


# --- bandwidth -------------------------------------------------------------------------------------------


def test_those_who_read_at_once_share_the_bandwidth_of_a_node() -> None:
    app = hg.App("two")
    for name in ("A", "B"):
        app.source(name.lower(), numbers()).universal(cost=0.0, name=name).to(name, hg.to_list([]))
    machine = replace(MACHINE, caches=())
    # Alone each would take 200 seconds per byte: 100 to read, 100 to write.
    alone = run(app, [0, 1], replace(PRICES, placement=0), machine)
    assert [cost for _, cost in times(alone)] == pytest.approx([200, 200])
    shared = run(app, [0, 1], replace(PRICES, placement=0, bandwidth=1 / 150), machine)
    assert [cost for _, cost in times(shared)] == pytest.approx([300, 600])
    assert shared.traffic is not None
    assert shared.traffic.waited / PACKET == pytest.approx(100 + 400)
    # The link is for those of the other node alone.
    far = run(app, [0, 4], replace(PRICES, placement=0, link=1 / 500), machine)
    assert [cost for _, cost in times(far)] == pytest.approx([200, 1000])


def test_who_computes_meanwhile_does_not_wait() -> None:
    app = hg.App("busy")
    app.source("s", numbers()).universal(cost=1000.0 * 8, name="A").to("q", hg.to_list([]))
    machine = replace(MACHINE, caches=())
    report = run(app, [0], replace(PRICES, bandwidth=1 / 500), machine)
    assert times(report) == [("A", pytest.approx(1000 + 200))]


# --- the engine ------------------------------------------------------------------------------------------


def test_without_a_model_memory_costs_nothing() -> None:
    def calls(**options: Any) -> tuple[list[Any], Any]:
        report = chain(3, packets=5).run(hg.Simulated(packet_rows=ROWS, **options), By([0, 1, 2]))
        return list(report.trace), report.traffic

    plain, traffic = calls(topology=MACHINE)
    free, told = calls(topology=MACHINE, memory=hg.MemoryModel("free", {1: 0.0, 2: 0.0, 3: 0.0}, 0.0))
    assert plain == free
    assert traffic is None
    assert told.seconds == 0


def test_memory_adds_to_what_a_box_computes_and_tuples_leave_evenly() -> None:
    app = hg.App("one")
    app.source("s", numbers()).universal(cost=8.0, name="A").to("q", hg.to_list([]))
    report = run(app, [0])
    assert times(report) == [("A", pytest.approx(1 + 101))]
    assert report.queries["q"].latency.p50 == pytest.approx(report.seconds / 2, rel=0.01)
    assert report.boxes["A"].busy == pytest.approx(report.seconds)


def test_a_keyed_box_with_several_workers_inside_pays_too() -> None:
    app, found = hg.App("keyed"), []
    keyed = app.source("s", numbers(4)).key_by("a")
    keyed.universal(cost=0.0, name="box").to("q", hg.to_list(found))
    engine = hg.Simulated(topology=MACHINE, memory=PRICES, workers=2, packet_rows=ROWS, split=True, buckets=4)
    report = app.run(engine, "lp")
    assert [row["a"] for row in found] == list(range(4 * ROWS))
    assert report.traffic is not None
    assert sum(report.traffic.bytes.values()) == 8 * PACKET  # read once, written once
    assert report.traffic.seconds > 0
    assert report.boxes["box"].busy == pytest.approx(report.traffic.seconds)


@pytest.mark.parametrize("name", memory_model.names())
def test_the_papers_machines_have_prices(name: str) -> None:
    machine = machines.get(name)
    found = memory_model.get(True, machine)
    assert found == memory_model.get(name, machine)
    assert found.notes
    assert chain(2).run(hg.Simulated(topology=name, memory=True), "round_robin").seconds > 0


def test_every_paper_machine_has_prices() -> None:
    assert ["host", *memory_model.names()] == machines.names()


def test_a_union_reads_what_each_of_its_arrows_brings() -> None:
    app = hg.App("union")
    one, other = app.source("s", numbers(2)), app.source("t", numbers(2))
    left = one.filter("a % 2 = 0", name="left")
    left.union(other).universal(cost=0.0, name="box").to("q", hg.to_list([]))
    report = app.run(hg.Simulated(topology=MACHINE, memory=PRICES, packet_rows=ROWS), "round_robin")
    assert report.traffic is not None
    # The filter reads 2 and writes 1, the box reads 1 + 2 and writes 3.
    assert sum(report.traffic.bytes.values()) == 9 * PACKET


# --- mistakes --------------------------------------------------------------------------------------------


def test_mistakes_are_told_when_the_engine_is_made(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="give topology= too"):
        hg.Simulated(memory="e7540")
    with pytest.raises(PipelineError, match="no price for L3"):
        hg.Simulated(topology="e7540", memory="e5310")
    with pytest.raises(PipelineError, match="'small' are not known"):
        hg.Simulated(topology=MACHINE, memory=True)
    with pytest.raises(PipelineError, match="Did you mean 'e7540'"):
        hg.Simulated(topology="e7540", memory="e7541")
    with pytest.raises(PipelineError, match="has 2 nodes"):
        hg.Simulated(topology=MACHINE, memory=replace(PRICES, placement=2))
    with pytest.raises(PipelineError, match="costs more than the one behind it"):
        hg.MemoryModel("x", {1: 0.0, 2: 2.0}, 1.0)
    with pytest.raises(PipelineError, match="placement='here'"):
        replace(PRICES, placement="here")
    with pytest.raises(PipelineError, match=r"dirty=0\.5 must be at least 1"):
        replace(PRICES, dirty=0.5)
    with pytest.raises(PipelineError, match="bandwidth must be positive"):
        replace(PRICES, bandwidth=0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "cannot be read as TOML"),
        ("name = 'x'", r"no table \[read\]"),
        ("[read]\nL1 = 0.0", "does not say what 'memory' costs"),
        ("[read]\nL1 = -1.0\nmemory = 1.0", "'L1' must be a number"),
        ("[read]\nL1 = 0.0\nmemory = 'dear'", "'memory' must be a number"),
        ("[read]\nlevel1 = 0.0\nmemory = 1.0", "has 'level1'"),
        ("[read]\nmemory = 1.0\n[share]\nbus = 1.0", "has 'bus'"),
    ],
)
def test_a_broken_file_says_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "broken.memory"
    file.write_text(text)
    with pytest.raises(PipelineError, match=said):
        hg.Simulated(topology=MACHINE, memory=file)


# --- a cache ---------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60), st.integers(1, 12))
def test_a_cache_holds_the_most_recently_used_that_fit(steps: list[tuple[int, bool]], size: int) -> None:
    """Against a list that is searched from its newest end."""
    blocks = [Block(1 + number % 4, 1, 0) for number in range(10)]
    cache = Contents(1, size, 0.0)
    recent: list[Block] = []
    for number, goes in steps:
        block = blocks[number]
        if goes:
            cache.remove(block)
            recent = [b for b in recent if b is not block]
            continue
        cache.add(block)
        if block.size <= size:
            recent = [b for b in recent if b is not block] + [block]
            while sum(b.size for b in recent) > size:
                recent.pop(0)
        assert list(cache.blocks) == recent
        assert cache.used == sum(b.size for b in recent) <= size


def test_what_leaves_a_cache_leaves_the_smaller_ones_before_it() -> None:
    small, large = Contents(1, 8, 0.0), Contents(2, 8, 0.0)
    large.before.append(small)
    first, second = Block(8, 1, 0), Block(4, 1, 0)
    for cache in (large, small):
        assert cache.add(first) == []
    assert large.add(second) == [first]
    assert not small.blocks
    assert small.used == 0
