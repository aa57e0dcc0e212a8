"""A schema registry: schemas by number, over HTTP, and the five bytes before a value that say which it has.

The interface is Confluent's, which Karapace, Redpanda and Apicurio speak too.
"""

from __future__ import annotations

import base64
import functools
import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import BadRow, HeadgateError

HEADER = 5
"""Bytes before each value: a zero, and the schema's number."""
_TYPE = "application/vnd.schemaregistry.v1+json"
_SECONDS = 10.0
_FORGET = 10.0
"""Seconds after which the registry is asked again for a schema that it did not have."""


class RegistryError(HeadgateError):
    """The registry does not answer, or refuses."""


class Unknown(RegistryError):
    """The registry answers that it has no such schema."""


@dataclass(frozen=True)
class Registered:
    """A schema of the registry; ``texts`` are those that it refers to by (name, text), the deepest first."""

    number: int
    kind: str
    text: str
    texts: tuple[tuple[str, str], ...] = ()


class Registry:
    """A registry at ``url``, which may carry ``user:password@``; made by ``at``.

    What it has told is kept, since a number's schema does not change.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RegistryError(f"registry={url!r} is no address; write registry='http://host:8081'.")
        host = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        """Without the login."""
        self._given = url
        self._login = None
        if parts.username:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._login = "Basic " + base64.b64encode(login.encode()).decode()
        self._lock = threading.Lock()
        self._known: dict[int, Registered] = {}
        self._unknown: dict[int, float] = {}

    def __reduce__(self) -> Any:
        # A worker that has asked this registry does not ask again in its next step.
        return at, (self._given,)

    def schema(self, number: int) -> Registered:
        """The schema of this number; Unknown if there is none."""
        with self._lock:
            if number in self._known:
                return self._known[number]
            if time.monotonic() - self._unknown.get(number, -_FORGET) < _FORGET:
                raise Unknown(f"the registry has no schema {number}")
            try:
                found = self._registered(number, self._ask(f"/schemas/ids/{number}"))
            except Unknown:
                self._unknown[number] = time.monotonic()
                raise Unknown(f"the registry has no schema {number}") from None
            self._known[number] = found
            return found

    def latest(self, subject: str) -> Registered:
        """The newest schema of a subject; Unknown if it has none."""
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        try:
            found = self._ask(path)
        except Unknown:
            raise Unknown(f"The schema registry at {self.url} has no subject '{subject}'.") from None
        return self._registered(int(found["id"]), found)

    def register(self, subject: str, schema: str) -> int:
        """The number of this Avro schema, which is the subject's newest from now on."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        return int(self._ask(path, {"schema": schema, "schemaType": "AVRO"})["id"])

    def _registered(self, number: int, found: dict[str, Any]) -> Registered:
        kind = str(found.get("schemaType", "AVRO"))
        if kind == "PROTOBUF":
            # As bytes of its description; its text would need a compiler.
            found = {**found, **self._ask(f"/schemas/ids/{number}?format=serialized")}
        texts: dict[str, str] = {}
        self._refer(found, kind, texts)
        return Registered(number, kind, str(found["schema"]), tuple(texts.items()))

    def _refer(self, found: dict[str, Any], kind: str, texts: dict[str, str]) -> None:
        for one in found.get("references") or ():
            if one["name"] not in texts:
                how = "?format=serialized" if kind == "PROTOBUF" else ""
                path = f"/subjects/{quote(one['subject'], safe='')}/versions/{one['version']}{how}"
                other = self._ask(path)
                self._refer(other, kind, texts)
                texts[one["name"]] = str(other["schema"])

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Accept": _TYPE, "Content-Type": _TYPE}
        if self._login:
            headers["Authorization"] = self._login
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                return json.load(answer)  # type: ignore[no-any-return]
        except urllib.error.HTTPError as error:
            why = _message(error)
            if error.code == 404:
                raise Unknown(why) from error
            if error.code in (401, 403):
                why = f"it refuses the login ({why}); write registry='http://user:password@host:8081'"
            raise RegistryError(
                f"The schema registry at {self.url} does not answer {path}: {why}."
            ) from error
        except (OSError, ValueError) as error:
            why = str(getattr(error, "reason", error))
            raise RegistryError(f"The schema registry at {self.url} cannot be reached: {why}.") from error


@functools.lru_cache(maxsize=64)
def at(url: str) -> Registry:
    """The registry at this address."""
    return Registry(url)


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"


def numbers(values: pa.Array) -> npt.NDArray[np.int64]:
    """The schema of each value; BadRow for the first that does not say."""
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    if not len(sizes):
        return np.zeros(0, dtype=np.int64)
    short = sizes < HEADER
    if not short.all():
        _, offsets, data = values.buffers()
        starts = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values)]
        bytes_ = np.frombuffer(data, np.uint8)
        head = bytes_[np.where(short, 0, starts)[:, None] + np.arange(HEADER)]
        short |= head[:, 0] != 0
    if short.any():
        raise BadRow(
            "it does not begin with a zero and the number of a schema in the registry", int(short.argmax())
        )
    return head[:, 1:].copy().view(">u4")[:, 0].astype(np.int64)


def behind(values: pa.Array, size: int) -> pa.Array:
    """The values without their first bytes; each has at least so many.

    Not by ``pc.binary_slice``, which fails on values that end there.
    """
    _, offsets, data = values.buffers()
    edges = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    # Begins and ends in turn are offsets: each second element is ours, the others are what lies between.
    both = np.stack([edges[:-1] + size, edges[1:]], axis=1).astype(np.int32).reshape(-1)
    pieces = pa.Array.from_buffers(pa.binary(), max(len(both) - 1, 0), [None, pa.py_buffer(both), data])
    return pieces.take(pa.array(np.arange(0, len(both), 2)))


def header(number: int) -> bytes:
    """What stands before a value of this schema."""
    return b"\0" + number.to_bytes(4, "big")
