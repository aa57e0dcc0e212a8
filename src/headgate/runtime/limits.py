"""Limits of the numbers that users give, in code and on the command line.

A number that is far too large is a typing error.  If the application obeyed, it would be busy with it for
hours and answer no command.
"""

from __future__ import annotations

from headgate.errors import PipelineError

MOST_WORKERS = 1024
"""Far more than the cores of any machine, and still started within a moment."""
MOST_BATCH = 1_000_000_000
MOST_GRACE = 86_400.0
"""Seconds for which a run that was stopped may wait for what hangs."""
LEAST_PERIOD, MOST_PERIOD = 1e-4, 86_400.0
"""Seconds between two scheduling tasks: more often, workers would do nothing else."""


def check_workers(workers: object, engine: str | None = None) -> None:
    """Refuse an invalid number of workers; ``engine``: the engine that it was given to, if any."""
    what = f"workers={workers!r}" if engine is None else f"{engine}(workers={workers!r})"
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise PipelineError(f"{what}: it must be a whole number of at least 1.")
    if workers > MOST_WORKERS:
        raise PipelineError(f"{what}: there can be at most {MOST_WORKERS:,}.")


def check_batch(batch: int) -> None:
    """Refuse an invalid number of tuples for a box call."""
    if isinstance(batch, bool) or batch < 1:
        raise PipelineError(f"batch={batch!r}: it must be a whole number of at least 1 tuple.")
    if batch > MOST_BATCH:
        raise PipelineError(f"batch={batch}: there can be at most {MOST_BATCH:,} tuples.")


def check_period(seconds: float, given: object) -> None:
    """Refuse an invalid time between scheduling tasks; ``given`` is what the user wrote."""
    if not LEAST_PERIOD <= seconds <= MOST_PERIOD:
        raise PipelineError(f"period={given!r}: it must be from 0.1 ms to 1 day.")


def whole_number(text: object, what: str, most: int) -> int:
    """A number that came as text."""
    shown = str(text)
    try:
        return int(shown)
    except ValueError:  # also for thousands of digits, which Python does not convert
        named = f"{what} {shown}" if len(shown) <= 40 else what
        raise PipelineError(f"{named}: it must be a whole number from 1 to {most:,}.") from None
