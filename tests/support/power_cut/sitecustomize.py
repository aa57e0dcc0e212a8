"""Notes what has been synced to disk, in every Python process that has this folder in its path.

A file's content is safe from a power cut once the file was synced, and a name once its folder was synced
after the name was made.  ``HEADGATE_DISK`` is the folder that is watched, ``HEADGATE_NOTES`` where the notes
go; ``disk.py`` reads them.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from typing import Any

DISK, NOTES = os.environ["HEADGATE_DISK"], os.environ["HEADGATE_NOTES"]
_fsync = os.fsync


def note(path: str, then: Any = lambda: None) -> None:
    """Note a file's length or a folder's names as they are now, if ``then`` comes to its end."""
    if os.path.isdir(path):
        with os.scandir(path) as found:
            names = {entry.name: (entry.inode(), entry.is_dir()) for entry in found}
        for name, (inode, folder) in names.items():
            if not folder:
                _pin(os.path.join(path, name), inode)
        what: dict[str, Any] = {"folder": path, "names": names}
    else:
        status = os.stat(path)
        _pin(path, status.st_ino)
        what = {"file": status.st_ino, "length": status.st_size}
    at = time.monotonic_ns()
    then()
    hidden = os.path.join(NOTES, f".{uuid.uuid4().hex}")
    with open(hidden, "w") as file:
        json.dump(what, file)
    os.rename(hidden, os.path.join(NOTES, f"{at:020d}-{uuid.uuid4().hex}.json"))


def _pin(path: str, inode: int) -> None:
    """Keep a file's content, so that no other file gets its inode."""
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        os.link(path, os.path.join(NOTES, str(inode)))


def _noted_fsync(handle: int) -> None:
    path = os.readlink(f"/proc/self/fd/{handle}")
    if path.startswith(DISK) and os.path.exists(path):
        note(path, lambda: _fsync(handle))
    else:
        _fsync(handle)


os.fsync = _noted_fsync
