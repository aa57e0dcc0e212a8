"""Batches of Structured Streaming wait for their turn with a policy of ours."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.engines.spark.session import open_session
from headgate.errors import PipelineError
from waiting import SOON, eventually


@pytest.mark.parametrize(
    "policy",
    [*hg.policies.names(), hg.policies.haren(period=0.01)],
    ids=lambda p: p if isinstance(p, str) else p.name,
)
def test_every_batch_has_its_turn_whatever_the_policy(policy: Any) -> None:
    """At most two at a time, and of one query one after the other."""
    pool, inside, most = hg.Pool(policy, at_once=2), set[int](), []
    count = threading.Lock()

    def batches(place: int) -> None:
        for _ in range(5):
            pool.take_turn(place, lambda: work(place))

    def work(place: int) -> None:
        with count:
            assert place not in inside
            inside.add(place)
            most.append(len(inside))
        with count:
            inside.remove(place)

    places = [pool.join(f"q{number}", hg.QoS([(number, 1), (10, 0)])) for number in range(4)]
    threads = [threading.Thread(target=batches, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    report = pool.report()
    assert [query.tuples_out for query in report.queries.values()] == [5] * 4
    assert report.problems == []
    if report.policy != "thread_per_box":
        assert max(most) <= 2


def held(pool: hg.Pool, goals: dict[str, float]) -> list[str]:
    """The order in which batches had their turns that all came while another was worked on."""
    inside, release, order = threading.Event(), threading.Event(), []

    def hold() -> None:
        inside.set()
        assert release.wait(SOON)

    first = pool.join("first", None)
    threads = [threading.Thread(target=pool.take_turn, args=(first, hold))]
    threads[0].start()
    assert inside.wait(SOON)
    for name, goal in goals.items():
        place = pool.join(name, hg.QoS([(goal, 1), (10 * goal, 0)]))
        turn = (place, lambda name=name: order.append(name))
        threads.append(threading.Thread(target=pool.take_turn, args=turn))
        threads[-1].start()
        eventually(lambda name=name: name in pool.waiting, f"{name} does not wait")
    release.set()
    for thread in threads:
        thread.join(SOON)
    return order


def test_who_is_next_is_the_policy_s_to_say() -> None:
    goals = {"loose": 36_000.0, "looser": 72_000.0, "tight": 3_600.0}
    assert held(hg.Pool("qos"), goals) == ["tight", "loose", "looser"]
    assert held(hg.Pool("fcfs"), goals) == ["loose", "looser", "tight"]


def test_a_batch_that_fails_gives_its_turn_back() -> None:
    pool = hg.Pool()
    place = pool.join("q", None)

    def fail() -> None:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            pool.take_turn(place, fail)
    with pytest.raises(PipelineError, match="already a query 'q'; give this one another name="):
        pool.join("q", None)


@pytest.mark.xdist_group("spark")
def test_queries_of_structured_streaming_wait_for_their_turn(tmp_path: Path) -> None:
    """The one that came first is at work; of the others the one with the tighter goal goes first."""
    session: Any = open_session("local[2]", "programs", {}, list).newSession()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"a": 1}\n{"a": 2}\n')
    pool, inside, release, order = hg.Pool("qos"), threading.Event(), threading.Event(), []

    def start(name: str, goal: str) -> Any:
        def each(batch: Any, number: int) -> None:
            if name == "first":
                inside.set()
                assert release.wait(SOON)
            order.append((name, batch.count()))

        frame = session.readStream.schema("a INT").json(str(tmp_path / "in"))
        writer = frame.writeStream.foreachBatch(each).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        return hg.pooled(writer, goal=goal, name=name, pool=pool).start()

    queries = [start("first", "1 minute")]
    assert inside.wait(SOON)
    for name, goal in (("loose", "20 hours"), ("tight", "1 hour")):
        queries.append(start(name, goal))
        eventually(lambda name=name: name in pool.waiting, f"{name} does not wait")
    release.set()
    for query in queries:
        query.awaitTermination()
    assert order == [("first", 2), ("tight", 2), ("loose", 2)]
    report = pool.report()
    assert [query.tuples_out for query in report.queries.values()] == [1, 1, 1]
    assert report.queries["tight"].qos == 1.0

    frame = session.readStream.schema("a INT").json(str(tmp_path / "in"))
    with pytest.raises(PipelineError, match="writes format 'parquet', and only foreachBatch can wait"):
        hg.pooled(frame.writeStream.format("parquet"), goal="1 s")
    with pytest.raises(PipelineError, match=r"what df\.writeStream"):
        hg.pooled(frame)
