"""A thread that tells others what a run has done, so that the run never waits for them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from headgate.runtime.report import Report

MOST = 10_000
"""What waits to be told at most; more is counted and dropped."""
PATIENCE = 10.0
"""Seconds that the end of a run waits for what is left to be told."""


class Telling:
    """``tell(thing)`` returns at once; ``told`` is called with each thing, in order, on another thread."""

    def __init__(self, name: str, told: Callable[[Any], None]) -> None:
        self._name, self._told = name, told
        self._things: queue.Queue[Any] = queue.Queue(MOST)
        self.dropped = 0
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name=f"headgate-{name}", daemon=True)
        self._thread.start()

    def tell(self, thing: Any) -> None:
        try:
            self._things.put_nowait(thing)
        except queue.Full:
            self.dropped += 1

    def _work(self) -> None:
        while (thing := self._things.get()) is not None:
            try:
                self._told(thing)
            except Exception as error:  # a collector that is away must not end anything
                self.error = self.error or error

    def end(self, report: Report | None) -> None:
        """Tell what is left, for a while; the report hears of what could not be told."""
        try:
            self._things.put(None, timeout=PATIENCE)
            self._thread.join(PATIENCE)
        except queue.Full:
            pass
        late = self._thread.is_alive()
        if report is not None and (self.error is not None or late or self.dropped):
            why = self.error or ("it does not answer" if late else f"{self.dropped:,} were too many")
            report.problems.append(f"Not all {self._name} could be told: {why}")
