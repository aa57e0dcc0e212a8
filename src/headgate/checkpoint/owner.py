"""The owner of a checkpoint: one run at a time, known by a number that is one higher than the last owner's.

A run takes the checkpoint by creating ``owners/<number>`` exclusively.  Every record of the log carries the
number, and so does the name of every file that a run may remove, so an owner that was replaced can commit
nothing and removes nothing that is not its own.  What is committed is decided by the log alone (``log``).

Whether the last owner still lives is a question of politeness: a second run should be refused, not fight.  On
a disk the kernel answers it by a lock that ends with the process, however it ends.  A store has no locks;
there the owner renews its record, and one that has not changed for ``LEASE`` seconds is taken over.  The wait
is counted by the run that waits, so clocks of two machines are never compared.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from headgate.checkpoint.storage import Hold, Storage
from headgate.errors import RunError

RENEW = 5.0
"""Seconds between an owner's renewals, where there are no locks."""
LEASE = 20.0
"""Seconds without a renewal after which an owner counts as dead, where there are no locks."""
_OWNERS = "owners"
_NUMBERED = re.compile(r"\d{12}\.json$")
_BEFORE = "owner"
"""The file that versions before 0.4 lock: they and this one refuse each other."""


@dataclass(frozen=True)
class Owner:
    """Who has a checkpoint."""

    number: int
    app: str
    host: str
    pid: int
    since: str
    machine: str = ""
    """What processes with one numbering share: a boot of a machine, and a container of it."""
    beat: int = 0
    """How often it was renewed."""
    released: bool = False
    """It has ended in an orderly way."""

    def __str__(self) -> str:
        return f"application '{self.app}', process {self.pid} of host {self.host}, since {self.since}"


class Claim:
    """A checkpoint held; ``release`` gives it back."""

    def __init__(self, storage: Storage, owner: Owner, holds: list[Hold], disputed: bool) -> None:
        self.owner, self.disputed = owner, disputed
        """``disputed``: the owner before may still be alive, as far as one knows."""
        self._storage, self._holds = storage, holds
        self._over = threading.Event()
        self._lock = threading.Lock()
        _held.add(self)

    def keep_renewing(self) -> None:
        """Renew the record until it is released; a store that does not answer is asked again later."""
        threading.Thread(target=self._renew_on, name="headgate-lease", daemon=True).start()

    def _renew_on(self) -> None:
        while not self._over.wait(RENEW):
            self.renew()

    def renew(self) -> None:
        with self._lock:
            if self._over.is_set():
                return
            self.owner = replace(self.owner, beat=self.owner.beat + 1)
            self._say()

    def release(self) -> None:
        with self._lock:
            if not self._over.is_set():
                self._over.set()
                self.owner = replace(self.owner, released=True)
                self._say()
        self.forget()

    def _say(self) -> None:
        try:
            self._storage.replace(_name(self.owner.number), _encode(self.owner))
        except OSError:
            return  # the log decides; this only spares the next run a wait

    def forget(self) -> None:
        """Let go of the locks of this process, and say nothing."""
        self._over.set()
        for hold in self._holds:
            hold.release()


_held: weakref.WeakSet[Claim] = weakref.WeakSet()


def _forget() -> None:
    """In a process that was forked: a lock lives as long as any process has its file open."""
    for claim in list(_held):
        claim.forget()


os.register_at_fork(after_in_child=_forget)


def claim(
    storage: Storage, app: str, *, take_over: bool = False, sleep: Callable[[float], None] | None = None
) -> Claim:
    """Take the checkpoint for a run of ``app``; an error that names the run that has it, if one does.

    ``take_over``: also from a run that is alive; that one can commit nothing from then on.
    """
    before = _hold_before(storage, take_over)
    while True:
        last = _last(storage)
        disputed = False
        if last is not None:
            if last.app not in (app, _UNKNOWN):
                raise RunError(
                    f"checkpoint '{storage}' belongs to application '{last.app}', not to '{app}'; "
                    "give each application a checkpoint of its own."
                )
            alive = _alive(storage, last, take_over, sleep or time.sleep)
            if alive and not take_over:
                raise RunError(
                    f"checkpoint '{storage}' is in use: {last}, runs on it. Two runs cannot share a "
                    "checkpoint: stop that one first, take it over (--take-over, or "
                    "Spark(take_over=True)), or give this one a checkpoint of its own."
                )
            disputed = alive is not False
        number = 1 if last is None else last.number + 1
        now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
        owner = Owner(number, app, socket.gethostname(), os.getpid(), now, _machine())
        hold = storage.hold(_name(number), _encode(owner))
        if hold is None:
            take_over = False  # another run was faster: that one is not meant
            continue
        storage.fence = number
        storage.discard(f"{_OWNERS}/{name}" for name in _names(storage)[:-1])
        taken = Claim(storage, owner, [hold, *before], disputed)
        if not hold.locked:
            taken.keep_renewing()
        return taken


def _hold_before(storage: Storage, take_over: bool) -> list[Hold]:
    """The lock of earlier versions."""
    hold = storage.lock(_BEFORE)
    if hold is None and not take_over and _last(storage) is None:
        raise RunError(
            f"checkpoint '{storage}' is in use by a run of an earlier version of Headgate; "
            "stop that one first."
        )
    return [] if hold is None else [hold]


def _alive(storage: Storage, last: Owner, take_over: bool, sleep: Callable[[float], None]) -> bool | None:
    """Whether an owner lives; None if nothing has been heard of it, which may have other reasons."""
    if last.released:
        return False
    held = storage.held(_name(last.number))
    if held is not None:
        return held
    if last.machine == _machine() and not _runs(last.pid):
        return False
    waited = 0.0
    while waited < LEASE and not take_over:
        sleep(RENEW)
        waited += RENEW
        found = _last(storage)
        if found != last:
            return found is None or not found.released
    return True if take_over else None


_UNKNOWN = "?"
"""What an owner was, if a power cut took the content of its file; its number and its lock are still known."""


def _last(storage: Storage) -> Owner | None:
    for name in reversed(_names(storage)):
        try:
            data = json.loads(storage.read(f"{_OWNERS}/{name}"))
        except FileNotFoundError:
            continue
        except ValueError:
            data = {}
        known = {key: value for key, value in data.items() if key in Owner.__dataclass_fields__}
        unknown = {"app": _UNKNOWN, "host": _UNKNOWN, "pid": 0, "since": _UNKNOWN}
        return Owner(**{**unknown, **known, "number": int(name[:12])})
    return None


def _names(storage: Storage) -> list[str]:
    return [name for name in storage.names(_OWNERS) if _NUMBERED.match(name)]


def _name(number: int) -> str:
    return f"{_OWNERS}/{number:012d}.json"


def _encode(owner: Owner) -> bytes:
    return json.dumps(asdict(owner)).encode()


def _machine() -> str:
    """Process numbers mean the same where this is the same; empty if that cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
