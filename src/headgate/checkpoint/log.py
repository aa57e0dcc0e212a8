"""The commit log: numbered records, each created exclusively; what no record names does not exist.

Records: ``owner`` (a run takes the checkpoint), ``start`` (what its pipeline is), ``intent`` (a step's
ranges, before results become visible outside), ``step`` (a step is done: cursors, state, queues, files to
publish), ``change`` (a query was stopped or restarted).  Every so many records the position is written as a
whole and older records go.

One owner at a time: a new one creates an ``owner`` record where the log ends, and only then reads it.  That
is the very name under which the owner before it would commit next, so whatever that one still tries, however
long it slept, fails there.  Therefore the record of an owner that took over from one which may still be alive
outlives all compaction.

A record is a line of JSON and a line with its checksum.
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from typing import Any

from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.offsets import Extent
from headgate.checkpoint.owner import Claim
from headgate.checkpoint.position import Data, Position
from headgate.checkpoint.storage import Storage
from headgate.errors import RunError

COMPACT_EVERY = 100
_LOG, _SNAPSHOTS = "log", "snapshots"
_IN_POSITION = ("offsets", "sources", "unread", "heirs", "placed", "renamed", "restarted")
"""What a start record says of sources and of what has changed: a snapshot has it in its position."""
FORMAT = 3
"""3: a new version of a pipeline says whose states its boxes take over; 2: sources log what they have
learned, 1: all that they remember; version 0.3 wrote no number."""
_RECORD = re.compile(r"\d{12,}\.json$")
_AGAIN = 5
"""How often recovery starts over because another run, which still compacts, took a record from under it."""


class Log:
    """The log of one checkpoint."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.next = 0
        self.intents: dict[int, Data] = {}
        """Steps that were announced and not committed."""
        self.unpublished: dict[int, list[list[str]]] = {}
        """Files of committed steps that may still have their hidden names, by record."""
        self._taken: list[int] = []
        """Records with which an owner took over from one that may still be alive."""
        self._since_snapshot = 0
        self._at = ""
        """The file that is being taken in."""

    def elsewhere(self, storage: Storage) -> None:
        """Go on in another place, which no owner has been asked to give up."""
        self.storage, self._taken = storage, []

    def take(self, claim: Claim) -> None:
        """Let nothing be committed any more by the owner before."""
        owner = claim.owner
        record = {"kind": "owner", "fence": owner.number, "disputed": claim.disputed}
        record |= {key: getattr(owner, key) for key in ("app", "host", "pid", "since")}
        while True:
            end = max([-1, *(n for folder in (_LOG, _SNAPSHOTS) for n, _ in self._numbered(folder))]) + 1
            if not self._create(f"{_LOG}/{end:012d}.json", record):
                self._check_own(end)
                continue  # the owner before has committed once more
            if all(number < end for number, _ in self._numbered(_SNAPSHOTS)):
                return
            self.storage.remove(f"{_LOG}/{end:012d}.json")  # it has even compacted meanwhile

    def _check_own(self, number: int) -> None:
        """An error that names the run which has taken the checkpoint over, if that is what a record says."""
        with contextlib.suppress(FileNotFoundError):
            record = self._read(_LOG, f"{number:012d}.json")
            if record.get("fence", 0) <= self.storage.fence:
                return
            raise RunError(
                f"checkpoint '{self.storage}': application '{record.get('app', '?')}', process "
                f"{record.get('pid', '?')} of host {record.get('host', '?')}, has taken it over since "
                f"{record.get('since', '?')} (owner {record['fence']}; this run was owner "
                f"{self.storage.fence}). This run stops; what it committed is kept, and the other goes on "
                "from there."
            )

    def recover(self, nodes: Nodes, app: str | None) -> tuple[Position, list[Data], Data | None]:
        """The position that the log tells, steps that were announced and not committed, the last start.

        ``app`` is None for who looks at a checkpoint, whatever its application.
        """
        for left in range(_AGAIN, -1, -1):
            snapshots = [name for _, name in self._numbered(_SNAPSHOTS)]
            try:
                return self._recover(nodes, app, snapshots)
            except (FileNotFoundError, _Gap) as error:
                if left and [name for _, name in self._numbered(_SNAPSHOTS)] != snapshots:
                    continue
                missing = error.record if isinstance(error, _Gap) else self.next
                raise RunError(
                    f"checkpoint '{self.storage.root}': record {missing} of its log is missing; it cannot "
                    "be continued. Restore the folder, or start with a new checkpoint."
                ) from error
            except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
                raise RunError(
                    f"checkpoint '{self.storage.root}': {self._at} is not a record that this version writes "
                    f"({type(error).__name__}: {error}). If a later version of Headgate made it, use that "
                    "one; otherwise restore the folder, or start with a new checkpoint."
                ) from error
        raise AssertionError("unreachable")

    def _recover(
        self, nodes: Nodes, app: str | None, snapshots: list[str]
    ) -> tuple[Position, list[Data], Any]:
        position = Position(nodes)
        start: Data | None = None
        self.next = self._since_snapshot = 0
        self.intents, self.unpublished, self._taken = {}, {}, []
        if snapshots:
            data = self._read(_SNAPSHOTS, snapshots[-1])
            self._check_app(data, app)
            start, self.next = data["start"], data["record"] + 1
            position.load(data["position"])
            self.intents = {intent["step"]: intent for intent in data["intents"]}
            self.unpublished = {int(number): files for number, files in data["unpublished"].items()}
            self._taken = data.get("taken", [])
        after = [(number, name) for number, name in self._numbered(_LOG) if number >= self.next]
        contents = self.storage.read_all([f"{_LOG}/{name}" for _, name in after])
        for (number, name), content in zip(after, contents, strict=True):
            if number != self.next:
                raise _Gap(self.next)
            record = self._decoded(_LOG, name, content)
            if record["kind"] == "start":
                self._check_app(record, app)
                start = record
            self._note(number, record)
            position.apply(record)
            self.next = number + 1
            self._since_snapshot += 1
        if start is not None:
            position.forget_trimmed(start["pipeline"], self._there)
        return position, list(self.intents.values()), start

    def _there(self, extent: Extent) -> bool:
        """Whether rows of a source can still be read, as far as this checkpoint has to keep them."""
        kind, _, name = extent.unit.partition(":")
        return kind != "spool" or self.storage.exists(name)

    def _numbered(self, folder: str) -> list[tuple[int, str]]:
        """Records or snapshots, by number; a file of another name is not ours and stays."""
        return [(int(name[:-5]), name) for name in self.storage.names(folder) if _RECORD.match(name)]

    def _note(self, number: int, record: Data) -> None:
        """What is announced, and what is still to be published, after a record."""
        if record["kind"] == "intent":
            self.intents[record["step"]] = record
        elif record["kind"] == "owner" and record["disputed"]:
            self._taken.append(number)
        elif record["kind"] == "step":
            self._fulfil(record)
        published = record.get("published", 0)
        self.unpublished = {n: files for n, files in self.unpublished.items() if n >= published}
        if record.get("files"):
            self.unpublished[number] = record["files"]

    def _fulfil(self, record: Data) -> None:
        """An announced step is still due for the nodes that have not passed its end."""
        for step in record.get("repeats", ()):  # logs of version 0.3, whose repeats had another number
            self.intents.pop(step, None)
        intent = self.intents.pop(record.get("step", 0), None)
        if intent is None:
            return
        done = record["nodes"]
        left = {k: span for k, span in intent["nodes"].items() if done.get(k, {}).get("cursor", 0) < span[1]}
        if left:
            self.intents[intent["step"]] = {**intent, "nodes": left}

    def _check_app(self, record: Data, app: str | None) -> None:
        written = record.get("start", record).get("format", 0)
        if written > FORMAT:
            raise RunError(
                f"checkpoint '{self.storage.root}' was written by a newer version of Headgate (its log has "
                f"format {written}, this version reads up to {FORMAT}); run it with that version, or start "
                "from a copy or a savepoint that was made before the upgrade."
            )
        if app is not None and record["app"] != app:
            raise RunError(
                f"checkpoint '{self.storage.root}' belongs to application '{record['app']}', not to '{app}'; "
                "give each application a checkpoint of its own."
            )

    def _read(self, folder: str, name: str) -> Any:
        return self._decoded(folder, name, self.storage.read(f"{folder}/{name}"))

    def _decoded(self, folder: str, name: str, content: bytes) -> Any:
        self._at = f"{folder}/{name}"
        try:
            return decode(content)
        except ValueError as error:
            raise RunError(
                f"checkpoint '{self.storage.root}': {folder}/{name} is damaged ({error}); restore the "
                "folder, or start with a new checkpoint."
            ) from error

    def append(self, record: Data) -> int:
        """Make a record durable, if anything of this run is; the lock is the caller's."""
        number = self.next
        record["published"] = min(self.unpublished, default=number)
        record["fence"] = self.storage.fence
        if self.storage.durable and not self._create(f"{_LOG}/{number:012d}.json", record):
            self._check_own(number)
            raise RunError(
                f"checkpoint '{self.storage.root}': another run has written record {self.next} of its log; "
                "is the same application running twice? This run stops, and nothing of it is lost."
            )
        self._note(number, record)
        self.next += 1
        self._since_snapshot += 1
        return number

    def _create(self, name: str, data: Data) -> bool:
        try:
            return self.storage.create(name, encode(data))
        except OSError as error:
            raise RunError(
                f"checkpoint '{self.storage.root}': {name} could not be written: {error.strerror or error}. "
                "What was committed before is safe and nothing else is; see to that (make room, if the disk "
                "is full) and run the application again to go on."
            ) from error

    def published(self, number: int) -> None:
        """The files of that record have their names; the lock is the caller's."""
        self.unpublished.pop(number, None)

    @property
    def due(self) -> bool:
        """Whether it is time to write the position as a whole."""
        return self.storage.durable and self._since_snapshot >= COMPACT_EVERY

    def compact(self, position: Position, start: Data, app: str) -> None:
        """Write the position as a whole and drop what came before; the lock is the caller's."""
        last = self.next - 1
        data = {
            "app": app,
            "record": last,
            "start": {key: value for key, value in start.items() if key not in _IN_POSITION},
            "position": position.to_data(),
            "intents": list(self.intents.values()),
            "unpublished": self.unpublished,
            "taken": self._taken,
        }
        self._create(f"{_SNAPSHOTS}/{last:012d}.json", data)
        old = [(_LOG, n, name) for n, name in self._numbered(_LOG) if n <= last and n not in self._taken]
        old += [(_SNAPSHOTS, n, name) for n, name in self._numbered(_SNAPSHOTS) if n < last]
        self.storage.discard(f"{folder}/{name}" for folder, _, name in old)
        self._since_snapshot = 0


class _Gap(Exception):
    """A record is not there though a later one is."""

    def __init__(self, record: int) -> None:
        super().__init__(record)
        self.record = record


def encode(record: Data) -> bytes:
    data = json.dumps(record, separators=(",", ":")).encode()
    return data + b"\n%08x\n" % zlib.crc32(data)


def decode(data: bytes) -> Any:
    """A record again; ValueError if it is not what was written."""
    text, _, checksum = data.rstrip(b"\n").rpartition(b"\n")
    if not text or int(checksum, 16) != zlib.crc32(text):
        raise ValueError("its checksum does not fit")
    return json.loads(text)
