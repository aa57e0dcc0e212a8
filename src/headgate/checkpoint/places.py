"""Where files can be: folders of this machine or of a file system that it mounts; checkpoints also in stores.

Sources, sinks and checkpoints all take a place from the user, and all check it here, when the pipeline is
built.  A URL of a store that Headgate cannot reach would otherwise be taken as the name of a local folder
(``s3a:``), and the rows would be lost there.
"""

from __future__ import annotations

import os
import re

from headgate.errors import HeadgateError

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<rest>/.*)", re.DOTALL)
"""A scheme of two letters or more, then a slash: 'C:/x', 'a:b' and 'out/a:b' are names of folders."""
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")


STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
"""Schemes of stores that a checkpoint can be in."""


def store_url(place: str | os.PathLike[str], mistake: type[HeadgateError]) -> str | None:
    """The URL of a store that a checkpoint is to be in; None if it is to be in a folder."""
    name = os.fspath(place)
    url = _URL.fullmatch(name)
    if url is None or url["scheme"].lower() == "file":
        return None
    scheme = url["scheme"].lower()
    if scheme not in STORES:
        known = ", ".join(f"{known}://" for known in STORES)
        raise mistake(
            f"checkpoint: '{name}' is in a store ({scheme}:) that Headgate cannot reach. It can be "
            f"in {known}, or in a folder that all machines mount ('/data/x'); a local folder of that very "
            f"name is './{name}'."
        )
    if not re.fullmatch(r"//[^/]+/.+", url["rest"]):
        raise mistake(
            f"checkpoint: '{name}' must name a place in a bucket, as text: \"{scheme}://bucket/application\"."
        )
    return name


def local_path(place: str | os.PathLike[str], what: str, mistake: type[HeadgateError]) -> str:
    """The path of ``place`` on this machine; ``mistake``, in the name of ``what``, if it is elsewhere."""
    name = os.fspath(place)
    url = _URL.fullmatch(name)
    if url is None:
        # Arrow would read 'a:b' as a URL, but not './a:b'.
        return name if ":" not in name or os.path.isabs(name) or name.startswith(".") else f"./{name}"
    scheme, rest = url["scheme"].lower(), url["rest"]
    if scheme != "file":
        raise mistake(
            f"{what}: '{name}' is in a store ({scheme}:) that Headgate cannot reach yet. Give a folder of "
            "this machine, or of a file system that all machines mount ('/data/x', 'file:/data/x'); a local "
            f"folder of that very name is './{name}'."
        )
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in ("", "localhost") or not slash:
            raise mistake(f"{what}: '{name}' is on host '{host}'; give a folder that this machine mounts.")
        rest = slash + path
    if _ESCAPE.search(rest):
        # Hadoop takes '%20' as three characters, Python as a space: neither may be guessed.
        raise mistake(f"{what}: '{name}' has an escape sequence; give the folder without 'file:'.")
    return rest
