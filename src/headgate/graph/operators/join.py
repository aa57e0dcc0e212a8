"""``keyed.join(other_keyed, within="5 minutes", on="ts", how="left")``: rows of equal key, close in time.

A pair is caused by the one of its rows that comes later.  Time at a tuple is the smaller of the two inputs'
maxima of event time up to and including it, minus the lateness.  A row is gone for every tuple at which time
has passed the last moment at which it could have a partner.  Whether it is still in memory then changes no
result.

A row without partner leaves (outer and anti joins) with the first tuple that moves an input's time to where
the row is gone, or with the end of the stream.  Results of one tuple leave by key; of one key, pairs first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.graph.columns import Ints, Mask, invalid, lexical_order, sort_keys, taken
from headgate.graph.operators._user import refuse_far_times
from headgate.graph.operators.interval import Run
from headgate.graph.operators.join_shape import LEFT, RIGHT, SIDES, JoinShape
from headgate.graph.operators.join_state import META, JoinState, Moves
from headgate.graph.packet import Marker, Order, Packet
from headgate.graph.time import NEVER, event_times

_NONE: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class _New:
    """The rows of one input's packet that can find partners: both key and time are there."""

    run: Run
    clock: Ints
    """Time at the row."""
    place: Ints
    """Place among all rows of the call, in the order in which they come."""


@dataclass(frozen=True)
class _Results:
    """Rows of the result, not in order yet."""

    batch: pa.RecordBatch
    cause: Ints
    """By row, the place in the call's timeline of the tuple that caused it."""
    kind: int
    """0 for pairs, 1 and 2 for rows of the left and of the right input alone."""
    partner: Ints


@dataclass(frozen=True)
class _Timeline:
    """All tuples of a call that can cause results: its rows, and the rows elsewhere that move time."""

    order: Order
    where: Ints
    """By tuple, a number that ascends in the order in which they come."""
    come: Ints
    """By place among the rows, the tuple."""
    moments: Ints
    """The tuples that move an input's time, in the order of arrival."""
    clocks: Ints
    """Time at these."""


class Join(JoinShape):
    """Finds the pairs, and the rows that have none."""

    def open(self) -> JoinState:
        return JoinState(self)

    def restore(self, tables: Sequence[pa.Table]) -> JoinState:
        state = self.open()
        for table in tables:
            meta = json.loads((table.schema.metadata or {}).get(META, b"{}"))
            state.clock = max(state.clock, meta.get("clock", NEVER))
            state.settled = max(state.settled, meta.get("settled", NEVER))
            for name, values in (("maxima", state.maxima), ("counts", state.counts)):
                values[:] = map(max, values, meta.get(name, values))
        for table in tables:
            state.load(table)
        return state

    def moves(self, packet: Packet, side: int) -> Moves:
        """Serials and event times of the rows that move this input's time."""
        name = self.times_by_input[side]
        if name is None:
            return _NONE, _NONE
        if packet.ticks is not None:
            return packet.ticks.order.serials, packet.ticks.times
        return packet.order.serials, event_times(packet.batch.column(name))

    def process(self, packets: Sequence[Packet], state: JoinState) -> list[Packet]:
        refuse_far_times(self, packets)
        both = Order.concat([p.order for p in packets])
        come = np.argsort(both.serials, kind="stable")
        place = np.empty(len(come), dtype=np.int64)
        place[come] = np.arange(len(come))
        split = len(packets[LEFT])
        places = (place[:split], place[split:])
        timeline, clock = self._time(packets, state, both, come)
        before = state.settled
        if len(timeline.clocks):
            state.settled = max(before, int(timeline.clocks[-1]))
        new = [self._new(packets[side], side, state, places[side], clock) for side in SIDES]
        found = [self._meet(new[LEFT], run, LEFT, state) for run in state.shelves[RIGHT]]
        found += [self._meet(new[RIGHT], run, RIGHT, state) for run in state.shelves[LEFT]]
        found.append(self._meet_each_other(new[LEFT], new[RIGHT]))
        results = [
            _Results(pairs.batch, come[pairs.cause], pairs.kind, pairs.partner)
            for pairs in found
            if pairs is not None
        ]
        for side in SIDES:
            if self.alone[side]:
                results += self._leaving(packets[side], new[side], side, state, timeline, before)
            run = new[side].run
            if self.watched[side]:
                run = run.at(np.flatnonzero(run.times + self.reach[side] >= new[side].clock))
            if len(run):
                state.remember(side, run)
        state.forget()
        markers: dict[int, Marker] = {id(m): m for p in packets for m in p.markers}
        batch, causes = self._assemble([r for r in results if len(r.cause)], timeline.where)
        order = timeline.order.take(causes)
        return [Packet(batch, order, tuple(markers.values()), packets[LEFT].request)]

    def _time(
        self, packets: Sequence[Packet], state: JoinState, both: Order, come: Ints
    ) -> tuple[_Timeline, Ints]:
        """What can cause results, and time at every row of the call in the order in which they come."""
        serials = both.serials[come]
        moved = [self.moves(packet, side) for side, packet in enumerate(packets)]
        if not any(self.alone):
            # Ticks may go beyond the last row that this bucket has; the clock must not depend on buckets.
            end = max([NEVER, *(int(at[-1]) for at in (serials, moved[0][0], moved[1][0]) if len(at))])
            clock = state.advance(moved, np.append(serials, end))[:-1]
            where = np.empty(len(come), dtype=np.int64)
            where[come] = np.arange(len(come))
            return _Timeline(both, where, come, _NONE, _NONE), clock
        orders, wheres, at_moments = [both], [_where(packets, both, come)], []
        ticks = [packet.ticks for packet in packets]
        base, moments = len(come), []
        for side, (moved_at, moves) in enumerate(moved):
            # A row moves time if it is the latest of its input so far.  Packets end anywhere, and ticks also
            # tell of the last row of each, so the row itself has to show that it does.
            highest = np.maximum.accumulate(np.concatenate([[state.maxima[side]], moves]))
            strict = np.flatnonzero(highest[1:] > highest[:-1])
            tick = ticks[side]
            if tick is None:
                moments.append(strict + (len(packets[LEFT]) if side == RIGHT else 0))
            else:
                order = tick.order.take(strict)
                orders.append(order)
                wheres.append(order.serials if order.ordinals is None else order.ordinals)
                moments.append(np.arange(base, base + len(strict), dtype=np.int64))
                base += len(strict)
            at_moments.append(moved_at[strict])
        timeline, where = Order.concat(orders), np.concatenate(wheres)
        moment, at_moment = np.concatenate(moments), np.concatenate(at_moments)
        ascending = np.argsort(where[moment], kind="stable")
        moment, at_moment = moment[ascending], at_moment[ascending]
        at = np.unique(np.concatenate([serials, moved[0][0], moved[1][0]]))
        clock = state.advance(moved, at) if len(at) else _NONE
        clocks = clock[at.searchsorted(at_moment)]
        return _Timeline(timeline, where, come, moment, clocks), clock[at.searchsorted(serials)]

    def _new(self, packet: Packet, side: int, state: JoinState, place: Ints, clock: Ints) -> _New:
        batch = packet.batch
        times = self.times(batch, side)
        rows = np.flatnonzero(self._usable(batch, side, times))
        if len(rows) < len(packet):
            batch, times = taken(batch, rows), times[rows]
        slots = state.index.slots([batch.column(n) for n in self.keys_by_input[side]], batch.num_rows)
        matched = np.zeros(len(rows), dtype=bool) if self.watched[side] else None
        run = Run(batch, slots, times, rows, matched)
        place = place[run.sequence]
        run.sequence = run.sequence + state.counts[side]
        state.counts[side] += len(packet)
        return _New(run, clock[place], place)

    def _usable(self, batch: pa.RecordBatch, side: int, times: Ints) -> Mask:
        """Which rows can find partners."""
        usable = times > NEVER
        for name in self.keys_by_input[side]:
            null = invalid(batch.column(name))
            if null is not None:
                usable &= ~null
        return usable

    def _meet(self, new: _New, run: Run, side: int, state: JoinState) -> _Results | None:
        """New rows of ``side`` with remembered rows of the other: the new row is the later one."""
        if not len(new.run):
            return None
        oldest = np.maximum(new.run.times, new.clock) - self.reach[1 - side]
        asked, rows = run.pairs(new.run.slots, oldest, new.run.times + self.reach[side])
        if not len(asked):
            return None
        left, right = ((new.run, asked), (run, rows)) if side == LEFT else ((run, rows), (new.run, asked))
        if new.run.matched is None:
            firsts = _NONE
        else:
            firsts = np.unique(asked[~new.run.matched[asked]])
            new.run.matched[asked] = True
        known = state.match(1 - side, run, rows) if self.watched[1 - side] else _NONE
        if self.how == "anti":
            return None
        if self.how == "semi":
            if side == LEFT:
                return self._kept(new.run, firsts, new.place[firsts])
            causes = _earliest(rows, new.place[asked], known)
            return self._kept(run, known, causes)
        batch = self.rows(taken(left[0].batch, left[1]), taken(right[0].batch, right[1]))
        return _Results(batch, new.place[asked], 0, run.sequence[rows])

    def _meet_each_other(self, left: _New, right: _New) -> _Results | None:
        """New rows with new rows: whichever has the later place is the cause."""
        one, two = left.run, right.run
        if not len(one) or not len(two):
            return None
        high, low = self.reach[LEFT], -self.reach[RIGHT]
        mine, other = two.pairs(one.slots, one.times + low, one.times + high)
        if not len(mine):
            return None
        right_later = right.place[other] > left.place[mine]
        now = np.where(right_later, right.clock[other], left.clock[mine])
        last = np.where(right_later, one.times[mine] + high, two.times[other] - low)
        there = np.flatnonzero(last >= now)
        mine, other, right_later = mine[there], other[there], right_later[there]
        causes = np.where(right_later, right.place[other], left.place[mine])
        known = _NONE
        if one.matched is not None:
            known = np.unique(mine[~one.matched[mine]])
            one.matched[mine] = True
        if two.matched is not None:
            two.matched[other] = True
        if self.how == "anti":
            return None
        if self.how == "semi":
            return self._kept(one, known, _earliest(mine, causes, known))
        batch = self.rows(taken(one.batch, mine), taken(two.batch, other))
        return _Results(batch, causes, 0, np.where(right_later, one.sequence[mine], two.sequence[other]))

    def _kept(self, run: Run, rows: Ints, places: Ints) -> _Results:
        """Rows of the left input that leave because they have a partner."""
        return _Results(taken(run.batch, rows), places, 0, run.sequence[rows])

    def _leaving(
        self, packet: Packet, new: _New, side: int, state: JoinState, timeline: _Timeline, before: int
    ) -> list[_Results]:
        """Rows of ``side`` that can have no partner any more, and had none."""
        reach, run = self.reach[side], new.run
        first = 0 if side == LEFT else len(timeline.come) - len(packet)
        never = np.flatnonzero(~self._usable(packet.batch, side, self.times(packet.batch, side)))
        sequence = never + (state.counts[side] - len(packet))
        results = [self._single(taken(packet.batch, never), side, first + never, sequence)]
        assert run.matched is not None
        late = run.times + reach < new.clock
        gone = np.flatnonzero(late & ~run.matched)
        causes = timeline.come[new.place[gone]]
        results.append(self._single(taken(run.batch, gone), side, causes, run.sequence[gone]))
        for old, fresh in [(run, True), *((shelf, False) for shelf in state.shelves[side])]:
            assert old.matched is not None
            last = old.times + reach
            due = (last < state.settled) & ~old.matched & (~late if fresh else last >= before)
            rows = np.flatnonzero(due)
            if len(rows):
                causes = timeline.moments[timeline.clocks.searchsorted(last[rows], side="right")]
                results.append(self._single(taken(old.batch, rows), side, causes, old.sequence[rows]))
        return results

    def _single(self, rows: pa.RecordBatch, side: int, causes: Ints, sequence: Ints) -> _Results:
        batch = self.rows(rows, None) if side == LEFT else self.rows(None, rows)
        return _Results(batch, causes, 1 + side, sequence)

    def _assemble(self, found: list[_Results], where: Ints) -> tuple[pa.RecordBatch, Ints]:
        """All results in the order of their causes, then of their partners; and the causes."""
        if not found:
            return self.nothing(), _NONE
        batch = pa.concat_batches([r.batch for r in found])
        causes = np.concatenate([r.cause for r in found])
        partners = np.concatenate([r.partner for r in found])
        if all(r.kind == 0 for r in found):
            # One integer for both: a call's rows times the numbers of those remembered is far below 2**63.
            first, span = int(partners.min()), int(partners.max() - partners.min()) + 1
            order = np.argsort(where[causes] * span + (partners - first))
        else:
            kinds = np.repeat([r.kind for r in found], [len(r.cause) for r in found])
            order = lexical_order([where[causes], *self._ties(batch), kinds, partners])
        return taken(batch, order), causes[order]

    def _ties(self, batch: pa.RecordBatch) -> list[Ints]:
        return [key for name in self.keys_by_input[LEFT] for key in sort_keys(batch.column(name))]

    def finish(self, state: JoinState, end: Packet) -> list[Packet]:
        if not any(self.alone):
            return [end.caused(self.nothing(), _NONE)]
        results = []
        for side in SIDES:
            for run in state.shelves[side] if self.alone[side] else ():
                assert run.matched is not None
                rows = np.flatnonzero(~run.matched & (run.times + self.reach[side] >= state.settled))
                causes = np.zeros(len(rows), dtype=np.int64)
                results.append(self._single(taken(run.batch, rows), side, causes, run.sequence[rows]))
        state.end()
        batch, causes = self._assemble([r for r in results if len(r.cause)], np.zeros(1, dtype=np.int64))
        return [end.caused(batch, causes)]


def _where(packets: Sequence[Packet], both: Order, come: Ints) -> Ints:
    """By row, where it comes among all tuples: those elsewhere too, if the call has only some of the rows."""
    if any(packet.ticks is not None for packet in packets):
        return both.serials if both.ordinals is None else both.ordinals
    where = np.empty(len(come), dtype=np.int64)
    where[come] = np.arange(len(come))
    return where


def _earliest(rows: Ints, places: Ints, wanted: Ints) -> Ints:
    """For each of the rows ``wanted``, ascending, the first of its places."""
    order = np.lexsort((places, rows))
    first = order[rows[order].searchsorted(wanted)]
    found: Ints = places[first]
    return found
