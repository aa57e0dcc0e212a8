"""Machines: the host as Linux describes it, the papers' machines, and descriptions in files."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

from headgate.errors import PipelineError, nearest
from headgate.machine.topology import KIB, MIB, Cache, Node, Topology
from headgate.machine.topology_format import parse, parse_cores

HOST = "host"
ASSUMED = (32 * KIB, 512 * KIB, 32 * MIB)
"""L1, L2 and L3 of a machine that does not describe its caches; virtual machines often do not."""
_UNITS = {"K": KIB, "M": MIB, "G": 1 << 30}


def names() -> list[str]:
    """The names that ``topology=`` takes."""
    shipped = resources.files("headgate.machine") / "topologies"
    described = (p.name for p in shipped.iterdir() if p.name.endswith(".topology"))
    return [HOST, *sorted(name.removesuffix(".topology") for name in described)]


def get(topology: str | Path | Topology) -> Topology:
    """A topology by its name, from a file, from a description's text, or the one given."""
    if isinstance(topology, Topology):
        return topology
    if topology == HOST:
        return host()
    text = str(topology)
    if text in names():
        found = resources.files("headgate.machine") / "topologies" / f"{text}.topology"
        return parse(found.read_text(encoding="utf-8"), text)
    if "\n" in text:
        return parse(text, "description")
    if Path(text).is_file():
        return parse(Path(text).read_text(encoding="utf-8"), text)
    raise PipelineError(
        f"There is no topology '{text}', nor a file of that name.{nearest(text, names())} "
        f"There are: {', '.join(names())}."
    )


@cache
def host() -> Topology:
    """This machine, as far as this process may use it."""
    return read()


def read(
    sys: Path = Path("/sys"), proc: Path = Path("/proc"), affinity: Iterable[int] | None = None
) -> Topology:
    """A machine from its sysfs; what sysfs does not say is assumed, and noted."""
    allowed = set(_affinity() if affinity is None else affinity)
    cpus = sys / "devices/system/cpu"
    online = set(_cores(cpus / "online") or ()) or {
        int(path.name[3:]) for path in cpus.glob("cpu[0-9]*") if path.name[3:].isdigit()
    }
    cores = sorted((online or allowed) & allowed) or sorted(allowed or online) or [0]
    notes: list[str] = []
    nodes, hops, factors = _nodes(sys / "devices/system/node", proc, cores, notes)
    caches, line = _caches(cpus, nodes, notes)
    quota = _quota(sys / "fs/cgroup", proc)
    limit = math.ceil(quota) if quota is not None and math.ceil(quota) < len(cores) else None
    return Topology(HOST, nodes, caches, hops, factors, line, limit, tuple(notes))


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core() -> Callable[[], int]:
    """The system's function for the current core."""
    try:
        found: Callable[[], int] = ctypes.CDLL(None, use_errno=False).sched_getcpu
        found()
    except (AttributeError, OSError):
        return lambda: -1
    return found


current_core = _core()
"""The core of the calling thread; -1 if the system does not say."""


# --- nodes ----------------------------------------------------------------------------------------------

Rows = tuple[tuple[float, ...], ...]


def _nodes(
    folder: Path, proc: Path, cores: list[int], notes: list[str]
) -> tuple[tuple[Node, ...], tuple[tuple[int, ...], ...], Rows]:
    """Nodes with cores that we may use; their distances as steps, and as how many times slower."""
    paths = sorted(
        (path for path in folder.glob("node[0-9]*") if path.name[4:].isdigit()),
        key=lambda path: int(path.name[4:]),
    )
    known: dict[int, tuple[int, ...]] = {}
    for place, path in enumerate(paths):
        mine = tuple(core for core in _cores(path / "cpulist") or () if core in cores)
        if mine:
            known[place] = mine
    if sorted(core for mine in known.values() for core in mine) != cores:
        notes.append("memory nodes are not described: one is assumed")
        return (Node(0, tuple(cores), _memory(proc / "meminfo")),), (), ()
    nodes = tuple(
        Node(int(paths[place].name[4:]), mine, _memory(paths[place] / "meminfo"))
        for place, mine in known.items()
    )
    if len(paths) == 1:  # a node does not account for memory that a virtual machine was given later
        whole = _memory(proc / "meminfo")
        nodes = tuple(replace(node, memory=max(node.memory, whole)) for node in nodes)
    table = [_distances(paths[place] / "distance") for place in known]
    if any(len(row) != len(paths) for row in table):
        if len(nodes) > 1:
            notes.append("NUMA distances are not described: all nodes are assumed to be neighbours")
        return nodes, (), ()
    kept = [[row[place] for place in known] for row in table]
    # The firmware's distances say how slow, not how many steps: the nearest other node is one step away.
    steps = {far: step for step, far in enumerate(sorted({d for row in kept for d in row}))}
    hops = tuple(
        tuple(0 if i == j else max(1, steps[d]) for j, d in enumerate(row)) for i, row in enumerate(kept)
    )
    return nodes, hops, tuple(tuple(d / row[i] for d in row) for i, row in enumerate(kept))


def _distances(path: Path) -> list[int]:
    values = [int(value) for value in (_text(path) or "").split() if value.isdigit()]
    return values if all(value > 0 for value in values) else []


def _memory(path: Path) -> int:
    """Bytes by a node's or the machine's meminfo; 0 if it has none."""
    for line in (_text(path) or "").splitlines():
        words = line.split()
        for at, word in enumerate(words[:-1]):
            if word == "MemTotal:" and words[at + 1].isdigit():
                return int(words[at + 1]) * KIB
    return 0


# --- caches ---------------------------------------------------------------------------------------------


def _caches(cpus: Path, nodes: tuple[Node, ...], notes: list[str]) -> tuple[tuple[Cache, ...], int]:
    """Caches for data of every core, and the bytes of a line."""
    found: dict[tuple[int, tuple[int, ...]], Cache] = {}
    line = 64
    dumb: list[int] = []
    for node in nodes:
        for core in node.cores:
            mine = 0
            for index in sorted((cpus / f"cpu{core}/cache").glob("index*")):
                level, size = _number(index / "level"), _bytes(_text(index / "size"))
                if _text(index / "type") == "Instruction" or not level or not size:
                    continue
                # A cache may reach beyond a node, or to cores that we may not use: only ours count.
                told = _cores(index / "shared_cpu_list") or (core,)
                shared = tuple(other for other in node.cores if other in told) or (core,)
                found.setdefault((level, shared), Cache(level, size, shared))
                line = _number(index / "coherency_line_size") or line
                mine += 1
            if not mine:
                dumb.append(core)
    if dumb:
        notes.append("caches are not described: L1 and L2 of a core and an L3 of a processor are assumed")
        found |= {(guess.level, guess.cores): guess for guess in _assumed(cpus, nodes, dumb)}
    return _disjoint(found.values()), line


def _assumed(cpus: Path, nodes: tuple[Node, ...], dumb: list[int]) -> list[Cache]:
    caches: list[Cache] = []
    for node in nodes:
        for level, file in (
            (1, "thread_siblings_list"),
            (2, "thread_siblings_list"),
            (3, "physical_package_id"),
        ):
            by: dict[str, list[int]] = {}
            for core in node.cores:
                if core in dumb:
                    told = _text(cpus / f"cpu{core}/topology" / file)
                    by.setdefault(told or (str(core) if level < 3 else ""), []).append(core)
            caches += [Cache(level, ASSUMED[level - 1], tuple(cores)) for cores in by.values()]
    return caches


def _disjoint(caches: Iterable[Cache]) -> tuple[Cache, ...]:
    """One cache of a level for every core, the widest: firmware has been seen to contradict itself."""
    kept: list[Cache] = []
    for found in sorted(caches, key=lambda c: (c.level, -len(c.cores), c.cores)):
        if not any(c.level == found.level and set(c.cores) & set(found.cores) for c in kept):
            kept.append(found)
    return tuple(sorted(kept, key=lambda c: (c.level, c.cores)))


# --- limits of a container ------------------------------------------------------------------------------


def _quota(root: Path, proc: Path) -> float | None:
    """Cores that control groups allow: the least of our group and those above it; None: all."""
    allowed: list[float] = []
    for line in (_text(proc / "self/cgroup") or "").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        places = [path.strip("/"), *(str(p) for p in Path(path.strip("/")).parents), ""]
        for hierarchy in (root, root / "cpu", root / controllers):
            for place in dict.fromkeys(places):
                allowed += _allowance(hierarchy / place)
    return min(allowed, default=None)


def _allowance(group: Path) -> list[float]:
    """The cores of one control group, version two or one."""
    quota, period = (*(_text(group / "cpu.max") or "").split(), "", "")[:2]
    if not quota:
        quota, period = _text(group / "cpu.cfs_quota_us") or "", _text(group / "cpu.cfs_period_us") or ""
    if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
        return [int(quota) / int(period)]
    return []


# --- files ----------------------------------------------------------------------------------------------


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int:
    text = _text(path) or ""
    return int(text) if text.isdigit() else 0


def _bytes(text: str | None) -> int:
    number = (text or "").rstrip("KMG")
    return int(number) * _UNITS.get((text or " ")[-1], 1) if number.isdigit() else 0


def _cores(path: Path) -> tuple[int, ...] | None:
    try:
        return parse_cores(_text(path) or "")
    except ValueError:
        return None
