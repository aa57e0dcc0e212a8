"""A disk as POSIX promises it: what was synced survives a power cut, content and names each for itself.

Every call is a point of the world, so processes can die between any two of them.
"""

from __future__ import annotations

import errno
import io
import os
import random
import stat as modes
from typing import Any

from fault_simulation.world import Died, Process, World

ROOT = "/headgate-simulation"
LARGEST = 1 << 18
"""Bytes of a file beyond which something grows without end."""
DEVICE = -7
HANDLES = 1 << 24
"""Numbers of open files from here on are of this disk."""


class File:
    """An inode."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced: bytes | None = None
        self.changed = 0
        self.lock: Handle | None = None


class Folder:
    def __init__(self) -> None:
        self.names: dict[str, File | Folder] = {}
        self.synced: dict[str, File | Folder] = {}


class Handle(io.RawIOBase):
    """An open file."""

    def __init__(self, disk: Disk, path: str, node: Any, mode: str) -> None:
        super().__init__()
        self.disk, self.path, self.node, self.mode = disk, path, node, mode
        self.at = 0
        self.number = disk.number(self)
        self.process: Process | None = None
        if disk.world.current is not None:
            self.process = disk.world.current.process
            self.process.files.append(self)

    def fileno(self) -> int:
        return self.number

    def write(self, data: Any) -> int:
        data = bytes(data)
        with self.disk.change("write", self.path) as torn:
            if torn is not None:  # the process dies, or the disk is full, in the middle of it
                data = data[: torn.randrange(len(data) + 1)]
            self.node.data[self.at : self.at + len(data)] = data
            self.at += len(data)
            if self.at > LARGEST:
                self.disk.world.wrong = f"{self.path} has more than {LARGEST} bytes"
            self.node.changed = self.disk.tick()
        return len(data)

    def writelines(self, lines: Any) -> None:
        self.write(b"".join(bytes(line) for line in lines))

    def read(self, size: int = -1) -> bytes:
        end = len(self.node.data) if size is None or size < 0 else self.at + size
        found = bytes(self.node.data[self.at : end])
        self.at += len(found)
        return found

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, len(self.node.data))[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def truncate(self, size: int | None = None) -> int:
        with self.disk.change("truncate", self.path):
            size = self.at if size is None else size
            del self.node.data[size:]
        return size

    def flush(self) -> None:
        pass

    def give_back(self) -> None:
        if isinstance(self.node, File) and self.node.lock is self:
            self.node.lock = None
        self.disk.handles.pop(self.number, None)

    def close(self) -> None:
        if not self.closed:
            self.give_back()
            if self.process is not None and self in self.process.files:
                self.process.files.remove(self)
        super().close()


class Text(io.TextIOWrapper):
    """A file of text; what ``Path.write_text`` and ``read_text`` open."""


class _Change:
    """A call that changes the disk: it may fail before it does anything, after it did, or half-way."""

    def __init__(self, disk: Disk, what: str, path: str) -> None:
        self.disk, self.what, self.path = disk, what, path

    def __enter__(self) -> random.Random | None:
        world = self.disk.world
        self.disk.fails = ""
        world.point(f"{self.what} {self.path[len(ROOT) + 1 :]}")
        fails, self.after = self.disk.fails, False
        self.disk.fails = ""
        if fails == "before":
            raise OSError(errno.EIO, "simulated: the disk has failed", self.path)
        self.after = fails in ("after", "torn")
        return world.random if fails == "torn" else None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self.after and error is None:
            raise OSError(errno.ENOSPC, "simulated: the disk has failed after it did that", self.path)


class Disk:
    """All files below ``ROOT``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.root = Folder()
        self.handles: dict[int, Handle] = {}
        self.fails = ""
        """Set by a fault: how the call at hand fails."""
        self.locks = True
        """Whether locks are passed on: a shared file system need not."""
        self._next = HANDLES
        self._ticks = 0

    def number(self, handle: Handle) -> int:
        self._next += 1
        self.handles[self._next] = handle
        return self._next

    def tick(self) -> int:
        self._ticks += 1
        return int(self.world.now * 1e9) + self._ticks

    def change(self, what: str, path: str) -> _Change:
        return _Change(self, what, path)

    # --- names ---------------------------------------------------------------------------------------

    def _parts(self, path: Any) -> list[str]:
        path = os.path.normpath(os.fspath(path))
        return [part for part in path[len(ROOT) :].split("/") if part]

    def find(self, path: Any) -> File | Folder:
        node: File | Folder = self.root
        for part in self._parts(path):
            if not isinstance(node, Folder):
                raise NotADirectoryError(errno.ENOTDIR, "simulated: not a folder", str(path))
            if part not in node.names:
                raise FileNotFoundError(errno.ENOENT, "simulated: no such file", str(path))
            node = node.names[part]
        return node

    def parent(self, path: Any) -> tuple[Folder, str]:
        parts = self._parts(path)
        node = self.find("/".join([ROOT, *parts[:-1]]))
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, "simulated: not a folder", str(path))
        return node, parts[-1]

    # --- calls, as ``os`` has them ---------------------------------------------------------------------

    def open(self, path: Any, mode: str = "r") -> Any:
        kind = mode.replace("b", "").replace("t", "")
        if kind == "r":
            node = self.find(path)
            self.world.point(f"open {str(path)[len(ROOT) + 1 :]}")
            node = self.find(path)
        else:
            with self.change("open", str(path)):
                folder, name = self.parent(path)
                known = folder.names.get(name)
                if known is None or kind == "x":
                    if known is not None:
                        raise FileExistsError(errno.EEXIST, "simulated: it exists", str(path))
                    known = folder.names[name] = File()
                if isinstance(known, Folder):
                    raise IsADirectoryError(errno.EISDIR, "simulated: a folder", str(path))
                if kind == "w":
                    known.data.clear()
                node = known
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, "simulated: a folder", str(path))
        handle = Handle(self, str(path), node, mode)
        if kind == "a":
            handle.at = len(node.data)
        return handle if "b" in mode else Text(handle, encoding="utf-8", write_through=True)

    def os_open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        try:
            node = self.find(path)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            handle = self.open(path, "xb")
            return int(handle.number)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, "simulated: it exists", str(path))
        return Handle(self, str(path), node, "rb").number

    def _handle(self, number: int) -> Handle:
        """An open file; that of a process which lost its power is not there any more."""
        thread = self.world.current
        if thread is not None and not thread.process.alive:
            raise Died
        return self.handles[number]

    def close(self, number: int) -> None:
        self._handle(number).close()

    def fsync(self, number: int) -> None:
        handle = self._handle(number)
        with self.change("sync", handle.path):
            node = handle.node
            if isinstance(node, Folder):
                node.synced = dict(node.names)
            else:
                node.synced = bytes(node.data)

    def link(self, old: Any, new: Any) -> None:
        with self.change("link", str(new)):
            node = self.find(old)
            folder, name = self.parent(new)
            if name in folder.names:
                raise FileExistsError(errno.EEXIST, "simulated: it exists", str(new))
            folder.names[name] = node

    def replace(self, old: Any, new: Any) -> None:
        with self.change("rename", str(new)):
            source, was = self.parent(old)
            if was not in source.names:
                raise FileNotFoundError(errno.ENOENT, "simulated: no such file", str(old))
            folder, name = self.parent(new)
            folder.names[name] = source.names.pop(was)

    def unlink(self, path: Any) -> None:
        with self.change("unlink", str(path)):
            folder, name = self.parent(path)
            if name not in folder.names:
                raise FileNotFoundError(errno.ENOENT, "simulated: no such file", str(path))
            del folder.names[name]

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        with self.change("mkdir", str(path)):
            folder, name = self.parent(path)
            if name in folder.names:
                raise FileExistsError(errno.EEXIST, "simulated: it exists", str(path))
            folder.names[name] = Folder()

    def rmdir(self, path: Any) -> None:
        with self.change("rmdir", str(path)):
            folder, name = self.parent(path)
            del folder.names[name]

    def listdir(self, path: Any) -> list[str]:
        self.world.point(f"list {str(path)[len(ROOT) + 1 :]}")
        node = self.find(path)
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, "simulated: not a folder", str(path))
        return list(node.names)

    def access(self, path: Any) -> bool:
        return bool(self.find(path))

    def stat(self, path: Any) -> os.stat_result:
        return self.status(self.find(path))

    def fstat(self, number: int) -> os.stat_result:
        return self.status(self._handle(number).node)

    @staticmethod
    def status(node: File | Folder) -> os.stat_result:
        folder = isinstance(node, Folder)
        mode = (modes.S_IFDIR | 0o700) if folder else (modes.S_IFREG | 0o600)
        size = 0 if isinstance(node, Folder) else len(node.data)
        changed = 0 if isinstance(node, Folder) else node.changed
        seconds = changed / 1e9
        return os.stat_result(
            (mode, id(node), DEVICE, 1, os.geteuid(), os.getegid(), size, seconds, seconds, seconds),
            {"st_mtime_ns": changed, "st_mtime": seconds},
        )

    def lock(self, number: int, *, exclusive: bool) -> None:
        """``flock`` without waiting; one that others may share is only tried, and not kept."""
        handle = self._handle(number)
        self.world.point("lock")
        if not self.locks:
            raise OSError(errno.ENOLCK, "simulated: no locks")
        if handle.node.lock is not None and handle.node.lock is not handle:
            raise BlockingIOError(errno.EWOULDBLOCK, "simulated: locked")
        if exclusive:
            handle.node.lock = handle

    # --- power ---------------------------------------------------------------------------------------

    def lose_power(self, chance: random.Random) -> None:
        """Names and content that were not synced may be gone, each for itself; content may be torn."""
        strict = chance.random() < 0.5
        self._settle(self.root, chance, strict, set())
        self.handles.clear()

    def _settle(self, folder: Folder, chance: random.Random, strict: bool, seen: set[int]) -> None:
        kept: dict[str, File | Folder] = {}
        for name in sorted(folder.synced.keys() | folder.names.keys()):
            node = folder.synced.get(name)
            if not strict and chance.random() < 0.5:
                node = folder.names.get(name)
            if node is not None:
                kept[name] = node
        folder.names, folder.synced = kept, dict(kept)
        for node in kept.values():
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, Folder):
                self._settle(node, chance, strict, seen)
                continue
            data, synced = bytes(node.data), node.synced or b""
            if data != synced:
                kept_data = data if not strict and chance.random() < 0.5 else synced
                if not strict and chance.random() < 0.3:
                    kept_data = data[: chance.randrange(len(data) + 1)]
                node.data = bytearray(kept_data)
            node.synced, node.lock = bytes(node.data), None

    def files(self, path: str = ROOT) -> list[str]:
        """All files below a folder."""
        node = self.find(path)
        if not isinstance(node, Folder):
            return [path]
        return [file for name in sorted(node.names) for file in self.files(f"{path}/{name}")]
