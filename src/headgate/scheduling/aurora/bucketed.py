"""QoS-driven scheduling in buckets (Aurora, section 6.2), at the same cost for any number of boxes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import islice

from headgate.errors import PipelineError
from headgate.scheduling.aurora.calendar import CalendarQueue
from headgate.scheduling.aurora.priority import SLICE, PriorityTuple
from headgate.scheduling.aurora.utility_space import Piece, Ranges, UtilitySpace, pieces
from headgate.scheduling.events import Event, Finished
from headgate.scheduling.interface import Call, Decision, Plan
from headgate.scheduling.steps import Step
from headgate.scheduling.trains import WHOLE_QUEUE, Train

PARTITIONS = 20
"""Ranges of gradient and of slack: the paper's best (section 6.3)."""
LOOK_AGAIN = 8
"""A box's cost is looked at anew every so many calls, its train every so many times that it is chosen."""
NEARLY_EMPTY = 4
"""The execution queue is filled again when less than a fourth of it is left."""
DRIFT = 0.1
"""Measured costs may drift until they move a box by that share of a time slice."""


class BucketedPriorityTuple(PriorityTuple):
    """As qos, up to the width of a bucket, at a cost that does not grow with the number of boxes.

    Gradient and slack are divided into ranges, and boxes are kept in the bucket of their two ranges.  The
    latencies at which a box changes its bucket are known beforehand, and while its queue stays the same its
    latency grows by a second per second; so the time of the change is known.  For every range of gradients a
    calendar queue holds the times at which boxes rise into it, or in it to less slack.  A decision looks at
    boxes whose queues changed and at those that have risen as high as the best, and takes the next in turn
    from the best bucket that is not empty.

    No box is looked at that cannot be the best.  One that falls stays where it is until its turn comes; one
    that rises below the best is left until nothing is above it; and times in a calendar may be too early,
    never too late: when tuples leave, a queue's latency shrinks, and the box is only looked at for nothing.
    So each box's bucket is the one where it belongs or a better one, and that of a chosen box is right.
    The box that has been longest without a call, whose turn it is in one of eight decisions, is found in the
    same way.

    Chosen boxes wait in an execution queue from which all workers take.  It is filled from the buckets in
    order when it is nearly empty, so the buckets are looked at once for several plans.  By default it holds
    one plan for each worker, so that no plan waits for long.  A step takes boxes from the buckets in order
    until it is full.
    """

    name = "qos_bucketed"

    def __init__(
        self,
        gradients: int = PARTITIONS,
        slacks: int = PARTITIONS,
        time_slice: float = SLICE,
        train: Train | None = None,
        traverse: str | None = None,
        queue: int | None = None,
    ) -> None:
        if gradients < 1 or slacks < 1:
            raise PipelineError(
                f"qos_bucketed(gradients={gradients}, slacks={slacks}): there must be at least 1 of each."
            )
        if queue is not None and queue < 1:
            raise PipelineError(f"qos_bucketed(queue={queue}): the execution queue holds at least 1 plan.")
        super().__init__(time_slice, train, traverse)
        self.gradients, self.slacks = gradients, slacks
        self._queue_length = queue

    def begin(self, workers: int) -> None:
        super().begin(workers)
        self._most_queued = self._queue_length or workers
        self.execution_queue: deque[int] = deque()
        """Boxes whose plans run next."""
        self.refills = 0
        """How often the queue was filled from the buckets."""
        boxes = self.catalog.boxes
        self._costs = [box.cost for box in boxes]
        self._prepare()
        self._members: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)
        self.assigned = [-1] * len(boxes)
        """Every box's bucket, or a better one; -1: it could not run."""
        self._filled = 0
        """A bit for every range of gradients in which there is a box."""
        self._rows = [0] * self.gradients
        """For every range of gradients, a bit for every range of slacks in which there is a box."""
        self._calendars = [CalendarQueue[int]() for _ in range(self.gradients)]
        """For every range of gradients, when boxes rise into it or in it."""
        self._next_rise = [math.inf] * self.gradients
        """For each of them the time of the first, or earlier."""
        self._until = [math.inf] * len(boxes)
        """Until when a box belongs where it is, if its queue stays as it is."""
        self._ages: CalendarQueue[int] = CalendarQueue()
        """Boxes that can run, or could, by the decision that last called them, or an earlier one."""
        self._trains: list[Train] = [WHOLE_QUEUE] * len(boxes)
        self._chosen = [0] * len(boxes)

    def _prepare(self) -> None:
        """The buckets, and for every box the latencies at which it changes its bucket."""
        boxes, goals = self.catalog.boxes, self.catalog.goals
        self._ahead = [0.0] * len(boxes)
        self._stale: dict[int, None] = {}
        """Boxes for which costs downstream have drifted."""
        self._before: list[list[int]] = [[] for _ in boxes]
        """By box, the boxes that count its cost."""
        for place, below in enumerate(self._below):
            for box in {box for _, needed in below for box in needed}:
                self._before[box].append(place)
        graphs = {query: pieces([(goal, 0.0)]) for query, goal in goals.items()}
        shared = [self._graph_ahead(place) for place, below in enumerate(self._below) if len(below) > 1]
        self.space = UtilitySpace([*graphs.values(), *shared], self.gradients, self.slacks)
        self._most = len(self.space.gradient_edges)
        """The highest range of gradients in which there can be a box."""
        self._of_query = {query: self.space.ranges(graph) for query, graph in graphs.items()}
        nothing = self.space.ranges(pieces([]))
        self._ranges: list[Ranges] = [nothing] * len(boxes)
        for place in range(len(boxes)):
            self._look_ahead(place)
        longest = max([len(needed) for below in self._below for _, needed in below], default=1)
        self._tolerance = DRIFT * self.time_slice / longest

    def _graph_ahead(self, place: int) -> list[Piece]:
        """What several queries make of a box's own latency."""
        return pieces(
            [(self.catalog.goals[query], self._cost(needed)) for query, needed in self._below[place]]
        )

    def _cost(self, places: Sequence[int]) -> float:
        return sum([self._costs[place] for place in places])

    def _look_ahead(self, place: int) -> None:
        """Take in what costs downstream are now."""
        below = self._below[place]
        if len(below) == 1:
            query, needed = below[0]
            self._ranges[place], self._ahead[place] = self._of_query[query], self._cost(needed)
        elif below:
            self._ranges[place] = self.space.ranges(self._graph_ahead(place))

    # --- which box is in which bucket -----------------------------------------------------------------

    def handle(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Finished):
            box = self.catalog.boxes[event.box]
            # Costs are averages of many calls: a few calls move them little.
            if box.stated_cost is None and (box.calls % LOOK_AGAIN == 0 or box.calls <= LOOK_AGAIN):
                self._drift(event.box, box.cost)
        return super().handle(event)

    def _drift(self, place: int, cost: float) -> None:
        """Boxes that count a box's cost are looked at again if it is no longer what they were told."""
        if abs(cost - self._costs[place]) > self._tolerance:
            self._costs[place] = cost
            self._stale.update(dict.fromkeys(self._before[place]))

    def _settle(self, now: float) -> None:
        """Boxes that changed go where they belong now."""
        changed = self.catalog.changed
        for place in self._stale:
            self._look_ahead(place)
            changed[place] = None
        self._stale.clear()
        for place in changed:
            self._assign(place, now)
        changed.clear()

    def _look(self, gradient: int, now: float) -> None:
        """Boxes that should have risen to that range of gradients, or in it, go where they belong now."""
        calendar = self._calendars[gradient]
        while (place := calendar.extract_until(now)) is not None:
            self._assign(place, now)
        self._next_rise[gradient] = calendar.peek()[0] if calendar else math.inf

    def _assign(self, place: int, now: float) -> None:
        """Put a box where it belongs, and see to it that it is looked at again when it rises."""
        if not self.catalog.is_ready[place]:
            self._until[place] = math.inf
            if self.assigned[place] >= 0:
                self._move(place, -1)
            return
        queue = self.catalog.boxes[place].queue
        start = queue.mean - self._ahead[place]
        ends, buckets, rises = self._ranges[place]
        at = bisect_right(ends, now - start)
        until = start + ends[at]
        while until <= now:  # by rounding only
            at += 1
            until = start + ends[at]
        self._until[place] = until
        for gradient, end in rises[at]:
            due = start + end
            calendar = self._calendars[gradient]
            known = calendar.key(place)
            if known is None or due < known:
                calendar.insert(due, place)
                if due < self._next_rise[gradient]:
                    self._next_rise[gradient] = due
        if self._ages.key(place) is None:
            self._ages.insert(self._turns[place], place)
        if buckets[at] != self.assigned[place]:
            self._move(place, buckets[at])

    def _move(self, place: int, bucket: int) -> None:
        before = self.assigned[place]
        self.assigned[place] = bucket
        if before >= 0:
            members = self._members[before]
            del members[place]
            if not members:
                gradient, slack = divmod(before, self.slacks)
                self._rows[gradient] ^= 1 << slack
                if not self._rows[gradient]:
                    self._filled ^= 1 << gradient
        if bucket >= 0:
            members = self._members[bucket]
            if not members:
                gradient, slack = divmod(bucket, self.slacks)
                self._rows[gradient] |= 1 << slack
                self._filled |= 1 << gradient
            members[place] = None

    # --- the choice -----------------------------------------------------------------------------------

    def choose(self, worker: int, now: float) -> Plan | None:
        queue = self.execution_queue
        while True:
            if len(queue) * NEARLY_EMPTY < self._most_queued:
                self._fill(now)
            if not queue:
                return None
            place = queue.popleft()
            if self.catalog.is_ready[place]:  # or another plan has run it meanwhile
                return self._called(self._plan(place, now))

    def step(self, worker: int, now: float) -> Plan | None:
        self._settle(now)
        step = Step(self.catalog)
        if self._filled and self._is_fair():
            step.add(self._of_step(self._longest(), now, step))
        for place in self._in_order(now):
            if step.full:
                break
            if place not in step:
                step.add(self._of_step(place, now, step))
        return self._called(step.plan)

    def _of_step(self, place: int, now: float, step: Step) -> Plan:
        """A box's plan with all that waits for it: the engine bounds a step's trains."""
        step.work(place)
        self._members[self.assigned[place]].move_to_end(place)
        return tuple(Call(call.box, self.train or WHOLE_QUEUE) for call in self._plan(place, now))

    def _fill(self, now: float) -> None:
        """Fill the execution queue from the buckets in order; some of the places are for fairness."""
        self._settle(now)
        queue = self.execution_queue
        wanted = self._most_queued - len(queue)
        fair = self._filled and sum(self._is_fair() for _ in range(wanted))
        found = [self._longest()] if fair else []
        if self._filled and wanted == 1 and not fair:
            found = [self._best(now)]
        elif wanted > len(found):
            found += islice((place for place in self._in_order(now) if place not in queue), wanted)
        self.refills += bool(found)
        for place in dict.fromkeys(found[:wanted]):
            if place not in queue:
                self._members[self.assigned[place]].move_to_end(place)
                queue.append(place)

    def _in_order(self, now: float) -> Iterator[int]:
        """Boxes from the best bucket to the last, in each bucket in turn."""
        for gradient in range(self._most, -1, -1):
            if self._next_rise[gradient] <= now:
                self._look(gradient, now)
        for bucket in range(self.gradients * self.slacks - 1, -1, -1):
            gradient, slack = divmod(bucket, self.slacks)
            if not self._rows[gradient] >> slack & 1:
                continue
            for place in list(self._members[bucket]):
                if self._until[place] <= now:
                    self._assign(place, now)  # it has fallen, and comes in its own bucket's turn
                if self.assigned[place] == bucket:
                    yield place

    def _best(self, now: float) -> int:
        """The next in turn of the best bucket."""
        gradient = self._most
        while True:
            if self._next_rise[gradient] <= now:
                self._look(gradient, now)
            if not self._filled >> gradient:
                gradient -= 1
                continue
            gradient = self._filled.bit_length() - 1
            bucket = gradient * self.slacks + self._rows[gradient].bit_length() - 1
            place = next(iter(self._members[bucket]))
            if self._until[place] > now:
                return place
            self._assign(place, now)

    def _longest(self) -> int:
        """The box that could run and has been longest without a call."""
        ages = self._ages
        while True:
            turn, place = ages.peek()
            if not self.catalog.is_ready[place]:
                ages.delete(place)
            elif turn < self._turns[place]:
                ages.insert(self._turns[place], place)
            else:
                return place

    def _train(self, place: int) -> Train:
        """As qos, looked at anew only now and then."""
        if self._trains[place] is WHOLE_QUEUE or self._chosen[place] % LOOK_AGAIN == 0:
            self._trains[place] = super()._train(place)
        self._chosen[place] += 1
        return self._trains[place]
