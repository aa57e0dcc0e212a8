"""What changes while a run goes on (Haren's live change).

A change comes into force at once and as a whole, between two events: a call that is under way goes on,
and the policy in force hears of its end; a plan or a scheduling task of the policy before is void; queues
stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from headgate.errors import PipelineError, nearest
from headgate.graph.durations import parse_duration
from headgate.graph.network import Network
from headgate.graph.qos import QoS
from headgate.runtime.limits import check_batch, check_period, check_workers
from headgate.runtime.report import QueryReport
from headgate.scheduling import policies
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.interface import Policy
from headgate.scheduling.trains import Count, Train


@runtime_checkable
class HasNetwork(Protocol):
    """An application: ``hg.App``."""

    @property
    def network(self) -> Network: ...


@dataclass(frozen=True)
class Change:
    """A change of a run; None leaves a thing as it is.

    ``at``: seconds of the run, for changes that are planned.  ``policy``: a name or a policy.  ``period``
    (``0.05`` or ``"50 ms"``) and ``batch`` (tuples, or a train) are settings of the policy, the new one if
    there is one.  ``add`` and ``remove`` name queries; a query to add belongs to the application, and does
    not run yet.  ``request``: an application that joins with its own sources, and ends with them.
    """

    at: float = 0.0
    policy: str | Policy | None = None
    period: float | str | None = None
    batch: int | Train | None = None
    workers: int | None = None
    add: str | Sequence[str] = ()
    remove: str | Sequence[str] = ()
    qos: Mapping[str, QoS] = field(default_factory=dict)
    """Other QoS graphs, by query."""
    request: HasNetwork | None = None

    def __post_init__(self) -> None:
        for what in ("add", "remove"):
            given = getattr(self, what)
            if not (isinstance(given, (str, Iterable)) and all(isinstance(name, str) for name in given)):
                raise PipelineError(f"{what}={given!r}: give the name of a query, or several.")
            object.__setattr__(self, what, (given,) if isinstance(given, str) else tuple(given))
        if self.request is not None and not isinstance(self.request, HasNetwork):
            raise PipelineError(
                f"request={self.request!r}: give an application, hg.App(…), with its queries."
            )
        if self.policy is not None:
            object.__setattr__(self, "policy", policies.get(self.policy))
        if self.period is not None:
            seconds = parse_duration(self.period, "period") / 1e6
            check_period(seconds, self.period)
            object.__setattr__(self, "period", seconds)
        if isinstance(self.batch, int):
            check_batch(self.batch)
            object.__setattr__(self, "batch", Count(self.batch))
        elif self.batch is not None and not isinstance(self.batch, Train):
            raise PipelineError(f"batch={self.batch!r}: give a number of tuples, or a train (hg.trains).")
        if self.workers is not None:
            check_workers(self.workers)
        if not (isinstance(self.at, (int, float)) and 0 <= self.at < math.inf):
            raise PipelineError(f"at={self.at!r}: it must be seconds of the run, 0 or more.")

    @property
    def chosen(self) -> Policy | None:
        """The policy that takes over."""
        assert not isinstance(self.policy, str)
        return self.policy

    @property
    def settings(self) -> dict[str, float | Train]:
        """Settings of the policy that change."""
        given = {"period": self.period, "batch": self.batch}
        return {name: value for name, value in given.items() if value is not None}  # type: ignore[misc]

    def check(self, policy: Policy, queries: Iterable[str]) -> None:
        """Raise if the policy lacks one of the settings that change, or there is no such query."""
        known_queries = list(queries)
        for name in self.qos:
            if name not in known_queries:
                raise PipelineError(f"There is no query '{name}'.{nearest(name, known_queries)}")
        for name in self.settings:
            if name not in policy.settings:
                known = [p for p in policies.names() if name in policies.get(p).settings]
                raise PipelineError(
                    f"Policy '{policy.name}' has no {name} to set; these have: {', '.join(known)}."
                )

    def set_goals(self, network: Network, reports: Mapping[str, QueryReport], catalog: Catalog) -> None:
        """Put other QoS graphs in force; the driver then lets the policy begin anew."""
        for output in network.outputs:
            qos = self.qos.get(output.name)
            if qos is not None:
                if output.qos is None:
                    reports[output.name].unjudged = reports[output.name].tuples_out
                output.qos = network.goals[output.name] = catalog.goals[output.name] = qos
                reports[output.name].has_qos = True
