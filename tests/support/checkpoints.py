"""What tests of recovery share: orders in files, what was made of them, and runs that crash where told to."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

import headgate as hg
from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.storage import Parts, Storage

ORDERS = pa.schema([("user", pa.int64()), ("amount", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])
START = datetime(2026, 1, 1, tzinfo=UTC)
Rows = list[dict[str, Any]]


def write_orders(folder: Path, files: int, rows_of_file: int, seed: int, *, first: int = 0) -> None:
    """Orders of thirty users, a little out of order; the last one comes long after and closes the others'."""
    chance = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    second = 1000.0 * first
    for number in range(first, first + files):
        data = []
        for _ in range(rows_of_file):
            second += chance.random() * 0.4
            at = START + timedelta(seconds=second - chance.random() * 12)
            data.append({"user": chance.randrange(30), "amount": chance.randrange(100), "ts": at})
        if number == first + files - 1:
            data.append({"user": 99, "amount": 99, "ts": START + timedelta(seconds=1000 * (first + files))})
        put_file(folder, f"orders-{number:03d}.parquet", pa.Table.from_pylist(data, ORDERS))


def put_file(folder: Path, name: str, table: pa.Table) -> None:
    """Move a file into a folder that somebody may be watching."""
    pq.write_table(table, folder / f".{name}")
    (folder / f".{name}").rename(folder / name)


def read(folder: Path) -> Rows:
    """The rows of a folder's files, in order; hidden ones are not there yet."""
    return [row for part in sorted(folder.glob("[!.]*.parquet")) for row in pq.read_table(part).to_pylist()]


def results(out: Path) -> dict[str, Rows]:
    return {folder.name: read(folder) for folder in sorted(out.iterdir())}


class Crash(BaseException):
    """The driver dies here; nothing handles it."""


@contextmanager
def crashing(
    count: int, *, after: bool = False, kind: str = "log", storage: type[Storage] = Folder
) -> Iterator[None]:
    """The ``count``-th file of a kind that a run creates kills it, before the file is there or just after.

    The record with which it takes the checkpoint does not count.
    """
    create: Callable[..., bool] = storage.create
    left = [count]

    def create_or_crash(self: Storage, name: str, data: bytes) -> bool:
        if not name.startswith(f"{kind}/") or b'"kind":"owner"' in data:
            return create(self, name, data)
        left[0] -= 1
        if left[0] < 0 or (left[0] == 0 and not after):
            raise Crash  # and nothing that this run still tries is written
        found = create(self, name, data)
        if left[0] == 0:
            raise Crash
        return found

    with mock.patch.object(storage, "create", create_or_crash):
        yield


@contextmanager
def full_disk(count: int) -> Iterator[None]:
    """The disk is full from the ``count``-th record on."""
    write: Callable[..., None] = Folder._write
    left = [count]

    def write_or_fail(self: Folder, path: Path, data: Parts) -> None:
        if path.parent.name == "log":
            left[0] -= 1
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, path, data)

    with mock.patch.object(Folder, "_write", write_or_fail):
        yield


def run_until(app: hg.App, engine: hg.Engine, enough: Callable[[], bool], **options: Any) -> hg.Report:
    """Run an application whose sources never end until ``enough`` says so."""

    def look(report: hg.Report) -> None:
        errors = [str(query.error) for query in report.queries.values() if query.error is not None]
        if enough() or (errors and not options.get("errors")):
            raise KeyboardInterrupt

    return app.run(engine, options.get("policy", "round_robin"), until=None, progress=look)
