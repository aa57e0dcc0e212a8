"""Every tuple is accounted for: it was answered, it was dropped, or it waits; and what it was worth."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import headgate as hg
from depth import examples
from dropping import Dropping
from headgate import testing
from headgate.cli.display import query_table
from headgate.runtime.report import QueryReport
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.interface import Call, Plan
from headgate.scheduling.pull import Pull
from headgate.scheduling.trains import Count
from waiting import SOON

COUNT = 4000
ALWAYS = hg.QoS([(0, 1)])
"""Every result is worth 1, so that utility is the share of tuples that were answered."""


class Short(Pull):
    """Trains of some tuples, so that a run soon ends when its time is up: through all boxes, or one."""

    name = "short"

    def __init__(self, whole: bool) -> None:
        self.whole, self.turn = whole, 0

    def choose(self, worker: int, now: float) -> Plan | None:
        catalog: Catalog = self.catalog
        ready = sorted(catalog.ready)
        if not ready:
            return None
        self.turn += 1
        boxes = range(len(catalog.boxes)) if self.whole else [ready[self.turn % len(ready)]]
        return tuple(Call(box, Count(40)) for box in boxes)


def overload(cost: float, count: int = COUNT, *, keyed: bool = False) -> tuple[hg.App, list[dict[str, Any]]]:
    """Chains of selectivity 1 that share a box, with far more to do than the time allows."""
    app, out = hg.App("over"), list[dict[str, Any]]()
    rows = app.source("rows", testing.from_rows([{"i": i, "k": i % 7} for i in range(count)]))
    shared = rows.universal(cost=cost, name="shared")
    one = (
        shared.key_by("k").universal(cost=cost, name="one")
        if keyed
        else shared.universal(cost=cost, name="one")
    )
    one.with_columns("i + 1 AS j", name="last").to("one", hg.to_list(out), qos=ALWAYS)
    shared.universal(cost=cost, name="two").to("two", hg.to_list([]), qos=ALWAYS)
    return app, out


def check(query: QueryReport) -> None:
    assert query.tuples_in == query.tuples_out + query.shed + query.waiting
    assert query.unanswered == query.shed + query.waiting
    if query.tuples_in:
        assert query.utility == query.tuples_out / query.tuples_in
    assert query.qos in (1.0, None), "the mean over what was delivered does not tell"


@pytest.mark.parametrize(
    ("whole", "shares"),
    [(True, {}), (False, {"shared": 0.5}), (True, {"one": 0.3, "last": 0.5})],
    ids=["plans", "calls, shed before the split", "plans, shed behind the split"],
)
def test_a_run_that_is_stopped_accounts_for_every_tuple(
    engine: hg.Engine, whole: bool, shares: dict[str, float]
) -> None:
    """Minutes of work, and it is stopped when some has been seen to: most waits, wherever it was then."""
    app, out = overload(0.001, 100_000)
    policy = Dropping(Short(whole), shares)

    def stops(report: hg.Report) -> None:
        if report.queries["one"].tuples_in:
            raise KeyboardInterrupt

    if engine.name == "simulated":
        report = app.run(engine, policy, workers=2, until=0.5)
    else:
        report = app.run(engine, policy, workers=2, until=SOON, progress=stops)
    one = report.queries["one"]
    assert one.waiting > 0
    assert one.tuples_out == len(out)
    for query in report.queries.values():
        check(query)
    assert set(one.shed_by) <= {("random", box) for box in shares}


def test_a_run_that_ends_leaves_nothing_waiting(engine: hg.Engine) -> None:
    app, out = overload(0.0)
    report = app.run(engine, Dropping("lp", {"shared": 0.5, "one": 0.3}))
    for query in report.queries.values():
        assert query.waiting == 0
        assert query.shed > 0
        check(query)
    assert len(out) == report.queries["one"].tuples_out


@settings(max_examples=examples(30), deadline=None)
@given(
    policy=st.sampled_from(["lp", "round_robin", "mc", "qos", "tuple_at_a_time"]),
    shares=st.dictionaries(
        st.sampled_from(["shared", "one", "two", "last"]), st.sampled_from([0.3, 0.8, 1.0])
    ),
    until=st.floats(0.001, 3.0),
    workers=st.integers(1, 3),
    keyed=st.booleans(),
    packet_rows=st.sampled_from([1, 7, 64]),
)
def test_wherever_a_simulation_stops_every_tuple_is_accounted_for(
    policy: str, shares: dict[str, float], until: float, workers: int, keyed: bool, packet_rows: int
) -> None:
    app, _ = overload(0.005, 300, keyed=keyed)
    engine = hg.Simulated(workers=workers, packet_rows=packet_rows)
    report = app.run(engine, Dropping(policy, shares), workers=workers, until=until)
    for query in report.queries.values():
        check(query)


def test_the_shedder_itself_accounts_for_an_overload_that_is_cut_off(engine: hg.Engine) -> None:
    app, out = hg.App("over"), list[dict[str, Any]]()
    rows = app.source("rows", hg.from_rate(500, limit=1000, burst=25))
    slow = rows.universal(cost=0.005, name="slow").universal(cost=0.005, name="slower")
    slow.to("q", hg.to_list(out), qos=hg.QoS([(0, 1), (0.3, 1), (0.6, 0)]), importance="value % 10")
    shedder = hg.policies.shedding("qos", "semantic", period=0.1)
    query = app.run(engine, shedder, workers=2, until=1.5).queries["q"]
    assert query.tuples_in == query.tuples_out + query.shed + query.waiting
    assert query.tuples_out == len(out)
    if query.qos is not None:
        assert query.utility == pytest.approx(query.qos * query.tuples_out / query.tuples_in)


# --- selectivity ------------------------------------------------------------------------------------------


def test_what_would_have_been_filtered_out_is_not_lost(engine: hg.Engine) -> None:
    """Nine of ten tuples lead to nothing, so of those that were dropped one in ten was worth something."""
    app, out = hg.App("selective"), list[dict[str, Any]]()
    rows = app.source("rows", testing.from_rows([{"i": i} for i in range(COUNT)]))
    rows.filter("i >= 0", name="first").filter("i % 10 = 0", name="tenth").to(
        "q", hg.to_list(out), qos=ALWAYS
    )
    query = app.run(engine, Dropping("lp", {"first": 0.5})).queries["q"]
    tenth = query.tuples_out / (COUNT - query.shed)
    assert query.unanswered == pytest.approx(query.shed * tenth)
    assert query.utility == pytest.approx((COUNT - query.shed) / COUNT)
    assert query.qos == 1.0


def test_utility_counts_what_was_never_delivered() -> None:
    query, graph = QueryReport("q", has_qos=True), hg.QoS([(0, 1), (10, 0)])
    assert query.utility is None, "nothing was to be answered"
    query.unanswered = 5.0
    assert query.utility == 0.0
    assert query.qos is None
    query.delivered(5.0, 5, graph)
    assert (query.qos, query.utility) == (0.5, 0.25)
    assert QueryReport("without", unanswered=3.0).utility is None


def test_the_printed_report_shows_what_was_not_answered() -> None:
    app, _ = overload(0.01)
    report = app.run(hg.Simulated(workers=1), Dropping("lp", {"shared": 0.5}), until=1.0)
    console = Console(width=200, record=True)
    console.print(query_table(report))
    text = console.export_text()
    query = report.queries["one"]
    for word in (
        "utility",
        "shed",
        "waiting",
        f"{query.utility:.3f}",
        f"{query.shed:,}",
        f"{query.waiting:,}",
    ):
        assert word in text
    calm = hg.App("calm")
    calm.source("rows", testing.from_rows([{"i": 1}])).to("q", hg.to_list([]), qos=ALWAYS)
    console = Console(width=200, record=True)
    console.print(query_table(calm.run("simulated")))
    assert "utility" not in console.export_text(), "where all was answered it is the QoS"
