"""Haren (Palyvos-Giannas et al., DEBS 2019): any policy from two functions over features.

``assign`` says which worker an operator belongs to, ``prioritize`` which of its operators a worker prefers.
Most of the time workers execute (the paper's T_E): each runs the first of its operators that can run, for at
most a batch of tuples, and is parked if none can, until an event says that one can.  Every period they
schedule (T_S): all refresh the features of the operators they ran, one refreshes those that depend on others,
one assigns, and all compute priorities and sort.

Fairness is kept here and not by the functions.  Operators of equal priority take turns.  None starves: an
operator that could have run for ``patience`` seconds is overdue, and its worker runs the one that has waited
longest for one call, after which it gives no such call for ``1 / FAVOUR`` times as long as that took.  So of
the n operators of a worker, whose calls take at most c seconds, one that can run does so within
``patience + n * c * (1 / FAVOUR + 2)`` seconds, and overdue ones take at most the share ``FAVOUR`` of its
time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from headgate.errors import PipelineError
from headgate.scheduling.catalog import Catalog
from headgate.scheduling.events import (
    Arrived,
    Changed,
    Event,
    Finished,
    Idle,
    Joined,
    Left,
    Moved,
    Rescheduled,
    Spawned,
    Started,
    Timer,
)
from headgate.scheduling.haren.assignments import Assign, balanced
from headgate.scheduling.haren.draft import Draft, Schedule, Wrong
from headgate.scheduling.haren.feature_table import FeatureTable
from headgate.scheduling.haren.priorities import Prioritize, fcfs, named
from headgate.scheduling.interface import Call, Decision, Phase, Plan, Reschedule, Run, SetTimer, Wake
from headgate.scheduling.pull import Chooser
from headgate.scheduling.steps import Step
from headgate.scheduling.trains import WHOLE_QUEUE, Count, Time, Train

PERIOD = 0.1
PATIENCE = 1.0
FAVOUR = 0.005
SLICE = 0.01
"""Seconds that a batch takes if none is given."""
_TIMER = "haren"


class Haren(Chooser):
    """Each worker runs its operators by priority; both are decided again every period."""

    name = "haren"
    assigns = True
    settings = frozenset({"period", "batch"})

    def __init__(
        self,
        assign: Assign = balanced,
        prioritize: str | Prioritize = fcfs,
        period: float = PERIOD,
        batch: int | Train | None = None,
        *,
        patience: float = PATIENCE,
        name: str | None = None,
    ) -> None:
        if not callable(assign):
            raise PipelineError(f"haren(assign={assign!r}): give a function of a box and the workers.")
        if not 0 < period < math.inf or not 0 < patience < math.inf:
            raise PipelineError(
                f"haren(period={period!r}, patience={patience!r}): both are seconds, more than none."
            )
        if isinstance(batch, int) and batch < 1:
            raise PipelineError(f"haren(batch={batch}): it must be at least 1 tuple.")
        self.assign = assign
        self.prioritize = named(prioritize, "haren(prioritize=…)")
        self.period = period
        self.batch = batch
        self.patience = patience
        self.name = name or self.name
        self.problems: list[str] = []
        self._table: FeatureTable | None = None

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What the features that were asked for rest on."""
        return frozenset() if self._table is None else frozenset(self._table.needs)

    @property
    def table(self) -> FeatureTable:
        """The features of all boxes; there is one once the policy has started."""
        assert self._table is not None
        return self._table

    # --- events ---------------------------------------------------------------------------------------

    def start(self, catalog: Catalog, workers: int, seed: int = 0) -> Sequence[Decision]:
        boxes = range(len(catalog.boxes))
        self.catalog = catalog
        self.random = random.Random(seed)
        self.problems = []
        self._told: set[tuple[str, str]] = set()
        self._table = FeatureTable(catalog.boxes, workers, catalog.topology, catalog.cores)
        self._timer, self._periods = _TIMER, 0
        self._workers = workers
        self._owner = [box % workers for box in boxes]
        self._order = [[box for box in boxes if self._owner[box] == w] for w in range(workers)]
        self._rank = [0] * len(boxes)
        self._priorities: list[tuple[float, ...] | None] = [None] * len(boxes)
        self._turn = [0] * len(boxes)
        self._turns = 0
        self._parked: dict[int, None] = {}
        self._touched: list[set[int]] = [set() for _ in range(workers)]
        self._armed = True
        self._draft: Draft | None = None
        self._waits = [catalog.since] * len(boxes)
        """Since when a box is waiting for a call: it last ran then, or had nothing to do."""
        self._look = [catalog.since + self.patience] * workers
        """When a worker looks for overdue boxes next."""
        self._favoured: dict[int, int] = {}
        """Overdue boxes that workers were given."""
        self.begin()
        for phase in self._phases(catalog.since):
            for piece in phase.slices:
                piece()
        self._adopt(fatal=True)
        return (SetTimer(catalog.since + self.period, self._timer),)

    def set(self, name: str, value: float | Train, now: float) -> Sequence[Decision]:
        """The period counts from now; a task that is under way is not disturbed."""
        setattr(self, name, value)
        if name == "batch" or self._table is None or not self._armed or self._draft is not None:
            return ()
        self._periods += 1
        self._timer = f"{_TIMER} {self._periods}"
        return self._arm(now)

    def begin(self) -> None:
        """Set up what the functions remember."""

    def prepare(self) -> None:
        """Before every scheduling task."""

    def handle(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Idle):
            plan = self.next_plan(event.worker, event.time)
            if plan is None:
                self._parked[event.worker] = None
                return ()
            self._parked.pop(event.worker, None)
            return (Run(event.worker, plan),)
        if isinstance(event, Timer):
            return self._reschedule(event.time) if event.name == self._timer else ()
        if isinstance(event, Rescheduled):
            self._adopt()
            return self._arm(event.time)
        if isinstance(event, Arrived | Joined | Left | Moved):
            return ()
        self._note(event)
        decisions = [] if self._armed else [*self._arm(event.time)]
        return [*decisions, *self._wake()] if self._parked and self.catalog.ready else decisions

    def _arm(self, now: float) -> Sequence[Decision]:
        self._armed = True
        return (SetTimer(now + self.period, self._timer),)

    def _note(self, event: Spawned | Started | Finished | Changed) -> None:
        """Remember which boxes' features may have changed."""
        owner, touched = self._owner, self._touched
        touched[owner[event.box]].add(event.box)
        if isinstance(event, Started):
            box = self.table.boxes[event.box]
            box.last_worker, box.last_run = event.worker, event.time
            self._waits[event.box] = event.time
        elif isinstance(event, Finished):
            for place, _ in event.queues:
                touched[owner[place]].add(place)
            self._waits[event.box] = event.time
            if self._favoured.get(event.worker) == event.box:
                del self._favoured[event.worker]
                self._look[event.worker] = event.time + (event.seconds + event.overhead) / FAVOUR

    def _wake(self) -> Sequence[Decision]:
        """Wake parked workers that have a box which can run."""
        owner, parked = self._owner, self._parked
        woken = {owner[box]: None for box in self.catalog.ready if owner[box] in parked}
        for worker in woken:
            del parked[worker]
        return (Wake(tuple(woken)),) if woken else ()

    # --- the execution task -----------------------------------------------------------------------------

    def choose(self, worker: int, now: float) -> Plan | None:
        """The first of a worker's boxes that can run; among equals the one whose turn was longest ago."""
        if not self.catalog.ready:
            return None
        if self._favoured.pop(worker, None) is not None:
            self._look[worker] = now  # the engine has skipped that call
        box = self._overdue(worker, now) if now >= self._look[worker] else None
        if box is None:
            box = self._first(worker)
        if box is None:
            return None
        self._take_turn(box)
        return (Call(box, self._train(box)),)

    def _first(self, worker: int) -> int | None:
        ready, rank, turn = self.catalog.is_ready, self._rank, self._turn
        best, limit = -1, 0
        for box in self._order[worker]:
            if best >= 0 and rank[box] != limit:
                break
            if ready[box]:
                if best < 0:
                    best, limit = box, rank[box]
                elif turn[box] < turn[best]:
                    best = box
        return None if best < 0 else best

    def _take_turn(self, box: int) -> None:
        self._turns += 1
        self._turn[box] = self._turns

    def _overdue(self, worker: int, now: float) -> int | None:
        """The box that could have run for too long, if there is one; and when to look again."""
        longest, found = now, None
        for box in self._order[worker]:
            if not self.catalog.is_ready[box]:
                self._waits[box] = now
            elif self._waits[box] < longest:
                longest, found = self._waits[box], box
        if found is None or now - longest < self.patience:
            self._look[worker] = longest + self.patience
            return None
        self._favoured[worker] = found
        self._look[worker] = math.inf
        return found

    def _train(self, box: int) -> Train:
        if isinstance(self.batch, int):
            return Count(self.batch)
        if self.batch is not None:
            return self.batch
        return Time(SLICE)

    def step(self, worker: int, now: float) -> Plan | None:
        """Boxes by priority, each with those that follow it, until the step is full.

        An overdue one always comes along, so it waits no longer than for one step.
        """
        ready = [box for box in self._order[worker] if self.catalog.is_ready[box]]
        ready.sort(key=lambda box: (self._rank[box], self._turn[box]))
        late = [box for box in ready if now - self._waits[box] >= self.patience]
        step = Step(self.catalog)
        for box in [*ready, *late]:
            if box in step or (step.full and box not in late):
                continue
            self._take_turn(box)
            train = WHOLE_QUEUE if self.batch is None else self._train(box)
            step.work(box, train.size(self.catalog.boxes[box]))
            step.add([Call(box, train), *(Call(down, WHOLE_QUEUE) for down in self.catalog.downstream(box))])
        return step.plan or None

    # --- the scheduling task ----------------------------------------------------------------------------

    def _reschedule(self, now: float) -> Sequence[Decision]:
        """A period is over.  If nothing has happened in it, there is nothing to decide till something has."""
        self._armed = False
        if not any(self._touched):
            return ()
        self._armed = True  # by the task's end
        self._parked.clear()
        return (Reschedule(self._phases(now)),)

    def _phases(self, now: float) -> tuple[Phase, ...]:
        """What the workers do at the barrier; it changes nothing that events and decisions use."""
        self.table.begin(now)
        self.prepare()
        touched, self._touched = self._touched, [set() for _ in range(self._workers)]
        before = Schedule(self._owner, self._order, self._rank, self._priorities)
        draft = self._draft = Draft(self.assign, self.prioritize, self.table, before, touched)
        each = range(self._workers)
        return (
            Phase("own features", tuple(draft.slice(draft.refresh, worker) for worker in each)),
            Phase("dependent features", (draft.slice(draft.refresh_dependent, 0),)),
            Phase("assignment", (draft.slice(draft.assign, 0),)),
            Phase("priorities", tuple(draft.slice(draft.sort, worker) for worker in each)),
        )

    def _adopt(self, *, fatal: bool = False) -> None:
        """Let the schedule that was made come into force; one that could not be made leaves the old one."""
        draft, self._draft = self._draft, None
        assert draft is not None
        self.table.begin(self.table.now)  # what was asked for in this task must be measured from now on
        for error in draft.errors:
            if fatal and isinstance(error, PipelineError):
                raise error
            about = (error.about if isinstance(error, Wrong) else "feature", type(error.__cause__).__name__)
            if about not in self._told:
                self._told.add(about)
                self.problems.append(f"Policy '{self.name}': {error} The schedule before stays in force.")
        if draft.errors:
            for own, left in zip(self._touched, draft.touched, strict=True):
                own |= left
            return
        self.table.settle()
        made = draft.made
        if made.owner is not self._owner:
            for box, worker in zip(self.table.boxes, made.owner, strict=True):
                box.worker = worker
        self._owner, self._order = made.owner, made.order
        self._rank, self._priorities = made.rank, made.priorities
        if any(self._touched):  # touched while others were at it, under the owners before
            touched = set().union(*self._touched)
            self._touched = [{box for box in touched if self._owner[box] == w} for w in range(self._workers)]
