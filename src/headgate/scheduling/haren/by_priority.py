"""Policies made with Haren: one assignment, and a priority function for each goal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.scheduling.haren.assignments import together
from headgate.scheduling.haren.policy import Haren
from headgate.scheduling.haren.priorities import Prioritize, by_class, chain, fcfs, highest_rate, queue_size


class FirstComeFirstServed(Haren):
    """The operator whose oldest tuple arrived first: keeps the maximum latency low.

    First-come-first-served by the arrival of the head tuple (Haren, evaluation 1).
    """

    name = "fcfs"

    def __init__(self, **options: Any) -> None:
        super().__init__(prioritize=fcfs, **options)


class QueueSize(Haren):
    """The operator with the longest queue: keeps queues short and even, and so throughput high.

    Queue size (Haren, evaluation 1).
    """

    name = "queue_size"

    def __init__(self, **options: Any) -> None:
        super().__init__(prioritize=queue_size, **options)


class HighestRate(Haren):
    """The operator whose tuples give most results per second of work: keeps the mean latency low.

    Expected results per tuple over the expected cost of all that it causes downstream (Sharaf et al., TODS
    2008; Haren, evaluation 1).
    """

    name = "highest_rate"

    def __init__(self, **options: Any) -> None:
        super().__init__(prioritize=highest_rate, **options)


class Chain(Haren):
    """The operator on the steepest segment of its progress chart: keeps the memory of queues low.

    The slope of the lower envelope (Babcock et al. 2003); of equal ones the oldest tuple.
    """

    name = "chain"

    def __init__(self, **options: Any) -> None:
        super().__init__(prioritize=chain, **options)


class Random(Haren):
    """Operators in an order drawn anew every period: the baseline that serves no goal.

    Random (Haren, evaluation 1); the seed of the run fixes it.
    """

    name = "random"

    def __init__(self, **options: Any) -> None:
        super().__init__(prioritize=self._priority, **options)

    def _priority(self, box: Any) -> float:
        number: int = box.number
        return self._drawn[number]

    def prepare(self) -> None:
        # Drawn by one, since workers compute priorities in any order.
        self._drawn = [self.random.random() for _ in self.catalog.boxes]


class MultiClass(Haren):
    """Queries of a higher class first (``to(…, query_class=1)``), and a policy of its own per class.

    Unless others are given, the highest class is served for maximum latency (``fcfs``) and all others for
    mean latency (``highest_rate``), as in Haren's evaluation 3.  Boxes that follow each other stay with one
    worker: a tuple of the highest class then waits for one call of a lower one at most.
    """

    name = "multi_class"

    def __init__(
        self,
        classes: Mapping[int, str | Prioritize] | None = None,
        *,
        otherwise: str | Prioritize = highest_rate,
        **options: Any,
    ) -> None:
        self._classes, self._otherwise = classes, otherwise
        options.setdefault("assign", together)
        super().__init__(prioritize=by_class(classes or {}, otherwise=otherwise), **options)

    def begin(self) -> None:
        if self._classes is None:
            highest = max([box.query_class for box in self.catalog.boxes], default=0)
            self.prioritize = by_class({highest: fcfs}, otherwise=self._otherwise)
