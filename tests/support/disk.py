"""A disk that loses power: what was not synced may be gone, name by name, as POSIX allows it.

Stricter than any one file system: ext4 syncs a new file's name together with its content, and the names of
all its folders at once, but a results folder may be on another disk than the checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

Entry = tuple[int, bool] | None
"""Inode, and whether it is a folder; None: no such name."""


class Disk:
    """The folders ``names`` of ``root``, watched by every process that is started with ``environment``."""

    def __init__(self, root: Path, notes: Path, names: tuple[str, ...]) -> None:
        self.root, self.notes, self.names = root, notes, names
        self.notes.mkdir()
        hook = Path(__file__).with_name("power_cut")
        self.environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(hook), os.environ.get("PYTHONPATH")])),
            "HEADGATE_DISK": str(root),
            "HEADGATE_NOTES": str(notes),
        }

    def cut(self, chance: random.Random | None) -> None:
        """Lose power: of what was not synced nothing is left, or with ``chance`` some of it."""
        self._folders: dict[str, dict[str, Entry]] = {}
        self._lengths: dict[int, int] = {}
        self._made: dict[int, Path] = {}
        """By inode, the first name that a file has afterwards."""
        for path in sorted(self.notes.glob("*.json")):
            noted = json.loads(path.read_text())
            if "folder" in noted:
                self._folders[noted["folder"]] = {name: tuple(e) for name, e in noted["names"].items()}
            else:
                self._lengths[noted["file"]] = noted["length"]
        after = self.notes.with_name("after")
        after.mkdir()
        self._copy(self.root, after, chance, set(self.names))
        for name in self.names:
            shutil.rmtree(self.root / name, ignore_errors=True)
            if (after / name).exists():
                shutil.move(after / name, self.root / name)
        shutil.rmtree(after)
        shutil.rmtree(self.notes)
        self.notes.mkdir()
        self._settle()

    def _copy(self, folder: Path, to: Path, chance: random.Random | None, only: set[str] | None) -> None:
        synced, current = self._folders.get(str(folder), {}), _names(folder)
        for name in sorted(synced.keys() | current.keys() if only is None else only):
            entry: Entry = synced.get(name)
            if chance is not None and chance.random() < 0.5:
                entry = current.get(name)
            if entry is None:
                continue
            inode, is_folder = entry
            if is_folder:
                (to / name).mkdir()
                self._copy(folder / name, to / name, chance, None)
            else:
                if inode not in self._made:
                    self._made[inode] = to / name
                    (to / name).write_bytes(self._content(inode, folder / name, chance))
                else:
                    os.link(self._made[inode], to / name)

    def _content(self, inode: int, path: Path, chance: random.Random | None) -> bytes:
        pinned = self.notes / str(inode)
        data = (pinned if pinned.exists() else path).read_bytes()
        length = self._lengths.get(inode, 0)
        return data if chance is not None and chance.random() < 0.5 else data[:length]

    def _settle(self) -> None:
        """What is left after a cut is on the disk."""
        everything: list[Any] = [self.root]
        everything += [path for name in self.names for path in (self.root / name).rglob("*")]
        everything += [self.root / name for name in self.names if (self.root / name).exists()]
        for number, path in enumerate(everything):
            if path.is_dir():
                noted: dict[str, Any] = {"folder": str(path), "names": _names(path)}
            else:
                status = path.stat()
                noted = {"file": status.st_ino, "length": status.st_size}
                with contextlib.suppress(FileExistsError):  # a file with two names
                    os.link(path, self.notes / str(status.st_ino))
            (self.notes / f"{0:020d}-{number}.json").write_text(json.dumps(noted))


def _names(folder: Path) -> dict[str, Entry]:
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as found:
        return {entry.name: (entry.inode(), entry.is_dir()) for entry in found}
