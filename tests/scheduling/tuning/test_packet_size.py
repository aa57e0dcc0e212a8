"""The size of packets found while running: climbing, its hysteresis, and runs whose cost has a best size."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from headgate import testing
from headgate.engines.simulated.costs import Costs
from headgate.engines.simulated.run import SimulatedRun
from headgate.errors import PipelineError
from headgate.runtime.boxes import LiveBox
from headgate.scheduling import policies
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.events import Finished, QueueState, Started, Timer
from headgate.scheduling.interface import Decision, SetPacketRows
from headgate.scheduling.tuning import packet_size
from headgate.scheduling.tuning.climbing import Climber
from headgate.scheduling.tuning.packet_size import DOUBLINGS, HALVINGS, WARM_UP, PacketTuner, _Trial

# --- climbing -------------------------------------------------------------------------------------------


def climb(climber: Climber, rate: Callable[[int], float], periods: int) -> list[int]:
    return [climber.reconsider(rate(climber.value)) for _ in range(periods)]


@pytest.mark.parametrize("start", range(9))
def test_the_peak_is_found_from_anywhere_and_kept(start: int) -> None:
    climber = Climber(0, 8, start, up=1.05, down=1.05)
    values = climb(climber, lambda value: 100 - 10 * abs(value - 5), 200)
    assert set(values[30:]) <= {4, 5, 6}
    assert values[30:].count(5) > 0.9 * len(values[30:])  # it looks around, ever more seldom


@pytest.mark.parametrize("start", range(10))
def test_a_hill_behind_a_valley_is_found_from_anywhere(start: int) -> None:
    """M rows/s of a core of the simulated E7540, packets of 8 kB to 4 MB; steps alone end on lower hills."""
    rates = [18.9, 28.2, 34.7, 26.3, 27.9, 25.1, 14.1, 14.2, 14.2, 14.2]
    climber = Climber(0, 9, start, up=1.05, down=1.05, leaps=True)
    values = climb(climber, lambda value: rates[value], 400)
    assert values[200:].count(2) > 0.9 * 200
    ends = set()
    for begin in range(10):
        climber = Climber(0, 9, begin, up=1.05, down=1.05)
        climb(climber, lambda value: rates[value], 400)
        ends.add(climber.value)
    assert ends >= {2, 4}


def test_noise_moves_nothing() -> None:
    noise = random.Random(3)
    climber = Climber(0, 8, 4, up=1.05, down=1.05)
    values = climb(climber, lambda value: 100 * (1 + noise.uniform(-0.02, 0.02)), 400)
    assert set(values) <= {3, 4, 5}
    assert values.count(4) > 0.85 * len(values)


def test_without_a_margin_the_same_noise_moves_it() -> None:
    noise = random.Random(3)
    climber = Climber(0, 8, 4, up=1.0, down=1.0)
    assert not set(climb(climber, lambda value: 100 * (1 + noise.uniform(-0.02, 0.02)), 400)) <= {3, 4, 5}


def test_one_value_is_kept() -> None:
    assert set(climb(Climber(3, 3, 3, up=1.05, down=1.05), lambda value: 9.0, 100)) == {3}


# --- the policy -----------------------------------------------------------------------------------------


def drive(
    policy: PacketTuner, rate: Callable[[int], float], periods: int, used: list[int] | None = None
) -> list[Decision]:
    """Let periods pass in which the first box works off as much as packets of that size allow.

    ``used`` gets the size of every period.
    """
    catalog = Catalog(
        [BoxEntry("first", 1, (), (1,), ("q",), fed_by=(0,)), BoxEntry("next", 1, (0,), (), ("q",))]
    )
    decisions = list(policy.start(catalog, 1))
    for period in range(1, periods + 1):
        tuples = round(rate(policy.rows) * policy.period)
        if used is not None:
            used.append(policy.rows)
        for event in (
            Finished(period - 0.5, 0, 0, tuples, 1, 0.5, 0.0),
            Finished(period - 0.4, 0, 1, 10**9, 1, 0.5, 0.0),  # not source tuples: does not count
            Timer(float(period), "packet size"),
        ):
            decisions += policy.handle(event)
    return decisions


def peaked(best: int) -> Callable[[int], float]:
    return lambda rows: 1e6 / (1 + 0.3 * abs(math.log2(rows / best)))


@pytest.mark.parametrize("best", [1_000, 8_000, 32_000, 128_000])
def test_the_best_size_is_found(best: int) -> None:
    policy = PacketTuner(policies.get("lp"), 16_000, period=1.0)
    decisions = drive(policy, peaked(best), 120)
    sizes = [d.rows for d in decisions if isinstance(d, SetPacketRows)]
    assert best in (*sizes, 16_000)
    assert policy.settled == best
    used: list[int] = []
    drive(policy, peaked(best), 400, used)
    assert used[-200:].count(best) > 0.8 * 200, "it looks around, ever more seldom"


def test_the_size_stays_within_its_bounds() -> None:
    policy = PacketTuner(policies.get("lp"), 1_024, period=1.0)
    for rate, end in ((float, 1_024 << DOUBLINGS), (lambda rows: 1e9 / rows, 1_024 >> HALVINGS)):
        sizes = [d.rows for d in drive(policy, rate, 200) if isinstance(d, SetPacketRows)]
        assert end in sizes
        assert all(1_024 >> HALVINGS <= rows <= 1_024 << DOUBLINGS for rows in sizes)


def test_who_takes_over_goes_on_from_the_size_in_use_within_the_same_bounds() -> None:
    policy = PacketTuner(policies.get("lp"), 1_024, 4_096, period=1.0)
    assert policy.rows == 4_096
    sizes = [d.rows for d in drive(policy, float, 200) if isinstance(d, SetPacketRows)]
    assert max(sizes) == 1_024 << DOUBLINGS
    assert PacketTuner(policies.get("lp"), 1_024, 1 << 30).rows == 1_024 << DOUBLINGS
    assert PacketTuner(policies.get("lp"), 1_024, 1).rows == 1_024 >> HALVINGS


@pytest.mark.parametrize(("queued", "called"), [(100_000, 0), (0, 100_000), (50_000, 50_000)])
def test_packets_of_the_size_before_do_not_count(
    queued: int, called: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are queued, or in a call that has begun; counted, they would make all sizes alike.

    Here there are as many in every period, and in those without a change they do count: pairs disagree.
    """
    monkeypatch.setattr(packet_size, "AGREED", 0)
    policy = PacketTuner(policies.get("lp"), 1_000, period=1.0)
    first = BoxEntry("first", 1, (), (), ("q",), fed_by=(0,))
    policy.start(Catalog([first]), 1)
    time, sizes = 0.0, {}
    while len(sizes) < 3:
        time += 1.0
        for older in filter(None, (called, queued)):
            policy.handle(Finished(time, 0, 0, older, 1, 0.5, 0.0))
        policy.handle(Finished(time + 0.75, 0, 0, 2 * policy.rows, 1, 0.5, 0.0))
        first.queue = QueueState(queued)
        policy.handle(Started(time + 0.75, 0, 0, called, first.queue))
        found = policy.handle(Timer(time + 0.75, "packet size"))
        sizes.update({d.rows: time for d in found if isinstance(d, SetPacketRows)})
    assert list(sizes) == [2_000, 1_000, 4_000]


def test_a_core_whose_speed_changes_does_not_mislead() -> None:
    """Slow by 1.8 for stretches of one to forty periods, as measured here; sizes differ by less."""
    draw = random.Random(5)
    stretch: list[float] = []

    def rate(rows: int) -> float:
        if not stretch:
            stretch.extend([draw.choice([1.0, 1 / 1.8])] * draw.randint(1, 40))
        return stretch.pop() * draw.uniform(0.95, 1.05) * 1e6 / (1 + 0.15 * abs(math.log2(rows / 32_000)))

    policy = PacketTuner(policies.get("lp"), 4_000, period=1.0)
    drive(policy, rate, 200)
    assert policy.settled in (16_000, 32_000, 64_000)


def tried(gains: Sequence[float], **margin: float) -> _Trial:
    """A trial whose pairs gain that, until it is over."""
    trial = _Trial(0, 1, **margin)
    while not trial.over:
        trial.add(gains[len(trial._rates) // 2] if trial.size == 1 else 1.0)
    return trial


def test_a_gain_that_pairs_disagree_on_is_none() -> None:
    """Three of eight pairs are slower: chance may have made the other five better, however much."""
    for worse, gained in ((2, True), (3, False)):
        trial = tried([0.5] * worse + [2.0] * (8 - worse))
        assert (trial.gain == 2.0) == gained
        assert (trial.gain == 1.0) == (not gained)


def test_a_trial_without_doubt_takes_half_as_long() -> None:
    """Four pairs that all gain more than the margin, or all lose; with a single doubt all eight are seen."""
    for gains, pairs in (
        ([1.2] * 8, 4),
        ([0.9] * 8, 4),
        ([1.2, 1.2, 1.2, 1.02] * 2, 8),
        ([0.9, 0.9, 0.9, 1.01] * 2, 8),
    ):
        trial = tried(gains)
        assert len(trial._rates) == 2 * pairs
        assert trial.gain == pytest.approx(gains[0])
    assert len(tried([1.2] * 8, margin=0.3)._rates) == 16, "the tuner's own margin"


def test_nothing_is_tried_while_memory_is_new_to_the_process() -> None:
    policy = PacketTuner(policies.get("lp"), 1_000, period=1.0)
    assert not [d for d in drive(policy, float, WARM_UP) if isinstance(d, SetPacketRows)]
    assert [d for d in drive(policy, float, WARM_UP + 1) if isinstance(d, SetPacketRows)]


def test_a_period_without_tuples_teaches_nothing() -> None:
    policy = PacketTuner(policies.get("lp"), 1_000, period=1.0)
    assert not [d for d in drive(policy, lambda rows: 0.0, 50) if isinstance(d, SetPacketRows)]


@pytest.mark.parametrize(
    "given", [{"rows": 0}, {"rows": 9, "begin": 0}, {"rows": 9, "period": 0.0}, {"rows": 9, "margin": 1.0}]
)
def test_tuners_that_cannot_be(given: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match="PacketTuner"):
        PacketTuner(policies.get("lp"), **given)


# --- whole runs -----------------------------------------------------------------------------------------


def numbers(rows: int, out: list[Any]) -> hg.App:
    app = hg.App("numbers")
    batch = pa.record_batch({"a": pa.array(range(rows))})
    kept = app.source("rows", hg.from_batches([batch])).filter("a % 50 = 0", name="some")
    kept.to("out", hg.to_list(out))
    return app


def test_a_run_in_virtual_time_finds_where_a_tuple_costs_least(monkeypatch: pytest.MonkeyPatch) -> None:
    best = 2_048

    def seconds(costs: Costs, box: LiveBox, packets: int, tuples: int, *rest: int) -> float:
        return 1e-5 * tuples * (1 + abs(math.log2(tuples / packets / best)) if tuples else 1)

    monkeypatch.setattr(Costs, "seconds", seconds)
    monkeypatch.setattr("headgate.engines.base.default_packet_rows", lambda *given: 256)
    out: list[Any] = []
    fixed: list[Any] = []
    before = numbers(1_000_000, fixed).run(hg.Simulated(workers=1, packet_rows=256), "round_robin")
    report = numbers(1_000_000, out).run(hg.Simulated(workers=1, packet_rows="auto"), "round_robin")
    assert out == fixed
    assert before.packet_rows == 256
    assert report.policy == "packets(round_robin)"
    assert report.packet_rows in (best // 2, best, 2 * best)
    assert report.seconds < 0.7 * before.seconds


def test_a_run_on_threads_may_change_its_packets(ends: Callable[[Callable[[], Any]], Any]) -> None:
    """The answers are the same whatever the sizes were on the way."""

    class Restless(PacketTuner):
        def handle(self, event: Any) -> Any:
            decisions = list(super().handle(event))
            if isinstance(event, Finished):
                self.rows = self.rows * 7 % 997 + 3
                decisions.append(SetPacketRows(self.rows))
            return decisions

    app = hg.App("restless")
    out: list[Any] = []
    rows = app.source("rows", testing.from_rows([{"k": n % 5, "a": n} for n in range(20_000)]))
    rows.filter("a % 3 = 0").key_by("k").running("sum(a) AS s").to("sums", hg.to_list(out))
    expected: list[Any] = []
    seen: dict[int, int] = {}
    for n in range(0, 20_000, 3):
        seen[n % 5] = seen.get(n % 5, 0) + n
        expected.append({"k": n % 5, "a": n, "s": seen[n % 5]})
    for made in (hg.Threads(workers=3, packet_rows=100), hg.Simulated(workers=3, packet_rows=100)):
        out.clear()
        ends(lambda made=made: app.run(made, Restless(policies.get("lp"), 100)))
        assert out == expected


def test_auto_on_threads_wraps_the_policy_and_loses_no_row(ends: Callable[[Callable[[], Any]], Any]) -> None:
    out: list[Any] = []
    report = ends(lambda: numbers(100_000, out).run(hg.Threads(workers=2, packet_rows="auto")))
    assert report.policy == "packets(lp)"
    assert len(out) == 2_000
    assert report.packet_rows > 0


@pytest.mark.parametrize("engine", [hg.Threads, hg.Simulated])
@pytest.mark.parametrize("rows", ["best", 0, -1])
def test_sizes_that_cannot_be(engine: Any, rows: Any) -> None:
    with pytest.raises(PipelineError, match=r"packet_rows=.*at least 1, or 'auto'"):
        engine(packet_rows=rows)


def test_queues_hold_about_as_many_packets_of_another_size() -> None:
    run = SimulatedRun(
        hg.Simulated(packet_rows=100).settings, numbers(1_000, []).network, policies.get("lp"), 1
    )
    before = run.core.live.room(0)
    run.core.set_packet_rows(400)
    assert run.core.live.room(0) == 4 * before
    run.core.set_packet_rows(50)
    assert run.core.live.room(0) == before // 2
