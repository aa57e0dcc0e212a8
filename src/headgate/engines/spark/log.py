"""The commit log: numbered records, each created exclusively; what no record names does not exist.

Records: ``start`` (a run begins; what its pipeline is), ``intent`` (a step's ranges, before results become
visible outside), ``step`` (a step is done: cursors, state, queues, files to publish), ``change`` (a query was
stopped or restarted).  Every so many records the position is written as a whole and older records go.
"""

from __future__ import annotations

import json
import threading
from typing import Any

from headgate.engines.spark.nodes import Nodes
from headgate.engines.spark.position import Data, Position
from headgate.engines.spark.storage import Storage
from headgate.errors import RunError

COMPACT_EVERY = 100
_LOG, _SNAPSHOTS = "log", "snapshots"


class Log:
    """The log of one checkpoint."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.lock = threading.Lock()
        self.next = 0
        self._since_snapshot = 0

    def recover(self, nodes: Nodes, app: str) -> tuple[Position, list[Data], Data | None]:
        """The position that the log tells, steps that were announced and not committed, the last start."""
        position = Position(nodes)
        start: Data | None = None
        intents: dict[int, Data] = {}
        publish: list[Data] = []
        snapshots = self.storage.names(_SNAPSHOTS)
        if snapshots:
            data = self._read(_SNAPSHOTS, snapshots[-1])
            self._check_app(data, app)
            start, self.next = data["start"], data["record"] + 1
            position.load(data["position"])
            intents = {intent["step"]: intent for intent in data["intents"]}
        for name in self.storage.names(_LOG):
            number = int(name.removesuffix(".json"))
            if number < self.next:
                continue
            if number != self.next:
                raise RunError(
                    f"checkpoint '{self.storage.root}': record {self.next} of its log is missing; it cannot "
                    "be continued. Restore the folder, or start with a new checkpoint."
                )
            record = self._read(_LOG, name)
            if record["kind"] == "start":
                self._check_app(record, app)
                start = record
            elif record["kind"] == "intent":
                intents[record["step"]] = record
            elif record["kind"] == "step":
                intents.pop(record["step"], None)
                publish.append(record)
            position.apply(record)
            self.next = number + 1
            self._since_snapshot += 1
        self.to_publish = publish
        return position, list(intents.values()), start

    def _check_app(self, record: Data, app: str) -> None:
        if record["app"] != app:
            raise RunError(
                f"checkpoint '{self.storage.root}' belongs to application '{record['app']}', not to '{app}'; "
                "give each application a checkpoint of its own."
            )

    def _read(self, folder: str, name: str) -> Any:
        try:
            return json.loads(self.storage.read(f"{folder}/{name}"))
        except ValueError as error:
            raise RunError(
                f"checkpoint '{self.storage.root}': {folder}/{name} is damaged ({error}); restore the "
                "folder, or start with a new checkpoint."
            ) from error

    def append(self, record: Data) -> int:
        """Make a record durable; the lock is the caller's."""
        name = f"{_LOG}/{self.next:012d}.json"
        if not self.storage.create(name, json.dumps(record, separators=(",", ":")).encode()):
            raise RunError(
                f"checkpoint '{self.storage.root}': somebody else has written record {self.next} of its log; "
                "is the same application running twice? This run stops, and nothing of it is lost."
            )
        self.next += 1
        self._since_snapshot += 1
        return self.next - 1

    @property
    def due(self) -> bool:
        """Whether it is time to write the position as a whole."""
        return self._since_snapshot >= COMPACT_EVERY

    def compact(self, position: Position, start: Data, app: str, intents: list[Data]) -> None:
        """Write the position as a whole and drop what came before."""
        last = self.next - 1
        data = {
            "app": app,
            "record": last,
            "start": start,
            "position": position.to_data(),
            "intents": intents,
        }
        self.storage.create(f"{_SNAPSHOTS}/{last:012d}.json", json.dumps(data).encode())
        for name in self.storage.names(_LOG):
            if int(name.removesuffix(".json")) <= last:
                self.storage.remove(f"{_LOG}/{name}")
        for name in self.storage.names(_SNAPSHOTS)[:-1]:
            self.storage.remove(f"{_SNAPSHOTS}/{name}")
        self._since_snapshot = 0
