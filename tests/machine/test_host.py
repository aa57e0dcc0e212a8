"""The host's topology from sysfs, whole or not, within limits; and engines that run on a topology."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate import testing
from headgate.engines.base import LEAST_ROWS, MOST_ROWS, default_packet_rows, half_of_l2
from headgate.engines.threads import workers as threads_workers
from headgate.errors import PipelineError
from headgate.machine import host as machines
from headgate.machine.topology import Cache, Node, Topology
from headgate.machine.topology_format import spell, spell_cores
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import Moved
from headgate.scheduling.interface import Decision
from headgate.scheduling.ordered.last_in_pipeline import LastInPipeline


class Tree:
    """A sysfs and a proc that tell of a machine, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.sys, self.proc = folder / "sys", folder / "proc"
        self.cpus = self.sys / "devices/system/cpu"
        self.nodes = self.sys / "devices/system/node"

    def write(self, path: Path, text: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def machine(self, machine: Topology, distances: Sequence[Sequence[int]]) -> None:
        self.write(self.cpus / "online", spell_cores(machine.cores))
        for core in machine.cores:
            self.write(self.cpus / f"cpu{core}/cache/index0/type", "Instruction")
            self.write(self.cpus / f"cpu{core}/cache/index0/level", 1)
            self.write(self.cpus / f"cpu{core}/cache/index0/size", "77K")
            self.write(self.cpus / f"cpu{core}/topology/physical_package_id", machine.node_of(core))
            first = machine.cache(core, 1)
            assert first is not None
            self.write(self.cpus / f"cpu{core}/topology/thread_siblings_list", spell_cores(first.cores))
        for cache in machine.caches:
            for core in cache.cores:
                index = self.cpus / f"cpu{core}/cache/index{cache.level}"
                self.write(index / "level", cache.level)
                self.write(index / "type", "Data" if cache.level == 1 else "Unified")
                self.write(index / "size", f"{cache.size >> 10}K")
                self.write(index / "shared_cpu_list", spell_cores(cache.cores))
                self.write(index / "coherency_line_size", machine.line)
        for node, row in zip(machine.nodes, distances, strict=True):
            self.write(self.nodes / f"node{node.number}/cpulist", spell_cores(node.cores))
            self.write(self.nodes / f"node{node.number}/distance", " ".join(map(str, row)))
            self.write(
                self.nodes / f"node{node.number}/meminfo",
                f"Node {node.number} MemTotal: {node.memory >> 10} kB\nNode {node.number} MemFree: 1 kB",
            )

    def read(self, affinity: Iterable[int] = range(1000)) -> Topology:
        return machines.read(self.sys, self.proc, affinity)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def slit(count: int) -> list[list[int]]:
    return [[10 if i == j else 14 for j in range(count)] for i in range(count)]


# --- reading --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["e5310", "e7-4820", "e7540"])
def test_the_papers_machines_would_be_recognised(name: str, tree: Tree) -> None:
    described = machines.get(name)
    tree.machine(described, slit(len(described.nodes)))
    found = tree.read()
    assert found.nodes == described.nodes
    assert found.caches == described.caches
    assert found.groups == described.groups
    assert found.hops == described.hops
    assert found.factors == tuple(tuple(d / 10 for d in row) for row in slit(len(described.nodes)))
    assert found.notes == ()
    assert found.limit is None


def test_distances_become_steps_and_factors(tree: Tree) -> None:
    described = machines.get("e7540")
    ring = [[10, 16, 22, 16], [16, 10, 16, 22], [22, 16, 10, 16], [16, 22, 16, 10]]
    tree.machine(described, ring)
    found = tree.read()
    assert found.hops == ((0, 1, 2, 1), (1, 0, 1, 2), (2, 1, 0, 1), (1, 2, 1, 0))
    assert found.factors[0] == (1.0, 1.6, 2.2, 1.6)


def test_only_cores_that_the_process_may_use(tree: Tree) -> None:
    tree.machine(machines.get("e7540"), slit(4))
    found = tree.read(affinity=[0, 2, 13, 14, 15])
    assert found.nodes == (Node(0, (0, 2), 32 << 30), Node(1, (13, 14, 15), 32 << 30))
    assert found.groups == ((0, 2), (13, 14, 15))
    assert found.cache_distance(14, 15) == 1
    assert found.cache_distance(13, 14) == 3
    assert found.cache(13, 1) == Cache(1, 32 << 10, (13,))
    assert len(found.factors) == 2
    assert found.workers == 5


def test_the_only_node_has_all_memory_that_the_machine_has(tree: Tree) -> None:
    """Memory that a virtual machine was given while it ran is not in its node's account."""
    tree.machine(machines.get("e5310"), slit(1))
    tree.write(tree.proc / "meminfo", f"MemTotal: {24 << 20} kB")
    assert [node.memory for node in tree.read().nodes] == [24 << 30]
    tree.write(tree.proc / "meminfo", "MemTotal: 1024 kB")
    assert [node.memory for node in tree.read().nodes] == [8 << 30]


def test_one_of_several_nodes_has_its_own_memory(tree: Tree) -> None:
    tree.machine(machines.get("e7540"), slit(4))
    tree.write(tree.proc / "meminfo", f"MemTotal: {128 << 20} kB")
    assert [node.memory for node in tree.read(affinity=[0, 1]).nodes] == [32 << 30]


def test_a_core_that_is_offline_is_not_there(tree: Tree) -> None:
    tree.machine(machines.get("e5310"), slit(1))
    tree.write(tree.cpus / "online", "0-5,7")
    assert tree.read().groups == ((0, 1), (2, 3), (4, 5), (7,))


def test_a_machine_that_does_not_tell_its_caches_is_a_group_per_processor(tree: Tree) -> None:
    tree.write(tree.cpus / "online", "0-7")
    for core in range(8):
        tree.write(tree.cpus / f"cpu{core}/topology/physical_package_id", core // 4)
        tree.write(tree.cpus / f"cpu{core}/topology/thread_siblings_list", f"{core & ~1}-{core | 1}")
    tree.write(tree.proc / "meminfo", "MemTotal: 1024 kB")
    found = tree.read()
    assert found.nodes == (Node(0, tuple(range(8)), 1 << 20),)
    assert found.groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert found.cache_distance(0, 1) == 1
    assert found.cache_distance(1, 2) == 3
    assert [note.partition(":")[0] for note in found.notes] == [
        "memory nodes are not described",
        "caches are not described",
    ]


def test_a_machine_that_tells_nothing_is_one_group(tree: Tree) -> None:
    found = tree.read(affinity=[4, 5, 6])
    assert found.groups == ((4, 5, 6),)
    assert found.workers == 3
    assert found.cache(4, 2) is not None


def test_caches_of_some_cores_only(tree: Tree) -> None:
    tree.machine(machines.get("e5310"), slit(1))
    for file in (tree.cpus / "cpu7/cache").rglob("*"):
        if file.is_file():
            file.unlink()
    found = tree.read()
    assert {core for group in found.groups for core in group} == set(range(8))
    assert (0, 1) in found.groups
    assert found.cache(7, 2) is not None
    assert found.notes


def test_nodes_without_cores_do_not_count(tree: Tree) -> None:
    """Memory of its own kind (a card, persistent memory) is a node to Linux."""
    tree.machine(machines.get("e5310"), [[10, 17]])
    tree.write(tree.nodes / "node1/cpulist", "")
    tree.write(tree.nodes / "node1/distance", "17 10")
    found = tree.read()
    assert [node.number for node in found.nodes] == [0]
    assert found.factors == ((1.0,),)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "250000 100000"}, 3),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "100000 100000"}, 1),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "1600000 100000"}, None),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/x\n2:memory:/docker/x\n0::/",
                "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        ({}, None),
    ],
)
def test_a_containers_share_of_time_limits_the_workers(
    files: dict[str, str], limit: int | None, tree: Tree, tmp_path: Path
) -> None:
    tree.machine(machines.get("e5310"), slit(1))
    for name, text in files.items():
        tree.write(tmp_path / name, text)
    found = tree.read()
    assert found.limit == limit
    assert found.workers == (8 if limit is None else limit)


def test_this_machine() -> None:
    assert set(machines.read(Path("/sys")).cores) <= os.sched_getaffinity(0)
    found = machines.host()
    assert machines.host() is found
    assert half_of_l2() == half_of_l2(found)
    assert default_packet_rows() == max(LEAST_ROWS, min(MOST_ROWS, half_of_l2() // 8))


def test_packets_are_half_of_l2_in_bytes_of_the_rows_that_are_read_on_the_machine_that_runs_them() -> None:
    """Not in values of one column, and not those of the machine that simulates (B7)."""
    machine = {name: machines.get(name) for name in ("e7540", "e5310")}
    assert half_of_l2(machine["e7540"]) == 128 * 1024
    assert half_of_l2(machine["e5310"]) == 1024 * 1024, "two cores share 4 MB"
    assert default_packet_rows(56.0) == max(LEAST_ROWS, min(MOST_ROWS, half_of_l2() // 56))

    def rows(app: hg.App, **given: Any) -> int:
        return app.run(hg.Simulated(topology="e7540", workers=1, **given), "bobox").packet_rows

    columns = {name: [1, 2, 3] for name in "abcdefgh"}
    app = hg.App("wide")
    wide = app.source("wide", hg.from_batches([pa.record_batch(columns)]))
    wide.filter("a > 1").select("a", "b").to("q", hg.to_list([]))
    assert rows(app) == 128 * 1024 // 16, "two columns are read"
    wide.filter("h > 1").to("all", hg.to_list([]))
    assert rows(app) == 128 * 1024 // 64
    assert rows(app, packet_rows=100) == 100


# --- by name, file and text -----------------------------------------------------------------------------


def test_names_files_texts_and_objects(tmp_path: Path) -> None:
    e7540 = machines.get("e7540")
    file = tmp_path / "mine.topology"
    file.write_text(spell(e7540))
    assert machines.get(file) == machines.get(str(file)) == machines.get(spell(e7540)) == e7540
    assert machines.get(e7540) is e7540
    with pytest.raises(
        PipelineError, match=r"no topology 'e7450'.* Did you mean 'e7540'\?.* host, e5310, e7-48"
    ):
        machines.get("e7450")


# --- engines --------------------------------------------------------------------------------------------


class Seeing(LastInPipeline):
    """Writes down what it is told of the machine."""

    seen: tuple[Topology | None, tuple[int, ...], int]

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        self.seen = catalog.topology, catalog.cores, workers
        return super().start(catalog, workers, seed)


def small_app(sink: list[dict[str, Any]]) -> hg.App:
    app = hg.App("small")
    rows = testing.from_rows([{"a": n} for n in range(100)])
    app.source("rows", rows).filter("a % 2 = 0").to("even", hg.to_list(sink))
    return app


def test_a_simulated_machine_has_a_worker_for_every_core() -> None:
    policy, out = Seeing(), []
    engine = hg.Simulated(topology="e7540")
    report = small_app(out).run(engine, policy)
    assert report.workers == 48
    assert policy.seen == (engine.topology, tuple(range(48)), 48)
    assert len(out) == 50
    report = small_app([]).run(hg.Simulated(topology="e7540", workers=6), policy)
    assert report.workers == 6
    assert policy.seen[1] == (0, 2, 4, 6, 8, 10)


def test_a_simulation_of_no_machine_in_particular_is_one_group() -> None:
    policy = Seeing()
    small_app([]).run(hg.Simulated(workers=3), policy)
    assert policy.seen[0] is not None
    assert policy.seen[0].groups == ((0, 1, 2),)
    assert policy.seen[1] == (0, 1, 2)


def test_threads_tell_of_the_host() -> None:
    policy = Seeing()
    small_app([]).run(hg.Threads(workers=2), policy)
    assert policy.seen[0] is machines.host()


def test_a_topology_that_is_none_is_told_when_the_engine_is_made() -> None:
    with pytest.raises(PipelineError, match="There is no topology 'e9'"):
        hg.Simulated(topology="e9")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores to be pinned to either")
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("pins", [True, False])
def test_workers_are_pinned_to_their_groups_if_the_policy_asks(
    pins: bool,
    together: bool,
    monkeypatch: pytest.MonkeyPatch,
    ends: Callable[[Callable[[], hg.Report]], hg.Report],
) -> None:
    """To the group, not to a core: where all cores share a cache, workers may be on any."""
    cores = sorted(os.sched_getaffinity(0))
    sharing = [tuple(cores)] if together else [(core,) for core in cores]
    described = Topology(
        "pair", (Node(0, tuple(cores)),), tuple(Cache(2, 1 << 20, group) for group in sharing)
    )
    monkeypatch.setattr(machines, "host", lambda: described)
    seen: dict[str, set[int]] = {}

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen[threading.current_thread().name] = os.sched_getaffinity(0)
        return batch

    policy = hg.policies.elastic(Seeing()).policy
    policy.pins = pins
    app = hg.App("pinned")
    rows = app.source("rows", testing.from_rows([{"a": n} for n in range(64)]))
    rows.map_packets(look, schema=pa.schema([("a", pa.int64())])).to("out", hg.to_list([]))
    before = os.sched_getaffinity(0)
    ends(lambda: app.run(hg.Threads(workers=2, packet_rows=1), policy))
    assert os.sched_getaffinity(0) == before
    alone = pins and not together
    expected = [{core} for core in described.placed(2)] if alone else [set(cores), set(cores)]
    assert seen
    for name, affinity in seen.items():
        assert affinity == expected[int(name.rpartition("-")[2])]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores to be on either")
@pytest.mark.parametrize("pins", [True, False])
def test_a_policy_that_pins_hears_which_core_of_its_group_a_worker_is_on(
    pins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a core beyond the group, where a worker was before it was pinned, it hears nothing."""
    here, there, *_ = sorted(os.sched_getaffinity(0))
    described = Topology("pair", (Node(0, (here, there)),), (Cache(2, 1 << 20, (here, there)),))
    monkeypatch.setattr(machines, "host", lambda: described)
    looks = chain([here, there, there, here, 1_000, -1], repeat(there))
    monkeypatch.setattr(threads_workers, "current_core", lambda: next(looks))
    recorder = testing.Recorder("las")
    recorder.pins = pins
    app = hg.App("moving")
    rows = testing.from_rows([{"a": n} for n in range(50)])
    app.source("rows", rows).filter("a >= 0").to("out", hg.to_list([]))
    app.run(hg.Threads(workers=1, packet_rows=1), recorder)
    told = [event.core for event, _ in recorder.log if isinstance(event, Moved)]
    assert told == ([there, here, there] if pins else [])


def test_wrapped_policies_pin_as_what_they_wrap() -> None:
    policy = Seeing()
    policy.pins = True
    assert hg.policies.elastic(policy).pins
    assert testing.Recorder(policy).pins
    assert not hg.policies.elastic("lp").pins
