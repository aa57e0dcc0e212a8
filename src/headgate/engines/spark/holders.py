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
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
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
        self._serve, self._secret = serve, secret
        self._path = os.path.join(folder, f"worker-{os.getpid()}") if folder else ""
        self._socket = socket.socket(socket.AF_UNIX if folder else socket.AF_INET)
        self.address: Address
        if folder:
            self._unlink()
            self._socket.bind(self._path)
            self.address = self._path
        else:
            self._socket.bind(("0.0.0.0", 0))
            self.address = (_own_host(), int(self._socket.getsockname()[1]))
        self._socket.listen(64)
        threading.Thread(target=self._accept, name="headgate-holder", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection = Connection(self._socket.accept()[0].detach())
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        # A caller proves here that it knows the secret, so one that says nothing holds up only itself.
        with connection, contextlib.suppress(EOFError, OSError, AuthenticationError):
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
            while True:
                request = connection.recv()
                try:
                    answer: Any = self._serve(request)
                except Exception as error:
                    answer = error
                connection.send(answer)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for callers
        self._socket.close()
        self._unlink()

    def _unlink(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


_server: _Server | None = None
_of: tuple[str, bytes, int] | None = None
_clients: dict[tuple[Address, bytes], Connection] = {}
_lock = threading.Lock()


def own_address(folder: str, secret: bytes, serve: Serve) -> Address | None:
    """Where other workers of this run reach this one; None if they cannot."""
    global _server, _of
    if not secret or len(folder) > _LONGEST_PATH:
        return None
    with _lock:
        wanted = (folder, secret, os.getpid())
        if _of != wanted:
            if _server is not None and _of is not None and _of[2] == os.getpid():
                _server.close()  # that of an earlier run
            try:
                _server = _Server(folder, secret, serve)
            except OSError:
                return None
            _of = wanted
    return _server.address if _server is not None else None


def ask(address: Address, secret: bytes, request: Any) -> list[Row] | None:
    """What the worker at ``address`` answers; None if it cannot be reached.  Its errors are raised here."""
    with _lock:
        connection = _clients.pop((address, secret), None)
    try:
        if connection is None:
            connection = Client(address, authkey=secret)
        connection.send(request)
        answer = connection.recv()
    except (OSError, EOFError, AuthenticationError):
        if connection is not None:
            connection.close()
        return None
    with _lock:
        _clients.setdefault((address, secret), connection)
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
