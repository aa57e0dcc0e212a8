"""A place that the user names, as a storage."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.object_store import ObjectStore
from headgate.checkpoint.places import local_path, store_url
from headgate.checkpoint.storage import Storage
from headgate.errors import RunError


def open_storage(
    place: str | os.PathLike[str], *, durable: bool = True, options: Mapping[str, str] | None = None
) -> Storage:
    """The storage at ``place``; ``options`` are those of a store."""
    url = store_url(place, RunError)
    if url is not None:
        return ObjectStore(url, options, durable=durable)
    return Folder(local_path(place, "checkpoint", RunError), durable=durable)
