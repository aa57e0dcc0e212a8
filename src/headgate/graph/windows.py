"""Windows as people declare them: tumbling, sliding and session, by event time.

Time advances per tuple: the running maximum of the ``on`` column minus ``lateness``.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.errors import PipelineError
from headgate.graph.durations import Duration, parse_duration
from headgate.graph.time import check_length


@dataclass(frozen=True)
class Window:
    """``kind`` is tumbling, sliding or session; times are in microseconds.

    A session holds rows of one key that follow each other by less than ``size``.
    """

    kind: str
    size: int
    every: int
    on: str
    lateness: int


def _window(kind: str, size: Duration, every: Duration, on: str, lateness: Duration) -> Window:
    if not isinstance(on, str) or not on:
        raise PipelineError(f"{kind} window: on= must name the event-time column.")
    micros = check_length(parse_duration(size, f"{kind} window: size"), size, f"{kind} window: size")
    step = parse_duration(every, f"{kind} window: every")
    if micros == 0 or step == 0:
        raise PipelineError(f"{kind} window: its length must be more than zero.")
    if step > micros:
        raise PipelineError(
            f"{kind} window: every={every!r} is longer than the window {size!r}, so rows would fall between "
            "windows; make it at most the window's size."
        )
    late = parse_duration(lateness, f"{kind} window: lateness")
    return Window(kind, micros, step, on, check_length(late, lateness, f"{kind} window: lateness"))


def tumbling(size: Duration, *, on: str, lateness: Duration = 0) -> Window:
    """Windows of ``size`` that follow each other, aligned to 1970-01-01 UTC."""
    return _window("tumbling", size, size, on, lateness)


def sliding(size: Duration, *, every: Duration, on: str, lateness: Duration = 0) -> Window:
    """Windows of ``size`` that overlap: one starts every ``every``."""
    return _window("sliding", size, every, on, lateness)


def session(gap: Duration, *, on: str, lateness: Duration = 0) -> Window:
    """Rows of one key with less than ``gap`` between them."""
    return _window("session", gap, gap, on, lateness)
