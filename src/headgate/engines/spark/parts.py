"""Files that a record of the log will name: complete and, if asked for, safe from a power cut when written.

``durable``: content and name survive a crash of the machine.  The process that makes a file syncs it, since
on a shared file system another machine cannot.
"""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.checkpoint.disk import make_folder, sync_folder
from headgate.checkpoint.private import opener
from headgate.connectors.parquet import with_dictionary

STAGED = ".staged-"
"""How the hidden name begins that a part has until its step is committed."""


def staged_name(folder: str, tag: str, unique: str) -> str:
    """The hidden name of a part; ``tag`` says whose it is."""
    return f"{folder}/{STAGED}{tag}{'-' if tag else ''}{unique}.parquet"


def write_parquet(path: str, table: pa.Table, durable: bool, *, private: bool = False) -> None:
    """Write a part of a sink's folder, or, ``private``, of the checkpoint."""
    folder = os.path.dirname(path)
    make_folder(folder, durable=durable, private=private)
    if private:
        os.close(opener(path, os.O_WRONLY | os.O_CREAT))  # a file that is there keeps its mode
    pq.write_table(table, path, use_dictionary=with_dictionary(table.schema))
    if durable:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_folder(folder)
