"""What a recorded run on threads has cost in processor time, and how much of that Python's lock was held.

How long a call lasted in the recording depends on the schedule: it waited for the interpreter's lock, for the
scheduler's, and for a core.  A replay under another policy waits otherwise.  So it takes processor time, and
the simulation makes calls wait for each other again (``engines.simulated.interpreter``).  What is fixed in a
call, the visit to the scheduler, delivery, and reading sources are Python, which holds the lock; what a call
takes by tuple is kernels, which do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.recording.format import Rows
from headgate.recording.model import ModelCosts
from headgate.runtime.boxes import LiveBox, Work

Numbers = npt.NDArray[np.float64]
EARLY = 0.05
"""Of the delays from an arrival to its reading, this quantile is what the system needs for it: longer ones
come from waiting for workers, which a replay has too."""
LEAST = 0.01
"""Seconds of processor time that tell how long threads wait for a core."""
DISTURBED = 1.2
USUAL = 0.25
"""As this of the times to wake a worker."""


class ThreadCosts(ModelCosts):
    """Seconds of threads."""

    exact, threads = False, True

    def __init__(
        self,
        calls: Rows,
        arrivals: Rows,
        wakes: Rows,
        samples: Sequence[Any],
        measured: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(None)
        self._visit, self._member, self._result = _of_visits(calls)
        self._admission, self._row, self.lag, self.rest = _of_arrivals(arrivals)
        seconds = wakes["seconds"]
        self._wake = float(np.quantile(seconds, USUAL)) if len(seconds) else 0.0
        self._times, self._slower = _slower(samples)
        self.counts = 1.0
        """Of the waiting for a core, the share that calls waited: threads that sleep anyway wait too."""
        self._sink = _waiting_in_sinks(calls, measured, float(np.mean(self._slower)))

    def held(self, live: LiveBox, packets: int) -> float:
        stand_in: Any = live.operator
        return float(stand_in.model.fixed) * packets

    def overhead(self, work: Work, stated: float, *, follows: bool = False) -> float:
        members = list(work.members.values())
        results = sum([member.tuples_out for member in members])
        return self._visit + self._member * len(members) + self._result * results

    def aside(self, work: Work) -> float:
        return self._sink * sum([member.tuples_out for member in work.members.values()])

    def admitting(self, rows: int) -> float:
        return self._admission + self._row * rows

    def slower(self, now: float) -> float:
        return 1.0 + self.counts * (float(np.interp(now, self._times, self._slower)) - 1.0)

    @property
    def disturbed(self) -> bool:
        """Threads had to wait for cores so much that it matters how much of that was in calls."""
        return float(np.mean(self._slower)) > DISTURBED

    def waking(self) -> float:
        return self._wake


def least_squares(columns: Sequence[Numbers], seconds: Numbers) -> list[float]:
    """Seconds as a sum of the columns, each times a number that is not negative."""
    found = [0.0] * len(columns)
    used = [place for place, column in enumerate(columns) if np.any(column)]
    while used and len(seconds):
        table = np.stack([columns[place] for place in used], axis=1)
        scale = np.maximum(np.abs(table).max(axis=0), 1e-300)
        solved = np.linalg.lstsq(table / scale, seconds, rcond=None)[0] / scale
        if bool(np.all(solved >= 0)):
            for place, part in zip(used, solved, strict=True):
                found[place] = float(part)
            break
        del used[int(np.argmin(solved * scale))]
    return found


def _of_visits(calls: Rows) -> list[float]:
    """Processor time of a visit to the scheduler, of each of its calls and of each of their results."""
    own = calls["own"]
    firsts = np.flatnonzero(own > 0)
    if not len(firsts):
        return [0.0, 0.0, 0.0]
    members = np.diff(np.append(firsts, len(own))).astype(float)
    results = np.add.reduceat(calls["out"].astype(float), firsts)
    return least_squares([np.ones(len(firsts)), members, results], own[firsts])


def _of_arrivals(arrivals: Rows) -> tuple[float, float, float, float]:
    """Processor time of an admission and of a row; seconds until rows can be read, and until they are.

    An admission can bring several packets; the first of them has its processor time.
    """
    spent, at = arrivals["cpu"], arrivals["at"]
    firsts = np.flatnonzero(spent > 0)
    if not len(firsts):
        return 0.0, 0.0, 0.0, 0.0
    rows = np.add.reduceat(arrivals["rows"].astype(float), firsts)
    once, row = least_squares([np.ones(len(firsts)), rows], spent[firsts])
    ends = np.append(firsts[1:], len(spent)) - 1
    lag = max(0.0, float(np.quantile(arrivals["own"][ends] - arrivals["overhead"][ends], EARLY)))
    # Where rows come closely, the last one of its first packet came just before it was read.
    due, before = arrivals["seconds"][firsts] + lag, np.append(0.0, at[firsts][:-1])
    rested = (arrivals["overhead"][firsts] + lag - due)[due > before]
    rest = float(np.quantile(rested, EARLY)) if len(rested) else 0.0
    return once, row, lag, rest


def _slower(samples: Sequence[Any]) -> tuple[Numbers, Numbers]:
    """Between samples, how much longer threads took than they computed: they waited for a core."""
    told = [one for one in samples if "ran" in one]
    ran = np.diff([one["ran"] for one in told])
    waited = np.diff([one["waited"] for one in told])
    times = np.array([one["at"] for one in told])
    known = (ran > LEAST) & (waited >= 0)  # what a thread took that has ended is not in the sum any more
    if not np.any(known):
        return np.array([0.0]), np.array([1.0])
    return ((times[:-1] + times[1:]) / 2)[known], 1.0 + waited[known] / ran[known]


def _waiting_in_sinks(calls: Rows, measured: Mapping[str, Any] | None, slower: float) -> float:
    """Seconds by result that sinks waited for something outside: they lasted longer than was computed."""
    if measured is None:
        return 0.0
    lasted = sum(own.get("sink", 0.0) for own in measured["queries"].values())
    results = float(calls["out"].sum())
    return max(0.0, lasted - slower * float(calls["own"].sum())) / results if results else 0.0
