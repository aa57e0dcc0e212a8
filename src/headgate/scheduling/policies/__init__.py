"""The shipped policies, by name."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from headgate.errors import PipelineError, nearest
from headgate.scheduling.elastic import MARGIN, PERIOD, Elastic
from headgate.scheduling.interface import Policy
from headgate.scheduling.policies.application import AutoTraversal, MinCost, MinLatency, MinMemory
from headgate.scheduling.policies.bucketed import BucketedPriorityTuple
from headgate.scheduling.policies.last_in_pipeline import LastInPipeline
from headgate.scheduling.policies.ordered import CurrentThroughput, EstimatedTime, QueueSizeThrottling
from headgate.scheduling.policies.priority import PriorityTuple
from headgate.scheduling.policies.round_robin import RoundRobin
from headgate.scheduling.policies.thread_per_box import ThreadPerBox
from headgate.scheduling.policies.top_k import TopK
from headgate.scheduling.policies.tuple_at_a_time import TupleAtATime
from headgate.scheduling.shedding import LATENCY, Shedding
from headgate.scheduling.shedding import PERIOD as SHEDDING_PERIOD
from headgate.scheduling.tuning import Tuned

DEFAULT = "lp"

_POLICIES: dict[str, Callable[..., Policy]] = {
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
        AutoTraversal,
        PriorityTuple,
        TopK,
        BucketedPriorityTuple,
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


def tuned(policy: str | Policy = "auto_traversal", period: float = 1.0, margin: float = 0.05) -> Tuned:
    """A policy whose trains get the length that serves latency best, found while it runs."""
    return Tuned(get(policy), period, margin)


def shedding(
    policy: str | Policy = PriorityTuple.name,
    strategy: str = "random",
    period: float = SHEDDING_PERIOD,
    latency: float = LATENCY,
) -> Shedding:
    """A policy that drops tuples while more arrive than can be processed in time.

    ``strategy``: "random", or "semantic", which drops the least important ones first, by the expressions that
    queries give: ``stream.to(name, sink, importance="amount")``.  Every ``period`` seconds it looks anew.  A
    query lacks room where its QoS graph falls, and without a graph beyond ``latency`` seconds.
    """
    return Shedding(get(policy), strategy, period, latency)


def get(policy: str | Policy, **options: Any) -> Policy:
    """The policy of that name, with its options if there are any, or the object given.

    For instance ``get("mc", train=hg.trains.Count(100))`` or ``get("top_k", k=5)``.
    """
    if isinstance(policy, Policy):
        return policy
    if policy not in _POLICIES:
        raise PipelineError(
            f"There is no policy '{policy}'.{nearest(policy, _POLICIES)} There are: {', '.join(names())}."
        )
    known = signature(_POLICIES[policy]).parameters
    for option in options:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise PipelineError(f"Policy '{policy}' has no option '{option}'; {takes}.")
    return _POLICIES[policy](**options)
