"""What follows when packets are admitted and calls end: who has work now, and what can be handed over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.graph.operator import Operator
from headgate.graph.packet import Packet
from headgate.runtime.admission import Admission, Group
from headgate.runtime.boxes import NEVER, LiveBox, LiveOutput, Work
from headgate.runtime.instructions import Deliver, Instruction
from headgate.runtime.lifecycle import Lifecycle
from headgate.runtime.network import LiveNetwork
from headgate.runtime.policy_driver import PolicyDriver
from headgate.runtime.queues import Merge
from headgate.runtime.report import BoxCall
from headgate.runtime.room import give_back, keep_more
from headgate.scheduling.events import Arrived, Changed, Finished, QueueState

Outputs = dict[int, LiveOutput]
"""Outputs that may have something to hand over, by their places."""


class Finishing:
    """Tells the policy of new tasks, lets markers pass, closes boxes at the end, names outputs to drain."""

    def __init__(
        self,
        live: LiveNetwork,
        admission: Admission,
        driver: PolicyDriver,
        lifecycle: Lifecycle,
        out: list[Instruction],
    ) -> None:
        self._live, self._admission, self._driver, self._lifecycle = live, admission, driver, lifecycle
        self._out = out
        self._moved: list[LiveBox] = []
        """Boxes that hold later serials than before."""
        self._last_busy: LiveBox | None = None
        """What had something to do when that was last asked."""

    def _deliver(self, outputs: Outputs) -> None:
        self._out += [Deliver(output) for output in outputs.values()]

    # --- admission ----------------------------------------------------------------------------------

    def admit(self, packets: Sequence[tuple[int, Packet]], version: int, now: float) -> None:
        """Queue packets that admission has given their serials; see to sources that have ended or failed.

        Packets of an earlier ``version`` lack columns that a query needs which has joined meanwhile.
        """
        live, driver = self._live, self._driver
        touched: dict[int, LiveBox] = {}
        outputs: Outputs = {}
        with driver.apart():
            self._let_begin(version)
            for source, packet in packets:
                self._admission.entries[source].lag += _waited(packet, now)
                if "arrivals" in live.needs and len(packet):
                    newest = packet.order.arrivals
                    newest = newest if isinstance(newest, float) else float(newest.max())
                    driver.tell(Arrived(now, source, len(packet), newest))
                for target, arrow in live.source_targets[source]:
                    if target.begins == NEVER:
                        continue
                    live.put(target, arrow, packet)
                    if isinstance(target, LiveBox):
                        live.hold(target)
                        touched[target.place] = target
                    else:
                        outputs[target.place] = target
            for source, entry in enumerate(self._admission.entries):
                entry.told = entry.rows
                if entry.letters:
                    refused, entry.letters = entry.letters, []
                    self._lifecycle.refuse(source, refused, now, outputs)
            live.admitted = self._admission.next_serial
            for source, entry in enumerate(self._admission.entries):
                if entry.error is not None:
                    error, entry.error = entry.error, None
                    self._lifecycle.fail_source(source, error, now)
            for box in touched.values():
                self._let_pass(box, outputs)
            queues = [(place, live.measure(box)) for place, box in touched.items()]
            self._announce(queues, now, None, told=False)
            for merging in live.merging:
                self._check_merge(merging, now, None)
            for output in live.outputs:
                if isinstance(output.inbox, Merge):
                    outputs[output.place] = output
            for group in self._admission.groups:
                if group.ended and not group.noticed:
                    group.noticed, group.last = True, live.admitted
                    outputs |= self._settle_ends(now, [b.place for b in live.boxes if b.group is group])
                    for merging in live.merging:  # some wait for sources alone
                        self._check_merge(merging, now, None)
        self._deliver(outputs)

    def _let_begin(self, version: int) -> None:
        """What has joined begins with the tuples that are admitted now, unless they lack columns for it."""
        live = self._live
        ready = [target for target in live.joining if target.since <= version]
        if not ready:
            return
        live.joining = [target for target in live.joining if target.since > version]
        for target in ready:
            target.begins = live.admitted
            if isinstance(target, LiveOutput):
                target.missed = {entry.source.name: entry.told for entry in self._admission.entries}

    # --- calls --------------------------------------------------------------------------------------

    def finish(self, work: Work, now: float) -> None:
        """A call is over and sent: tell the policy, also of what has left."""
        outputs: Outputs = {}
        start, overhead = work.start, work.overhead / len(work.members)
        for member in list(work.members.values()):
            end = now if member.end or len(work.members) == 1 else start + member.seconds
            self._driver.trace.add(BoxCall(work.worker, member.live.box.name, member.tuples, start, end))
            start = end
            member.overhead = overhead
            self._finish_one(member, now, outputs)
        if work.live.group.noticed:
            outputs |= self._settle_ends(now, list(work.members))
        self._deliver(outputs)

    def progress(self, live: LiveBox, worker: int, now: float) -> None:
        """While a call goes on: tell of what has left its box, and of what others could do in it."""
        outputs: Outputs = {}
        self._announce(self._settle(live, now, outputs), now, worker, told=False)
        self._recheck(live, now, worker)
        self._check_merges(now, worker, outputs)
        self._deliver(outputs)

    def _settle(self, live: LiveBox, now: float, outputs: Outputs) -> tuple[tuple[int, QueueState], ...]:
        """See to units that have left a box; the queues that their results went to."""
        if not live.sent:
            return ()
        while live.sent:
            unit = live.sent.popleft()
            del live.open_work[unit.ticket]
            give_back(unit)
            live.finished = live.finished or unit.end
            if unit.error is not None:
                self._lifecycle.fail(self._live.network.queries_of[live.place], unit.error, now)
            if self._lifecycle.letters is not None:
                self._lifecycle.letters.deliver(unit, now, outputs)
        self._moved += self._live.advance(live)
        if live.idle and live.inbox.loose and not live.inbox.rows:
            self._live.forward(live, live.inbox.take_loose())
        touched: dict[int, LiveBox] = {}
        self._reached(live, touched, outputs)
        return tuple([(place, self._live.measure(box)) for place, box in touched.items()])

    def _reached(self, live: LiveBox, touched: dict[int, LiveBox], outputs: Outputs) -> None:
        """Where a box's results go."""
        for targets in live.targets:
            for target, _ in targets:
                if isinstance(target, LiveOutput):
                    outputs[target.place] = target
                    continue
                touched[target.place] = target
                self._let_pass(target, outputs)

    def _let_pass(self, live: LiveBox, outputs: Outputs) -> None:
        """Markers that came without a tuple pass a box that has nothing to do."""
        if live.inbox.loose and live.idle and not live.inbox.rows:
            self._live.forward(live, live.inbox.take_loose())
            self._reached(live, {}, outputs)

    def _finish_one(self, work: Work, now: float, outputs: Outputs) -> None:
        live, worker = work.live, work.worker
        queues = self._settle(live, now, outputs)
        more, known = live.task.finish(live.waiting > 0), live.entry.most_out
        self._driver.tell(
            Finished(
                now, worker, live.place, work.tuples, work.tuples_out, work.seconds, work.overhead, queues
            )
        )
        if live.entry.most_out > known:
            keep_more(live)
        self._announce(queues, now, worker, told=True)
        if more and not live.removed:
            self._driver.spawn(live.place, self._live.measure(live), now, worker, immediate=False)
        else:
            self._recheck(live, now, worker)
        self._check_merges(now, worker, outputs)

    def _recheck(self, live: LiveBox, now: float, worker: int) -> None:
        """What can be done in a box changed: work on its buckets went on, or its ring has places again."""
        if live.removed or (live.buckets is None and not live.stalled):
            return
        queue = self._live.measure(live)
        if queue.tuples != self._driver.catalog.boxes[live.place].queue.tuples:
            if queue.tuples and live.task.arrive():
                self._driver.spawn(live.place, queue, now, worker, immediate=False)
            else:
                self._driver.tell(Changed(now, live.place, queue))

    def _announce(
        self, queues: Sequence[tuple[int, QueueState]], now: float, worker: int | None, *, told: bool
    ) -> None:
        """Tell of boxes that had nothing to do and now have; of others' longer queues if no call told it."""
        for place, queue in queues:
            if queue.tuples and self._live.boxes[place].task.arrive():
                self._driver.spawn(place, queue, now, worker)
            elif not told:
                self._driver.tell(Changed(now, place, queue))

    def _check_merges(self, now: float, worker: int, outputs: Outputs) -> None:
        """Where boxes that moved meet others, rows may be available now."""
        moved, self._moved = self._moved, []
        for live in moved:
            for place in live.merges:
                self._check_merge(self._live.boxes[place], now, worker)
            for output in live.merging_outputs:
                outputs[output.place] = output

    def _check_merge(self, live: LiveBox, now: float, worker: int | None) -> None:
        if live.inbox.rows and not live.removed:
            queue = self._live.measure(live)
            if queue.tuples != self._driver.catalog.boxes[live.place].queue.tuples:
                if live.task.arrive():
                    self._driver.spawn(live.place, queue, now, worker)
                else:
                    self._driver.tell(Changed(now, live.place, queue))

    # --- the end ------------------------------------------------------------------------------------

    def _settle_ends(self, now: float, places: Iterable[int]) -> Outputs:
        """When the sources have ended: let boxes close what is open, each after those that feed it.

        Returns the merging outputs that may have become complete.
        """
        boxes, network = self._live.boxes, self._live.network
        todo = sorted(places)
        # Only where these feed a merge, it may go on: with many requests most merges are others'.
        moved = [boxes[place] for place in todo]
        while todo:
            live = boxes[todo.pop(0)]
            if not live.group.drain:
                continue
            following = [d for d in network.downstream[live.place] if d not in todo]
            if live.finished:
                todo += [d for d in following if not boxes[d].finished]
                continue
            if live.removed or live.end_due or live.inbox.rows or live.open_work:
                continue
            if not all(self._live.has_ended(a) for port in live.box.ports for a in port):
                continue
            if type(live.operator).finish is Operator.finish:
                live.finished = True
                moved += [live, *self._live.advance(live)]
                todo += following
                continue
            live.end_due = True
            if live.task.arrive():
                self._driver.spawn(live.place, QueueState(1), now, None)
            else:
                self._driver.tell(Changed(now, live.place, QueueState(1)))
        outputs: Outputs = {}
        for live in moved:
            for place in live.merges:
                self._check_merge(boxes[place], now, None)
            outputs |= {output.place: output for output in live.merging_outputs}
        return outputs

    @property
    def done(self) -> bool:
        """Nothing is left to do: all ended, all queues empty, or every query failed."""
        if len(self._admission.groups) > 1:
            return False
        return all(output.failed for output in self._lifecycle.queries) or self._over(self._admission.own)

    def requests_over(self) -> list[Group]:
        """Requests whose boxes have nothing left to do, and whose results have all been taken."""
        return [group for group in self._admission.groups[1:] if self._over(group)]

    def _over(self, group: Group) -> bool:
        """All sources of a group have ended, and its queues are empty."""
        if not group.noticed:
            return False
        last = self._last_busy
        if last is not None and last.group is group and not last.removed and self._busy(last):
            return False  # what was busy the last time mostly still is; there may be thousands to look at
        for box in self._live.boxes:
            if box.group is not group:
                continue
            if not box.removed and self._busy(box):
                self._last_busy = box
                return False
            if box.open_work and group.request is not None:  # its number must not be given away yet
                return False
        outputs = [o for o in self._lifecycle.queries if o.group is group and not o.failed]
        return not any(o.inbox.rows for o in outputs)

    def _busy(self, box: LiveBox) -> bool:
        return bool(box.inbox.rows or box.open_work) or (box.group.drain and not box.finished)


def _waited(packet: Packet, now: float) -> float:
    """Seconds from arrival to admission, of all rows of a packet together; about, where rows differ."""
    arrivals = packet.order.arrivals
    if not len(packet):
        return 0.0
    middle = arrivals if isinstance(arrivals, float) else (arrivals[0] + arrivals[-1]) / 2
    return max(now - float(middle), 0.0) * len(packet)
