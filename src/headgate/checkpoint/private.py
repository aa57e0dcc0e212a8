"""Files of the owner alone: how a checkpoint's are made, and which of them may be unpickled.

To unpickle is to run code.  So a pipeline or a state is read only where no other user can have written it:
the checkpoint, the folder in it and the file must belong to this user or to root, and others must not be
allowed to write to them.  A signature instead would need a key, and the key a place with the same modes.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from headgate.errors import RunError

_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def opener(path: str, flags: int) -> int:
    """For ``open(path, "wb", opener=opener)``: a file that is made is the owner's alone."""
    return os.open(path, flags, 0o600)


def close_to_others(folder: Path) -> None:
    """Take away what others than the owner may do with a folder, if it is this user's."""
    found = folder.stat()
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(stat.S_IMODE(found.st_mode) & 0o700)


def require_private(root: str, *names: str) -> None:
    """An error if others can write to the checkpoint or to one of these folders and files of it."""
    for name in ("", *names):
        path = os.path.join(root, name) if name else root
        try:
            found = os.stat(path)
        except FileNotFoundError:
            continue  # what reads it says so
        if found.st_uid not in (os.geteuid(), 0):
            raise RunError(
                f"checkpoint '{root}': '{path}' belongs to another user ({found.st_uid}), and this one "
                f"({os.geteuid()}) would run what is in it as code. The driver and all executors must be the "
                "same user and own the checkpoint: take it over (chown -R), or start with a new one."
            )
        if found.st_mode & _WRITABLE:
            raise RunError(
                f"checkpoint '{root}': others can write to '{path}', and what they write would run as code "
                f"of this user. If you trust what is in it, close it (chmod go-w '{path}') and run again; or "
                "start with a new checkpoint."
            )
