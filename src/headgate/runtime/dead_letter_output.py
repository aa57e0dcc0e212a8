"""The dead-letter output of a run on threads or in simulation: one more output, fed by every box."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.graph.network import LETTERS, DeadLetter
from headgate.graph.packet import Packet
from headgate.runtime.boxes import LiveOutput, Unit, Work
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
        self._arrows = dead_letter.port
        self._closed = False
        self._taken: dict[Unit, list[Letter]] = {}
        """Letters of calls that have not delivered yet."""
        inbox = Merge([0] * len(self._arrows), [LETTERS], self._bound, live.queue_rows, live.packet_rows)
        report = QueryReport(dead_letter.name)
        self.output = LiveOutput(len(live.outputs), dead_letter, inbox, report)

    def _bound(self) -> int:
        return NEVER if self._closed else self._live._bound(self._arrows)

    def extend(self, dead_letter: DeadLetter) -> None:
        """There are boxes more, and an arrow from each."""
        assert isinstance(self.output.inbox, Merge)
        self.output.inbox.add_arrows([0] * (len(dead_letter.port) - len(self._arrows)))
        self._arrows = dead_letter.port

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
            self._live.put(self.output, live.place, packet)
        if self.output.inbox.rows:
            outputs[self.output.place] = self.output

    def close(self) -> None:
        """The run is over: what waits for boxes that will not run again may leave."""
        self._closed = True
