"""The identity of a checkpoint: a name that no other checkpoint has, made when the checkpoint begins.

Names that a checkpoint gives to things outside it (files of a folder, transactions of a table) contain its
identity.  So two checkpoints never use the same name, even if both count their steps from 0.
"""

from __future__ import annotations

import uuid

from headgate.checkpoint.storage import Storage
from headgate.errors import RunError

_NAME = "identity"


def identity(storage: Storage) -> str:
    """The identity of the checkpoint in ``storage``, 32 hexadecimal digits; the first call makes it."""
    if not storage.exists(_NAME):
        # Exclusive: of two runs that begin at once, one makes it and both read the same.
        storage.create(_NAME, f"{uuid.uuid4().hex}\n".encode())
    text = storage.read(_NAME).decode(errors="replace").strip()
    if len(text) != 32 or not set(text) <= set("0123456789abcdef"):
        raise RunError(
            f"checkpoint '{storage.root}': its file '{_NAME}' is damaged; restore the folder, or start with "
            "a new checkpoint."
        )
    return text
