"""Bugs to plant in Headgate's own code: the simulation must find each, or it has gone blind."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

from fault_simulation.runs import always, simulate
from fault_simulation.world import Wrong
from headgate.checkpoint import disk, local_folder, state_store
from headgate.engines.spark import parts, queue_files, workers
from headgate.engines.spark.core import SparkCore
from headgate.engines.spark.engine import _Run
from headgate.engines.spark.planner import Planner

Bug = Callable[[], Any]
"""A patch to enter."""


class _NoSync:
    """``os`` without ``fsync``."""

    def __getattr__(self, name: str) -> Any:
        return (lambda handle: None) if name == "fsync" else getattr(os, name)


def _no_file_sync() -> Any:
    return mock.patch.object(local_folder, "os", _NoSync())


def _no_part_sync() -> Any:
    return mock.patch.object(parts, "os", _NoSync())


def _no_name_sync() -> Any:
    return mock.patch.object(disk, "sync_folder", always(None))


def _no_fence() -> Any:
    made = local_folder.Folder.create

    def create(self: Any, name: str, data: bytes) -> bool:
        if not name.startswith("log/"):
            return made(self, name, data)
        self.write(name, [data])
        return True

    return mock.patch.object(local_folder.Folder, "create", create)


def _no_intent() -> Any:
    log_record = _Run.log_record

    def unless_intent(self: Any, record: Any) -> int:
        return -1 if record["kind"] == "intent" else log_record(self, record)

    return mock.patch.object(_Run, "log_record", unless_intent)


def _no_turn() -> Any:
    return mock.patch.object(SparkCore, "turn", always(True))


def _new_number() -> Any:
    order = Planner.order
    return mock.patch.object(Planner, "order", lambda self, members, number=None: order(self, members))


def _publish_first() -> Any:
    """Parts get their names before the record that names them."""
    log_record = _Run.log_record

    def early(self: Any, record: Any) -> int:
        if record.get("files"):
            workers.folder.publish(record["files"], durable=True)
        return log_record(self, record)

    return mock.patch.object(_Run, "log_record", early)


def _any_version() -> Any:
    """A worker takes the state that it has, whatever it holds."""
    take = state_store.take

    def careless(storage: Any, key: str, operator: Any, wanted: Sequence[Any], shard: Any) -> Any:
        known = state_store._cache.pop((storage.root, key, shard), None)
        return (known[1], True) if known else take(storage, key, operator, wanted, shard)

    return mock.patch.object(state_store, "take", careless)


def _refused_twice() -> Any:
    """Rows that a sink refuses again are queued again."""
    keep = queue_files.keep_for_later

    def again(*given: Any) -> Any:
        found = keep(*given)
        found.pop("unqueued", None)
        return found

    return mock.patch.object(workers, "keep_for_later", again)


def _no_repair() -> Any:
    """What was committed and not published before a crash is forgotten."""
    return mock.patch("headgate.engines.spark.engine.publish", always(None))


BUGS: dict[str, Bug] = {
    "no sync of a record": _no_file_sync,
    "no sync of a part": _no_part_sync,
    "no sync of a name": _no_name_sync,
    "no fence": _no_fence,
    "no intent": _no_intent,
    "no turn": _no_turn,
    "a repeat gets a new number": _new_number,
    "parts published before the commit": _publish_first,
    "a state of another version": _any_version,
    "refused rows queued twice": _refused_twice,
    "unpublished parts forgotten": _no_repair,
}
"""The first seven are those that issue 23 names."""


def find(bug: Bug, most: int) -> SimpleNamespace:
    """The first seed that fails with a bug in place; ``seed`` is None if none does."""
    with bug():
        for seed in range(most):
            try:
                simulate(seed)
            except Wrong as error:
                return SimpleNamespace(seed=seed, why=str(error))
    return SimpleNamespace(seed=None, why="")
