"""May this be added?  A short simulation of a run that goes on, with what its catalog has measured.

Boxes take the costs and selectivities that the catalog has of them, sources bring what they brought lately.
Boxes that a new query brings along take those of running boxes that do the same; others are tried on a
packet that came just now, in a state of their own.  The simulation runs twice, without the change and with
it: a goal that is kept without it and missed with it is broken by it.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headgate.control.capacity import workers_busy
from headgate.control.line import Line
from headgate.control.watching import MISSED, Watch
from headgate.engines.simulated.engine import Simulated
from headgate.errors import PipelineError, nearest
from headgate.graph.network import Box, Network, Output, Source, boxes_before, came_by_arrival
from headgate.graph.operator import Kind, Operator
from headgate.graph.packet import Packet
from headgate.graph.qos import QoS
from headgate.machine.topology import Topology
from headgate.recording.description import described, rebuilt
from headgate.recording.model import BoxModel, RecordedCosts
from headgate.recording.replaying import PACKET_ROWS
from headgate.recording.stand_ins import ROWS, Arrivals, Nowhere, RecordedSource, stand_in
from headgate.runtime.added_queries import with_queries
from headgate.runtime.observing import Observation
from headgate.runtime.report import QueryReport
from headgate.scheduling import policies
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.interface import Policy

SECONDS = 5.0
"""Of virtual time that a forecast covers."""
CALLS, FEWEST = 20_000, 25
"""About so many box calls make a forecast, so that it takes about a second, of this many packets at least."""
WINDOW = 10.0
"""Seconds over which rates are measured."""
TRIES, ENOUGH = 3, 0.1
"""How often a box that is new works on the packet that it is tried on, unless it takes so many seconds; the
fastest counts."""
SAMPLE = 4096
"""Rows of that packet at most."""
MANY = 1_000_000.0


@dataclass(frozen=True)
class Goal:
    """A query with a goal, as forecast without a change and with it."""

    query: str
    before: float | None
    """Utility; None for a query that is new."""
    after: float
    p99: float

    @property
    def broken(self) -> bool:
        """By the change: what is missed anyway is not its fault."""
        return self.after < MISSED and (self.before is None or self.before >= MISSED)


@dataclass(frozen=True)
class Forecast:
    """Whether a change can be made so that all goals are kept."""

    goals: tuple[Goal, ...]
    """The one that suffers most first."""
    need: float
    """Workers that all queries together keep busy, with the change."""
    tight: float
    """Workers that the queries with goals alone keep busy."""
    workers: int

    @property
    def broken(self) -> tuple[Goal, ...]:
        return tuple([goal for goal in self.goals if goal.broken])

    @property
    def fits(self) -> bool:
        return not self.broken

    def __str__(self) -> str:
        load = f"{self.need:.1f} of {self.workers} workers would be busy"
        said = []
        if self.tight > self.workers:
            said.append(
                f"The queries with goals alone exceed the capacity: they need {self.tight:.1f} workers of "
                f"{self.workers}."
            )
        elif self.need > self.workers:
            said.append("That is more work than the workers can do, so queues would grow.")
        if self.fits:
            missed = [goal.query for goal in self.goals if goal.after < MISSED]
            said.append(f"All goals that are kept now would be kept; {load}.")
            said += [f"Missed with and without it: {', '.join(missed)}."] if missed else []
        for goal in self.broken:
            was = "" if goal.before is None else f" from {goal.before:.2f}"
            said.append(
                f"Query '{goal.query}' would miss its goal: utility{was} to {goal.after:.2f}, p99 "
                f"{goal.p99:.2f} s."
            )
        return " ".join(said) if self.fits else " ".join([*said, f"({load}.)"])


@dataclass
class Figures:
    """What is known of a run that goes on."""

    network: Network
    models: dict[Box, BoxModel]
    rates: dict[str, float]
    """Rows per second by source."""
    samples: dict[str, Packet]
    """By source, a packet that came just now."""
    workers: int
    policy: Policy
    packet_rows: int
    topology: Topology | None
    call_rows: dict[str, float]
    """By source, the tuples that a call on its first boxes took on average."""
    plan_overhead: float

    @staticmethod
    def of(core: Any, rates: Mapping[str, float], gone: Collection[str] = ()) -> Figures:
        """With the run's lock held.  ``gone``: queries that do not run any more."""
        network, driver = core.network, core.driver
        admission = getattr(core, "admission", None)  # Spark's tuples never come to the driver
        newest = {} if admission is None else {e.source.name: e.newest for e in admission.entries}
        try:
            policy = policies.get(driver.policy.name)
        except PipelineError:  # an object of the user's
            policy = policies.get(policies.DEFAULT)
        stay = [output for output in network.outputs if output.name not in gone]
        needed = {box for output in stay for box in boxes_before(output.port)}
        return Figures(
            Network(network.sources, [b for b in network.boxes if b in needed], stay, network.name),
            {
                box: _model(entry.selectivity, entry.cost, entry.fixed, entry.call_overhead - entry.fixed)
                for box, entry in zip(network.boxes, core.catalog.boxes, strict=False)
                if entry.calls
            },
            dict(rates),
            {name: packet for name, packet in newest.items() if packet is not None},
            driver.requested,
            policy,
            core.catalog.packet_rows or PACKET_ROWS,
            core.catalog.topology,
            {
                source.name: _call_rows(core.catalog.boxes, place)
                for place, source in enumerate(network.sources)
            },
            core.catalog.plan_overhead,
        )


def _call_rows(boxes: Sequence[BoxEntry], source: int) -> float:
    fed = [entry for entry in boxes if source in entry.fed_by and entry.calls]
    return min([max(1.0, entry.tuples_in / entry.calls) for entry in fed], default=1.0)


def _model(selectivity: float, cost: float, fixed: float = 0.0, apart: float = 0.0) -> BoxModel:
    """A box whose tuples are all alike."""
    once = np.array([1.0])
    return BoxModel(
        once * MANY, once * round(MANY * selectivity), once, fixed, cost, 0.0, None, once * max(apart, 0.0)
    )


def measured_rates(seen: Observation, watch: Watch | None) -> dict[str, float]:
    """Rows per second by source, over the last seconds or since the start."""
    samples = [] if watch is None else [s.seen for s in list(watch.samples) if s.seen.now > seen.now - WINDOW]
    before = next((s for s in samples if s.network is seen.network and s.now < seen.now - 1.0), None)
    seconds = seen.now - (0.0 if before is None else before.now)
    rows = [0] * len(seen.sources) if before is None else [s.rows for s in before.sources]
    pairs = zip(seen.network.sources, seen.sources, rows, strict=False)
    return {source.name: (own.rows - was) / max(seconds, 1e-3) for source, own, was in pairs}


def forecast(
    now: Figures,
    outputs: Sequence[Output] = (),
    qos: Mapping[str, QoS] | None = None,
    rates: Mapping[str, float] | None = None,
) -> Forecast:
    """Whether these queries can join, goals can be these, and sources bring so many times as much."""
    network, models = now.network, dict(now.models)
    for name in qos or {}:
        if name not in network.queries:
            raise PipelineError(f"There is no query '{name}'.{nearest(name, network.queries)}")
    for name in rates or {}:
        if name not in now.rates:
            raise PipelineError(f"There is no source '{name}'.{nearest(name, now.rates)}")
    if outputs:
        standing = {
            box.original or box: box
            for box in network.boxes
            if box.operator.kind is Kind.STATELESS and not any(map(came_by_arrival, box.ports))
        }
        network = with_queries(network, outputs, standing.get)
        _learn(now, network, models)
    coming = {name: rate * (rates or {}).get(name, 1.0) for name, rate in now.rates.items()}
    goals = {output.name: (qos or {}).get(output.name, output.qos) for output in network.outputs}
    before = _simulated(now, now.network, now.models, now.rates, now.network.goals)
    after = _simulated(
        now, network, models, coming, {n: goal for n, goal in goals.items() if goal is not None}
    )
    found = [_goal(name, before.get(name), own) for name, own in after.items() if own.has_qos]
    busy = _busy(network, models, coming)
    tight = {box for name, goal in goals.items() if goal is not None for box in network.queries[name]}
    return Forecast(
        tuple(sorted(found, key=lambda goal: goal.after)),
        sum(busy),
        sum([seconds for place, seconds in enumerate(busy) if place in tight]),
        now.workers,
    )


def _goal(name: str, before: QueryReport | None, after: QueryReport) -> Goal:
    was = None if before is None or not before.has_qos else before.utility
    useful = after.utility
    return Goal(
        name, was, 1.0 if useful is None else useful, after.latency.p99 if after.latency.count else 0.0
    )


def _busy(network: Network, models: Mapping[Box, BoxModel], rates: Mapping[str, float]) -> list[float]:
    """By box, the workers that it keeps busy."""
    known = {box: (model.selectivity, model.each) for box, model in models.items()}
    return workers_busy(network, rates, lambda box: known.get(box, (1.0, 0.0)))


def _simulated(
    now: Figures,
    network: Network,
    models: Mapping[Box, BoxModel],
    rates: Mapping[str, float],
    goals: Mapping[str, QoS],
) -> dict[str, QueryReport]:
    data = described(network)
    for query in data["queries"]:
        goal = goals.get(query["name"])
        query["qos"] = None if goal is None else list(goal.points)
    most = max(FEWEST, CALLS // max(1, len(network.boxes)))
    none = _model(1.0, 0.0)

    def source(place: int, one: Mapping[str, Any]) -> Source:
        name = one["name"]
        rate = rates.get(name, 0.0)
        packets = int(min(most, max(FEWEST, SECONDS * rate / now.call_rows.get(name, 1.0))))
        return Source(name, ROWS, RecordedSource(_arrivals(rate, packets), True, ROWS))

    made = rebuilt(
        network.name,
        data,
        source,
        lambda place, one: stand_in(one, models.get(network.boxes[place], none), ROWS),
        lambda name: Nowhere(),
    )
    engine = Simulated(
        topology=now.topology,
        packet_rows=now.packet_rows,
        costs=RecordedCosts(()),
        workers=now.workers,
        decision_cost=now.plan_overhead,
    )
    return engine.run(made, copy.deepcopy(now.policy), until=SECONDS).queries


def _arrivals(rate: float, packets: int) -> Arrivals:
    ends = np.floor(np.linspace(0.0, rate * SECONDS, packets + 1))
    rows = np.diff(ends).astype(np.int64)
    times = np.linspace(0.0, SECONDS, packets + 1)[1:]
    some = rows > 0
    return Arrivals(rows[some], times[some], [float(when) for when in times[some]])


# --- boxes that are new ---------------------------------------------------------------------------------


def _learn(now: Figures, network: Network, models: dict[Box, BoxModel]) -> None:
    """Give boxes that are new a model."""
    alike = {box.operator.label: model for box, model in now.models.items()}
    fresh = [box for box in network.boxes if box not in models and box not in now.network.index]
    usual = float(np.median([model.apart[0] for model in now.models.values()])) if now.models else 0.0
    cost = float(np.median([model.each for model in now.models.values()])) if now.models else 0.0
    packets: dict[Any, list[Packet]] = {}
    for source in network.sources:
        packet = now.samples.get(source.name)
        if packet is not None:
            packets[source] = [packet.slice(0, min(len(packet), SAMPLE))]
    for box in network.boxes:
        if box in fresh:
            tried = _tried(box, packets)
            models[box] = alike.get(box.operator.label) or (
                _stated(box, cost, usual) if tried is None else replace(tried, apart=np.array([usual]))
            )
        elif _needed_by(box, fresh):
            _tried(box, packets)


def _stated(box: Box, cost: float, apart: float) -> BoxModel:
    """A box that could not be tried: as it states, else as others cost."""
    operator = box.operator
    selectivity = 1.0 if operator.selectivity is None else operator.selectivity
    return _model(selectivity, cost if operator.cost is None else operator.cost, apart=apart)


def _needed_by(box: Box, fresh: Sequence[Box]) -> bool:
    return any(arrow.node is box for other in fresh for port in other.ports for arrow in port)


def _tried(box: Box, packets: dict[Any, list[Packet]]) -> BoxModel | None:
    """Work on what came just now, in a fresh state; None if that is not possible."""
    operator = box.operator.in_simulation()  # a box that states its cost need not spend it
    given: list[Packet] = []
    for port in box.ports:
        arrived = [packets[a.node][a.output] for a in port if len(packets.get(a.node, ())) > a.output]
        given.append(Packet.merge(arrived) if arrived else Packet.empty(operator.inputs[len(given)]))
    rows = sum([len(packet) for packet in given])
    if not rows:
        return None
    try:
        seconds, results = _timed(operator, given)
        few = [packet.slice(0, min(len(packet), 1)) for packet in given]
        least, _ = _timed(operator, few)
    except Exception:  # a row that it refuses is for the run to judge
        return None
    packets[box] = [Packet(one.batch, one.order) for one in results]
    selectivity = len(results[0]) / rows
    if operator.cost is not None:
        return _model(selectivity, operator.cost)
    fixed = min(least, seconds) if rows > 1 else 0.0
    return _model(selectivity, (seconds - fixed) / rows, fixed)


def _timed(operator: Operator, given: Sequence[Packet]) -> tuple[float, list[Packet]]:
    best, spent = math.inf, 0.0
    for _ in range(TRIES):
        state = operator.open()
        begin = time.perf_counter()
        results = operator.process(given, state)
        took = time.perf_counter() - begin
        best, spent = min(best, took), spent + took
        if spent > ENOUGH:
            break
    return best, results


# --- a run that goes on ---------------------------------------------------------------------------------


def figures_of(run: Any, line: Line | None) -> Figures:
    """Of a run in real time: costs and rates as they are measured now."""
    if not hasattr(run, "lock"):
        raise PipelineError("A simulation is not asked for forecasts: run it with the change and compare.")
    seen = run.observe(sys.maxsize)
    rates = measured_rates(seen, None if line is None else line.watch)
    gone = [name for name, query in seen.queries.items() if query.state in ("failed", "removed", "finished")]
    with run.lock:
        return Figures.of(run.core, rates, gone)


def refuse_what_breaks_goals(run: Any, outputs: Sequence[Output]) -> None:
    """The rule ``admit="goals"``."""
    if not outputs or any(output.request is not None for output in outputs):
        return
    found = forecast(figures_of(run, run.line), outputs)
    if not found.fits:
        names = ", ".join(f"'{output.name}'" for output in outputs)
        raise PipelineError(f"Query {names} is not admitted. {found}")
