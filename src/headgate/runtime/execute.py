"""What a worker does inside boxes, while others are at work: nothing here needs the scheduler's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headgate.errors import HeadgateError, box_failed
from headgate.graph.packet import Packet, empty_batch
from headgate.runtime.boxes import Unit, Work, since_it_joined
from headgate.runtime.dead_letter_output import LetterBox
from headgate.runtime.queues import Round


class Calls:
    """Runs operators on the trains of calls, and sends their results on.

    ``processor``: a stopwatch of the calling thread's processor time; None: the whole time counts.
    """

    def __init__(
        self, letters: LetterBox | None, timer: Callable[[], float], processor: Callable[[], float] | None
    ) -> None:
        self._letters = letters
        self._timer = timer
        self.processor = processor
        self.weigh: Callable[[], float] | None = None
        """A stopwatch of processor time for all calls, while a recorder wants to know it."""

    def execute(self, work: Work) -> None:
        """Runs the operators of a call.  Needs no lock, since no other worker is inside its lanes."""
        for member in work.members.values():
            member.passed_on = tuple([call.live for calls in member.onward for call, _ in calls])
            member.keeps = len(member.passed_on) < sum([len(targets) for targets in member.live.targets])
        for member in work.members.values():  # those that feed others first
            for packets in member.rounds:
                self._call(member, packets)
            if member.gathered is not None:
                for packet in _merged(member, member.gathered):
                    self._call(member, (packet,))
        if work.end:
            live = work.live
            end = Packet(empty_batch(live.operator.inputs[0]), work.head[0])
            work.inside = True
            try:
                closed = (
                    live.operator.finish(live.state, end)
                    if live.buckets is None
                    else live.buckets.finish(end)
                )
                work.results.append(closed)
            except Exception as error:
                work.error = _located(work, error)
            work.inside = False

    def _call(self, work: Work, packets: Round) -> None:
        """One round through an operator and whatever of the superbox follows it."""
        if work.error is not None:
            return
        live = work.live
        keyed = live.keyed and live.buckets is None and self.processor is not None
        weighed = self.weigh or (self.processor if keyed else None)
        begin, spent = self._timer(), 0.0 if weighed is None else weighed()
        work.inside = True
        try:
            if self._letters is None:
                results = live.operator.process(packets, live.state)
            else:
                results = self._letters.process(work, packets)
        except Exception as error:
            work.error = _located(work, error)
            return
        finally:
            work.inside = False
        work.seconds += self._timer() - begin
        work.packets += 1
        if weighed is not None:
            spent = weighed() - spent
            work.processor += spent
            live.processor += spent if keyed else 0.0
        work.tuples_out += len(results[0])
        if work.keeps:
            work.results.append(results)
        for packet, following in zip(results, work.onward, strict=True):
            for member, arrow in following:
                own = since_it_joined(member.live, packet) if member.live.begins else packet
                if own is None:
                    continue
                if not len(own):
                    member.markers += own.markers
                    continue
                member.tuples += len(own)
                if member.gathered is None:
                    self._call(member, (own,))
                else:
                    member.gathered[arrow].append(own)

    def send(self, unit: Unit) -> None:
        """No lock: let a unit's results leave when it is their turn."""
        unit.rounds = []
        taken = unit.live.reorder.send(unit.ticket, unit)
        assert taken, "a unit was taken without a place for its results"

    def split(self, work: Work) -> None:
        """No lock: split what waits for that, so that workers can share it."""
        assert work.live.buckets is not None
        work.live.buckets.split()

    def consume(self, work: Work) -> Iterator[int | None]:
        """No lock: work on one bucket's rows after the other, and say how many they were.

        The caller lets time pass between two steps: results leave when the iterator goes on.  None: in a
        simulation, the worker has to wait for another one.
        """
        live, buckets = work.live, work.live.buckets
        assert buckets is not None
        for part in buckets.consume(lambda: work.tuples >= work.limit):
            if part is None:
                yield None
                continue
            begin, spent = self._timer(), 0.0 if self.weigh is None else self.weigh()
            unit, state = part.unit, buckets.states[part.bucket]
            if unit.inputs is not None:
                state.ended, state.idle = dict(unit.inputs[0]), set(unit.inputs[1])
            work.inside = True
            try:
                if unit.error is None:
                    for number, packets in part.rounds.items():
                        part.results[number] = live.operator.process(packets, state)
                        work.tuples_out += len(part.results[number][0])
            except Exception as error:
                unit.error = _located(unit, error)
            work.inside = False
            work.tuples += part.rows
            work.packets += 1
            work.seconds += self._timer() - begin
            work.processor += 0.0 if self.weigh is None else self.weigh() - spent
            yield part.rows
            whole = buckets.complete(part)
            if whole is not None:
                self.send(whole)


def _merged(work: Work, gathered: list[list[Packet]]) -> list[Packet]:
    """What the arrows into a call have brought, in serial order, in packets of the usual size."""
    parts = [Packet.concat(packets) for packets in gathered if packets]
    if not parts:
        return []
    whole, size = Packet.merge(parts), work.live.inbox.packet_rows
    order = whole.order.not_before(work.not_before)
    if order is not whole.order:
        whole = whole.with_order(order)
    return [whole.slice(start, min(size, len(whole) - start)) for start in range(0, len(whole), size)]


def _located(unit: Unit, error: Exception) -> HeadgateError:
    return box_failed(unit.live.box.name, unit.live.operator.label, unit.first_serial, error)
