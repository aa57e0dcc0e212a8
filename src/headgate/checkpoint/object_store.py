"""A checkpoint in an object store: S3, Google Cloud Storage, Azure, and those that speak as S3 does.

An exclusive create is a PUT with ``If-None-Match: *``.  Each request takes its time, so a step makes few:
files that belong together are written at once, and what nothing refers to is removed in bulk, by a thread.

An answer can be lost though the store has done what was asked.  Then the next try finds the name taken, by
ourselves.  So who finds a name taken reads it: the bytes say who wrote it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pyarrow as pa

from headgate.checkpoint.storage import Parts, Storage
from headgate.errors import RunError, in_a_line

AT_ONCE = 16
"""Requests that one process makes at the same time."""
HEAD = 4 << 20
"""Bytes from the beginning of a file that are read at once: a step's small states are in one file."""
_HEADS = 16
_TRIES = 3
_RETRY = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}
"""How often, and how long, the client asks again where that does no harm."""
_CLIENT = {"allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout"}
"""Options of connections; all others say where the store is and who asks."""


class ObjectStore(Storage):
    """The objects below a URL.

    ``options`` are those of ``obstore``, by their names there or as environment variables
    (``aws_endpoint``, ``AWS_REGION``); what is not given is taken from the environment of the process, also
    on executors.
    """

    unfit = (
        "a store that does not keep If-None-Match, so two runs could both believe that they own it; use one "
        "that does (S3, Google Cloud Storage, Azure), or a folder that all machines mount."
    )

    def __init__(self, url: str, options: Mapping[str, str] | None = None, *, durable: bool = True) -> None:
        self.root = url.rstrip("/")
        self.durable = durable
        self._options = dict(options or {})
        if self._options:
            _given[self.root] = self._options
        self._gone = _Removals(self)

    def bare(self) -> Storage:
        """Its options are those that this process has been given for the place, or its environment's."""
        return _again(self.root, {}, self.durable, self.fence)

    def __reduce__(self) -> Any:
        return _again, (self.root, self._options, self.durable, self.fence)

    def _make(self) -> None:
        """There are no folders to be made; who can write to the bucket is the store's own business."""

    def create(self, name: str, data: bytes) -> bool:
        store, errors = _client(self.root, self._options)
        last: Exception | None = None
        for _ in range(_TRIES):
            try:
                _obstore().put(store, name, data, mode="create", use_multipart=False)
                return True
            except errors.AlreadyExistsError as error:
                last = error
            except errors.BaseError as error:
                last = error  # it may have been done all the same
            with contextlib.suppress(FileNotFoundError):
                return self.read(name) == data
        assert last is not None
        raise _explained(self.root, name, last) from last

    def write(self, name: str, parts: Parts) -> None:
        data = [bytes(part) for part in parts]
        with self._told(name) as store:
            _obstore().put(store, name, data[0] if len(data) == 1 else b"".join(data))

    def write_all(self, files: Mapping[str, Parts]) -> None:
        if len(files) < 2:
            super().write_all(files)
            return
        with ThreadPoolExecutor(min(len(files), AT_ONCE), "headgate-store") as threads:
            list(threads.map(lambda item: self.write(*item), files.items()))

    def replace(self, name: str, data: bytes) -> None:
        self.write(name, [data])

    def read(self, name: str) -> bytes:
        return bytes(self._get(name))

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        with ThreadPoolExecutor(AT_ONCE, "headgate-store") as threads:
            return list(threads.map(self.read, names))

    def _get(self, name: str) -> Any:
        with self._told(name) as store:
            return _obstore().get(store, name).bytes()

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        if offset + length > HEAD:
            with self._told(name) as store:
                return bytes(_obstore().get_range(store, name, start=offset, length=length))
        key = (self.root, name)
        with _lock:
            head = _heads.get(key)
        if head is None:
            with self._told(name) as store:
                head = bytes(_obstore().get(store, name, options={"range": (0, HEAD)}).bytes())
            with _lock:
                _heads[key] = head
                while len(_heads) > _HEADS:
                    _heads.popitem(last=False)
        return head[offset : offset + length]

    def view(self, name: str) -> pa.Buffer:
        return pa.py_buffer(self._get(name))

    def exists(self, name: str) -> bool:
        try:
            with self._told(name) as store:
                _obstore().head(store, name)
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        with self._told(folder) as store:
            found = _obstore().list_with_delimiter(store, folder)["objects"]
        names = [entry["path"].rpartition("/")[2] for entry in found]
        return sorted(name for name in names if not name.startswith("."))

    def remove(self, *names: str) -> None:
        if not names:
            return
        try:
            with self._told(names[0]) as store:
                _obstore().delete(store, list(names))
        except FileNotFoundError:  # some stores say so, and leave the rest
            for name in names:
                with contextlib.suppress(FileNotFoundError), self._told(name) as store:
                    _obstore().delete(store, name)

    def discard(self, names: Iterable[str]) -> None:
        self._gone.add(names)

    def settle(self) -> None:
        """Wait until what was discarded is gone."""
        self._gone.wait()

    def remove_all(self) -> None:
        with contextlib.suppress(OSError), self._told("") as store:
            for entries in _obstore().list(store):
                self.remove(*[entry["path"] for entry in entries])

    def scratch(self) -> Storage:
        return ObjectStore(f"{self.root}/scratch/{uuid.uuid4().hex}", self._options, durable=False)

    def require_private(self, *names: str) -> None:
        """Who can write to the bucket can run code here; that is for its owner to say, and not visible."""

    @contextlib.contextmanager
    def _told(self, name: str) -> Iterator[Any]:
        """The client; its errors as those of files."""
        store, errors = _client(self.root, self._options)
        try:
            yield store
        except errors.BaseError as error:
            raise _explained(self.root, name, error) from error


class _Removals:
    """Names to be removed, by a thread that lives as long as there are any."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._names: list[str] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, names: Iterable[str]) -> None:
        with self._lock:
            self._names += names
            if self._names and self._thread is None:
                self._thread = threading.Thread(target=self._work, name="headgate-removals", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                names, self._names = self._names, []
                if not names:
                    self._thread = None
                    return
            # What stays is found by the next run that cleans up.
            with contextlib.suppress(OSError):
                self._store.remove(*names)

    def wait(self) -> None:
        thread = self._thread
        if thread is not None:
            thread.join()


_heads: OrderedDict[tuple[str, str], bytes] = OrderedDict()
"""Beginnings of state files, which are written once, read last."""
_clients: dict[Any, Any] = {}
_given: dict[str, dict[str, str]] = {}
"""By place, the options that this process was given for it."""
_lock = threading.Lock()


def _again(root: str, options: dict[str, str], durable: bool, fence: int) -> ObjectStore:
    store = ObjectStore(root, options, durable=durable)
    store.fence = fence
    return store


def _obstore() -> Any:
    try:
        return importlib.import_module("obstore")
    except ImportError:
        raise RunError(
            "A checkpoint in a store needs the package obstore, on the driver and on all executors: "
            "pip install 'headgate[store]'."
        ) from None


def _client(root: str, options: Mapping[str, str]) -> tuple[Any, Any]:
    """The store's client of this process, and the module of its errors."""
    _obstore()
    errors = importlib.import_module("obstore.exceptions")
    options = options or _given.get(root, {})
    key = (root, tuple(sorted(options.items())), os.getpid())
    with _lock:
        found = _clients.get(key)
        if found is None:
            stores = importlib.import_module("obstore.store")
            client: dict[str, Any] = {k: v for k, v in options.items() if k in _CLIENT}
            if "allow_http" in client:
                client["allow_http"] = str(client["allow_http"]).lower() in ("true", "1")
            config = {k: v for k, v in options.items() if k not in _CLIENT}
            try:
                found = stores.from_url(root, config=config, client_options=client, retry_config=_RETRY)
            except (errors.BaseError, ValueError) as error:
                raise RunError(f"checkpoint '{root}' cannot be used: {in_a_line(error)}.") from error
            _clients[key] = found
    return found, errors


def _explained(root: str, name: str, error: Exception) -> OSError:
    return OSError(f"{root}/{name}: {in_a_line(error)}")
