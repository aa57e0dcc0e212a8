# ruff: noqa: E501
"""Inputs that nobody would write on purpose; every answer must be a result or an error that explains itself.

``TARGETS`` are functions of a random generator and a folder of their own: each makes one input and gives it
to Headgate.  ``try_one`` says what was wrong with the answer, if anything was; a seed replays its input.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

import headgate as hg
from headgate.api.sql import statements
from headgate.checkpoint import state_store
from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.log import Log
from headgate.checkpoint.position import StatePart
from headgate.connectors.files import FileSource
from headgate.connectors.json_decode import sift
from headgate.control.commands import set_something
from headgate.control.socket import Control
from headgate.engines.spark.queue_files import read_queue, write_queue
from headgate.errors import HeadgateError
from headgate.graph.packet import Order, Packet
from headgate.runtime.report import Overhead, Report, Trace
from headgate.sql import compile_projection

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.float64()),
        ("s", pa.string()),
        ("ts", pa.timestamp("us")),
        ("flag", pa.bool_()),
        ("items", pa.list_(pa.int64())),
        ("point", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {"a": 1, "b": 0.5, "s": "x", "ts": 0, "flag": True, "items": [1, 2], "point": {"x": 1, "y": "p"}},
        {"a": None, "b": None, "s": None, "ts": None, "flag": None, "items": None, "point": None},
        {
            "a": -(1 << 63),
            "b": float("nan"),
            "s": "ä€🙂",
            "ts": 1 << 60,
            "flag": False,
            "items": [],
            "point": {},
        },
    ],
    schema=SCHEMA,
)
EXPRESSIONS = (
    "a + 1 AS n", "b / (a - 1) AS q", "CASE WHEN flag THEN s ELSE upper(s) END AS c", "a IN (1, 2, NULL) AS i",
    "cast(s AS BIGINT) AS n", "date_trunc('hour', ts) AS h", "s LIKE '%x_' AS l", "items[0] AS first",
    "transform(items, x -> x * 2) AS t", "coalesce(point.y, s, 'none') AS y", "ts + INTERVAL '1' DAY AS d",
    "substring(s, 2, 3) || 'z' AS z", "regexp_extract(s, '(a)(b)?', 1) AS r", "a BETWEEN -1 AND 1e3 AS w",
    "aggregate(items, 0, (acc, x) -> acc + x) AS g", "try_divide(a, 0) AS t", "element_at(map('k', a), 'k') AS m",
    "from_json(s, 'x INT') AS j", "format_string('%05d %s', a, s) AS f", "conv(s, 16, 10) AS c",
    "rpad(s, 5, '.') AS p", "cast(b AS DECIMAL(10, 2)) AS d", "hash(a, s) AS h", "split(s, ',')[0] AS f",
)  # fmt: skip
SELECTS = (
    "SELECT a, sum(b) AS total FROM t GROUP BY a, window(ts, '1 minute') HAVING sum(b) > 1",
    "SELECT * FROM t WHERE a > 1 AND s IS NOT NULL", "SELECT t.a, u.s FROM t JOIN u ON t.a = u.a",
    "SELECT a, count(*) OVER (PARTITION BY s ORDER BY ts) AS n FROM t",
    "WITH v AS (SELECT a FROM t) SELECT a + 1 AS n FROM v UNION ALL SELECT a AS n FROM u",
    "SELECT explode(items) AS item, s FROM t", "SELECT DISTINCT s FROM t", "SELECT a FROM t ORDER BY b DESC LIMIT 3",
    "SELECT count(DISTINCT s) AS n, a FROM t GROUP BY a", "SELECT /*+ BROADCAST(u) */ t.a FROM t, u WHERE t.a = u.a",
    "SELECT session_window.start, count(*) AS n FROM t GROUP BY session_window(ts, '5 minutes'), a",
)  # fmt: skip
FILES = (
    "CREATE SOURCE n WITH (from = 'rate', rows_per_second = 10, limit = 5);\n"
    "CREATE VIEW odd AS SELECT value FROM n WHERE value % 2 = 1;\n"
    "CREATE QUERY out WITH (to = 'console', goal = '500 ms') AS SELECT * FROM odd;",
    "CREATE SOURCE c (a BIGINT, ts TIMESTAMP) WITH (from = 'kafka', servers = 'h:1', topic = 't');\n"
    "-- a comment; with a semicolon\nCREATE QUERY q WITH (to = 'console') AS SELECT a FROM c;",
    "CREATE SOURCE f (a BIGINT) WITH (from = 'files', path = 'missing', format = 'csv', lateness = '1 hour');",
)
COMMANDS = tuple(
    json.dumps({"command": command, "arguments": given}).encode() + b"\n"
    for command, given in (
        ("set", {"what": "policy", "value": "qos"}),
        ("set", {"what": "workers", "value": 2}),
        ("set", {"what": "batch", "value": 64}),
        ("set", {"what": "qos", "value": "q=0:1,0.5:1,5:0"}),
        ("set", {"what": "qos", "value": {"query": "q", "points": [[0, 1], [5, 0]]}}),
        ("set", {"what": "remove", "value": ["q"]}),
        ("hello", {}),
    )
)
JSONS = (
    b'{"a": 1, "b": 0.5, "s": "x", "ts": "2024-01-01 00:00:00", "flag": true, "items": [1, 2]}',
    b'{"point": {"x": 1, "y": "p"}, "s": "\\u00e4\\n", "other": [[{}]]}', b"null", b"{}", b'{"a": 1e3, "b": -0}',
)  # fmt: skip
CSV = b'a,b,s,ts,flag\n1,0.5,x,2024-01-01 00:00:00,true\n,,,,\n-3,1e300,"a ""q"", b\nc",1970-01-01,false\n'
TOKENS = (
    "(", ")", ",", "'", '"', "`", "NULL", "-", "9223372036854775808", "1e999", "0", "''", "*", ".", ";", "\x00",
    "AS", "SELECT", "FROM", "OVER", "INTERVAL", "ARRAY", "->", "::", "{", "}", "[", "]", ":", "\\", "\\u0000",
    "\ud83d\ude42".encode("utf-16", "surrogatepass").decode("utf-16"), "--", "/*", "%", "NaN", "true", "\n", "a",
    "s", "ts", "items", "count(*)", "x ->", "0x", "1" * 60, "(" * 40, "[" * 1200, "é", "CAST", "DECIMAL(38, 38)",
)  # fmt: skip
BYTES = (
    b"\xff",
    b"\x00",
    b"\xc3\x28",
    b"\xef\xbb\xbf",
    b"\x80\x80\x80\x80",
    b"\x7f\xff\xff\xff",
    b"\r\n",
    b"\t",
)


def mutated(chance: random.Random, text: str, others: tuple[str, ...] = ()) -> str:
    """The text with some of it gone, doubled, exchanged, or from another one."""
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        at, upto = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        upto = min(upto, at + chance.choice((1, 4, 20)))
        piece = chance.choice(
            ("", chance.choice(TOKENS), f" {chance.choice(TOKENS)} ", text[at:upto] * 2, text[:20])
        )
        if others and chance.random() < 0.2:
            other = chance.choice(others)
            start = chance.randrange(len(other))
            piece = other[start : start + 30]
        text = text[:at] + piece + text[upto:]
    return text


def damaged(chance: random.Random, data: bytes) -> bytes:
    """The bytes with some flipped, gone, or others between them."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(found) + 1)
        what = chance.random()
        if what < 0.4 and at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        elif what < 0.6:
            del found[at : at + chance.choice((1, 8, len(found)))]
        elif what < 0.8:
            found[at:at] = chance.choice(BYTES)
        else:
            found[at:at] = chance.choice(TOKENS).encode("utf-8", "surrogatepass")
    return bytes(found)


def reshaped(chance: random.Random, value: Any, depth: int = 0) -> Any:
    """Data of JSON with something in it exchanged for something of another kind."""
    if depth and (chance.random() < 0.15 or not isinstance(value, (dict, list)) or not value):
        return chance.choice((None, -1, 1 << 70, 0.5, "x", [], {}, [[1]], {"x": 1}, True, value, "9" * 30))
    if isinstance(value, dict):
        key = chance.choice(list(value))
        if chance.random() < 0.2:
            return {name: part for name, part in value.items() if name != key}
        return value | {key: reshaped(chance, value[key], depth + 1)}
    place = chance.randrange(len(value))
    return [*value[:place], reshaped(chance, value[place], depth + 1), *value[place + 1 :]]


# --- what is tried ---------------------------------------------------------------------------------------


def expression(chance: random.Random, folder: Path) -> None:
    text = mutated(chance, chance.choice(EXPRESSIONS), EXPRESSIONS)
    for column in compile_projection([text], SCHEMA):
        column.evaluate(ROWS)


def select(chance: random.Random, folder: Path) -> None:
    app = hg.App("fuzzed")
    for name in ("t", "u"):
        app.source(name, hg.from_batches([ROWS]))
    app.sql(mutated(chance, chance.choice(SELECTS), SELECTS))


def application_file(chance: random.Random, folder: Path) -> None:
    text = mutated(chance, chance.choice(FILES), FILES)
    statements.run(text, hg.App("fuzzed")._session, "app.sql")


def control_message(chance: random.Random, folder: Path) -> None:
    report = Report("threads", "qos", 1, 0.0, 0, {}, {}, Overhead(), Trace())

    def change(change: Any, outputs: Any = ()) -> None:
        change.check(change.chosen or hg.policies.get("qos"), ["q"])

    run: Any = SimpleNamespace(change=change, snapshot=lambda: report, line=None)
    control = Control("fuzzed", {"set": lambda given: set_something(run, given)})
    line = chance.choice(COMMANDS)
    if chance.random() < 0.5:
        line = json.dumps(reshaped(chance, json.loads(line))).encode()
    else:
        line = damaged(chance, line)
    answer = control._answer(line, None)
    json.dumps(answer)
    error = str(answer.get("error", ""))
    assert not (error.startswith("Command") and " failed: " in error), error


@lru_cache
def _checkpoint() -> tuple[Nodes, dict[str, bytes], str]:
    """The files of a log, as the simulated engine's run has left them, and what application they are of."""
    from fault_simulation import runs

    with runs.many():
        application = runs.application("finite")
        for seed in range(1000, 1100):
            made = runs.Simulation(application, seed, faults=0)
            made.run()
            break
    names = [file for file in made.disk.files() if "/log/" in file or "/snapshots/" in file]
    return application.nodes, {n: bytes(made.disk.find(n).data) for n in names}, application.network.name


class _Held:
    """Storage in memory."""

    root, durable = "checkpoint", True

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = {"/".join(name.split("/")[-2:]): data for name, data in files.items()}

    def names(self, folder: str) -> list[str]:
        return sorted(name.split("/")[1] for name in self.files if name.startswith(f"{folder}/"))

    def read(self, name: str) -> bytes:
        return self.files[name]

    def exists(self, name: str) -> bool:
        return True


def commit_log(chance: random.Random, folder: Path) -> None:
    """Records and snapshots with other bytes, or well-formed ones that say something else."""
    nodes, files, app = _checkpoint()
    held: Any = _Held(files)
    name = chance.choice(sorted(held.files))
    if chance.random() < 0.5:
        held.files[name] = damaged(chance, held.files[name])
    else:
        record = reshaped(chance, json.loads(held.files[name].split(b"\n")[0]))
        data = json.dumps(record).encode()
        held.files[name] = data + b"\n%08x\n" % zlib.crc32(data)
    Log(held).recover(nodes, app)


def state_file(chance: random.Random, folder: Path) -> None:
    """With a checksum, as now, or without, as version 0.3 wrote it."""
    data = damaged(chance, _stream())
    (folder / "states").mkdir(mode=0o700, exist_ok=True)
    (folder / "states" / "s.arrow").write_bytes(data)
    check = zlib.crc32(_stream()) if chance.random() < 0.5 else None
    part = StatePart("states/s.arrow", 0, len(data), True, 0, 1, 1, "v", check)
    operator: Any = None  # asked only for a state of an earlier version of its box
    state_store.load(Folder(str(folder)), part, operator)


def _stream() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS.schema) as writer:
        writer.write_batch(ROWS)
    return bytes(sink.getvalue())


def queue_file(chance: random.Random, folder: Path) -> None:
    (folder / "queues").mkdir(exist_ok=True)
    path = folder / "queues" / "q.arrow"
    packet = Packet(ROWS, Order(np.arange(3), np.zeros(3), 3))
    known = asdict(write_queue(Folder(str(folder), durable=False), "queues/q.arrow", packet))
    path.unlink()  # a file that is mapped must not change under its reader
    path.write_bytes(damaged(chance, bytes(_queue(packet, folder))))
    list(read_queue(Folder(str(folder)), "queues/q.arrow", known["check"], SCHEMA))


def _queue(packet: Packet, folder: Path) -> bytes:
    other = folder / "queues" / "whole.arrow"
    write_queue(Folder(str(folder), durable=False), "queues/whole.arrow", packet)
    return other.read_bytes()


def kafka_payload(chance: random.Random, folder: Path) -> None:
    count = chance.choice((1, 3))
    values = [damaged(chance, chance.choice(JSONS)) if chance.random() < 0.8 else None for _ in range(count)]
    source = hg.from_kafka("h:1", "t", schema=SCHEMA)
    column = pa.array(values, pa.binary())

    def read(start: int, stop: int) -> pa.RecordBatch:
        part = column.slice(start, stop - start)
        return source.decode(part, part, part, part, part)

    places, good, bad = sift(count, read)
    assert len(places) + len(bad) == count
    for batch in good:
        batch.to_pylist()


def json_file(chance: random.Random, folder: Path) -> None:
    text = b"\n".join(chance.choice(JSONS) for _ in range(3)) + b"\n"
    _read(folder, "rows.json", damaged(chance, text), None if chance.random() < 0.5 else SCHEMA)


def csv_file(chance: random.Random, folder: Path) -> None:
    schema = pa.schema(list(SCHEMA)[:5]) if chance.random() < 0.7 else None
    _read(folder, "rows.csv", damaged(chance, CSV), schema)


def _read(folder: Path, name: str, data: bytes, schema: Any) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    source = hg.from_files(path, schema=schema)
    assert isinstance(source, FileSource)
    reader = source.open()
    while (found := reader.poll(0.0, 1000)) is not None:
        found.batch.to_pylist()  # type: ignore[union-attr]


TARGETS: dict[str, Callable[[random.Random, Path], None]] = {
    "expressions": expression,
    "SQL": select,
    "application files": application_file,
    "control messages": control_message,
    "commit log": commit_log,
    "state files": state_file,
    "queue files": queue_file,
    "Kafka payloads": kafka_payload,
    "JSON": json_file,
    "CSV": csv_file,
}


def try_one(target: str, seed: int, folder: Path) -> tuple[str, str]:
    """How it went: ``result``, ``error`` with its text, or ``wrong`` and why."""
    try:
        TARGETS[target](random.Random(f"{target} {seed}"), folder)
    except HeadgateError as error:
        text = str(error)
        return ("error", text) if len(text) > 10 else ("wrong", f"an error that says only {text!r}")
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {error}"[:400]
    return "result", ""
