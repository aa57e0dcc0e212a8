"""The owner of a checkpoint: one run at a time, as long as its process lives.

The kernel keeps the lock and releases it when the process ends, however it ends, so no stale lock is left.  A
file that only contains a process number would have to be believed or not after a crash.  The lock does not
decide what is committed: on a shared file system that does not pass locks on, the log's exclusive records do.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import weakref
from datetime import UTC, datetime
from typing import Any

from headgate.checkpoint import private
from headgate.checkpoint.storage import Storage
from headgate.errors import RunError

_NAME = "owner"
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}
_PATIENCE = 2.0
"""Seconds for which one waits for an owner that has just come to say its name."""


class Claim:
    """A checkpoint held; ``release`` gives it back."""

    def __init__(self, file: Any) -> None:
        self._file = file
        _held.add(self)

    def release(self) -> None:
        self._file.close()


_held: weakref.WeakSet[Claim] = weakref.WeakSet()


def _forget() -> None:
    """In a process that was forked: a lock lives as long as any process has its file open."""
    for claim in list(_held):
        claim.release()


os.register_at_fork(after_in_child=_forget)


def claim(storage: Storage, app: str) -> Claim:
    """Take the checkpoint for a run of ``app``; an error that names the run that has it, if one does."""
    path = storage.path(_NAME)
    file = open(path, "r+b", buffering=0, opener=_opener)  # noqa: SIM115, open as long as the run lasts
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            file.close()
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise RunError(f"checkpoint '{storage.root}' cannot be locked: {error}.") from error
            raise RunError(
                f"checkpoint '{storage.root}' is in use: {_named(path)}. Two runs cannot share a checkpoint: "
                "stop that one first, or give this one a checkpoint of its own."
            ) from None
    now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    own = {"app": app, "host": socket.gethostname(), "pid": os.getpid(), "since": now}
    file.truncate(0)
    file.write(json.dumps(own).encode())
    return Claim(file)


def _opener(path: str, flags: int) -> int:
    return private.opener(path, flags | os.O_CREAT)


def _named(path: str) -> str:
    """The owner, in words.  One that has only just taken the lock may not have written its name yet."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        own = _read(path)
        if own is not None and not _dead(own):
            return (
                f"application '{own['app']}' runs on it as process {own['pid']} of host {own['host']} "
                f"since {own['since']}"
            )
        if time.monotonic() > deadline:
            return "another run has locked it, and does not say which"
        time.sleep(0.02)


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            own = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return own if isinstance(own, dict) and own.keys() >= {"app", "host", "pid", "since"} else None


def _dead(own: dict[str, Any]) -> bool:
    """Whether it names a process of this machine that is no more: the owner before the present one."""
    if own["host"] != socket.gethostname():
        return False
    try:
        os.kill(own["pid"], 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
