"""Inter-thread functions (Haren): which worker a box is assigned to until the next scheduling task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.scheduling.haren.feature_table import BoxView

SLACK = 0.1
"""A box stays with its worker while that has at most this share more than its part of all work."""


class Worker:
    """A worker as an assignment function sees it: what it has been given so far in this task."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.boxes: list[BoxView] = []
        self._load = 0.0
        self._counted = 0

    @property
    def load(self) -> float:
        """The loads of its boxes together."""
        while self._counted < len(self.boxes):
            self._load += float(self.boxes[self._counted].load)
            self._counted += 1
        return self._load

    def ahead(self, query_class: int) -> float:
        """The loads of its first boxes of that class, and of all that continue them, given or not."""
        return _ahead(self.boxes, query_class)

    def __index__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"Worker({self.number})"


class Workers(list[Worker]):
    """All workers."""

    def __init__(self, count: int, boxes: Sequence[BoxView]) -> None:
        super().__init__(map(Worker, range(count)))
        self.given: dict[int, Worker] = {}
        """By the number of a box, the worker that it was given to in this task."""
        self._all = boxes
        self._fair: float | None = None
        self._fair_ahead: dict[int, float] = {}

    @property
    def fair(self) -> float:
        """The load that each would have if all had the same."""
        if self._fair is None:
            self._fair = sum([float(box.load) for box in self._all]) / len(self)
        return self._fair

    def fair_ahead(self, query_class: int) -> float:
        """What each would have of the work of that class if all had the same."""
        if query_class not in self._fair_ahead:
            self._fair_ahead[query_class] = _ahead(self._all, query_class) / len(self)
        return self._fair_ahead[query_class]


def _ahead(boxes: Sequence[BoxView], query_class: int) -> float:
    firsts = [box for box in boxes if not box.upstream and box.query_class == query_class]
    return sum([float(box.downstream_load) for box in firsts])


Assign = Callable[[Any, Any], Any]
"""Takes a box and the workers, and returns a worker or its number."""


def balanced(box: BoxView, workers: Workers) -> Worker:
    """Its worker of last time, unless that would have too much of the work; else the least loaded."""
    stays = workers[box.worker]
    if len(workers) == 1 or stays.load + box.load <= (1 + SLACK) * workers.fair:
        return stays
    return min(workers, key=lambda worker: worker.load)


def together(box: BoxView, workers: Workers) -> Worker:
    """With the box before it, so that a tuple waits for one worker only; each class is balanced by itself.

    So queries of a high class are as far apart as if there were no others.
    """
    if box.upstream:
        return workers.given[box.upstream[0].number]
    number, own = box.query_class, box.downstream_load
    stays = workers[box.worker]
    if len(workers) == 1 or stays.ahead(number) + own <= (1 + SLACK) * workers.fair_ahead(number):
        return stays
    return min(workers, key=lambda worker: worker.ahead(number))


def _all_balanced(boxes: Sequence[BoxView], workers: int) -> list[int]:
    """``balanced`` for all boxes."""
    loads = [float(box.load) for box in boxes]
    limit = (1 + SLACK) * (sum(loads) / workers)
    held = [0.0] * workers
    owner = []
    for box, load in zip(boxes, loads, strict=True):
        given = box.worker
        if held[given] + load > limit and workers > 1:
            given = held.index(min(held))
        held[given] += load
        owner.append(given)
    return owner


def _all_together(boxes: Sequence[BoxView], workers: int) -> list[int]:
    """``together`` for all boxes."""
    limits: dict[int, float] = {}
    firsts = [box for box in boxes if not box.upstream]
    for box in firsts:
        limits[box.query_class] = limits.get(box.query_class, 0.0) + float(box.downstream_load)
    held = {number: [0.0] * workers for number in limits}
    owner: list[int] = []
    for box in boxes:
        if box.upstream:
            owner.append(owner[box.upstream[0].number])
            continue
        number, load, given = box.query_class, float(box.downstream_load), box.worker
        ahead = held[number]
        if workers > 1 and ahead[given] + load > (1 + SLACK) * (limits[number] / workers):
            given = ahead.index(min(ahead))
        ahead[given] += load
        owner.append(given)
    return owner


AT_ONCE: tuple[tuple[Assign, Callable[[Sequence[BoxView], int], list[int]]], ...] = (
    (balanced, _all_balanced),
    (together, _all_together),
)
"""Functions of ours that give all boxes to workers in one go: the same, at a tenth of the cost."""
