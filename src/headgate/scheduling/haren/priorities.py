"""Intra-thread functions (Haren): the priority of a box for its worker, the greater the sooner.

A priority is a number, or a tuple of numbers that are compared in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from headgate.errors import PipelineError, nearest
from headgate.scheduling.haren import chain as _chain  # noqa: F401 - registers the features of chain
from headgate.scheduling.haren import shipped_features as _shipped  # noqa: F401 - registers the others
from headgate.scheduling.haren.features import BOX_HAS, features

if TYPE_CHECKING:
    from headgate.scheduling.haren.feature_table import BoxView

Priority = float | tuple[float, ...]
Prioritize = Callable[[Any], Priority]


def fcfs(box: BoxView) -> Priority:
    """The box whose oldest tuple arrived first."""
    return -float(box.head_arrival)


def queue_size(box: BoxView) -> Priority:
    """The box with the longest queue."""
    return float(box.queue_length)


def highest_rate(box: BoxView) -> Priority:
    """The box whose tuples become most results per second of work; unknown costs first."""
    seconds = box.downstream_cost
    return float(box.downstream_selectivity / seconds) if seconds > 0 else math.inf


def chain(box: BoxView) -> Priority:
    """The box on the steepest segment of its progress chart; of equal ones the oldest tuple."""
    return float(box.chain_slopes[box.number]), -float(box.head_arrival)


PRIORITIES: dict[str, Prioritize] = {f.__name__: f for f in (fcfs, queue_size, highest_rate, chain)}
PRIORITIES["first_come_first_served"] = fcfs
_OF_FEATURES: WeakSet[Prioritize] = WeakSet(PRIORITIES.values())


def of_features(function: Prioritize) -> bool:
    """Whether a priority can change only if a feature of its box does: ours, and what is made of them."""
    return isinstance(function, FunctionType) and function in _OF_FEATURES


def _made_of(function: Prioritize, others: Iterable[Prioritize]) -> Prioritize:
    if all(map(of_features, others)):
        _OF_FEATURES.add(function)
    return function


def named(given: str | Prioritize, what: str) -> Prioritize:
    """A priority function, or the shipped one of that name, or a feature's value."""
    if callable(given):
        return given
    if given in PRIORITIES:
        return PRIORITIES[given]
    if given in features() and given not in BOX_HAS:

        def by_feature(box: Any) -> Priority:
            value: Priority = getattr(box, given)
            return value

        by_feature.__name__ = given
        return _made_of(by_feature, ())
    known = [*PRIORITIES, *features()]
    raise PipelineError(
        f"{what}: there is no priority '{given}'.{nearest(str(given), known)} Give a function of a box, a "
        f"feature's name, or one of: {', '.join(sorted(PRIORITIES))}."
    )


def parts(priority: Any) -> tuple[float, ...]:
    """A priority as what is compared; TypeError or ValueError if it is none."""
    if type(priority) is float and priority == priority:
        return (priority,)
    found = priority if isinstance(priority, tuple) else (priority,)
    for part in found:
        if math.isnan(part):
            raise ValueError("NaN")
    return found


def then(*functions: str | Prioritize) -> Prioritize:
    """The first function decides; among equals the second, and so on."""
    if not functions:
        raise PipelineError("then(): give at least one priority function.")
    each = [named(function, "then") for function in functions]

    def priority(box: Any) -> Priority:
        return tuple(part for function in each for part in parts(function(box)))

    priority.__name__ = f"then({', '.join(map(_name, each))})"
    return _made_of(priority, each)


def reverse(function: str | Prioritize) -> Prioritize:
    """What a function puts first comes last."""
    one = named(function, "reverse")

    def priority(box: Any) -> Priority:
        return tuple(-part for part in parts(one(box)))

    priority.__name__ = f"reverse({_name(one)})"
    return _made_of(priority, (one,))


def by_class(
    functions: str | Prioritize | Mapping[int, str | Prioritize], *, otherwise: str | Prioritize = "fcfs"
) -> Prioritize:
    """Queries of a higher class first; within a class its own function, or ``otherwise``.

    A box that works for queries of several classes belongs to the highest.
    """
    given = functions if isinstance(functions, Mapping) else {}
    own = {number: named(function, "by_class") for number, function in given.items()}
    other = named(otherwise if isinstance(functions, Mapping) else functions, "by_class")

    def priority(box: Any) -> Priority:
        number = box.query_class
        return (number, *parts(own.get(number, other)(box)))

    inside = [f"{number}: {_name(function)}" for number, function in own.items()] or [_name(other)]
    priority.__name__ = f"by_class({', '.join(inside)})"
    return _made_of(priority, (*own.values(), other))


def _name(function: Prioritize) -> str:
    return getattr(function, "__name__", type(function).__name__)
