"""Advice: which policy, how many workers, which packets and trains suit a recorded run, found by replays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headgate.errors import PipelineError
from headgate.recording.replaying import Replayable
from headgate.runtime.report import QueryReport, Report

POLICIES = ("lp", "mc", "qos", "fcfs", "multi_class", "round_robin", "ml", "qst", "chain", "highest_rate")
"""Those that are tried, the most promising first; without goals those that only know goals are left out."""
TRAINS = (64, 1024, 8192)
SIZES = (0.25, 4.0)
"""Sizes of packets that are tried, by the recorded one."""
MOST = 24
"""Replays, if no other number is given."""
WORTH_IT = 0.02
"""A smaller gain is none: predictions are not that good."""


@dataclass(frozen=True)
class Setting:
    """What ``headgate run`` can be told; None: as recorded."""

    policy: str | None = None
    workers: int | None = None
    packet_rows: int | None = None
    train: int | None = None

    def options(self, recorded: Replayable) -> str:
        """As options of the command line."""
        policy = self.policy or recorded.policy
        if self.train is not None:
            policy = f"{policy.removesuffix(')')}{', ' if '(' in policy else '('}train={self.train})"
        said = f"--policy '{policy}' --workers {self.workers or recorded.workers}"
        return said if self.packet_rows is None else f"{said} --packet-rows {self.packet_rows}"


@dataclass
class Tried:
    """A setting, and what a replay says of it."""

    setting: Setting
    options: str
    report: Report
    score: float
    gains: dict[str, float] = field(default_factory=dict)
    """By query: utility gained, or without a goal the share of its p99 that is saved."""


@dataclass
class Advice:
    """What ``hg.advise`` returns."""

    recorded: Tried
    """The prediction for the recorded setting, with which all others are compared."""
    best: list[Tried]
    """The best settings, the best first; empty if nothing is to be gained."""
    replays: int

    def __repr__(self) -> str:
        if not self.best:
            return f"Advice({self.replays} replays, nothing to gain over: {self.recorded.options})"
        return f"Advice({self.replays} replays, best: {[one.options for one in self.best]})"


def score(report: Report) -> float:
    """Higher is better: utility of the queries with a goal, then latency, in tenfold steps, of all."""
    queries = [one for one in report.queries.values() if one.latency.count]
    goals = [one.utility for one in queries if one.utility is not None]
    lateness = [
        math.log10(max(one.latency.mean, 1e-6)) + math.log10(max(one.latency.p99, 1e-6)) for one in queries
    ]
    useful = sum(goals) / len(goals) if goals else 0.0
    late = sum(lateness) / len(lateness) if lateness else 0.0
    return useful - late * (0.01 if goals else 0.1)


def gain(before: QueryReport, after: QueryReport) -> float:
    """Of one query: utility gained, or the share of its p99 that is saved."""
    if before.utility is not None and after.utility is not None:
        return after.utility - before.utility
    if not before.latency.count or not after.latency.count or not before.latency.p99:
        return 0.0
    return 1 - after.latency.p99 / before.latency.p99


def advise(
    file: str | Path,
    *,
    replays: int = MOST,
    most_workers: int | None = None,
    tell: Callable[[str, float], None] = lambda what, part: None,
) -> Advice:
    """Search by at most so many replays for a better setting of a recorded run.

    First policies, then workers up to the cores of the machine, then trains and sizes of packets for the best
    of them.  ``tell(what, part)`` hears how it goes.
    """
    if replays < 2:
        raise PipelineError(f"advise(replays={replays}): it takes at least 2, one for the recorded setting.")
    recorded = Replayable(file)
    search = _Search(recorded, replays, tell)
    base = search.tried(Setting())
    assert base is not None
    limit = most_workers or recorded.cores
    has_goals = any(one["qos"] for one in recorded.network["queries"])
    for policy in POLICIES:
        if (has_goals or policy != "qos") and 2 * len(search.found) < replays:  # the other half for the rest
            search.tried(Setting(policy))
    leading = search.best.setting
    for workers in _counts(limit):
        if workers != recorded.workers:
            search.tried(Setting(leading.policy, workers))
    leading = search.best.setting
    rows = int(recorded.about["packet_rows"])
    for size in SIZES if rows else ():
        search.tried(Setting(leading.policy, leading.workers, max(1, int(rows * size))))
    leading = search.best.setting
    for train in TRAINS:
        search.tried(Setting(leading.policy, leading.workers, leading.packet_rows, train))
    found = sorted(search.found.values(), key=lambda one: -one.score)
    for one in found:
        one.gains = _gains(base.report.queries, one.report.queries)
    better = [one for one in found if _worth(base, one)]
    return Advice(base, better[:3], len(search.found))


class _Search:
    def __init__(self, recorded: Replayable, most: int, tell: Callable[[str, float], None]) -> None:
        self._recorded, self._most, self._tell = recorded, most, tell
        self.found: dict[Setting, Tried] = {}

    @property
    def best(self) -> Tried:
        return max(self.found.values(), key=lambda one: one.score)

    def tried(self, setting: Setting) -> Tried | None:
        """Replay with a setting; None if that cannot be or enough were made."""
        if setting in self.found or len(self.found) >= self._most:
            return self.found.get(setting)
        options = setting.options(self._recorded)
        self._tell(options, len(self.found) / self._most)
        try:
            report = self._recorded.run(
                setting.policy, setting.workers, packet_rows=setting.packet_rows, train=setting.train
            )
        except PipelineError:
            if setting == Setting():
                raise
            return None  # a policy that takes no trains, or cannot run this network
        self.found[setting] = Tried(setting, options, report, score(report))
        return self.found[setting]


def _counts(limit: int) -> Iterator[int]:
    """1, 2, 4, … up to a limit, and the limit."""
    workers = 1
    while workers < limit:
        yield workers
        workers *= 2
    yield limit


def _gains(before: Mapping[str, QueryReport], after: Mapping[str, QueryReport]) -> dict[str, float]:
    return {name: gain(before[name], after[name]) for name in before if name in after}


def _worth(base: Tried, one: Tried) -> bool:
    """Whether a setting is better by more than predictions err: some query gains, and all together too."""
    if one.score <= base.score or not one.gains:
        return False
    return max(one.gains.values()) > WORTH_IT and sum(one.gains.values()) > 0
