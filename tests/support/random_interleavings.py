"""Runs workers under interleavings that it draws, for cases with too many states to try everything.

The workers run against each other, in greenlets.  Who goes on is chosen uniformly, or by priorities with a
few changes (Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs", 2010),
which is likely to find whatever takes only a few unlucky moments.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from choice_points import Inventory, Request, Run, Setup, Violation, World

LONGEST = 50_000
PATIENCE = 100
"""Steps that the worker of the highest priority gets in a row: it may be waiting for another."""


@dataclass(frozen=True)
class Search:
    """What ``search`` did when it found nothing wrong."""

    executions: int
    steps: int

    def __str__(self) -> str:
        return f"{self.executions:,} random executions, {self.steps:,} steps"


class Strategy(Protocol):
    """Who goes on."""

    def choose(self, candidates: Sequence[int]) -> int:
        """One of them; it may turn out that it has to wait, and then another is asked for."""

    def went_on(self, who: int) -> None: ...


class Uniform:
    """Everybody is as likely as everybody else."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def choose(self, candidates: Sequence[int]) -> int:
        return self._draw.choice(candidates)

    def went_on(self, who: int) -> None:
        pass


class Priorities:
    """The first in a random order goes on; after some random steps, or when patience ends, it is the last."""

    def __init__(self, draw: random.Random, workers: int, steps: int, changes: int = 3) -> None:
        self._order = draw.sample(range(workers), workers)
        self._changes = {draw.randrange(max(1, steps)) for _ in range(changes)}
        self._steps = 0
        self._last = -1
        self._in_a_row = 0

    def choose(self, candidates: Sequence[int]) -> int:
        return min(candidates, key=self._order.index)

    def went_on(self, who: int) -> None:
        self._in_a_row = self._in_a_row + 1 if who == self._last else 1
        self._last = who
        if self._steps in self._changes or self._in_a_row >= PATIENCE:
            self._order.remove(who)
            self._order.append(who)
        self._steps += 1


class Replay:
    """As somebody else chose; then in turn."""

    def __init__(self, schedule: Sequence[int]) -> None:
        self._schedule = list(schedule)[::-1]
        self._turn = 0

    def choose(self, candidates: Sequence[int]) -> int:
        if self._schedule:
            return self._schedule[-1]
        return candidates[self._turn % len(candidates)]

    def went_on(self, who: int) -> None:
        if self._schedule:
            self._schedule.pop()
        self._turn += 1


def search(setup: Setup, seed: int, steps: int, longest: int = LONGEST) -> Search:
    """Random executions, until so many steps are done; raises ``Violation``.

    One that takes more than ``longest`` steps is a livelock: in the end everybody's turn comes.
    """
    draw = random.Random(seed)
    executions = done = most = 0
    while done < steps:
        world = World(setup)
        uniform = executions % 2 == 0
        strategy: Strategy = Uniform(draw) if uniform else Priorities(draw, len(world.workers), most)
        took = _run(world, strategy, longest)
        most = max(most, took)
        done += took
        executions += 1
    return Search(executions, done)


def replay(setup: Setup, schedule: Sequence[int], longest: int = LONGEST) -> None:
    """Run the interleaving of a ``Violation`` for real, which it raises again."""
    _run(World(setup), Replay(schedule), longest)


def _run(world: World, strategy: Strategy, longest: int) -> int:
    """One execution; its steps."""
    runs: list[Run] = []
    trace: list[tuple[int, Request, tuple[Any, Any] | None]] = []
    try:
        for worker in world.workers:
            runs.append(Run(worker))
        alive = [n for n, run in enumerate(runs) if run.request is not None]
        while alive:
            able = alive
            outcome = None
            while outcome is None:
                if not able:
                    raise Violation("deadlock", "all wait")
                chosen = strategy.choose(able)
                request = runs[chosen].request
                assert request is not None
                trace.append((chosen, request, None))
                outcome = world.take(request)
                trace.pop()
                if outcome is None:
                    able = [n for n in able if n != chosen]
                else:
                    trace.append((chosen, request, outcome))
            if len(trace) > longest:
                raise Violation("livelock", f"no end after {longest:,} steps")
            strategy.went_on(chosen)
            runs[chosen].go_on(outcome[1])
            if runs[chosen].request is None:
                alive = [n for n in alive if n != chosen]
        for monitor in world.monitors:
            monitor.end(world.values[monitor.place])
    except Violation as violation:
        names = Inventory(world.workers, strict=False).names
        steps = [(who, request.spell(outcome, names)) for who, request, outcome in trace]
        raise Violation(violation.kind, violation.text, steps) from None
    finally:
        for run in runs:
            run.close()
    return len(trace)
