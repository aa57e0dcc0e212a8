"""A checkpoint in a folder of a file system with hard links: a local disk, or one that all machines mount."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from headgate.checkpoint import private
from headgate.checkpoint.disk import make_folder, sync_folder
from headgate.checkpoint.storage import FOLDERS, Hold, Parts, Storage
from headgate.errors import RunError

_TASKS_WRITE = ("states", "queues")
"""Made before tasks write there: if two tasks made a folder, only one of them would sync its name."""
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}
LEFT = 3600.0
"""Seconds after which a temporary file cannot be of a process that is still writing it."""
_TEMPORARY = re.compile(r"\.probe-[0-9a-f]{32}$|.+\.[0-9a-f]{32}$")


class Folder(Storage):
    """A link is the exclusive create: the file is complete, and synced, before it gets its name.

    What is made in it is the owner's alone; a folder that was there before keeps what it lets others read.
    """

    unfit = (
        "a file system that cannot create a file exclusively, so two runs could both believe that they own "
        "it; use a local disk or a mounted shared one."
    )

    def __init__(self, root: str, *, durable: bool = True) -> None:
        self.root = os.path.abspath(root)
        self.durable = durable

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def folder(self, name: str, what: str) -> str:
        return self.path(name)

    def scratch(self) -> Storage:
        return Folder(tempfile.mkdtemp(prefix="headgate-"), durable=False)

    def require_private(self, *names: str) -> None:
        private.require_private(self.root, *names)

    def _make(self) -> None:
        root = Path(self.root)
        make_folder(root.parent, durable=self.durable)
        make_folder(root, durable=self.durable, private=True)
        if not any(root.iterdir()):
            private.close_to_others(root)  # nothing can have been put there before
        private.require_private(self.root, *FOLDERS)
        for name in FOLDERS:
            if self.exists(name):
                private.close_to_others(root / name)
        for name in _TASKS_WRITE:
            make_folder(root / name, durable=self.durable, private=True)

    def create(self, name: str, data: bytes) -> bool:
        path = Path(self.path(name))
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            self._write(temporary, [data])
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
        if self.durable:
            sync_folder(path.parent)
        return True

    def hold(self, name: str, data: bytes) -> Hold | None:
        """Locked before it has its name: nobody finds it free.  The kernel ends the lock with the process."""
        path = Path(self.path(name))
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        self._write(temporary, [data])
        file = open(temporary, "rb")  # noqa: SIM115, open as long as it is held
        try:
            locked = _locked(file, fcntl.LOCK_EX)
            os.link(temporary, path)
        except FileExistsError:
            file.close()
            return None
        finally:
            temporary.unlink()
        if self.durable:
            sync_folder(path.parent)
        return Hold(file if locked else None)

    def held(self, name: str) -> bool | None:
        try:
            with open(self.path(name), "rb") as file:
                free = _locked(file, fcntl.LOCK_SH)  # shared: two that ask do not see each other
        except FileNotFoundError:
            return False
        return None if free is None else not free

    def lock(self, name: str) -> Hold | None:
        file = open(self.path(name), "ab", opener=private.opener)  # noqa: SIM115, open as long as it is held
        locked = _locked(file, fcntl.LOCK_EX)
        if locked is False:
            file.close()
            return None
        return Hold(file if locked else None)

    def write(self, name: str, parts: Parts) -> None:
        path = Path(self.path(name))
        self._write(path, parts)
        if self.durable:
            sync_folder(path.parent)

    def _write(self, path: Path, parts: Parts) -> None:
        make_folder(path.parent, durable=self.durable, private=True)
        with open(path, "wb", opener=private.opener) as file:
            file.writelines(parts)
            if self.durable:
                file.flush()
                os.fsync(file.fileno())

    def replace(self, name: str, data: bytes) -> None:
        path = Path(self.path(name))
        path = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        make_folder(path.parent, durable=False, private=True)
        with open(path, "wb", opener=private.opener) as file:
            file.write(data)
        os.replace(path, self.path(name))

    def read(self, name: str) -> bytes:
        return Path(self.path(name)).read_bytes()

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        with open(self.path(name), "rb") as file:
            file.seek(offset)
            return file.read(length)

    def view(self, name: str) -> pa.Buffer:
        try:
            return pa.memory_map(self.path(name)).read_buffer()
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:  # an empty file cannot be mapped
            raise ValueError(str(error)) from error

    def version(self, name: str) -> Any:
        try:
            found = os.stat(self.path(name))
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    def exists(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(n for n in os.listdir(self.path(folder)) if not n.startswith("."))
        except FileNotFoundError:
            return []

    def remove(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(name))

    def discard(self, names: Iterable[str]) -> None:
        for name in names:  # one by one: a process may die between any two
            self.remove(name)

    def sweep(self) -> None:
        oldest = time.time() - LEFT
        for folder in ("", *FOLDERS):
            with contextlib.suppress(FileNotFoundError), os.scandir(self.path(folder)) as found:
                for entry in found:
                    if _TEMPORARY.match(entry.name) and entry.stat().st_mtime < oldest:
                        self.remove(os.path.join(folder, entry.name))

    def remove_all(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def _locked(file: Any, how: int) -> bool | None:
    """Lock a file; false if another process has locked it, None if there are no locks here."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise RunError(f"checkpoint: '{file.name}' cannot be locked: {error}.") from error
    return True
