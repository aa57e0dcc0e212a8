"""Replays: a recorded run under another policy, with other workers, on another machine.

The real core and the real policy run in virtual time over the recorded arrivals; boxes take the recorded
costs and make as many results of the same tuples.  So no data and no code of the application is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headgate.control.line import Line
from headgate.engines.simulated.engine import Simulated
from headgate.errors import PipelineError
from headgate.graph.network import Network, Source
from headgate.graph.operator import Kind
from headgate.machine import host as machines
from headgate.machine.topology import Topology
from headgate.machine.topology_format import parse
from headgate.recording import format as file
from headgate.recording.description import rebuilt
from headgate.recording.format import Recording
from headgate.recording.model import BoxModel, RecordedCosts, models
from headgate.recording.stand_ins import NUMBERED, ROWS, Arrivals, Nowhere, RecordedSource, stand_in
from headgate.recording.thread_costs import ThreadCosts
from headgate.runtime.limits import check_workers
from headgate.runtime.report import Report
from headgate.runtime.starting import DEAR
from headgate.scheduling import policies
from headgate.scheduling.interface import Policy
from headgate.scheduling.trains import Count

PACKET_ROWS = 32_768
"""Where the recorded engine cut no packets."""
SHARES = (0.0, 0.25, 0.5, 1.0)
"""Of the waiting for cores on a busy machine, shares that are tried as the calls'."""
LOOKS = 1000
"""How often a replay looks at how much waits."""


class Replayable:
    """A recording that was read once, for any number of replays."""

    def __init__(self, path: str | Path | Recording) -> None:
        self.recording = path if isinstance(path, Recording) else file.read(path)
        about, rows = self.recording.about, self.recording
        self.about: dict[str, Any] = about
        self.path = "" if isinstance(path, Recording) else str(path)
        networks = rows.of(file.NETWORK).texts
        self.network: dict[str, Any] = networks[-1] if networks else about["network"]
        exact = bool(about["exact"])
        self.models: list[BoxModel] = models(rows.of(file.CALL), len(self.network["boxes"]), exact=exact)
        arrivals, calls, wakes = rows.of(file.ARRIVAL), rows.of(file.CALL), rows.of(file.WAKE)
        ends = rows.of(file.END).texts
        self.measured: dict[str, Any] | None = ends[-1] if ends else None
        """What the recorded run itself reported; None if it was killed."""
        samples = rows.of(file.SAMPLE).timed_texts
        self.on_threads: ThreadCosts | None = None
        """If processor time was recorded."""
        if np.any(calls["cpu"]):
            self.on_threads = ThreadCosts(calls, arrivals, wakes, samples, self.measured)
        lag = None if self.on_threads is None else self.on_threads.lag
        self.arrivals = [
            Arrivals.of(arrivals.where("who", place), exact=exact, lag=lag)
            for place in range(len(self.network["sources"]))
        ]
        apart = calls["overhead"]
        self.apart: list[float] = apart[apart > 0].tolist()
        """Of every visit of a worker to the scheduler, the seconds apart from operators."""
        self.wakes: list[float] = wakes["seconds"].tolist()
        times = self.recording.rows["at"].to_numpy()
        self.seconds = float(self.measured["seconds"] if self.measured else times.max(initial=0.0))
        self.changes: list[dict[str, Any]] = rows.of(file.CHANGE).texts
        self.tuple_bytes: dict[str, float] = samples[-1]["bytes"] if samples else {}
        total = max(1, int(arrivals["rows"].sum())) if len(arrivals) else 1
        self.row_bytes = float(arrivals["out"].sum() / total) if len(arrivals) else 0.0
        self._calls = len(calls)
        self._settled = self.on_threads is None or not self.on_threads.disturbed or bool(self.changes)
        self.plain = bool(about["settings"].get("plain")) and about["engine"] == "simulated"

    @property
    def workers(self) -> int:
        return int(self.about["requested"])

    @property
    def cores(self) -> int:
        """Of the recorded machine."""
        return max(1, int(self.about["cores"]))

    @property
    def policy(self) -> str:
        """As it was given, with its options."""
        return str(self.about["policy"])

    @property
    def machine(self) -> Topology:
        simulated = self.about["settings"].get("topology")
        return parse(simulated or self.about["machine"], "the recorded machine")

    def made(self) -> Network:
        """The network with stand-ins."""
        boxes = self.network["boxes"]
        keyed = [
            one["kind"] == Kind.KEYED.value and (one["cost"] or model.each) >= DEAR
            for one, model in zip(boxes, self.models, strict=True)
        ]
        schema = NUMBERED if any(keyed) else ROWS

        def source(place: int, one: Mapping[str, Any]) -> Source:
            origin = RecordedSource(self.arrivals[place], one["live"], schema)
            return Source(one["name"], schema, origin)

        return rebuilt(
            self.about["app"],
            self.network,
            source,
            lambda place, one: stand_in(one, self.models[place], schema),
            lambda name: Nowhere(),
        )

    def engine(self, topology: str | Path | Topology | None, packet_rows: int | None) -> Simulated:
        """The simulation that does as the recorded engine did, apart from what is asked for."""
        given = dict(self.about["settings"])
        described = given.pop("topology", None)
        rows = packet_rows or self.about["packet_rows"] or PACKET_ROWS
        machine = machines.get(topology) if topology is not None else None
        common: dict[str, Any] = {
            name: given.get(name) for name in ("ring", "split") if given.get(name) is not None
        }
        if self.plain:
            for name in ("plain", "packet_rows", "ring", "split"):
                given.pop(name)
            own = machine or (parse(described, "the recorded machine") if described else None)
            return Simulated(topology=own, packet_rows=rows, **common, **given)
        scheme = given.get("partitioning", "hybrid")
        return Simulated(
            topology=machine or self.machine,
            cores=None if machine is not None or self.about["engine"] == "simulated" else self.cores,
            packet_rows=rows,
            costs=self.on_threads or RecordedCosts(self.wakes, self.apart),
            reorder=given.get("reorder", "nonblocking"),
            partitioning="hybrid" if scheme == "shared" else scheme,
            **common,
        )

    def run(
        self,
        policy: str | Policy | None = None,
        workers: int | None = None,
        *,
        topology: str | Path | Topology | None = None,
        packet_rows: int | None = None,
        train: int | None = None,
        network: Network | None = None,
    ) -> Report:
        """Predict a run."""
        if workers is not None:
            check_workers(workers)
        chosen = self._policy(policy, train)
        if not self._settled:
            self._settle()
        if packet_rows is not None and packet_rows < 1:
            raise PipelineError(f"packet_rows={packet_rows}: it must be at least 1.")
        engine = self.engine(topology, packet_rows)
        if workers is None and topology is not None and engine.topology is not None:
            workers = engine.topology.workers
        line = Line()
        looking = _Looking(self)
        line.onlookers.append(looking)
        drained = bool(self.about["drain"]) and (self.measured is not None)
        report = engine.run(
            network or self.made(),
            chosen,
            workers=workers or self.workers,
            until="drained" if drained else max(self.seconds, 1e-9),
            seed=int(self.about["seed"]),
            line=line,
        )
        report.queued_bytes = int(looking.most)
        if self.changes:
            what = ", ".join(sorted({name for change in self.changes for name in change}))
            report.problems.append(
                f"The recorded run was changed while it went on ({what}); a replay is not."
            )
        return report

    def _settle(self) -> None:
        """Find how much of the waiting for cores was in calls, on a machine that others used too.

        The more it was, the fewer calls were made: the more tuples wait when one begins.  So the recorded run
        is replayed with several shares; the one that makes as many calls as were recorded is taken.
        """
        self._settled = True
        costs = self.on_threads
        if costs is None or not self.about["policy_spelled"]:
            return
        made = []
        for costs.counts in SHARES:
            made.append(math.log(max(1, self.run().trace.total)))
            if len(made) > 1 and made[-1] < math.log(max(1, self._calls)):
                break
        falling = np.minimum.accumulate(made)[::-1]
        costs.counts = float(np.interp(math.log(max(1, self._calls)), falling, SHARES[: len(made)][::-1]))

    def _policy(self, policy: str | Policy | None, train: int | None) -> Policy:
        if policy is None and not self.about["policy_spelled"]:
            raise PipelineError(
                f"The run was recorded under a policy object called '{self.policy}', which a file cannot "
                "hold; say which policy to replay, e.g. policy='mc'."
            )
        chosen = policies.get(self.policy if policy is None else policy)
        if train is not None:
            if train < 1:
                raise PipelineError(f"train={train}: it must be a number of tuples, at least 1.")
            if chosen.train is None:
                raise PipelineError(
                    f"Policy '{chosen.name}' says itself how long its trains are; leave train out."
                )
            chosen.train = Count(train)
        return chosen


class _Looking:
    """Looks now and then at how much waits in queues."""

    def __init__(self, own: Replayable) -> None:
        self._own, self.most = own, 0.0
        self._every = max(own.seconds / LOOKS, 1e-9)
        self._next = 0.0

    def begin(self, core: Any) -> None:
        self._boxes = core.live.boxes
        own = self._own
        self._sizes = [
            own.row_bytes if box.first else own.tuple_bytes.get(str(box.feeders[0]), own.row_bytes)
            for box in self._boxes
        ]
        core.observers.add(self)

    def __call__(self, stimulus: Any, instructions: Any, now: float) -> None:
        if now < self._next:
            return
        self._next = now + self._every
        held = sum([box.inbox.rows * size for box, size in zip(self._boxes, self._sizes, strict=False)])
        self.most = max(self.most, held)


@dataclass(frozen=True)
class Compared:
    """One figure of one query: predicted, and measured in the recorded run."""

    query: str
    what: str
    predicted: float | None
    measured: float | None

    @property
    def error(self) -> float | None:
        """Of utilities the difference, of others the share of what was measured."""
        if self.predicted is None or self.measured is None:
            return None
        difference = self.predicted - self.measured
        if self.what == "utility":
            return difference
        return difference / self.measured if self.measured else (0.0 if not difference else math.inf)


def compared(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> list[Compared]:
    """A prediction against a run, both as ``recorder.measured`` gives them."""
    found = []
    for name, own in measured["queries"].items():
        other = predicted["queries"].get(name, {})
        for what in ("p50", "p99", "mean", "utility", "tuples_out"):
            if own[what] is not None:
                found.append(Compared(name, what, other.get(what), own[what]))
    for what in ("throughput",):
        rates = [
            one["tuples"] / one["seconds"] if one["seconds"] else np.nan for one in (predicted, measured)
        ]
        found.append(Compared("", what, *rates))
    return found


def replay(
    file: str | Path,
    policy: str | Policy | None = None,
    workers: int | None = None,
    *,
    topology: str | Path | Topology | None = None,
    packet_rows: int | None = None,
    train: int | None = None,
) -> Report:
    """Predict what a recorded run would have done otherwise: ``hg.replay("run.hgr", policy="qos")``.

    What is not given is as it was recorded.  ``topology``: on another machine; ``train``: tuples of a call.
    The report is one of ``app.run``.
    """
    return Replayable(file).run(policy, workers, topology=topology, packet_rows=packet_rows, train=train)
