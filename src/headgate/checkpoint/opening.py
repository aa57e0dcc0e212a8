"""A place that the user names, as a storage."""

from __future__ import annotations

import os

from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.places import local_path
from headgate.checkpoint.storage import Storage
from headgate.errors import RunError


def open_storage(place: str | os.PathLike[str], *, durable: bool = True) -> Storage:
    """The storage at ``place``."""
    return Folder(local_path(place, "checkpoint", RunError), durable=durable)
