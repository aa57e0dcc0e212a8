"""Where control sockets are, and which user they belong to.

A socket is as trustworthy as the folder that it lies in: a user who can write to the folder can put another
socket there.  So both sides look at the owner and the mode of the folder, the command also at the socket's
owner, and both ask the kernel who is connected, because files can change after they were looked at.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import socket
import stat
import struct
import tempfile
from pathlib import Path

from headgate.checkpoint.names import safe_name
from headgate.errors import ControlError

LONGEST_PATH = 103
"""Bytes that a socket's path may have: 107 on Linux, 103 on macOS."""
ELSEWHERE = "set HEADGATE_RUNTIME to a folder of your own, with mode 0700."


def runtime_folder() -> Path:
    """The user's own folder of sockets: as ``HEADGATE_RUNTIME`` says, of the session, or a temporary one."""
    given = os.environ.get("HEADGATE_RUNTIME")
    if given:
        return Path(given)
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session:
        return Path(session) / "headgate"
    return Path(tempfile.gettempdir()) / f"headgate-{os.getuid()}"


def make_folder() -> None:
    """Make the folder if it is missing; refuse one that is not the user's own."""
    folder = runtime_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ControlError(
            f"The folder for control sockets, {folder}, cannot be made ({error.strerror}); {ELSEWHERE}"
        ) from error
    check_folder()


def check_folder() -> bool:
    """Refuse a folder that is not the user's own; false if there is none."""
    folder = runtime_folder()
    try:
        found = os.stat(folder)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ControlError(
            f"The folder for control sockets, {folder}, cannot be read ({error.strerror}); {ELSEWHERE}"
        ) from error
    if found.st_uid != os.geteuid():
        raise ControlError(
            f"The folder for control sockets, {folder}, belongs to {user(found.st_uid)}, and you are "
            f"{user(os.geteuid())}; {ELSEWHERE}"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o022:
        raise ControlError(
            f"The folder for control sockets, {folder}, has mode {mode:04o}: others can write to it; "
            f"{ELSEWHERE}"
        )
    return True


def check_socket(path: Path) -> None:
    """Refuse what is not a socket, or not the user's own."""
    found = os.lstat(path)
    if not stat.S_ISSOCK(found.st_mode):
        raise ControlError(f"{path} is not a socket; remove it.")
    if found.st_uid != os.geteuid():
        raise ControlError(
            f"The control socket {path} belongs to {user(found.st_uid)}, and you are "
            f"{user(os.geteuid())}; no command was sent."
        )


def peer(connection: socket.socket) -> int | None:
    """The user at the other end of a connection, as the kernel says; None where the kernel does not."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    given = connection.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i"))
    return int(struct.unpack("3i", given)[1])


def user(number: int) -> str:
    """A user for people: the name, if there is one, and the number."""
    try:
        return f"'{pwd.getpwuid(number).pw_name}' (uid {number})"
    except KeyError:
        return f"uid {number}"


def socket_path(app_name: str) -> Path:
    """Where an application's socket is: named after it, or by a hash of its name where that is too long."""
    folder = runtime_folder()
    path = folder / f"{safe_name(app_name)}.sock"
    if _length(path) > LONGEST_PATH:
        digest = hashlib.sha256(app_name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        path = folder / f"{digest}.sock"
    if _length(path) > LONGEST_PATH:
        raise ControlError(
            f"The folder for control sockets, {folder}, has too long a name for a socket in it; "
            "set HEADGATE_RUNTIME to a shorter one."
        )
    return path


def _length(path: Path) -> int:
    return len(os.fsencode(path))
