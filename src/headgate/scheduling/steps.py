"""Plans that must be worth their start.

On Spark a plan is a job, which takes time to start whatever it does and cannot be interrupted: a *step*.
A policy does not ask on which engine it runs.  It answers two questions: what this worker should do
(``choose``), and what one step should do (``step``).  ``Chooser.next_plan`` is the only place that tells the
two apart, and ``Step`` the only one that says when a step has enough to do.

A step is more than the plans of several workers put together: ``qos`` gives urgent queries short trains and
lets the others ride in long ones, Haren adds overdue boxes.  So the order is the policy's own.
"""

from __future__ import annotations

from collections.abc import Iterable

from headgate.scheduling.catalog import Catalog
from headgate.scheduling.interface import Call, Plan


class Step:
    """A step in the making: it is full when its calls take as long as its start."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._calls: dict[int, Call] = {}
        self._known: dict[int, float] = {}
        self._work = 0.0

    def __contains__(self, box: int) -> bool:
        return box in self._calls

    @property
    def full(self) -> bool:
        return self._work >= self._catalog.plan_overhead

    def add(self, calls: Iterable[Call]) -> None:
        """More calls, with all that they cause downstream; of several for one box the first counts."""
        for call in calls:
            self._calls.setdefault(call.box, call)

    def work(self, box: int, tuples: int | None = None) -> None:
        """Count that many tuples of a box, or its whole queue, and all that they cause downstream."""
        if tuples is None:
            tuples = self._catalog.boxes[box].queue.tuples
        self._work += tuples * self._catalog.through(box, self._known)

    @property
    def plan(self) -> Plan:
        return tuple(self._calls.values())
