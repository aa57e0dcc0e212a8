"""Lets the suite run as if this machine were another: what a test proves must hold on any.

``HEADGATE_TESTS_L2`` is the bytes of a core's second-level cache, which decides the size of packets;
``HEADGATE_TESTS_CORES`` is the number of cores, which decides the number of workers.  For example

    HEADGATE_TESTS_L2=2097152 HEADGATE_TESTS_CORES=16 python -m pytest tests/benchmarks

Fewer cores than there are is real: the process stays on them.  More is only told, as caches are.  Processes
that a test starts see the machine as it is.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from headgate.machine import host as topology
from headgate.machine.topology import Cache, Node, Topology


def pretend() -> None:
    """Before the first test: what the environment asks for is what ``topology.host()`` says from now on."""
    second, cores = (_number(name) for name in ("HEADGATE_TESTS_L2", "HEADGATE_TESTS_CORES"))
    if cores:
        there = set(sorted(os.sched_getaffinity(0))[:cores])
        stay = os.sched_setaffinity
        stay(0, there)
        # A thread that is to stay on a core that is only told stays where it may be.
        os.sched_setaffinity = lambda process, wanted: stay(process, set(wanted) & there or there)
        os.cpu_count = lambda: cores
    if not second and not cores:
        return
    real = topology.read

    def read(*given: Any, **options: Any) -> Topology:
        """Only the host without any argument is pretended: a test that gives files wants what they say."""
        found = real(*given, **options)
        return found if given or options else _other(found, second, cores)

    topology.read = read
    topology.host.cache_clear()


def _number(name: str) -> int:
    given = os.environ.get(name, "")
    if given and not (given.isdigit() and int(given) > 0):
        raise SystemExit(f"{name}={given}: it must be a whole number of at least 1.")
    return int(given or 0)


def _other(machine: Topology, second: int, cores: int) -> Topology:
    if len(machine.cores) < cores:
        machine = _wider(machine, cores)
    if second:
        resized = (replace(c, size=second) if c.level == 2 else c for c in machine.caches)
        machine = replace(machine, caches=tuple(resized))
    return machine


def _wider(machine: Topology, cores: int) -> Topology:
    """One memory node and one cache for all: workers that are pinned to a group find a core that exists."""
    there = list(machine.cores)
    numbers = tuple(there + [max(there) + 1 + more for more in range(cores - len(there))])
    sizes = {cache.level: cache.size for cache in machine.caches}
    own = [Cache(level, sizes[level], (core,)) for level in (1, 2) if level in sizes for core in numbers]
    return Topology(
        machine.name,
        (Node(machine.nodes[0].number, numbers, sum(node.memory for node in machine.nodes)),),
        (*own, Cache(3, sizes.get(3, topology.ASSUMED[2]), numbers)),
        line=machine.line,
    )
