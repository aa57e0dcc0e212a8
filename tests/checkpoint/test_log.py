"""The parts that recovery rests on, without Spark: serials, the position, the log, and exclusive creation."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.checkpoint import log as logs
from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.local_folder import Folder
from headgate.checkpoint.log import Log, decode, encode
from headgate.checkpoint.offsets import Admitted, Extent, Offsets
from headgate.checkpoint.position import Position, QueueFile
from headgate.errors import PipelineError, RunError
from headgate.runtime.admission import Admission

SIZES = st.lists(st.integers(0, 5000), min_size=1, max_size=4)


def batches(rows: int) -> Any:
    table = pa.RecordBatch.from_pydict({"x": pa.array(range(rows), pa.int64())})
    return hg.from_batches([table])


# --- serials ----------------------------------------------------------------------------------------------


@given(SIZES, st.integers(1, 5000))
def test_turns_are_the_order_of_admission(sizes: list[int], packet_rows: int) -> None:
    """A formula over the sizes says what every engine's admission does, and when a source is known to end."""
    app = hg.App("turns")
    sources = [app.source(f"s{place}", batches(rows)) for place, rows in enumerate(sizes)]
    for place, source in enumerate(sources):
        source.to(f"q{place}", hg.to_list([]))
    admission = Admission(app.network.sources, packet_rows)
    serials: list[list[int]] = [[] for _ in sizes]
    while not admission.ended or sum(map(len, serials)) < sum(sizes):
        found = admission.poll(0.0)
        for place, packet in found if isinstance(found, list) else ():
            serials[place] += packet.order.serials.tolist()
    offsets = Offsets(len(sizes))
    offsets.take_turns([[Extent(f"u{p}", 0, rows)] if rows else [] for p, rows in enumerate(sizes)])
    for own, wanted, entry in zip(offsets.sources, serials, admission.entries, strict=True):
        assert [own.serial(row) for row in range(own.rows)] == wanted
        assert [s for piece in own.pieces(0, offsets.next_serial) for s in _listed(piece)] == wanted
        assert own.ended_at == entry.ended_at
    assert offsets.next_serial == sum(sizes)


def _listed(piece: Any) -> list[int]:
    serials = piece.serials()
    return list(range(serials, serials + piece.rows)) if isinstance(serials, int) else serials.tolist()


@st.composite
def admitted(draw: Any) -> Admitted:
    """A source's extents: in turns with others, or among others' as they arrived."""
    extents = draw(st.lists(st.integers(1, 3000), max_size=5))
    if draw(st.booleans()):
        offsets = Offsets(2)
        other = draw(st.integers(0, 4000))
        offsets.take_turns([[Extent(f"u{i}", 5, n) for i, n in enumerate(extents)], [Extent("o", 0, other)]])
        return offsets.sources[0]
    offsets = Offsets(2)
    for number, rows in enumerate(extents):
        offsets.admit(1, Extent("o", 0, draw(st.integers(1, 50))))
        offsets.admit(0, Extent(f"u{number}", 5, rows))
    return offsets.sources[0]


@given(admitted(), st.integers(0, 12_000), st.integers(0, 12_000))
def test_pieces_below_and_serial_agree(own: Admitted, one: int, other: int) -> None:
    low, high = sorted((one, other))
    serials = [own.serial(row) for row in range(own.rows)]
    assert own.below(low) == sum(serial < low for serial in serials)
    pieces = own.pieces(low, high)
    assert [s for piece in pieces for s in _listed(piece)] == [s for s in serials if low <= s < high]
    units = [(piece.unit, row) for piece in pieces for row in range(piece.first, piece.first + piece.rows)]
    everything = [(e.unit, row) for e in own.extents for row in range(e.first, e.first + e.rows)]
    assert units == [unit for unit, s in zip(everything, serials, strict=True) if low <= s < high]


@given(admitted(), st.integers(0, 12_000), st.integers(0, 12_000))
def test_what_is_forgotten_is_only_what_is_behind(own: Admitted, passed: int, upto: int) -> None:
    before = own.pieces(passed, max(upto, passed))
    own.forget(passed)
    assert own.pieces(passed, max(upto, passed)) == before


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), max_size=8), st.data())
def test_ages_of_what_waits_are_those_of_its_rows(extents: list[tuple[int, int]], data: Any) -> None:
    """Whatever has been forgotten, and whatever of another source lies between."""
    own, arrivals, now = Admitted(), [], 1.8e9
    serial = 0
    for rows, later in extents:
        now += later / 8
        own.add(Extent("u", 0, rows, now), serial)
        arrivals += [(serial + row, now) for row in range(rows)]
        serial += rows + 3
    low, high = sorted(data.draw(st.tuples(st.integers(0, serial), st.integers(0, serial))))
    own.forget(data.draw(st.integers(0, low)))
    waiting = [arrival for at, arrival in arrivals if low <= at < high]
    found = own.arrivals(low, high)
    assert (found is None) == (not waiting)
    if found is not None:
        assert found == (min(waiting), pytest.approx(sum(a - 1.8e9 for a in waiting) / len(waiting) + 1.8e9))


def test_a_queue_file_is_divided_at_its_cuts() -> None:
    file = QueueFile("f", 10, 4, 9, [(4, 0), (6, 3), (9, 8)])
    assert [file.below(serial) for serial in range(3, 12)] == [0, 0, 0, 3, 3, 3, 8, 10, 10]


# --- the position and the log -----------------------------------------------------------------------------


def network() -> Nodes:
    app = hg.App("logged")
    rows = app.source("rows", batches(3))
    rows.filter("x > 1").to("some", hg.to_list([]))
    rows.key_by("x").running("count(*) AS n").to("counts", hg.to_list([]))
    return Nodes(app.network)


NODES = network()
KEYS = [node.key for node in NODES.all]
PART = st.builds(
    lambda file, full: {
        "file": f"states/{file}", "offset": 0, "length": 9, "full": full, "low": 0, "high": 1, "buckets": 1,
        "version": str(file),
    },
    st.integers(0, 99), st.booleans(),
)  # fmt: skip
QUEUED = st.builds(
    lambda name, first: {
        "name": f"queues/{name}", "rows": 2, "first": first, "last": first + 3, "cuts": [[first, 0]],
        "arrival": 1.5,
    },
    st.integers(0, 99), st.integers(0, 500),
)  # fmt: skip
CHANGE = st.fixed_dictionaries(
    {"cursor": st.integers(0, 500)},
    optional={
        "late": st.integers(0, 9),
        "queued": st.fixed_dictionaries({"0": st.lists(QUEUED, max_size=2)}),
    },
) | st.builds(lambda parts: {"state": parts}, st.lists(PART, min_size=1, max_size=2))
STEP = st.builds(
    lambda step, nodes, rows, files: {
        "kind": "step",
        "step": step,
        "nodes": nodes,
        "admitted": [[0, ["unit", 0, rows, 2.5]]] if rows else [],
        "sources": {"rows": {"files": rows, "read": {}}} if rows % 5 == 0 else {},
        "learned": {"rows": {"files": rows, "read": {f"f{rows}": [rows, step]}}} if rows % 5 else {},
        "files": [[f"a{f}", f"b{f}"] for f in files],
    },
    st.integers(1, 99),
    st.dictionaries(st.sampled_from([*KEYS, "of an earlier pipeline"]), CHANGE, max_size=3),
    st.integers(0, 50),
    st.lists(st.integers(0, 9), max_size=2),
)
INTENT = st.builds(lambda step: {"kind": "intent", "step": step, "nodes": {}}, st.integers(1, 99))
FAILED = st.builds(
    lambda query, why: {"kind": "change", "failed": {query: why}},
    st.sampled_from(["some", "counts"]),
    st.none() | st.text(),
)
RECORDS = st.lists(STEP | INTENT | FAILED, max_size=12)


def start() -> dict[str, Any]:
    return {
        "kind": "start",
        "app": "logged",
        "clock": 5.0,
        "pipeline": NODES.describe(),
        "buckets": 8,
        "next": 0,
    }


@given(RECORDS, st.integers(0, 12))
def test_a_position_survives_being_written_at_any_record(records: list[dict[str, Any]], prefix: int) -> None:
    whole, restored = Position(NODES), Position(NODES)
    half = Position(NODES)
    for record in [start(), *records]:
        whole.apply(json.loads(json.dumps(record)))
    for record in [start(), *records][:prefix]:
        half.apply(json.loads(json.dumps(record)))
    restored.load(json.loads(json.dumps(half.to_data())))
    for record in [start(), *records][prefix:]:
        restored.apply(json.loads(json.dumps(record)))
    assert json.dumps(restored.to_data()) == json.dumps(whole.to_data())
    assert restored.files() == whole.files()


@given(RECORDS, st.integers(1, 5), st.integers(0, 3))
def test_a_log_tells_the_same_however_often_it_is_compacted(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], every: int, behind: int
) -> None:
    """What was announced, what is to be published and the position, while some files wait for their names."""
    storage = Folder(str(tmp_path_factory.mktemp("log")))
    position, log = Position(NODES), Log(storage)
    waiting: list[int] = []
    with mock.patch.object(logs, "COMPACT_EVERY", every):
        for record in [start(), *records]:
            waiting.append(log.append(record))
            position.apply(record)
            while len(waiting) > behind:
                log.published(waiting.pop(0))
            if log.due:
                log.compact(position, start(), "logged")
    again = Log(storage)
    found, intents, begun = again.recover(NODES, "logged")
    assert json.dumps(found.to_data()) == json.dumps(json.loads(json.dumps(position.to_data())))
    assert intents == list(log.intents.values())
    # A file may be published twice, which does nothing, but never not at all.
    assert set(log.unpublished) <= set(again.unpublished)
    assert begun is not None
    assert again.next == log.next


@given(st.binary(min_size=1, max_size=40), st.data())
def test_a_record_that_was_changed_is_noticed(noise: bytes, data: Any) -> None:
    written = encode({"kind": "step", "nodes": {"a": {"cursor": 12}}})
    at = data.draw(st.integers(0, len(written) - 2))
    changed = written[:at] + noise + written[at + len(noise) :]
    if changed.rstrip(b"\n") != written.rstrip(b"\n"):
        with pytest.raises(ValueError):
            decode(changed)


def test_two_logs_cannot_both_append(tmp_path: Path) -> None:
    one, other = (Log(Folder(str(tmp_path))) for _ in range(2))
    one.append(start())
    with pytest.raises(RunError, match="another run has written record 0"):
        other.append(start())


# --- exclusive creation -----------------------------------------------------------------------------------


def test_of_many_threads_one_creates_a_name(tmp_path: Path) -> None:
    storage = Folder(str(tmp_path), durable=False)
    for number in range(50):
        gate, won = threading.Barrier(8), []

        def create(who: int, number: int = number, gate: Any = gate, won: Any = won) -> None:
            gate.wait()
            if storage.create(f"log/{number}", b"%d" % who * 1000):
                won.append(who)

        threads = [threading.Thread(target=create, args=(who,)) for who in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert storage.read(f"log/{number}") == b"%d" % won[0] * 1000
    assert [path.name for path in (tmp_path / "log").iterdir() if path.name.startswith(".")] == []


def test_of_two_processes_one_creates_a_name(tmp_path: Path) -> None:
    code = """
import sys
from headgate.checkpoint.local_folder import Folder
storage = Folder(sys.argv[1], durable=False)
print(*[number for number in range(300) if storage.create(f"log/{number}", sys.argv[2].encode())])
"""
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), who], stdout=subprocess.PIPE, text=True)
        for who in ("a", "b")
    ]
    made = [set(map(int, process.communicate(timeout=100)[0].split())) for process in both]
    assert made[0] | made[1] == set(range(300))
    assert not made[0] & made[1]
    for who, numbers in zip("ab", made, strict=True):
        assert all((tmp_path / "log" / str(number)).read_text() == who for number in numbers)


def test_a_store_that_cannot_be_reached_is_refused() -> None:
    with pytest.raises(
        PipelineError, match=r"\(hdfs:\) that Headgate cannot reach. It can be in s3://, s3a://"
    ):
        hg.Spark(checkpoint="hdfs://host/checkpoint")
    with pytest.raises(PipelineError, match="must name a place in a bucket, as text"):
        hg.Spark(checkpoint=Path("s3://bucket/checkpoint"))
