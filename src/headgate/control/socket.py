"""Commands to a running application, through one Unix socket that its process owns.

A request is one JSON line, ``{"command": "restart", "arguments": {"query": "carts"}}``, and so is its answer;
an error is an answer with ``"error"``.  The socket lies in a folder of the user's own (``socket_folder``).  A
lock file next to it says whether its process is alive.  The kernel releases the lock when the process ends,
however it ends: so two processes cannot both take over the socket of a dead one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headgate.control.socket_folder import (
    check_folder,
    check_socket,
    make_folder,
    peer,
    runtime_folder,
    socket_path,
    user,
)
from headgate.errors import ControlError, HeadgateError, NotRunning

__all__ = [
    "Control",
    "ControlError",
    "Handler",
    "NotRunning",
    "call",
    "running",
    "runtime_folder",
    "socket_path",
]

Handler = Callable[[dict[str, Any]], dict[str, Any]]

LONGEST_LINE = 1 << 20
"""Bytes that a request may have."""
PATIENCE = 60.0
"""Seconds that either side waits for the other to speak."""
_HELLO = "hello"


# --- the application's side -----------------------------------------------------------------------------


class Control:
    """Answers commands while it is open: ``with Control("shop", {"status": status}): ...``.

    A handler takes the command's arguments and returns the answer; both are plain data.  Handlers are called
    one at a time, on a thread that is not the caller's.
    """

    def __init__(self, app_name: str, handlers: Mapping[str, Handler]) -> None:
        self.app_name = app_name
        self._handlers = {_HELLO: self._hello, **handlers}
        self._one_at_a_time = threading.Lock()
        self._closing = False
        self._lock: int | None = None
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Own the socket and start to answer; an application of this name that runs already is an error."""
        make_folder()
        self.path = socket_path(self.app_name)
        self._closing = False
        self._lock = self._take_lock(self.path.with_suffix(".lock"))
        try:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(str(self.path))
            self.path.chmod(0o600)
            self._listener.listen()
        except OSError as error:
            self._release()
            raise ControlError(
                f"Application '{self.app_name}': its control socket {self.path} cannot be made "
                f"({error.strerror}); set HEADGATE_RUNTIME to a folder of your own."
            ) from error
        self._thread = threading.Thread(target=self._accept, name="headgate-control", daemon=True)
        self._thread.start()

    def _take_lock(self, path: Path) -> int:
        while True:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                there = os.stat(path).st_ino
            except FileNotFoundError:
                there = None
            except BlockingIOError:
                owner = os.read(lock, 32).decode(errors="replace").strip()
                os.close(lock)
                process = f" (process {owner})" if owner else ""
                raise ControlError(
                    f"Application '{self.app_name}' is already running{process}; stop it first, or give this "
                    "one another name."
                ) from None
            # The owner before removes the file when it closes; a lock on a removed file excludes no process.
            if there == os.fstat(lock).st_ino:
                os.ftruncate(lock, 0)
                os.pwrite(lock, str(os.getpid()).encode(), 0)
                return lock
            os.close(lock)

    def close(self) -> None:
        """Stop answering and leave nothing behind."""
        if self._lock is None or self._closing:
            return
        self._closing = True
        if self._thread is not None:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wake:
                wake.connect(str(self.path))
            self._thread.join(PATIENCE)
            self._thread = None
        self._release()

    def _release(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._lock is not None:
            for path in (self.path, self.path.with_suffix(".lock")):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
            os.close(self._lock)
            self._lock = None

    def _accept(self) -> None:
        listener = self._listener
        assert listener is not None
        while not self._closing:
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._closing:
                    return
                continue
            # A thread each, so that a client which connects and says nothing does not block the others.
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # The client may be gone before the answer is there.
        with connection, contextlib.suppress(OSError):
            connection.settimeout(PATIENCE)
            line = _read_line(connection)
            if line:
                connection.sendall(_line(self._answer(line, peer(connection))))
                # A connection that is closed with bytes unread is reset, and the answer lost with it.
                while not line.endswith(b"\n") and (line := connection.recv(1 << 16)):
                    pass

    def _answer(self, line: bytes, asking: int | None) -> dict[str, Any]:
        if asking not in (None, os.geteuid(), 0):  # root may do anything anyway
            return {"error": f"Application '{self.app_name}' belongs to another user."}
        if len(line) > LONGEST_LINE:
            return {"error": f"The request is longer than {LONGEST_LINE:,} bytes."}
        try:
            request = json.loads(line)
            command, arguments = request["command"], request.get("arguments", {})
            if not isinstance(command, str) or not isinstance(arguments, dict):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {"error": 'A request is one line of JSON: {"command": "…", "arguments": {…}}.'}
        handler = self._handlers.get(command)
        if handler is None:
            known = ", ".join(sorted(set(self._handlers) - {_HELLO}))
            return {
                "error": f"Application '{self.app_name}' knows no command '{command}'. It knows: {known}."
            }
        try:
            with self._one_at_a_time:
                answer = _plain(handler(arguments))
            json.dumps(answer)
        except HeadgateError as error:
            return {"error": str(error)}
        except Exception as error:
            return {"error": f"Command '{command}' failed: {type(error).__name__}: {error}"}
        return answer  # type: ignore[no-any-return]

    def _hello(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"app": self.app_name, "process": os.getpid()}


def _plain(value: Any) -> Any:
    """JSON has no NaN: a figure that is not known is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data).encode() + b"\n"


def _read_line(connection: socket.socket, longest: int | None = LONGEST_LINE) -> bytes:
    """What comes up to the end of the line, or of the connection."""
    parts: list[bytes] = []
    size = 0
    while not parts or not parts[-1].endswith(b"\n"):
        part = connection.recv(1 << 16)
        if not part:
            break
        parts.append(part)
        size += len(part)
        if longest is not None and size > longest:
            break
    return b"".join(parts)


# --- the other side -------------------------------------------------------------------------------------


def call(app_name: str | None, command: str, /, **arguments: Any) -> dict[str, Any]:
    """Send a command to a running application, to the only one if none is named, and return its answer.

    An answer that is an error is raised as ``ControlError``.
    """
    name = _only_one() if app_name is None else app_name
    try:
        answer = _ask(socket_path(name), command, arguments)
    except (FileNotFoundError, ConnectionRefusedError):
        names = running()
        others = f" Running: {_listed(names)}." if names else ""
        raise NotRunning(
            f"Application '{name}' is not running.{others} Start it with `headgate run`."
        ) from None
    except TimeoutError:
        raise ControlError(
            f"Application '{name}' did not answer '{command}' within {PATIENCE:g} seconds; it may be stopped "
            "or too busy."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ControlError(
            f"Application '{name}' gave no answer to '{command}' ({error}); it may just have ended."
        ) from error
    if "error" in answer and len(answer) == 1:
        raise ControlError(str(answer["error"]))
    return answer


def running() -> list[str]:
    """The names of the applications that this user is running, in order."""
    names = []
    for path in sorted(runtime_folder().glob("*.sock")) if check_folder() else ():
        with contextlib.suppress(OSError, ValueError, KeyError, RecursionError, ControlError):
            names.append(str(_ask(path, _HELLO, {})["app"]))
    return sorted(names)


def _only_one() -> str:
    names = running()
    if not names:
        raise NotRunning("No application is running. Start one with `headgate run`, then ask again.")
    if len(names) > 1:
        raise ControlError(f"Several applications are running: {_listed(names)}. Say which with --app NAME.")
    return names[0]


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _ask(path: Path, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
    check_folder()
    check_socket(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(path))
        answering = peer(connection)
        if answering not in (None, os.geteuid()):
            raise ControlError(f"The socket {path} is answered by {user(answering)}; no command was sent.")
        connection.sendall(_line({"command": command, "arguments": arguments}))
        line = _read_line(connection, None)
    if not line.endswith(b"\n"):
        raise ConnectionResetError("the connection was closed")
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError("what it said is no answer")
    return answer
