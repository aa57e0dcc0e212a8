"""Files of tests are kept in memory, where there is room: a checkpoint syncs every step, and disks take time.

What has to hold on a disk is checked on a pretended one (``disk.py``), which loses what was not synced.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM = 2 << 30
"""Bytes that must be free.  A run leaves about a tenth of them; containers often have less than that."""


def use() -> None:
    """Unless the user has named a place, and before the first test asks for one."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        return
    if os.statvfs(MEMORY).f_flag & os.ST_NOEXEC or shutil.disk_usage(MEMORY).free < ROOM:
        return
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None
