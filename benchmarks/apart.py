"""Python in a process of its own that finds these benchmarks whatever the current folder is."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headgate.errors import HeadgateError

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


class Conversation:
    """A module of the benchmarks in a process of its own, which answers requests until it is closed.

    So a session is started once and asked many times, in turns with other systems' processes.
    """

    def __init__(self, what: str, module: str, *arguments: str) -> None:
        self._what = what
        self._said = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*PYTHON, "-m", f"benchmarks.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment(),
            start_new_session=True,
        )

    def ask(self, request: Any, limit: float) -> Any:
        """The answer to a request; an error with the process's last words if there is none in time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], limit)[0]:
            raise HeadgateError(f"{self._what} has not answered within {limit:g} s.")
        line = self._process.stdout.readline()
        if not line:
            raise HeadgateError(f"{self._what} has ended: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise HeadgateError(f"{self._what}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End it and all that it started."""
        # The JVM and its workers stay in the group and outlive a process that ends in a hurry.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._said):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it has said nothing"


def converse(answer: Callable[[Any], dict[str, Any]]) -> None:
    """The other side of a conversation: answer requests from standard input until there are no more."""
    # What Spark and its JVM print must not come between the answers.
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            try:
                found = answer(json.loads(line))
            except Exception as error:
                traceback.print_exc()
                found = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(found) + "\n")
