"""Where a run keeps what must outlive it: named files, reached from the driver and from every executor.

The one promise that everything rests on is an exclusive create: of two processes that create the same name,
one is told that it exists, and a reader of the name sees all of it or nothing.  A place that cannot promise
that is refused when the run starts.

``local_folder`` keeps the promise with hard links, on a disk or a mounted file system; ``object_store`` with
conditional requests.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headgate.errors import RunError

FOLDERS = (
    "owners",
    "log",
    "snapshots",
    "states",
    "queues",
    "staged",
    "spool",
    "pipelines",
    "slots",
    "history",
)
"""What a checkpoint consists of."""

Parts = Iterable[Any]
"""The content of a file, as pieces that follow each other."""


class Hold:
    """A name that this process holds; ``locked``: others can see that it does, as long as it lives."""

    def __init__(self, file: Any = None) -> None:
        self._file = file

    @property
    def locked(self) -> bool:
        return self._file is not None

    def release(self) -> None:
        if self._file is not None:
            self._file.close()


class Storage(ABC):
    """Named files below a root.  A name has at most one folder in it: ``log/000000000012.json``.

    A storage can be pickled: what is opened in an executor is the same place.  ``durable``: what was written
    survives a crash of the machine, not only of the program.  A name that is not there is a
    ``FileNotFoundError``; a place that does not answer, or is full, is another ``OSError``.
    """

    root: str
    durable: bool
    fence = 0
    """The number of the owner that this process writes for (``owner``); 0: it has none."""

    def prepare(self) -> None:
        """Make the place ready, and find out whether it keeps the promise."""
        try:
            self._make()
            probe = f".probe-{uuid.uuid4().hex}"
            try:
                first, second = self.create(probe, b"1"), self.create(probe, b"2")
                kept = first and not second and self.read(probe) == b"1"
            finally:
                self.remove(probe)
        except OSError as error:
            raise RunError(f"checkpoint '{self.root}' cannot be used: {error}.") from error
        if not kept:
            raise RunError(f"checkpoint '{self.root}' is on {self.unfit}")

    unfit = "a place that cannot create a file exclusively."
    """What a place is that does not keep the promise, and what to do."""

    @abstractmethod
    def _make(self) -> None:
        """Make what is missing, and refuse a place that others than the owner can write to."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Create ``name`` with all of ``data``; false if it exists already.

        ``data`` says who wrote it: no two writers create a name with the same bytes.
        """

    def hold(self, name: str, data: bytes) -> Hold | None:
        """Create a name and hold it; None if it exists already.  Without locks it is only created."""
        return Hold() if self.create(name, data) else None

    def held(self, name: str) -> bool | None:
        """Whether a process that lives holds a name; None if that cannot be told here."""
        return None

    def lock(self, name: str) -> Hold | None:
        """Hold a name that may be there; None if another process does.  Without locks it is not held."""
        return Hold()

    @abstractmethod
    def write(self, name: str, parts: Parts) -> None:
        """Write a file whose name no other process uses."""

    def write_all(self, files: Mapping[str, Parts]) -> None:
        """Write several of them; all are there when this returns."""
        for name, parts in files.items():
            self.write(name, parts)

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Write a file that may be there; a reader sees the old content or the new.

        It need not survive a crash of the machine.
        """

    @abstractmethod
    def read(self, name: str) -> bytes:
        """All of a file."""

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        """All of several files."""
        return [self.read(name) for name in names]

    @abstractmethod
    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """Some bytes of a file; fewer if it is not as long."""

    @abstractmethod
    def view(self, name: str) -> pa.Buffer:
        """All of a file, mapped where that is possible.

        ``ValueError`` for a file that is not what anything of ours has written.
        """

    def version(self, name: str) -> Any:
        """What changes if a file does, as far as that can be seen at no cost; None if it cannot."""
        return None

    @abstractmethod
    def exists(self, name: str) -> bool: ...

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Files in a folder, sorted, but for hidden ones; none if there is no such folder."""

    @abstractmethod
    def remove(self, *names: str) -> None:
        """Remove files; those that are not there are no error."""

    def discard(self, names: Iterable[str]) -> None:
        """Remove files that nothing refers to any more, some time: a commit does not wait for it."""
        self.remove(*names)

    def sweep(self) -> None:  # noqa: B027 - most kinds of storage have no temporary files
        """Remove temporary files of processes that died while they wrote them."""

    @abstractmethod
    def remove_all(self) -> None:
        """Remove the whole place, as far as that is possible."""

    @abstractmethod
    def scratch(self) -> Storage:
        """A place of its own that executors reach as they reach this one, for what need not be kept."""

    def bare(self) -> Storage:
        """The same place without what proves who asks, for what is written down or sent to others."""
        return self

    @abstractmethod
    def require_private(self, *names: str) -> None:
        """An error if other users of this machine can write to the place, or to these names of it.

        To unpickle is to run code: what is read here was written by the owner.
        """

    def __str__(self) -> str:
        return self.root

    def path(self, name: str) -> str:
        """How errors name a file."""
        return f"{self.root}/{name}"

    def folder(self, name: str, what: str) -> str:
        """A folder of this machine for what only works on one; an error in the name of ``what`` if there is
        none."""
        raise RunError(
            f"{what} needs a checkpoint in a folder of this machine, or of a file system that all machines "
            f"mount, and '{self.root}' is in a store."
        )
