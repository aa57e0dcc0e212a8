"""The dead-letter output of a run on threads or in simulation: one more output, fed by every box."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.graph.network import LETTERS, Arrow, DeadLetter
from headgate.graph.packet import Packet
from headgate.runtime.boxes import LiveBox, LiveOutput, Unit, Work
from headgate.runtime.dead_letters import Letter, as_packet, process
from headgate.runtime.network import NEVER, LiveNetwork
from headgate.runtime.queues import Merge
from headgate.runtime.report import QueryReport


class LetterBox:
    """Takes bad rows out of calls and puts them into order.

    A letter leaves when no box can bring one with an earlier serial any more, like any rows that were united.
    """

    def __init__(self, live: LiveNetwork, dead_letter: DeadLetter) -> None:
        self._live = live
        self._arrows = list(dead_letter.port)
        """From every box, and from sources to each of their readers, once they have refused something."""
        self._of_box = list(range(len(self._arrows)))
        """For each box, which arrow is its own."""
        self._of_source: dict[tuple[int, int, bool], int] = {}
        """For each source and reader of it that was concerned (a box, or an output), which arrow."""
        self._closed = False
        self._taken: dict[Unit, list[Letter]] = {}
        """Letters of calls that have not delivered yet."""
        inbox = Merge([0] * len(self._arrows), [LETTERS], self._bound, live.queue_rows, live.packet_rows)
        report = QueryReport(dead_letter.name)
        self.output = LiveOutput(live.numbered(), dead_letter, inbox, report)
        self.output.group = live.own

    def _bound(self) -> int:
        return NEVER if self._closed or not self._arrows else self._live._bound(self._arrows)

    def extend(self, dead_letter: DeadLetter) -> None:
        """There are other boxes, and an arrow from each."""
        for place, arrow in enumerate(dead_letter.port):
            if place < len(self._of_box):
                self._arrows[self._of_box[place]] = arrow
            else:
                self._of_box.append(self._new_arrow(arrow))

    def _new_arrow(self, arrow: Arrow) -> int:
        assert isinstance(self.output.inbox, Merge)
        self.output.inbox.add_arrows([0])
        self._arrows.append(arrow)
        return len(self._arrows) - 1

    def refuse(self, source: int, letters: Sequence[Letter], outputs: dict[int, LiveOutput]) -> None:
        """A source has refused rows: a letter for each of its readers, as each would have had the row.

        They have an arrow of their own, because letters of the reader itself may still be behind them.
        """
        node = self._live.network.sources[source]
        for target, _ in self._live.source_targets[source]:
            if target.removed if isinstance(target, LiveBox) else target.failed:
                continue
            key = (source, target.place, isinstance(target, LiveBox))
            if key not in self._of_source:
                self._of_source[key] = self._new_arrow(Arrow(node))
            if isinstance(target, LiveBox):
                queries: Sequence[str] = self._live.network.queries_of[target.place]
            else:
                queries = (target.output.name,)
            self._live.put(self.output, self._of_source[key], as_packet(node.name, queries, letters))
        outputs[self.output.place] = self.output

    def process(self, work: Work, packets: Sequence[Packet]) -> list[Packet]:
        """A round of a call without its bad rows; if letters cannot be written any more, they fail it."""
        live = work.live
        if self.output.failed:
            return live.operator.process(packets, live.state)
        results, letters = process(live.operator, packets, live.state)
        if letters:
            self._taken.setdefault(work, []).extend(letters)
        return results

    def deliver(self, unit: Unit, now: float, outputs: dict[int, LiveOutput]) -> None:
        """A call delivers: so do its letters, unless the call's results are dropped too."""
        letters = self._taken.pop(unit, None)
        live = unit.live
        if letters and not live.removed:
            packet = as_packet(live.box.name, self._live.network.queries_of[live.place], letters)
            self._live.put(self.output, self._of_box[live.place], packet)
        if self.output.inbox.rows:
            outputs[self.output.place] = self.output

    def close(self) -> None:
        """The run is over: what waits for boxes that will not run again may leave."""
        self._closed = True
