"""Which inputs of a join hold its time back, and which do not because their sources ended or fell idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Idle = tuple[dict[int, int], set[int]]
"""By input the serial from which on its sources have ended; and the inputs whose sources are idle."""


def idle_inputs(
    ports: Sequence[Sequence[int]], ended_at: Callable[[int], int | None], is_idle: Callable[[int], bool]
) -> Idle:
    """``ports``: for every input, the sources whose tuples can reach it."""
    ended: dict[int, int] = {}
    idle: set[int] = set()
    for port, sources in enumerate(ports):
        ends = [end for source in sources if (end := ended_at(source)) is not None]
        if len(ends) == len(sources):
            ended[port] = max(ends, default=0)
        elif all(ended_at(source) is not None or is_idle(source) for source in sources):
            idle.add(port)
    return ended, idle
