"""Names that people choose, as names of files: the one place where that is done.

A source, a query or an application may have any name: ``a/b``, ``..``, one of 300 letters.  None of them may
lead out of the folder that it is meant for, and no two may meet in one file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote, unquote

LONGEST = 120
"""Bytes of a safe name: file systems take 255, and the callers add numbers and endings."""
_HASHED = "%~"
"""Marks a name that was cut.  Escapes are a ``%`` and two digits, so no name that was not cut has it."""
_NAME = ".name"


def safe_name(name: str) -> str:
    """``name`` as a name of a file: escaped like a URL's, cut with a hash at its end if it is too long.

    Different names stay different.  Letters, digits, ``_`` and ``-`` stay as they are, so checkpoints of
    applications with plain names are found again.

    >>> safe_name("orders"), safe_name("a/b"), safe_name("..")
    ('orders', 'a%2Fb', '%2E.')
    """
    escaped = quote(name, safe=" ", errors="surrogatepass")
    if escaped.startswith("."):  # hidden, or a folder's own name
        escaped = f"%2E{escaped[1:]}"
    if len(escaped) <= LONGEST:
        return escaped
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return escaped[: LONGEST - len(_HASHED) - len(digest)] + _HASHED + digest


def original(safe: str) -> str:
    """The name that ``safe`` was made of; of one that was cut, what is left of it."""
    whole, cut, _ = safe.partition(_HASHED)
    return unquote(whole, errors="replace" if cut else "surrogatepass")


def label(folder: Path, name: str) -> None:
    """Leave the name in its folder where the folder's own name does not tell it."""
    if original(folder.name) != name:
        (folder / _NAME).write_text(name, encoding="utf-8", errors="surrogatepass")


def labelled(folder: Path) -> str:
    """The name that ``folder`` was made for."""
    try:
        return (folder / _NAME).read_text(encoding="utf-8", errors="surrogatepass")
    except FileNotFoundError:
        return original(folder.name)
