"""What survives a crash of the machine: a name only when its folder has been synced, not before.

Syncing a file keeps its content.  Its name is an entry of the folder, and the folder's own name an entry of
the folder above.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_MANY = 4
"""Folders from which on threads pay."""
_AT_ONCE = 8


def make_folder(folder: str | Path, *, durable: bool, private: bool = False) -> None:
    """Make a folder, and those above it that are missing; ``durable``: a power cut leaves them there.

    ``private``: only the owner can use those that are made.
    """
    missing = []
    whole = os.path.abspath(folder)
    path = Path(whole)
    while not path.is_dir() and path != path.parent:
        missing.append(path)
        path = path.parent
    for made in reversed(missing):
        try:
            made.mkdir(mode=0o700 if private else 0o777)
        except FileExistsError:  # another process makes the same, if it is not a file
            if not made.is_dir():
                raise
    if not durable or (whole in _synced and not missing):
        return
    # One that was there may have been made by a process that was killed before it could sync the name.
    sync_folders([*(made.parent for made in reversed(missing)), *_above(path)])
    if len(_synced) >= _REMEMBERED:
        _synced.clear()
    _synced.add(whole)


def _above(path: Path) -> Iterator[Path]:
    """The folders above one, up to where its file system begins, as far as this user can sync them."""
    device = path.stat().st_dev
    for folder in path.parents:
        if folder.stat().st_dev != device or not os.access(folder, os.R_OK):
            return
        yield folder


_REMEMBERED = 4096
_synced: set[str] = set()
"""Folders whose names this process has synced."""


def sync_folders(folders: Iterable[str | Path]) -> None:
    """Make the names in folders survive a crash of the machine, each folder synced once.

    Many at a time: a sync waits for the disk's journal, which takes all that wait into one write.
    """
    once = list(dict.fromkeys(str(folder) for folder in folders))
    if len(once) < _MANY:
        for folder in once:
            sync_folder(folder)
        return
    with ThreadPoolExecutor(_AT_ONCE, "headgate-sync") as threads:
        list(threads.map(sync_folder, once))


def sync_folder(folder: str | Path) -> None:
    """Make the names in a folder survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
