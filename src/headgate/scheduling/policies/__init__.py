"""The shipped policies, by name."""

from __future__ import annotations

from collections.abc import Callable

from headgate.errors import PipelineError, nearest
from headgate.scheduling.elastic import MARGIN, PERIOD, Elastic
from headgate.scheduling.interface import Policy
from headgate.scheduling.policies.application import MinCost, MinLatency, MinMemory
from headgate.scheduling.policies.bobox import Bobox, BoboxBaseline
from headgate.scheduling.policies.las import Las, Nls
from headgate.scheduling.policies.last_in_pipeline import LastInPipeline
from headgate.scheduling.policies.ordered import CurrentThroughput, EstimatedTime, QueueSizeThrottling
from headgate.scheduling.policies.priority import PriorityTuple
from headgate.scheduling.policies.round_robin import RoundRobin
from headgate.scheduling.policies.thread_per_box import ThreadPerBox
from headgate.scheduling.policies.tuple_at_a_time import TupleAtATime

DEFAULT = "lp"

_POLICIES: dict[str, Callable[[], Policy]] = {
    policy.name: policy
    for policy in (
        RoundRobin,
        TupleAtATime,
        ThreadPerBox,
        LastInPipeline,
        QueueSizeThrottling,
        EstimatedTime,
        CurrentThroughput,
        MinCost,
        MinLatency,
        MinMemory,
        PriorityTuple,
        Bobox,
        BoboxBaseline,
        Las,
        Nls,
    )
}


def names() -> list[str]:
    """The names that ``policy=`` takes."""
    return sorted(_POLICIES)


def describe(name: str) -> str:
    """One line on what a policy is for."""
    return (_POLICIES[name].__doc__ or "").strip().splitlines()[0]


def elastic(policy: str | Policy = DEFAULT, period: float = PERIOD, margin: float = MARGIN) -> Elastic:
    """A policy that finds the best number of workers while it runs, up to ``workers=`` of the run."""
    return Elastic(get(policy), period, margin)


def get(policy: str | Policy) -> Policy:
    """The policy of that name, or the object given."""
    if isinstance(policy, Policy):
        return policy
    if policy not in _POLICIES:
        raise PipelineError(
            f"There is no policy '{policy}'.{nearest(policy, _POLICIES)} There are: {', '.join(names())}."
        )
    return _POLICIES[policy]()
