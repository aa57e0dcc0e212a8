"""How a run on threads ends, whatever its operators, sources and sinks do.

A run that is done hands everything over, however long that takes.  One that is stopped (by hand, by its time)
asks its threads to come back, and gives them the engine's ``grace``: a thread that is not back by then is
inside an operator, a source or a sink that hangs.  It is left behind, its queries get an error that says
where, and the others' sinks are closed as always.  Python cannot end a thread from outside; so these die with
the program.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping

from headgate.engines.delivery import Delivery
from headgate.engines.realtime import RealtimeRun
from headgate.engines.worker_pool import join
from headgate.errors import HeadgateError, OperatorError, SinkError, SourceError
from headgate.runtime.boxes import LiveOutput, Work
from headgate.runtime.core import Core
from headgate.runtime.stimuli import QueriesFailed

LACKS = "what it has written may lack an end"
LEAST = 0.5
"""Seconds that closing a sink may take even if others have used the grace up."""


class Ending:
    """The end of one run.

    ``under_way`` has, by worker, the call that it is in; ``doors``, by output, the lock that is held while
    its results are handed over.
    """

    def __init__(
        self,
        run: RealtimeRun,
        core: Core,
        delivery: Delivery,
        feeder: threading.Thread,
        under_way: Mapping[int, Work],
        doors: Mapping[int, threading.Lock],
        grace: float,
    ) -> None:
        self._run, self._core, self._delivery, self._feeder = run, core, delivery, feeder
        self._under_way, self._doors, self._grace = under_way, doors, grace

    def hand_over(self) -> None:
        """Unless the run was stopped: wait until sinks have all that was taken for them."""
        run = self._run
        if not run.halted:
            for door in list(self._doors.values()):
                with door:
                    pass

    def close(self) -> float:
        """Wait for the threads, then close sources and sinks.  Returns the seconds that the run lasted."""
        run = self._run
        until = time.monotonic() + self._grace
        run.workers.join(until)
        join(self._feeder, until)
        with run.lock:
            run.closed = True
            seconds = run.now()
            for queries, error in self._hanging():
                self._core.handle(QueriesFailed(queries, error), seconds)
        if not run.halted:
            try:
                self._core.admission.close()
                self._delivery.close_all()
                return seconds
            except KeyboardInterrupt:
                run.halted = True
                until = time.monotonic() + self._grace
        self._close_in_time(until)
        return seconds

    def _hanging(self) -> list[tuple[list[str], HeadgateError]]:
        """Lock held: queries whose boxes or sources have not come back, with the error of each."""
        core = self._core
        late = f"did not come back within {self._grace:g} seconds after the run was stopped"
        found: list[tuple[list[str], HeadgateError]] = []
        for work in self._under_way.values():
            for member in work.members.values():
                if member.inside:
                    box = member.live.box
                    error = OperatorError(f"Box '{box.name}' ({member.live.operator.label}) {late}.")
                    found.append((list(core.live.network.queries_of[member.live.place]), error))
        for place, entry in enumerate(core.admission.entries):
            if entry.reading:
                source = SourceError(f"Source '{entry.source.name}' {late}.")
                found.append((core.lifecycle.queries_of_source(place), source))
        for output in core.live.outputs:
            if output.handing:
                output.abandoned = True
                sink = SinkError(f"Query '{output.output.name}': its sink {late}; {LACKS}.")
                found.append(([output.output.name], sink))
        return found

    # --- closing ------------------------------------------------------------------------------------

    def _close_in_time(self, until: float) -> None:
        """Close what can be closed; a sink whose ``close`` hangs delays neither the run nor other sinks."""
        run = self._run
        left = deque(output for output in self._core.live.outputs if not output.abandoned)
        sources = threading.Thread(target=self._core.admission.close, name="headgate-closing", daemon=True)
        sources.start()
        while left:
            closing = Closing(self._delivery, self._doors, left)
            closing.start()
            closing.join(max(until - time.monotonic(), LEAST))
            output = closing.leave()
            if output is not None:
                error = SinkError(
                    f"Query '{output.output.name}': its sink was not closed within {self._grace:g} "
                    f"seconds after the run was stopped; {LACKS}."
                )
                with run.lock:
                    self._core.handle(QueriesFailed([output.output.name], error), run.now())
        sources.join(max(until - time.monotonic(), LEAST))


class Closing(threading.Thread):
    """Closes one sink after the other until it is left behind in one that hangs."""

    def __init__(
        self, delivery: Delivery, doors: Mapping[int, threading.Lock], left: deque[LiveOutput]
    ) -> None:
        super().__init__(name="headgate-closing", daemon=True)
        self._delivery, self._doors, self._left = delivery, doors, left
        self._guard = threading.Lock()
        self._at: LiveOutput | None = None
        self._alone = False

    def run(self) -> None:
        while True:
            with self._guard:
                if self._alone or not self._left:
                    return
                self._at = self._left.popleft()
            with self._doors[self._at.place]:  # a thread may be on its way out
                self._delivery.close_last(self._at)
            with self._guard:
                self._at = None

    def leave(self) -> LiveOutput | None:
        """Give it up.  Returns the output whose sink it hangs in, if any."""
        with self._guard:
            self._alone = True
            return self._at
