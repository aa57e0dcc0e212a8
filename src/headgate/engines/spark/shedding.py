"""Load shedding on Spark: which drops a step is given, and what was dropped.

A task is told its drops whole, thresholds of importance included, and so is the log: whoever runs a step
again drops the same tuples.  What is important follows from the steps before, whose tasks tell the importance
of some of their tuples; the first step after a semantic drop was decided only tells, and drops nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from math import ceil
from typing import Any

from headgate.engines.spark.messages import TaskResult
from headgate.graph.drops import RANDOM, Drop, Recent
from headgate.scheduling.interface import Shed

LEAST = 0.01
"""Where all is dropped, a step still takes no more than so many times the rows that it could process."""


class Shedder:
    """The drops that are in force."""

    def __init__(self) -> None:
        self._sheds: dict[int, Shed] = {}
        self._recent: dict[int, Recent] = {}
        self.dropped: dict[tuple[str, int], int] = {}
        """By reason and box, tuples of committed steps of this run."""

    def set(self, decision: Shed) -> None:
        self._sheds.pop(decision.box, None)
        if decision.share:
            self._sheds[decision.box] = decision

    def kept(self, place: int) -> float:
        """The share of what waits for a box that a step is expected to leave."""
        shed = self._sheds.get(place)
        if shed is None or (shed.reason != RANDOM and place not in self._recent):
            return 1.0
        return 1.0 - shed.share

    def left(self, place: int, rows: int) -> int:
        """Of rows that wait for a box, how many tuples its call will have.

        Here drops are made by the step, on other engines before the queue.  A policy must see the same: it
        fills plans with what costs time, and rows that will be dropped cost next to nothing.
        """
        return max(1, round(rows * self.kept(place))) if rows else 0

    def rows(self, place: int, tuples: int) -> int:
        """The other way round: rows to take so that about so many tuples are left."""
        return ceil(tuples / max(self.kept(place), LEAST))

    @property
    def weighed(self) -> frozenset[int]:
        """Boxes the importance of whose tuples must be known."""
        return frozenset(place for place, shed in self._sheds.items() if shed.reason != RANDOM)

    def drops(self) -> dict[int, Drop]:
        """What the next step is to drop, by box."""
        found = {}
        for place, shed in self._sheds.items():
            if shed.reason == RANDOM:
                found[place] = Drop(RANDOM, shed.share)
            elif place in self._recent:
                found[place] = self._recent[place].drop(shed.share)
        return found

    def learn(self, results: Iterable[TaskResult]) -> None:
        """Take in what the tasks of a committed step dropped, and what they said of importance."""
        for result in results:
            for place, reasons in result.shed.items():
                for reason, tuples in reasons.items():
                    if tuples:
                        key = reason, place
                        self.dropped[key] = self.dropped.get(key, 0) + tuples
            for place, values in result.weighed.items():
                self._recent.setdefault(place, Recent()).add(values)


def as_data(drop: Drop) -> list[Any]:
    """A drop for the log."""
    return list(astuple(drop))


def of_data(data: list[Any]) -> Drop:
    return Drop(*data)
