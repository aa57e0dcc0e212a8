"""Requests (Bobox, section 3): they join a running application, end with their sources, and leave nothing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate import testing
from headgate.engines.simulated.run import SimulatedRun
from headgate.graph.network import is_vacant
from headgate.machine.topology import GIB, Cache, Node, Topology
from waiting import PATIENCE, Held, eventually

Rows = list[dict[str, Any]]
COUNT = 1_100
"""Rows of a request's source: more than one turn of 1,024."""
TWO_NODES = Topology(
    "two-nodes",
    (Node(0, (0, 1), GIB), Node(1, (2, 3), GIB)),
    (Cache(3, 1 << 20, (0, 1)), Cache(3, 1 << 20, (2, 3))),
)


def batches(step: int) -> hg.Source:
    return hg.from_batches([pa.record_batch({"a": [step * i for i in range(COUNT)]})])


def request(name: str, out: Rows, *, fails: bool = False) -> hg.App:
    """Two sources of its own that meet, and a state that closes only at the end."""
    made = hg.App(name)
    left = made.source("numbers", batches(1)).filter("a >= 0", name="keep")
    right = made.source("more", batches(-1))
    if fails:
        right = right.flat_map_rows(broken, schema=right.schema, name="broken")
    both = left.union(right).with_columns("timestamp_micros(a) AS ts", "abs(a) % 3 AS k", name="keyed")
    hours = hg.tumbling("1 hour", on="ts", lateness="1 hour")
    both.key_by("k").window(hours).agg("count(*) AS n", "sum(a) AS s", name="count").to(name, hg.to_list(out))
    return made


def broken(row: dict[str, Any]) -> Rows:
    raise ValueError("no such page")


def answers() -> Rows:
    out: Rows = []
    request("alone", out).run(hg.Simulated(workers=1), "round_robin")
    assert sum(row["n"] for row in out) == 2 * COUNT
    return out


def test_requests_join_end_with_their_sources_and_leave_the_application_as_it_was(engine: hg.Engine) -> None:
    """Its sources have the names of the application's; its windows close, though the application goes on."""
    expected, released = answers(), []
    app, standing = hg.App("standing"), []
    numbers = app.source("numbers", Held(2_000, 400, 50, lambda: released))
    numbers.filter("value % 2 = 0", name="keep").to("even", hg.to_list(standing))
    with app.start(engine, "bobox", 2, until="drained") as running:
        outs: list[Rows] = [[], []]
        asked = [running.request(request(f"q{i}", out)) for i, out in enumerate(outs)]
        reports = [answer.wait(PATIENCE) for answer in asked]
        assert outs == [expected, expected]
        assert [report[f"q{i}"].tuples_in for i, report in enumerate(reports)] == [2 * COUNT] * 2
        with pytest.raises(hg.HeadgateError, match=r"'bad' failed: .*no such page"):
            running.request(request("bad", [], fails=True)).wait(PATIENCE)
        with pytest.raises(hg.HeadgateError, match="has or had a query 'even'"):
            running.request(request("even", []))
        report = running.report()
        assert set(report.queries) == {"even"}
        assert set(report.boxes) == {"keep"}
        assert set(report.requests) == {"q0", "q1", "bad"}
        released.append(True)
        assert running.wait(PATIENCE).queries["even"].tuples_out == 200
    assert [row["value"] for row in standing] == list(range(0, 400, 2))


@pytest.mark.parametrize("policy", ["bobox", "las", "lp", "qos", "haren", "thread_per_box"])
def test_nothing_of_a_request_is_left_in_the_core(policy: str) -> None:
    """Neither queues nor state nor entries of the catalog nor sources, however many came and failed."""
    expected = answers()
    app = hg.App("server")
    made = hg.policies.haren() if policy == "haren" else policy
    with app.start(hg.Simulated(workers=2), made) as running:
        outs: list[Rows] = [[] for _ in range(12)]
        for number, out in enumerate(outs):
            running.request(request(f"q{number}", out)).wait(PATIENCE)
            with pytest.raises(hg.HeadgateError, match="no such page"):
                running.request(request("bad", [], fails=True)).wait(PATIENCE)
        assert outs == [expected] * 12
        run = running._line.runner
        assert isinstance(run, SimulatedRun)
        core = run.core
        assert all(is_vacant(node) for node in (*core.live.network.boxes, *core.live.network.sources))
        assert len(core.live.boxes) == len(core.catalog.boxes) <= 5, "their numbers are used again"
        assert all(entry.removed and not entry.queue.tuples for entry in core.catalog.boxes)
        assert all(live.state is None and not live.inbox.rows for live in core.live.boxes)
        assert (core.live.outputs, core.live.merging, core.admission.groups) == ([], [], [core.admission.own])
        assert not any(core.live.source_targets)
        assert not core.live.groups
        assert all(entry.reader is core.admission.entries[0].reader for entry in core.admission.entries)
        if policy == "bobox":
            assert core.driver.policy.requests == {}  # type: ignore[attr-defined]


def test_a_request_is_placed_when_it_comes_and_the_others_stay_where_they_are() -> None:
    """Two nodes: the second request goes to the idle one, and the first is not placed anew."""
    nodes: list[dict[int, list[int]]] = []

    class Looks(type(hg.policies.get("bobox"))):  # type: ignore[misc]
        def handle(self, event: Any) -> Any:
            decisions = super().handle(event)
            nodes.append({number: list(own.nodes) for number, own in self.requests.items()})
            return decisions

    def work(name: str) -> hg.App:
        made = hg.App(name)
        rows = made.source("rows", testing.from_rows([{"a": i} for i in range(40)]))
        rows.universal(cost=0.01, name="work").universal(cost=0.01, name="more").to(name, hg.to_list([]))
        return made

    app = hg.App("server")
    report = app.run(
        hg.Simulated(topology=TWO_NODES, workers=4, packet_rows=4),
        Looks(),
        changes=[hg.Change(at=t, request=work(name)) for t, name in ((0.0, "first"), (0.1, "second"))],
    )
    assert report.problems == []
    assert set(report.requests) == {"first", "second"}
    together = [seen for seen in nodes if len(seen) == 2]
    assert together
    assert {tuple(seen[0]) for seen in together} == {(0,)}
    assert {tuple(seen[1]) for seen in together} == {(1,)}
    assert nodes[-1] == {}


def test_a_request_can_be_cancelled_and_one_without_an_end_is_refused(engine: hg.Engine) -> None:
    app = hg.App("server")
    with app.start(engine, workers=2) as running:
        endless = hg.App("endless")
        endless.source("rate", hg.from_rate(10)).to("endless", hg.to_list([]))
        with pytest.raises(hg.HeadgateError, match="source 'rate', which has no end"):
            running.request(endless)
        with pytest.raises(hg.HeadgateError, match="'empty' has no queries"):
            running.request(hg.App("empty"))
        out: Rows = []
        answer = running.request(request("q", out))
        answer.cancel()
        eventually(lambda: answer.over, "a cancelled request does not end")
        if out == []:
            with pytest.raises(hg.HeadgateError, match="'q' was cancelled"):
                answer.wait()
        running.request(request("again", out)).wait(PATIENCE)
    stopped = running.stop()
    assert stopped is not None
    assert stopped.problems == []
