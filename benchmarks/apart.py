"""Python in a process of its own that finds these benchmarks whatever the current folder is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
"""The checkout."""
PYTHON = (sys.executable, "-P")
"""Without the current folder on its path: a folder ``benchmarks`` there would hide this one."""


def environment() -> dict[str, str]:
    """This process's, and the checkout on Python's path; what the process starts inherits it."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def found(what: str, program: str, *arguments: str) -> Any:
    """What a program prints last, as JSON; ``what`` names it where it fails."""
    command = [*PYTHON, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    if done.returncode:
        raise RuntimeError(f"{what} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])
