"""A server in a process of its own that never outlives us, even if we are killed."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from headgate.errors import HeadgateError

T = TypeVar("T")
# A pipe from us is its standard input: it closes however we end, and then the whole process group goes.
_GUARD = """
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
( read -r _ <&3; kill -9 -$$ ) &
guard=$!
exec 3<&-
trap 'kill $child' TERM
while kill -0 $child 2>/dev/null; do wait $child; status=$?; done
kill -9 $guard 2>/dev/null
exit $status
"""


class ServerError(HeadgateError):
    """A server that does not start or does not answer."""


class Server:
    """One command in a process group of its own, with its output in a file."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["sh", "-c", _GUARD, name, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        atexit.register(self.kill)

    @property
    def pid(self) -> int:
        """Its process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self, seconds: float = 20) -> None:
        """Ask it to end, and make it end if it has not after so many seconds."""
        if self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """End it and all that it started, at once, as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        atexit.unregister(self.kill)

    def wait_for(self, answer: Callable[[], T], seconds: float) -> T:
        """What ``answer`` returns once it no longer raises; ServerError if that takes too long or it died."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return answer()
            except Exception as error:
                problem = error
            if not self.running:
                raise ServerError(f"{self.name} ended while it was starting: {self._last_words()}")
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{self.name} has not answered within {seconds:g} seconds ({problem}): "
                    f"{self._last_words()}"
                ) from problem
            time.sleep(0.05)

    def _last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-20:]) or "it has said nothing"


class Installation:
    """Servers that start and end together, ready when entered: ``with Broker() as broker: ...``."""

    def start(self) -> None:
        """Start them and wait until they answer."""
        raise NotImplementedError

    def close(self) -> None:
        """End them for good, started or not, and remove what they wrote."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def free_ports(count: int) -> list[int]:
    """Free ports of this machine."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [int(one.getsockname()[1]) for one in sockets]
