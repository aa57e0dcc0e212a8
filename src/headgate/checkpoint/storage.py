"""Where a run keeps what must outlive it: a folder, reached from the driver and from every executor.

The one promise that everything rests on is an exclusive create: of two processes that create the same name,
one is told that it exists, and a reader of the name sees all of it or nothing.  A place that cannot promise
that is refused when the run starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from pathlib import Path

from headgate.checkpoint import private
from headgate.checkpoint.disk import make_folder, sync_folder
from headgate.checkpoint.places import local_path
from headgate.errors import RunError

_TASKS_WRITE = ("states", "queues")
"""Made before tasks write there: if two tasks made a folder, only one of them would sync its name."""
FOLDERS = ("log", "snapshots", "states", "queues", "staged", "spool", "pipelines", "slots", "history")
"""What a checkpoint consists of."""


class Storage:
    """A folder on a file system with hard links: a local disk, or one that all machines mount.

    What is made in it is the owner's alone; a folder that was there before keeps what it lets others read.
    ``durable``: what was written survives a crash of the machine, not only of the program.
    """

    def __init__(self, root: str, *, durable: bool = True) -> None:
        self.root = os.path.abspath(root)
        self.durable = durable

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def prepare(self) -> None:
        """Make the folder, and find out whether it keeps the promise and no other user can write to it."""
        try:
            self._make_private()
            probe = f".probe-{uuid.uuid4().hex}"
            try:
                first, second = self.create(probe, b"1"), self.create(probe, b"2")
                kept = first and not second and self.read(probe) == b"1"
            finally:
                self.remove(probe)
        except OSError as error:
            raise RunError(f"checkpoint '{self.root}' cannot be used: {error}.") from error
        if not kept:
            raise RunError(
                f"checkpoint '{self.root}' is on a file system that cannot create a file exclusively, so two "
                "runs could both believe that they own it; use a local disk or a mounted shared one."
            )

    def _make_private(self) -> None:
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
        """Create ``name`` with all of ``data``; false if it exists already."""
        path = Path(self.path(name))
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            self._write(temporary, data)
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
        if self.durable:
            sync_folder(path.parent)
        return True

    def write(self, name: str, data: bytes) -> None:
        """Write a file whose name no other process uses."""
        path = Path(self.path(name))
        self._write(path, data)
        if self.durable:
            sync_folder(path.parent)

    def _write(self, path: Path, data: bytes) -> None:
        make_folder(path.parent, durable=self.durable, private=True)
        with open(path, "wb", opener=private.opener) as file:
            file.write(data)
            if self.durable:
                file.flush()
                os.fsync(file.fileno())

    def replace(self, name: str, data: bytes) -> None:
        """Write a file that may be there; a reader sees the old content or the new."""
        temporary = f"{name}.{uuid.uuid4().hex}"
        path = Path(self.path(temporary))
        make_folder(path.parent, durable=False, private=True)
        with open(path, "wb", opener=private.opener) as file:
            file.write(data)
        os.replace(path, self.path(name))

    def read(self, name: str) -> bytes:
        return Path(self.path(name)).read_bytes()

    def exists(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def names(self, folder: str) -> list[str]:
        """Files in a folder, sorted; none if there is no such folder."""
        try:
            return sorted(n for n in os.listdir(self.path(folder)) if not n.startswith("."))
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))

    def remove_all(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def storage(path: str | os.PathLike[str], *, durable: bool = True) -> Storage:
    """The storage at ``path``."""
    return Storage(local_path(path, "checkpoint", RunError), durable=durable)
