"""How calls begin: which train a call takes, which calls fuse, and when a keyed box is split by bucket."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from headgate.graph.packet import Order
from headgate.runtime.admission import Admission
from headgate.runtime.boxes import NO_TICKET, LiveBox, Unit, Work
from headgate.runtime.network import LiveNetwork
from headgate.runtime.ordered.buckets import Buckets
from headgate.runtime.policy_driver import PolicyDriver
from headgate.runtime.queues import Round
from headgate.runtime.room import FIRST, fitting, give_back, keep_free, results_per_tuple
from headgate.scheduling.catalog import BoxEntry
from headgate.scheduling.events import Changed, Started
from headgate.scheduling.interface import Call
from headgate.scheduling.trains import WHOLE_QUEUE

DEAR = 5e-6
"""Seconds per tuple from which on several workers in a keyed box pay for splitting its packets by bucket."""
DEAR_MEASURED = 4 * DEAR
"""The same for measured costs: part of the time of a short train is overhead."""
CALLS_TO_KNOW = 8
"""Calls after which a box's measured cost is believed."""
UNIT_SECONDS = 0.05
"""Work that is split over buckets at once: some ten times what splitting it over a hundred costs."""
_GIL: bool = getattr(sys, "_is_gil_enabled", lambda: True)()


class Starting:
    """Begins calls.

    ``split``: whether workers share keyed boxes by bucket; None: where a tuple's cost pays for it, judged by
    the processor's time if ``measured``.
    """

    def __init__(
        self,
        live: LiveNetwork,
        admission: Admission,
        driver: PolicyDriver,
        *,
        partitioning: str,
        buckets: int,
        split: bool | None,
        measured: bool,
        letters: bool,
    ) -> None:
        self._live, self._admission, self._driver = live, admission, driver
        self._partitioning, self._buckets = partitioning, buckets
        self._split, self._measured, self._letters = split, measured, letters

    def begin(self, worker: int, call: Call, now: float) -> Work | None:
        """Take a train for a call; None if there is nothing (left) to do or no lane or room."""
        live, catalog = self._live.boxes[call.box], self._driver.catalog
        if not live.task.free or not catalog.can_run(call.box):
            return None
        entry = catalog.boxes[call.box]
        if live.buckets is None and live.keyed and live.idle and self._pays(live, entry):
            self._open_buckets(live, entry)
        if live.end_due:
            work: Work | None = self._open(live, worker, [], [Order(live.group.last, now, 1)], now)
        elif live.buckets is not None:  # what waits there has its places
            work = self._enter(live, worker, max(1, call.train.size(entry, live.inbox)), now)
        elif not self._live.has_place(live):
            return None
        else:
            at_first = max(1, self._live.packet_rows // FIRST)
            rows = fitting(live, call.train.size(entry, live.inbox), at_first)
            rounds = self._take(live, rows, now)
            work = self._open(live, worker, rounds, _head(rounds), now) if rounds else None
        if work is None:
            return None
        queue = self._live.measure(live)
        more = live.task.begin(queue.tuples > 0)
        self._driver.tell(Started(now, worker, live.place, work.tuples, queue))
        if work.ticket != NO_TICKET:
            self._keep_free(live, work, work.tuples, now)
        if more:
            self._driver.spawn(live.place, queue, now, worker, immediate=False)
        return work

    def _keep_free(self, live: LiveBox, unit: Unit, rows: int, now: float) -> None:
        """Keep room for a unit's results, and tell of queues that have no more of it."""
        for place in keep_free(live, unit, rows):
            if live.place not in self._driver.catalog.boxes[place].queue.full:
                self._driver.tell(Changed(now, place, self._live.measure(self._live.boxes[place])))

    def _take(self, live: LiveBox, rows: int, now: float) -> list[Round]:
        """At most that many rows of a box's queue, with the markers that wait there."""
        rounds = live.inbox.take(rows)
        if rounds and live.inbox.loose:
            first, *others = rounds[-1]
            rounds[-1] = (first.with_markers(live.inbox.take_loose()), *others)
        if live.first:
            _mark_begin(rounds, now)
        return rounds

    def _open(self, live: LiveBox, worker: int, rounds: list[Round], head: list[Order], now: float) -> Work:
        tuples = sum([packet.order.length for round_ in rounds for packet in round_])
        work = Work(
            live,
            live.next_ticket,
            rounds,
            head,
            live.end_due,
            tuples,
            worker=worker,
            tuples=tuples,
            start=now,
        )
        work.expected = tuples
        work.onward = [[] for _ in live.targets]
        work.members[live.place] = work
        live.end_due = False
        live.next_ticket += 1
        live.open_work[work.ticket] = work
        if live.holds_time:
            live.state.ended, live.state.idle = self._admission.idle_inputs(live.port_sources)
        return work

    # --- superboxes ---------------------------------------------------------------------------------

    def fuse(self, work: Work, call: Call, now: float) -> bool:
        """Make a plan's later call part of a superbox under way, if that changes nothing but the cost.

        It must be fed by one member alone, wait for nothing older (neither queued nor in an open call that
        does not pass it), have a lane and room, and take all that comes.
        """
        live = self._live.boxes[call.box]
        if len(live.feeders) != 1 or not self.can_join(work, call):
            return False
        self.join(work, call, now)
        return True

    def can_join(self, work: Work, call: Call) -> bool:
        """Whether a call can take its tuples from members of a superbox, apart from their order."""
        live = self._live.boxes[call.box]
        if call.train != WHOLE_QUEUE or call.box in work.members or live.buckets is not None:
            return False
        if live.removed or live.finished or live.inbox.rows or not live.task.free:
            return False
        if live.gate is not None and live.gate.shut:
            return False  # it stands before the queue
        for place in live.feeders:
            feeder = work.members.get(place)
            if feeder is None or feeder.end or feeder.live.buckets is not None:
                return False
            others = [w for w in feeder.live.open_work.values() if w is not feeder]
            if any(not isinstance(w, Work) or call.box not in w.members for w in others):
                return False
        tuples = _coming(work, live)
        return self._live.has_place(live) and fitting(live, tuples, tuples) >= tuples

    def join(self, work: Work, call: Call, now: float) -> Work:
        """A call becomes a member of a superbox."""
        live = self._live.boxes[call.box]
        feeders = [work.members[place] for place in dict.fromkeys(live.feeders)]
        head = (
            feeders[0].head if len(feeders) == 1 else [order for feeder in feeders for order in feeder.head]
        )
        tuples = _coming(work, live)
        member = self._open(live, work.worker, [], head, now)
        member.members = work.members
        member.members[live.place] = member
        member.expected = tuples
        self._keep_free(live, member, tuples, now)
        for feeder in feeders:
            give_back(feeder, live.inbox)
            for port, targets in enumerate(feeder.live.targets):
                feeder.onward[port] += [(member, arrow) for target, arrow in targets if target is live]
        live.task.begin(False)
        self._driver.tell(Started(now, work.worker, live.place, 0, self._live.measure(live)))
        return member

    def pays_to_split(self, live: LiveBox) -> bool:
        """Whether the next call on a box would split it by bucket, which no superbox has room for."""
        return live.keyed and self._pays(live, self._driver.catalog.boxes[live.place])

    # --- keyed boxes with several workers inside ----------------------------------------------------

    def _pays(self, live: LiveBox, entry: BoxEntry) -> bool:
        """Whether more workers inside a keyed box gain more than splitting its packets costs."""
        if self._driver.workers == 1 or self._letters or self._driver.policy.one_lane:
            return False
        if self._split is not None:
            return self._split
        if live.operator.slow and _GIL:
            return False  # one worker at a time holds the interpreter, however many are inside
        if entry.stated_cost is not None:
            return entry.cost >= DEAR
        if entry.calls < CALLS_TO_KNOW:
            return False
        # On a busy machine part of a call's time belongs to other programs.
        cost = live.processor / max(entry.tuples_in, 1) if self._measured else entry.cost
        # In small packets that is mostly the call itself, and a part for each bucket multiplies it.
        return cost >= DEAR_MEASURED and cost * self._admission.packet_rows >= UNIT_SECONDS

    def _open_buckets(self, live: LiveBox, entry: BoxEntry) -> None:
        """From now on a box keeps its state by bucket, and has a lane for every worker."""
        workers = self._driver.workers
        live.buckets = Buckets(live.operator, live.state, self._partitioning, self._buckets, workers)
        live.task.lanes = entry.lanes = min(workers, len(live.buckets.states))

    def _enter(self, live: LiveBox, worker: int, limit: int, now: float) -> Work | None:
        """A call on a box with its state by bucket: it takes something new if too little is at hand."""
        buckets = live.buckets
        assert buckets is not None
        if limit > buckets.waiting and self._live.has_place(live):
            entry = self._driver.catalog.boxes[live.place]
            rows = limit if entry.cost <= 0 else max(limit, int(UNIT_SECONDS / entry.cost))
            rows = min(rows, max(limit, self._admission.packet_rows))
            # Units under way have their room; workers that join in on them need no more of it.
            under_way = sum([unit.taken for unit in live.open_work.values()])
            rows = fitting(live, rows + under_way, self._live.packet_rows + under_way) - under_way
            # A call takes one tuple at least: a worker that got nothing would ask again at once, for ever.
            rows = max(rows, 0 if buckets.waiting else 1)
            rounds = self._take(live, rows, now) if rows > 0 else []
            if rounds:
                taken = sum([packet.order.length for round_ in rounds for packet in round_])
                unit = Unit(live, live.next_ticket, rounds, _head(rounds), taken=taken)
                if live.holds_time:
                    unit.inputs = self._admission.idle_inputs(live.port_sources)
                live.next_ticket += 1
                live.open_work[unit.ticket] = unit
                buckets.take(unit)
        if not buckets.waiting:
            return None
        work = Work(live, NO_TICKET, [], [], worker=worker, limit=limit, start=now)
        work.members[live.place] = work
        return work


def _mark_begin(rounds: Sequence[Round], now: float) -> None:
    """The markers' first operator begins."""
    for round_ in rounds:
        for packet in round_:
            for marker in packet.markers:
                if marker.begin is None:
                    marker.begin = now


def _head(rounds: Sequence[Round]) -> list[Order]:
    return [packet.order for packet in rounds[0] if len(packet)]


def _coming(work: Work, live: LiveBox) -> int:
    """Tuples that the members of a superbox are expected to bring to a box that joins it."""
    feeders = [work.members[place] for place in dict.fromkeys(live.feeders)]
    return sum(math.ceil(feeder.expected * results_per_tuple(feeder.live)) for feeder in feeders)
