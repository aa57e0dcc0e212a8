"""The grace of a run that is stopped passes when nothing moves any more, not after so many seconds.

A stopped run waits for its threads, at most as long as its grace.  A test knows which threads will never come
back, because it holds them; so here the run waits for the others, however slow they are, and for no clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from headgate.engines import worker_pool
from headgate.engines.threads import ending
from waiting import eventually


class Held:
    """Threads that a test holds."""

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()

    def enter(self) -> None:
        self._threads.add(threading.current_thread())

    def leave(self) -> None:
        self._threads.discard(threading.current_thread())

    def wait_for(self, thread: threading.Thread, until: float | None = None) -> None:
        """Until it has ended or is held: what ``worker_pool.join`` does until a moment."""
        if thread.ident is not None:
            eventually(lambda: not thread.is_alive() or thread in self._threads, f"{thread.name} is not back")


def pass_by_hand(held: Held, put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let every run in this process wait like that; ``put`` is a monkeypatch's where it shall end."""
    put(worker_pool, "join", held.wait_for)
    put(ending, "join", held.wait_for)
    put(ending.Closing, "join", lambda closing, timeout=None: held.wait_for(closing))
