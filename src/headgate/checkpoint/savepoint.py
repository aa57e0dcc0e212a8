"""Savepoints: a consistent copy of a checkpoint in a folder of its own, and checkpoints that begin from one.

A savepoint has the position as one snapshot and the files that it names, and no others.  It belongs to no
run: a checkpoint that begins from one gets an identity of its own, so what it does outside has other names.
Files of a checkpoint never change once they are written, so where the file system has hard links nothing is
copied.
"""

from __future__ import annotations

import json
import os
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headgate.checkpoint.disk import make_folder, sync_folder
from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.log import Log
from headgate.checkpoint.offsets import REFUSED, SPOOL
from headgate.checkpoint.position import Position
from headgate.checkpoint.storage import Storage
from headgate.errors import RunError
from headgate.graph.network import Network

_LABEL = "savepoint"
_ORIGIN = "begun-from"


def savepoint(source: Storage, target: Storage) -> dict[str, Any]:
    """Write a savepoint of what the log of ``source`` tells; nothing may be removed from there meanwhile."""
    _require_empty(target, "savepoint")
    log, position, start = _told(source)
    target.prepare()
    label = {
        "id": uuid.uuid4().hex,
        "app": start["app"],
        "at": datetime.now(UTC).isoformat(" ", "seconds"),
        "step": position.step,
        "queries": sorted(start["pipeline"]["queries"]),
    }
    files = _copy(source, target, position)
    log.elsewhere(target)
    log.compact(position, start, start["app"])
    target.write(_LABEL, [json.dumps(label).encode()])
    return label | {"files": files}


def begin_from(place: Storage, target: Storage) -> None:
    """Let a new checkpoint begin where a savepoint is; one that has begun from it already just goes on."""
    if not place.exists(_LABEL):
        raise RunError(f"There is no savepoint in '{place.root}'; make one with headgate savepoint.")
    label = json.loads(place.read(_LABEL))
    if target.exists(_ORIGIN) and json.loads(target.read(_ORIGIN))["id"] == label["id"]:
        if target.names("snapshots") or target.names("log"):
            return
    else:
        _require_empty(target, "checkpoint")
        target.create(_ORIGIN, json.dumps(label).encode())
    log, position, start = _told(place)
    # What its queries have claimed outside belongs to the run that claimed it.
    position.claims.clear()
    _copy(place, target, position)
    log.elsewhere(target)
    log.compact(position, start, start["app"])


def _told(source: Storage) -> tuple[Log, Position, dict[str, Any]]:
    log = Log(source)
    position, _, start = log.recover(Nodes(Network([], [], [])), None)
    if start is None:
        raise RunError(f"There is no checkpoint in '{source.root}'; give the folder that hg.Spark was given.")
    return log, position, start


def told(source: Storage) -> Position:
    """The position of a checkpoint, whatever its pipeline."""
    return _told(source)[1]


def application(source: Storage) -> str:
    """The application that a checkpoint belongs to."""
    name: str = _told(source)[2]["app"]
    return name


def _require_empty(target: Storage, what: str) -> None:
    if target.names("snapshots") or target.names("log") or target.exists(_LABEL):
        raise RunError(
            f"'{target.root}' has a checkpoint or a savepoint already; give the {what} a folder of its own."
        )


def _copy(source: Storage, target: Storage, position: Position) -> int:
    """Copy the files that a position names, and the pipeline, with which states can be looked at."""
    units = [extent.unit.partition(":") for own in position.offsets.sources for extent in own.extents]
    names = position.files() | {name for kind, _, name in units if kind in (SPOOL, REFUSED)}
    names |= {f"pipelines/{name}" for name in source.names("pipelines")}
    for name in sorted(names):
        if target.exists(name):
            continue
        try:
            if not _linked(source, target, name):
                target.write(name, [source.read(name)])
        except FileNotFoundError as error:
            raise RunError(f"'{source}': its file {name} is missing; restore it first.") from error
    return len(names)


def _linked(source: Storage, target: Storage, name: str) -> bool:
    """Give a file another name, if both places are folders of one file system with hard links."""
    if not isinstance(source, Folder) or not isinstance(target, Folder):
        return False
    place = Path(target.path(name))
    make_folder(place.parent, durable=target.durable, private=True)
    try:
        os.link(source.path(name), place)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    if target.durable:
        sync_folder(place.parent)
    return True
