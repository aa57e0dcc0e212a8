"""The shipped policies, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, NoReturn

from headgate.errors import PipelineError, nearest
from headgate.scheduling import spelling
from headgate.scheduling.aurora.application import (
    ApplicationAtATime,
    AutoTraversal,
    MinCost,
    MinLatency,
    MinMemory,
)
from headgate.scheduling.aurora.bucketed import BucketedPriorityTuple
from headgate.scheduling.aurora.priority import PriorityTuple
from headgate.scheduling.aurora.round_robin import RoundRobin
from headgate.scheduling.aurora.shedding import LATENCY, Shedding
from headgate.scheduling.aurora.shedding import PERIOD as SHEDDING_PERIOD
from headgate.scheduling.aurora.thread_per_box import ThreadPerBox
from headgate.scheduling.aurora.top_k import TopK
from headgate.scheduling.aurora.tuple_at_a_time import TupleAtATime
from headgate.scheduling.bobox.policy import Bobox, BoboxBaseline
from headgate.scheduling.haren.assignments import Assign, balanced, together
from headgate.scheduling.haren.by_priority import (
    Chain,
    FirstComeFirstServed,
    HighestRate,
    MultiClass,
    QueueSize,
    Random,
)
from headgate.scheduling.haren.policy import PERIOD as SCHEDULING_PERIOD
from headgate.scheduling.haren.policy import Haren
from headgate.scheduling.haren.priorities import Prioritize, by_class, reverse, then
from headgate.scheduling.interface import Policy
from headgate.scheduling.las.policy import Las, Nls
from headgate.scheduling.ordered.heuristics import CurrentThroughput, EstimatedTime, QueueSizeThrottling
from headgate.scheduling.ordered.last_in_pipeline import LastInPipeline
from headgate.scheduling.spelling import Load
from headgate.scheduling.trains import WHOLE_QUEUE, Train
from headgate.scheduling.tuning.elastic import MARGIN, PERIOD, Elastic
from headgate.scheduling.tuning.tuned import Tuned

__all__ = [
    "DEFAULT",
    "Chain",
    "FirstComeFirstServed",
    "HighestRate",
    "MultiClass",
    "QueueSize",
    "Random",
    "aliases",
    "balanced",
    "by_class",
    "describe",
    "elastic",
    "get",
    "haren",
    "multi_class",
    "names",
    "reverse",
    "shedding",
    "spelled",
    "superboxes",
    "then",
    "together",
    "tuned",
]

DEFAULT = "lp"
"""What runs where no policy is named and no query has a goal."""
WITH_GOALS = "qos"
"""… and where one has."""
_GIVEN = {"prioritize", "name"}
"""Parameters of Haren that policies made with it set themselves."""

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
        FirstComeFirstServed,
        QueueSize,
        HighestRate,
        Chain,
        Random,
        MultiClass,
        Bobox,
        BoboxBaseline,
        Las,
        Nls,
    )
}

_ALIASES = {
    "bucketed_priority_tuple": "qos_bucketed",
    "current_throughput": "ct",
    "estimated_time": "et",
    "first_come_first_served": "fcfs",
    "last_in_pipeline": "lp",
    "locality_aware": "las",
    "min_cost": "mc",
    "min_latency": "ml",
    "min_memory": "mm",
    "non_locality_aware": "nls",
    "priority_tuple": "qos",
    "queue_size_throttling": "qst",
}


def names() -> list[str]:
    """The policies, each once, by the short names of the papers; ``aliases`` has the long ones."""
    return sorted(_POLICIES)


def aliases() -> dict[str, str]:
    """Names that say what a policy does, and the paper's short name of each: ``{"min_cost": "mc", ...}``.

    Both are valid wherever a policy is named.  A report shows the name that was given.
    """
    return dict(_ALIASES)


def describe(name: str) -> str:
    """One line on what a policy is for."""
    return (_POLICIES[_ALIASES.get(name, name)].__doc__ or "").strip().splitlines()[0]


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


_CHOOSERS: dict[str, Callable[..., Policy]] = {
    "round_robin": ApplicationAtATime,
    "qos": PriorityTuple,
    "qos_bucketed": BucketedPriorityTuple,
    "top_k": TopK,
}


def superboxes(
    choose: str = "round_robin", traverse: str = "mc", train: Train = WHOLE_QUEUE, **options: Any
) -> Policy:
    """A policy of two levels: which query's superbox runs next, and how it is traversed.

    ``choose``: "round_robin", "qos" (the query of the box whose delay costs most utility), "qos_bucketed"
    (the same, by buckets) or "top_k" (the tree that spans its k most urgent boxes).  ``traverse``: "mc",
    "ml", "mm" or "auto".  ``train`` says how many tuples each call takes.  ``options`` are those of the first
    level: ``k=``, ``gradients=``, ``slacks=``, ``queue=``.

    Short forms: "mc", "ml", "mm" and "auto_traversal" choose by turns, and "top_k" traverses by "mc".  "qos"
    and "qos_bucketed" run a box with only what follows it, for a time slice.
    """
    make = _CHOOSERS.get(_ALIASES.get(choose, choose))
    if make is None:
        raise PipelineError(
            f"superboxes(choose={choose!r}): there is no such choice.{nearest(str(choose), list(_CHOOSERS))} "
            f"There are: {', '.join(_CHOOSERS)}."
        )
    for option in options:
        if option not in signature(make).parameters:
            raise PipelineError(f"superboxes(choose='{choose}') has no option '{option}'.")
    made = make(train=train, traverse=traverse, **options)
    made.name = f"superboxes({choose}, {traverse})"
    return made


def haren(
    assign: Assign = balanced,
    prioritize: str | Prioritize = "fcfs",
    period: float = SCHEDULING_PERIOD,
    batch: int | Train | None = None,
    *,
    name: str | None = None,
) -> Haren:
    """A policy from two functions.

    ``assign(box, workers)`` returns a worker or its number; ``prioritize(box)`` a number, or a tuple that is
    compared in order, the greater the sooner, or the name of a feature or of a shipped policy's function.
    Features are attributes of ``box``.  Both are decided again every ``period`` seconds; a call takes at most
    ``batch`` tuples, by default as many as are expected to take 10 ms.
    """
    return Haren(assign, prioritize, period, batch, name=name)


def multi_class(
    classes: Mapping[int, str | Prioritize] | None = None,
    *,
    otherwise: str | Prioritize = "highest_rate",
    period: float = SCHEDULING_PERIOD,
    batch: int | Train | None = None,
) -> MultiClass:
    """Queries of a higher class first, then the function of their class: ``multi_class({1: "fcfs"})``."""
    return MultiClass(classes, otherwise=otherwise, period=period, batch=batch)


_MAKERS: dict[str, Callable[..., Any]] = {
    made.__name__: made
    for made in (elastic, haren, multi_class, shedding, superboxes, tuned, by_class, reverse, then)
}
"""What makes policies, and functions for them, of others."""


def spelled(text: str, load: Load | None = None) -> Policy:
    """A policy with its options as one text: ``mc(train=64)``, ``tuned(qos)``, ``haren(prioritize=chain)``.

    A train is a number of tuples or ``share(0.5)``, ``count(9)``, ``time(0.01)``, ``spread(0.1)``,
    ``bytes(4096)``.  ``load`` gives the function that ``file.py:function`` names.
    """

    def refuse(path: str, name: str) -> NoReturn:
        raise PipelineError(f"Policy '{text}': functions of a file work with 'headgate run' only.")

    made = spelling.read(text, get, _MAKERS, load or refuse)
    if not isinstance(made, str | Policy):
        raise PipelineError(f"'{text}' is no policy. There are: {', '.join([*names(), *_MAKERS])}.")
    return get(made)


def chosen(policy: str | Policy | None, goals: Mapping[str, Any]) -> Policy:
    """The policy that was given, or else the default one: it honours goals where there are any."""
    return get(policy or (WITH_GOALS if goals else DEFAULT))


def get(policy: str | Policy, **options: Any) -> Policy:
    """The policy of that name, with its options if there are any, or the object given.

    For instance ``get("min_cost", train=hg.trains.Count(9))``, ``get("top_k", k=5)``, ``get("fcfs",
    period=0.05)``, or all in one text: ``get("top_k(k=5)")``.  The policy is called what you called it, also
    in reports.
    """
    if isinstance(policy, Policy):
        return policy
    if "(" in policy:
        return spelled(policy)
    make = _POLICIES.get(_ALIASES.get(policy, policy))
    if make is None:
        raise PipelineError(
            f"There is no policy '{policy}'.{nearest(policy, [*_POLICIES, *_ALIASES])} "
            f"There are: {', '.join(names())}."
        )
    known = dict(signature(make).parameters)
    if known.pop("options", None) is not None:  # Haren's, except those
        known |= {name: p for name, p in signature(Haren).parameters.items() if name not in _GIVEN}
    for option in options:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise PipelineError(f"Policy '{policy}' has no option '{option}'; {takes}.")
    made = make(**options)
    if policy in _ALIASES:
        made.name = policy
    return made
