"""Durations as people write them: ``"60 minutes"``, ``"1 hour 30 minutes"``, seconds, or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta

from headgate.errors import PipelineError, nearest

Duration = str | float | timedelta

_MICROS = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "sec": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*,?")


def spell_duration(micros: int) -> str:
    """Microseconds as people write them, in the largest units that need no fraction: ``"90 minutes"``."""
    units = ("week", "day", "hour", "minute", "second", "ms", "us")
    unit = next((unit for unit in units if micros and micros % _MICROS[unit] == 0), "second")
    number = micros // _MICROS[unit]
    plural = "s" if number != 1 and unit not in ("ms", "us") else ""
    return f"{number} {unit}{plural}"


def parse_duration(duration: Duration, what: str) -> int:
    """Microseconds of ``duration``; a bare number is in seconds.  ``what`` names it in errors."""
    if isinstance(duration, timedelta):
        micros = duration // timedelta(microseconds=1)
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        micros = _rounded(duration * 1_000_000, str(duration), what)
    elif isinstance(duration, str) and duration.strip():
        micros, place = 0, 0
        while place < len(duration.rstrip()):
            part = _PART.match(duration, place)
            if part is None:
                raise PipelineError(
                    f"{what}: '{duration}' is not a duration; write e.g. '5 minutes' or '250 ms'."
                )
            number, unit = part.groups()
            name = unit.lower()
            known = name if name in _MICROS else name.removesuffix("s")
            if known not in _MICROS:
                raise PipelineError(
                    f"{what}: '{unit}' in '{duration}' is not a unit of time.{nearest(unit, _MICROS)} "
                    "Use ms, seconds, minutes, hours, days or weeks."
                )
            micros += _rounded(float(number) * _MICROS[known], duration, what)
            place = part.end()
    else:
        raise PipelineError(f"{what}: {duration!r} is not a duration; write e.g. '5 minutes' or '250 ms'.")
    if micros < 0:
        raise PipelineError(f"{what}: '{duration}' is negative.")
    return micros


def parse_period(given: Duration | None, what: str, option: str) -> int | None:
    """Microseconds of an option that may be left out, and is more than zero otherwise."""
    micros = None if given is None else parse_duration(given, f"{what}: {option}")
    if micros == 0:
        raise PipelineError(f"{what}: {option}= must be more than zero.")
    return micros


def _rounded(micros: float, duration: str, what: str) -> int:
    """Whole microseconds; a timestamp holds fewer than 2^63."""
    if not abs(micros) < 2.0**63:
        raise PipelineError(f"{what}: '{duration:.40}' is not a duration that microseconds can count.")
    return round(micros)
