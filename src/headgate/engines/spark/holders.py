"""Python workers that keep state, and serve each other's tasks.

Spark gives a task to any Python worker that is free, so the worker that gets a shard's packets is rarely the
one that has its state.  Moving the state would cost its whole size at every step.  So the packets move: the
driver tells a task which worker has the state (``WorkOrder.holders``), and the task asks that worker to do
its work.  A worker that has gone, or does not answer, costs a reload from the checkpoint and nothing else:
what a state is worth is decided by its version, never by who has it.

A worker listens on a Unix socket where all workers share the driver's machine, otherwise on a port.  Both
sides prove that they know the run's secret, which is in the work order and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from headgate.engines.spark.messages import Address

Row = tuple[int, int, bytes]
"""A task, a level, a payload."""
Serve = Callable[[Any], list[Row]]

_LONGEST_PATH = 100
"""Characters that the name of a Unix socket may have."""


class _Server:
    """This process, as one that others can ask."""

    def __init__(self, folder: str, secret: bytes, serve: Serve) -> None:
        self._serve = serve
        if folder:
            path = os.path.join(folder, f"worker-{os.getpid()}")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self._listener = Listener(path, "AF_UNIX", backlog=64, authkey=secret)
            self.address: Address = path
        else:
            self._listener = Listener(("0.0.0.0", 0), "AF_INET", backlog=64, authkey=secret)
            port = self._listener.address[1]
            self.address = (_own_host(), int(port))
        threading.Thread(target=self._accept, name="headgate-holder", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            except Exception:  # a caller that does not know the secret
                continue
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection, contextlib.suppress(EOFError, OSError):
            while True:
                request = connection.recv()
                try:
                    answer: Any = self._serve(request)
                except Exception as error:
                    answer = error
                connection.send(answer)


_server: _Server | None = None
_of: tuple[str, bytes, int] | None = None
_clients: dict[Address, Connection] = {}
_lock = threading.Lock()


def own_address(folder: str, secret: bytes, serve: Serve) -> Address | None:
    """Where other workers of this run reach this one; None if they cannot."""
    global _server, _of
    if not secret or len(folder) > _LONGEST_PATH:
        return None
    with _lock:
        wanted = (folder, secret, os.getpid())
        if _of != wanted:
            try:
                _server = _Server(folder, secret, serve)
            except OSError:
                return None
            _of = wanted
    return _server.address if _server is not None else None


def ask(address: Address, secret: bytes, request: Any) -> list[Row] | None:
    """What the worker at ``address`` answers; None if it cannot be reached.  Its errors are raised here."""
    with _lock:
        connection = _clients.pop(address, None)
    try:
        if connection is None:
            connection = Client(address, authkey=secret)
        connection.send(request)
        answer = connection.recv()
    except (OSError, EOFError):
        if connection is not None:
            connection.close()
        return None
    with _lock:
        _clients.setdefault(address, connection)
    if isinstance(answer, Exception):
        raise answer
    found: list[Row] = answer
    return found


def _own_host() -> str:
    """The name under which this machine is reached."""
    return os.environ.get("SPARK_LOCAL_HOSTNAME") or socket.gethostname()


def rows_of(batches: Iterator[Any]) -> list[Row]:
    """Rows for Spark as plain values, which a connection can carry."""
    found: list[Row] = []
    for batch in batches:
        tasks, levels, payloads = (column.to_pylist() for column in batch.columns)
        found += zip(tasks, levels, payloads, strict=True)
    return found
