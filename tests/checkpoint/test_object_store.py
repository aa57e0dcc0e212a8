"""A checkpoint in an object store: the promise, kept by a real server of S3, and what requests it costs."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from headgate.checkpoint.log import Log
from headgate.checkpoint.object_store import ObjectStore
from headgate.checkpoint.owner import claim
from headgate.errors import RunError
from object_stores import BUCKET, Way, options
from waiting import PATIENCE


@pytest.fixture
def place(way: Way, request: pytest.FixtureRequest) -> ObjectStore:
    return at(way.address, request.node.name)


def at(address: str, name: str) -> ObjectStore:
    return ObjectStore(f"s3a://{BUCKET}/{name}", options(address))


def test_of_many_writers_one_creates_a_name(s3: str) -> None:
    """The server keeps the precondition: without that all other tests here would say nothing."""
    stores = [at(s3, "races") for _ in range(6)]
    for number in range(20):
        gate, won = threading.Barrier(len(stores)), []

        def create(who: int, number: int = number, gate: Any = gate, won: Any = won) -> None:
            gate.wait()
            if stores[who].create(f"log/{number}", b"%d" % who):
                won.append(who)

        threads = [threading.Thread(target=create, args=(who,)) for who in range(len(stores))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert stores[0].read(f"log/{number}") == b"%d" % won[0]


def test_a_store_that_does_not_know_preconditions_is_refused(way: Way, place: ObjectStore) -> None:
    place.prepare()
    way.blind = True
    with pytest.raises(RunError, match=r"is on a store that does not keep If-None-Match, so two runs could"):
        place.prepare()


def test_a_store_that_does_not_answer_is_refused_by_its_name() -> None:
    nowhere = {**options("http://127.0.0.1:1"), "timeout": "1s"}
    store = ObjectStore(f"s3://{BUCKET}/x", nowhere)
    with pytest.raises(RunError, match=r"checkpoint 's3://bucket/x' cannot be used: s3://bucket/x/.probe-"):
        store.prepare()


def test_files_are_what_was_written(place: ObjectStore) -> None:
    place.write("states/a", [b"abc", memoryview(b"def")])
    place.write_all({f"queues/{number}": [b"%d" % number] for number in range(5)})
    assert place.read("states/a") == place.view("states/a").to_pybytes() == b"abcdef"
    assert place.read_part("states/a", 2, 3) == b"cde"
    assert place.read_part("states/a", 4, 9) == b"ef"
    assert place.names("queues") == ["0", "1", "2", "3", "4"]
    assert place.names("nothing") == []
    assert place.exists("queues/3")
    place.replace("queues/3", b"new")
    assert place.read("queues/3") == b"new"
    place.remove("queues/3", "queues/4", "queues/never")
    place.discard(["queues/2", "queues/1"])
    place.settle()
    assert place.names("queues") == ["0"]
    assert not place.exists("queues/3")
    for missing in (place.read, place.view, lambda name: place.read_part(name, 0, 9)):
        with pytest.raises(FileNotFoundError):
            missing("queues/3")
    inside = place.scratch()
    inside.write("slots/1", [b"x"])
    inside.remove_all()
    assert inside.names("slots") == []
    assert place.names("queues") == ["0"]


def test_a_task_opens_the_place_that_the_driver_has(place: ObjectStore) -> None:
    place.fence = 7
    place.write("slots/7-0", [b"order"])
    there: ObjectStore = pickle.loads(pickle.dumps(place))
    assert (there.root, there.fence, there.durable) == (place.root, 7, True)
    assert there.read("slots/7-0") == b"order"


def test_a_create_whose_answer_is_lost_is_known_to_be_ones_own(way: Way, place: ObjectStore) -> None:
    """The store has done it; who asks again must not take itself for another run."""
    losses = iter([True])
    way.lost = lambda method, key: method == "PUT" and next(losses, False)
    assert place.create("log/0", b"mine")
    assert place.read("log/0") == b"mine"
    assert next(losses, None) is None, "an answer was lost"
    assert not at(way.address, place.root.rpartition("/")[2]).create("log/0", b"another's")


def test_an_owner_of_a_store_is_fenced(way: Way, place: ObjectStore) -> None:
    name = place.root.rpartition("/")[2]
    first, second = place, at(way.address, name)
    held = claim(first, "shop")
    log = Log(first)
    log.take(held)
    log.next = 1
    log.append({"kind": "change"})
    other = claim(second, "shop", take_over=True)
    Log(second).take(other)
    with pytest.raises(RunError, match="has taken it over since 20"):
        log.append({"kind": "change"})
    held.release()
    other.release()
    assert claim(at(way.address, name), "shop").owner.number == 3


def test_a_record_costs_one_request(way: Way, place: ObjectStore) -> None:
    log = Log(place)
    way.seen.clear()
    for _ in range(5):
        log.append({"kind": "change"})
    assert [method for method, _ in way.seen] == ["PUT"] * 5


def test_what_is_discarded_is_removed_in_bulk(way: Way, place: ObjectStore) -> None:
    names = [f"states/{number}" for number in range(50)]
    place.write_all({name: [b"x"] for name in names})
    way.seen.clear()
    place.discard(names)
    place.settle()
    assert [method for method, _ in way.seen] == ["POST"]
    assert place.names("states") == []


def test_files_that_belong_together_are_written_and_read_at_once(way: Way, place: ObjectStore) -> None:
    """No answer comes before all have been asked for."""
    names = [f"queues/{number}" for number in range(8)]
    gate = threading.Barrier(len(names))
    way.lost = lambda method, key: "queues" in key and gate.wait(PATIENCE) < 0
    place.write_all({name: [name.encode()] for name in names})
    assert place.read_all(names) == [name.encode() for name in names]


def test_many_small_states_of_a_file_cost_one_request(way: Way, place: ObjectStore) -> None:
    place.write("states/f", [b"%03d" % number for number in range(200)])
    way.seen.clear()
    assert [place.read_part("states/f", 3 * n, 3) for n in range(200)] == [b"%03d" % n for n in range(200)]
    assert len(way.seen) == 1
