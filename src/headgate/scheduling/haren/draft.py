"""A schedule in the making: the steps of Haren's scheduling task (T_S), two functions over features.

What cannot have changed is not decided again.  The priority of a box is computed anew if one of its features
has changed, or if the function may look at more than features, as any function of a user's may; and workers
whose boxes and priorities are the same keep their order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

from headgate.errors import HeadgateError
from headgate.scheduling.haren.assignments import AT_ONCE, Assign, Worker, Workers
from headgate.scheduling.haren.feature_table import BoxView, FeatureTable, FunctionFailed
from headgate.scheduling.haren.priorities import Prioritize, of_features, parts


class Schedule(NamedTuple):
    """Who runs what, and in which order.  A schedule in force is never changed, only replaced."""

    owner: list[int]
    """By box, its worker."""
    order: list[list[int]]
    """By worker, its boxes, the first the soonest."""
    rank: list[int]
    """By box, its place among those of its worker; equals share one."""
    priorities: list[tuple[float, ...] | None]
    """By box; None before the first."""


class Wrong(FunctionFailed):
    """One of the two functions raised, or returned what it must not."""

    def __init__(self, about: str, message: str) -> None:
        super().__init__(message)
        self.about = about


class Draft:
    """The schedule that a scheduling task makes out of the one before."""

    def __init__(
        self,
        assign: Assign,
        prioritize: Prioritize,
        table: FeatureTable,
        before: Schedule,
        touched: list[set[int]],
    ) -> None:
        self._assign, self._prioritize = assign, prioritize
        self._table = table
        self._before = before
        self.touched = touched
        self.errors: list[HeadgateError] = []
        self.made = Schedule(before.owner, list(before.order), list(before.rank), list(before.priorities))

    def slice(self, work: Callable[[int], int], worker: int) -> Callable[[], int]:
        """A step for one worker; after a failure there is nothing left to do."""

        def piece() -> int:
            if self.errors:
                return 0
            try:
                return work(worker)
            except HeadgateError as error:
                self.errors.append(error)
                return 0

        return piece

    def refresh(self, worker: int) -> int:
        """Independent features: of the boxes that a worker ran, and what time changes."""
        own = self._table.refresh_own(self.touched[worker])
        return max(own, self._table.refresh_timed(self._before.order[worker]))

    def refresh_dependent(self, worker: int) -> int:
        """Dependent features of the boxes that are marked."""
        return self._table.refresh_dependent()

    def assign(self, worker: int) -> int:
        """A worker for every box."""
        boxes, before = self._table.boxes, self._before
        at_once = next((whole for function, whole in AT_ONCE if function is self._assign), None)
        owner = self._one_by_one() if at_once is None else at_once(boxes, len(before.order))
        if owner != before.owner:
            order: list[list[int]] = [[] for _ in before.order]
            for number, given in enumerate(owner):
                order[given].append(number)
            self.made = self.made._replace(owner=owner, order=order)
        return len(boxes)

    def _one_by_one(self) -> list[int]:
        boxes, function, owner = self._table.boxes, self._assign, []
        workers = Workers(len(self._before.order), boxes)
        for box in boxes:
            try:
                given = function(box, workers)
            except HeadgateError:
                raise
            except Exception as error:
                raise _raised("assign", function, box, error) from error
            worker = given if type(given) is Worker else self._worker(box, given, workers)
            owner.append(worker.number)
            worker.boxes.append(box)
            workers.given[box.number] = worker
        return owner

    def _worker(self, box: BoxView, given: object, workers: Workers) -> Worker:
        try:
            number = operator.index(given)  # type: ignore[arg-type]
        except TypeError:
            number = -1
        if not 0 <= number < len(workers):
            raise Wrong(
                "assign",
                f"{_called('assign', self._assign)} gave box '{box.name}' to worker {given!r}; there "
                f"are 0 to {len(workers) - 1}.",
            )
        return workers[number]

    def sort(self, worker: int) -> int:
        """Priorities of a worker's boxes, and their order."""
        _, orders, rank, priorities = self.made
        # From the order of their numbers, so that equals do not stand as they happened to before.
        order = sorted(orders[worker])
        count, changed = self._compute(order, priorities)
        if not changed and orders[worker] is self._before.order[worker]:
            return count
        try:
            order.sort(key=priorities.__getitem__, reverse=True)  # type: ignore[arg-type]
        except TypeError as error:
            raise Wrong(
                "prioritize",
                f"{_called('prioritize', self._prioritize)} gave priorities that cannot be compared: "
                f"{error}.",
            ) from error
        orders[worker] = order
        place, above = 0, None
        for number in order:
            own = priorities[number]
            if own != above:
                place, above = place + 1, own
            rank[number] = place
        return count

    def _compute(self, order: list[int], priorities: list[tuple[float, ...] | None]) -> tuple[int, bool]:
        """New priorities where they may differ; how many were computed, and whether one has changed."""
        function, boxes, altered = self._prioritize, self._table.boxes, self._table.altered
        if of_features(function):
            order = [number for number in order if altered[number] or priorities[number] is None]
        changed = False
        for number in order:
            try:
                given = function(boxes[number])
            except HeadgateError:
                raise
            except Exception as error:
                raise _raised("prioritize", function, boxes[number], error) from error
            try:
                made = parts(given)
            except (TypeError, ValueError) as error:
                raise Wrong(
                    "prioritize",
                    f"{_called('prioritize', function)} gave box '{boxes[number].name}' the priority "
                    f"{given!r}, which is no number.",
                ) from error
            if made != priorities[number]:
                priorities[number] = made
                changed = True
        return len(order), changed


def _called(what: str, function: object) -> str:
    return f"{what}= ({getattr(function, '__name__', type(function).__name__)})"


def _raised(what: str, function: object, box: BoxView, error: Exception) -> Wrong:
    return Wrong(
        what, f"{_called(what, function)} failed on box '{box.name}': {type(error).__name__}: {error}."
    )
