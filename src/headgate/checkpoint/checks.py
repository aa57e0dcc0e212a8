"""Checksums of a checkpoint's files: what a task reads is what a task or the driver wrote.

The record or the work order that names a file has its checksum, or the name itself contains it.  A file that
is not what was written must not reach an operator: there a flipped bit becomes a wrong sum, or a bad row
among the dead letters.  CRC-32 is enough against a disk's mistakes and takes a second for more than a
gigabyte; against attackers there is ``private``.  Files of version 0.3 have no checksum and are read as they
are.
"""

from __future__ import annotations

import os
import re
import zlib
from typing import Any

import pyarrow as pa

from headgate.checkpoint.storage import Storage
from headgate.errors import RunError

_STAMP = re.compile(r"\.crc-([0-9a-f]{8})\.[a-z]+$")
_REMEMBERED = 4096
_verified: dict[tuple[str, Any], None] = {}
"""Files that this process has looked through, by path and version: steps read one file again and again."""


def checksum(data: Any) -> int:
    return zlib.crc32(data)


def stamped(name: str, data: Any) -> str:
    """The name with the checksum of ``data`` in it, for a file that is known by its name alone."""
    stem, extension = os.path.splitext(name)
    return f"{stem}.crc-{checksum(data):08x}{extension}"


def stamp(name: str) -> int | None:
    """The checksum in a name, if one is there."""
    found = _STAMP.search(name)
    return int(found[1], 16) if found else None


def opened(storage: Storage, name: str, kind: str, check: int | None) -> pa.Buffer:
    """The bytes of a checkpoint's file; an error that names it if others were written."""
    path = storage.path(name)
    version = storage.version(name)
    try:
        data = storage.view(name)
    except FileNotFoundError as error:
        raise missing(path, kind) from error
    except ValueError as error:
        raise damaged(path, kind, str(error)) from error
    key = (path, version)
    if check is not None and (version is None or key not in _verified):
        verify(path, kind, data, check)
        if version is not None:
            _verified[key] = None
        while len(_verified) > _REMEMBERED:
            del _verified[next(iter(_verified))]
    return data


def verify(path: str, kind: str, data: Any, check: int | None) -> None:
    """An error if ``data``, a file's or a part of it, does not have this checksum."""
    if check is not None and checksum(data) != check:
        raise damaged(path, kind, "its checksum does not fit")


def damaged(path: str, kind: str, why: str) -> RunError:
    return RunError(f"{_named(path, kind)} is damaged ({why}); {_REMEDY}")


def missing(path: str, kind: str) -> RunError:
    return RunError(f"{_named(path, kind)} is missing; {_REMEDY}")


_REMEDY = "restore the file and restart the query, or start with a new checkpoint."


def _named(path: str, kind: str) -> str:
    folder, file = os.path.split(path)
    root, folder = os.path.split(folder)
    return f"checkpoint '{root}': {kind} file {folder}/{file}"
