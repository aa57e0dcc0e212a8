"""Sinks of a run on threads or in simulation: opened, given results in order, and closed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headgate.connectors.sink import Writer
from headgate.graph.network import Output
from headgate.graph.packet import Packet
from headgate.runtime.boxes import LiveOutput, Times
from headgate.runtime.core import Core
from headgate.runtime.instructions import Instruction
from headgate.runtime.stimuli import Asked

Open = Callable[[Output], Writer]
"""Opens a query's sink."""


def open_sink(output: Output) -> Writer:
    """Open a query's sink, and keep nothing of its results."""
    writer: Writer = output.sink.open(output.name, output.schema)
    return writer


def make_change(core: Core, asked: Asked, now: float, opened: Open = open_sink) -> list[Instruction]:
    """Make a change, with sinks for the queries that it adds; what is refused leaves no sink open."""
    core.check(asked)
    try:
        for output in asked.outputs:
            asked.writers = [*asked.writers, opened(output)]
        return core.handle(asked, now)
    except BaseException:
        for writer in asked.writers:
            writer.close(True)
        raise


class Delivery:
    """Hands results to sinks.  ``failed`` is told of a sink that fails: its query stops, and no other."""

    def __init__(
        self,
        core: Core,
        now: Callable[[], float],
        failed: Callable[[LiveOutput, BaseException], None],
        opened: Open = open_sink,
    ) -> None:
        self._core, self._now, self._failed, self._opened = core, now, failed, opened

    def open_all(self) -> None:
        for live in self._core.live.outputs:
            try:
                live.writer = self._opened(live.output)
            except Exception as error:
                self._failed(live, error)

    def hand_over(
        self,
        output: LiveOutput,
        taken: Iterable[tuple[Packet, Times | None]],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Hand over what was taken from an output; one caller per output at a time.

        After a stop, a sink finishes the packet that it has begun and gets no other.
        """
        for packet, times in taken:
            if stopped():
                output.undelivered += len(packet)
                continue
            try:
                output.hand_over(packet, times, self._now)
            except Exception as error:
                self._failed(output, error)

    def close(self, output: LiveOutput) -> None:
        """Close a sink that gets nothing more."""
        writer, output.writer = output.writer, None
        if writer is not None:
            try:
                writer.close(output.failed and not output.removed)
            except Exception as error:
                if output.report.error is None:
                    self._failed(output, error)

    def close_last(self, output: LiveOutput) -> None:
        """The run is over: close a sink, after the last dead letters if it is theirs."""
        letters = self._core.lifecycle.letters
        if letters is not None and output is letters.output:
            letters.close()
            self.hand_over(output, output.take())
        self.close(output)

    def close_all(self) -> None:
        """The run is over."""
        for output in self._core.live.outputs:
            self.close_last(output)
