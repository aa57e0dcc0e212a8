"""Puts the simulated world under Headgate: its code stays, and gets other files, threads and time."""

from __future__ import annotations

import builtins
import collections
import filecmp
import io
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from fault_simulation import threads
from fault_simulation.disk import HANDLES, ROOT, Disk
from fault_simulation.world import Process, World, world
from headgate.checkpoint import checks, disk, local_folder, owner, state_store
from headgate.engines import realtime
from headgate.engines.spark import engine, holders, reading, task

SIMULATED = ("headgate.engines", "headgate.checkpoint", "headgate.connectors", "headgate.runtime")
STANDINS = {
    "threading": threads.Threading, "time": threads.Time, "uuid": threads.Uuid, "gc": threads.Collector,
}  # fmt: skip
_OWN: tuple[tuple[Any, str, Any], ...] = (
    (state_store, "_cache", collections.OrderedDict),
    (checks, "_verified", dict),
    (task, "_pipelines", dict),
    (disk, "_synced", set),
    (reading, "_open", dict),
)
"""Variables of modules that each process has for itself."""
_disks: list[Disk] = []


def install(process: Process) -> None:
    """The process goes on: its memory is what modules' variables refer to."""
    for module, name, make in _OWN:
        known = process.memory.get((module.__name__, name))
        if known is None:
            known = process.memory[module.__name__, name] = make()
        setattr(module, name, known)


def _ours(path: Any) -> bool:
    if isinstance(path, pathlib.PurePath):
        path = str(path)
    return bool(_disks) and isinstance(path, str) and path.startswith(ROOT)


def _by_path(name: str, real: Callable[..., Any], count: int = 1) -> Callable[..., Any]:
    def call(path: Any, *given: Any, **options: Any) -> Any:
        if _ours(path):
            return getattr(_disks[-1], name)(path, *given[: count - 1])
        return real(path, *given, **options)

    return call


def _by_handle(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(number: Any, *given: Any) -> Any:
        if isinstance(number, int) and number > HANDLES:
            return getattr(_disks[-1], name)(number, *given)
        return real(number, *given)

    return call


class _Scan:
    """For ``os.scandir``, which ``glob`` uses."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._names = _disks[-1].listdir(folder)

    def __enter__(self) -> Iterator[Any]:
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        for name in self._names:
            path = f"{self._folder}/{name}"
            yield SimpleNamespace(
                name=name,
                path=path,
                is_dir=lambda follow_symlinks=True, p=path: os.path.isdir(p),
                is_file=lambda follow_symlinks=True, p=path: os.path.isfile(p),
                is_symlink=lambda: False,
                stat=lambda p=path: os.stat(p),
            )

    def __exit__(self, *_: Any) -> None:
        pass


def _open(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, mode: str = "r", *given: Any, **options: Any) -> Any:
        if _ours(path):
            if "+" in mode and not os.path.exists(path):  # what the opener would have made
                _disks[-1].open(path, "xb").close()
            return _disks[-1].open(str(path), mode.replace("+", ""))
        return real(path, mode, *given, **options)

    return call


def _write_table(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(table: pa.Table, where: Any, **options: Any) -> Any:
        if not _ours(where):
            return real(table, where, **options)
        sink = pa.BufferOutputStream()  # what a part is made of is not what is simulated
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        with open(where, "wb") as file:
            file.write(sink.getvalue())
        return None

    return call


def _memory_map(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, *given: Any) -> Any:
        if not _ours(path):
            return real(path, *given)
        data = _disks[-1].open(path, "rb").read()
        if not data:
            raise OSError("simulated: an empty file cannot be mapped")
        return pa.BufferReader(data)

    return call


def _pid(real: Callable[[], int]) -> Callable[[], int]:
    def call() -> int:
        current = world().current if _disks else None
        return current.process.pid if current is not None else real()

    return call


def _kill(real: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def call(pid: int, signal: int) -> None:
        if not _disks:
            real(pid, signal)
        elif all(thread.process.pid != pid for thread in world().threads):
            raise ProcessLookupError

    return call


def _flock(file: Any, how: int) -> None:
    _disks[-1].lock(file if isinstance(file, int) else file.fileno(), exclusive=bool(how & 2))


_pipelines: dict[bytes, Any] = {}
"""Unpickled once: what a pipeline's file holds is not changed by those who run it."""


class _Pickle:
    """For the ``pickle`` of tasks."""

    dumps = staticmethod(task.pickle.dumps)

    @staticmethod
    def loads(data: bytes) -> Any:
        return _pipelines[data] if data in _pipelines else _real_loads(data)


_real_loads = task.pickle.loads


@contextmanager
def edges() -> Iterator[None]:
    """All simulated; what the real system is asked for outside of ``ROOT`` it still does."""
    with ExitStack() as stack:

        def put(target: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(target, name, value))

        for name in ("stat", "listdir", "unlink", "rmdir"):
            put(os, name, _by_path(name, getattr(os, name)))
        put(os, "remove", _by_path("unlink", os.remove))
        put(os, "lstat", _by_path("stat", os.lstat))
        put(os, "mkdir", _by_path("mkdir", os.mkdir, 2))
        put(os, "open", _by_path("os_open", os.open, 3))
        for name in ("link", "replace"):
            put(os, name, _by_path(name, getattr(os, name), 2))
        put(os, "rename", _by_path("replace", os.rename, 2))
        put(os, "access", _by_path("access", os.access))
        put(os, "chmod", _by_path("stat", os.chmod))
        for name in ("fsync", "close", "fstat"):
            put(os, name, _by_handle(name, getattr(os, name)))
        scan = os.scandir
        put(os, "scandir", lambda path=".": _Scan(str(path)) if _ours(path) else scan(path))
        put(os, "getpid", _pid(os.getpid))
        put(os, "kill", _kill(os.kill))
        opened = _open(builtins.open)
        put(builtins, "open", opened)
        put(io, "open", opened)
        put(pq, "write_table", _write_table(pq.write_table))
        put(pa, "memory_map", _memory_map(pa.memory_map))
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith(SIMULATED):
                for name, standin in STANDINS.items():
                    if getattr(module, name, None) is sys.modules.get(name):
                        put(module, name, standin)
        put(disk, "ThreadPoolExecutor", threads.Serial)
        put(
            local_folder,
            "fcntl",
            SimpleNamespace(flock=_flock, LOCK_SH=1, LOCK_EX=2, LOCK_NB=4, LOCK_UN=8),
        )
        put(owner, "datetime", SimpleNamespace(now=lambda zone: datetime.fromtimestamp(world().now, zone)))
        put(engine, "terminated_like_interrupted", threads.nothing)
        put(engine, "secrets", SimpleNamespace(token_bytes=lambda count: b"s" * count))
        put(realtime.RealtimeRun, "control", threads.nothing)
        put(task, "pickle", _Pickle)
        put(holders, "own_address", lambda *_: world().current.process.name)
        stack.callback(lambda: [setattr(module, name, make()) for module, name, make in _OWN])
        yield


@contextmanager
def entered(made: World, disk: Disk) -> Iterator[None]:
    """Its calls go to this world."""
    from fault_simulation import world as worlds

    made.install = install
    filecmp.clear_cache()
    worlds.enter(made)
    _disks.append(disk)
    try:
        yield
    finally:
        _disks.pop()
        worlds.leave()
