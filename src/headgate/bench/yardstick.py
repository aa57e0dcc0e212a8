"""Times on a machine whose speed changes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Yardstick:
    """How fast the processor is at a time: as fast as it goes through a loop, before and after.

    A virtual machine's core may be the second thread of a core that is somebody else's at times: it is then
    little more than half as fast, for milliseconds or for seconds, and does not know.  So times are taken in
    yards, how often the loop could have run, and told in seconds of the fastest loop that there ever was.
    """

    def __init__(self) -> None:
        self._least = math.inf
        self._ends: list[float] = []

    def __enter__(self) -> Yardstick:
        self._ends = [self._loop()]
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.append(self._loop())

    def yards(self, seconds: float) -> float:
        """Of seconds that passed in the last ``with``."""
        return seconds / (sum(self._ends) / 2)

    def seconds(self, yards: float) -> float:
        return yards * self._least

    def of_process(self, run: Callable[[], T]) -> tuple[T, float]:
        """What a run returns, and the yards that all threads of the process took for it."""
        with self:
            begin = time.process_time()
            found = run()
            spent = time.process_time() - begin
        return found, self.yards(spent)

    def _loop(self) -> float:
        begin = time.thread_time()
        total = 0
        for number in range(20_000):
            total += number
        spent = time.thread_time() - begin
        self._least = min(self._least, spent)
        return spent
