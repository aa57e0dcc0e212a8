"""Observers of a run: told of every stimulus and of the instructions that answered it.

An observer is no part of the run.  It must be quick, since on threads it is called with the scheduler's lock
held, it must change nothing, and one that raises is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.runtime.instructions import Instruction
from headgate.runtime.stimuli import Stimulus

Observer = Callable[[Stimulus, Sequence[Instruction], float], None]
"""Called with what happened, what the engine was told to do about it, and the time."""


class Observers:
    """Those of one run; false if there are none, so that asking costs next to nothing."""

    def __init__(self) -> None:
        self._all: tuple[Observer, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, observer: Observer) -> None:
        self._all = (*self._all, observer)

    def tell(
        self, stimulus: Stimulus, instructions: Sequence[Instruction], now: float, problems: list[str]
    ) -> None:
        """Tell all; ``problems`` hears of one that raised."""
        for observer in self._all:
            try:
                observer(stimulus, instructions, now)
            except Exception as error:
                self._all = tuple([other for other in self._all if other is not observer])
                problems.append(f"An observer of the run was dropped: {type(error).__name__}: {error}")
