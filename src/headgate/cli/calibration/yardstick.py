"""Times on a machine whose speed changes."""

from __future__ import annotations

import gc
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

EVERY = 0.01
"""Seconds between two looks at the speed."""


class Yardstick:
    """How fast the processor is at a time: as fast as it goes through a loop, again and again meanwhile.

    A virtual machine's core may be the second thread of a core that another machine uses at times: it is then
    little more than half as fast, for milliseconds or for seconds, and does not know.  So times are taken in
    yards (how often the loop could have run) and reported in seconds of the fastest loop so far.

    Cores have different neighbours, so what is measured has to be on the core of the loop (``on_one_core``).
    """

    def __init__(self) -> None:
        self._least = math.inf
        self._loops: list[float] = []
        self._over = threading.Event()
        self._looks = threading.Thread()
        self._looking = 0.0
        """Seconds of the processor that looking took."""

    def __enter__(self) -> Yardstick:
        gc.collect()  # what others have left behind is not part of what is measured now
        self._loops = [self._loop()]
        self._over = threading.Event()
        self._looks = threading.Thread(target=self._look, name="headgate-yardstick", daemon=True)
        self._looks.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._looks.join()
        self._loops.append(self._loop())

    def _look(self) -> None:
        while not self._over.wait(EVERY):
            self._loops.append(self._loop())
        self._looking = time.thread_time()

    def yards(self, seconds: float) -> float:
        """Of seconds that passed in the last ``with``."""
        return seconds * statistics.fmean([1 / spent for spent in self._loops])

    def seconds(self, yards: float) -> float:
        return yards * self._least

    def of_process(self, run: Callable[[], T]) -> tuple[T, float]:
        """What a run returns, and the yards that all threads of the process took for it."""
        begin = end = 0.0
        with self:
            begin = time.process_time()
            found = run()
            end = time.process_time()
        return found, self.yards(max(end - begin - self._looking, 0.0))

    def _loop(self) -> float:
        begin = time.thread_time()
        total = 0
        for number in range(20_000):
            total += number
        spent = time.thread_time() - begin
        self._least = min(self._least, spent)
        return spent


@contextmanager
def on_one_core(core: int) -> Iterator[None]:
    """This thread, and those that it starts, stay on a core that it may use."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
