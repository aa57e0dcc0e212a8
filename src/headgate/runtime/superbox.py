"""Superboxes on trees (Aurora, section 4.1): calls of a plan that a worker runs in one visit to the core.

A chain is simple: a packet goes from box to box (``Starting.fuse``).  Where arrows meet, a call needs the
rows of all of them in order.  So the superbox takes along the calls on the other branches, whole queues each.
All that they take was admitted before, and nothing older is left, so their results can be merged at once,
without the queue.  Only calls that a later merge of the plan needs are taken along: results leave when the
superbox is over, and a plan that calls a box twice wants them earlier.
"""

from __future__ import annotations

from headgate.runtime.boxes import NO_TICKET, Work
from headgate.runtime.network import LiveNetwork
from headgate.runtime.policy_driver import PolicyDriver
from headgate.runtime.queues import Arrivals
from headgate.runtime.starting import Starting
from headgate.scheduling.interface import Call, Plan


class Superboxes:
    """Fuses the later calls of a plan with the one that has begun."""

    def __init__(self, live: LiveNetwork, starting: Starting, driver: PolicyDriver) -> None:
        self._live, self._starting, self._driver = live, starting, driver
        self._trees: dict[tuple[int, ...], frozenset[int]] = {}
        self._network = live.network

    def fuse(self, work: Work, rest: Plan, now: float) -> Plan:
        """Make calls part of the superbox under way; what is left of the plan.

        A call on a keyed box that is split works on parts of other calls' units, and runs nothing else.
        """
        if not rest or work.end or work.ticket == NO_TICKET:
            return rest
        tree = self._tree(work, rest)
        left = []
        for call in rest:
            fused = self._starting.fuse(work, call, now)
            if not fused and call.box in tree:
                fused = self._merge(work, call, now) or self._take_along(work, call, now)
            if not fused:
                left.append(call)
        return tuple(left)

    def _tree(self, work: Work, rest: Plan) -> frozenset[int]:
        """Boxes of the plan on the ways to a merge whose arrows all come from boxes of the plan."""
        # With more workers than queries, branches are better worked on side by side.
        if self._driver.workers > len(self._live.outputs):
            return frozenset()
        if self._live.network is not self._network:  # numbers may belong to other boxes now
            self._network = self._live.network
            self._trees.clear()
        plan = (work.live.place, *(call.box for call in rest))
        known = self._trees.get(plan)
        if known is None:
            known = self._trees[plan] = self._find(plan)
        return known

    def _find(self, plan: tuple[int, ...]) -> frozenset[int]:
        boxes = self._live.boxes
        once: dict[int, None] = {}
        for place in plan:
            if place in once:
                break
            once[place] = None
        todo: list[int] = []
        before: set[int] = set()
        for place in once:
            feeders = boxes[place].feeders
            if len(feeders) > 1 and len(boxes[place].box.ports) == 1 and before.issuperset(feeders):
                todo.append(place)
            before.add(place)
        found: set[int] = set()
        while todo:
            place = todo.pop()
            if place in once and place not in found:
                found.add(place)
                todo += boxes[place].feeders
        return frozenset(found)

    def _take_along(self, work: Work, call: Call, now: float) -> bool:
        """Begin a call on another branch, whose results a merge of this superbox will need."""
        live = self._live.boxes[call.box]
        if any(place in work.members for place in live.feeders) or call.box in work.members:
            return False
        if live.end_due or live.buckets is not None or self._starting.pays_to_split(live):
            return False
        begun = self._starting.begin(work.worker, call, now)
        if begun is None:
            return False
        begun.members = work.members
        work.members[call.box] = begun
        return True

    def _merge(self, work: Work, call: Call, now: float) -> bool:
        """Let a box where arrows meet take what its feeders make, if nothing older can come by any arrow."""
        live = self._live.boxes[call.box]
        if len(live.feeders) < 2 or not self._starting.can_join(work, call):
            return False
        taken = [packet for member in work.members.values() for round_ in member.rounds for packet in round_]
        last = max([packet.order.last_serial for packet in taken if len(packet)], default=0)
        if isinstance(live.inbox, Arrivals):
            member = self._starting.join(work, call, now)
            member.not_before = live.inbox.pass_by(last)
        elif min([self._complete(work, place) for place in live.feeders]) > last:
            member = self._starting.join(work, call, now)
        else:
            return False
        member.gathered = [[] for _ in live.feeders]
        return True

    def _complete(self, work: Work, place: int) -> int:
        """Below which serial a member brings nothing after this superbox."""
        member = work.members[place]
        live = member.live
        if not member.rounds:
            return min([self._complete(work, feeder) for feeder in live.feeders])
        queued = live.inbox.first_serial()
        if queued is not None:
            return queued
        return self._live.bound([arrow for port in live.box.ports for arrow in port])
