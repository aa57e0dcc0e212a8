"""Runs workers under all interleavings there are.

A worker is a function without arguments.  Workers share *shared objects* (``choice_points``), whose every
operation is a choice point: the worker stops before it, and goes on when it is chosen.  An operation that has
to wait makes its worker one that cannot be chosen.  A ``Monitor`` is a shared object that a test tells what
happens, and that knows what must not.

``explore`` never runs two workers against each other: what a worker does depends only on what its operations
returned, so a worker is a machine that goes from place to place by results, and ``_Role`` finds out the
places by running the worker alone with the results that lead there.  A state is then the workers' places and
the values of the shared objects, and what follows it is found by table.

Why nothing is missed though no state is explored twice: what can be chosen in a state, and what comes of it,
depends on the workers' requests, on the values that these meet, and on what the workers do with the results.
The values are in the state.  Two places of a worker are taken for one only if their requests and snapshots
are equal (see ``snapshots``) or, where no whole snapshot can be had, if the same result followed on the same
place.  There is no other way from one worker to another: what an operation is given must be unchangeable, and
what workers have in common from the start is compared with what it was whenever one has been run.  (Global
variables of modules are not, so workers must leave them alone; nor is 1 told from True.)  Workers with the
same function cannot know which of them they are, so a state in which they have changed places counts as the
same.

Progress is a property of the graph of states: from every state some path must lead to an end, where all
workers have returned.  A worker that tries again and again while others could go on walks in a circle that
has a way out; a circle without one is a livelock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from choice_points import Inventory, Request, Run, Setup, Violation, Worker, World
from snapshots import Incomplete, Snapshots

MOST_STATES = 2_000_000


class _Place:
    """Where a worker can be: before a request, or, without one, at its end."""

    __slots__ = ("after", "before", "request")

    def __init__(self, request: Request | None, before: tuple[int, Any] | None) -> None:
        self.request = request
        self.before = before
        self.after: dict[Any, int] = {}


class _Role:
    """What a worker does, as far as it is known: its places by number, 0 the first."""

    def __init__(self, function: Worker, inventory: Inventory) -> None:
        self.places: list[_Place] = []
        self._function = function
        self._inventory = inventory
        self._snapshots = Snapshots(inventory.identity)
        self._numbers: dict[Any, int] = {}
        self._place(Run(function), None)

    def learn(self, number: int, result: Any) -> int:
        """The place that a result leads to; raises ``Violation`` if the worker fails."""
        run = Run(self._function)
        for earlier in self._way(number):
            run.go_on(earlier)
        assert run.request == self.places[number].request, f"{self._function.__name__} does not repeat itself"
        run.go_on(result)
        found = self._place(run, (number, result))
        self.places[number].after[result] = found
        return found

    def _way(self, number: int) -> list[Any]:
        results = []
        while (before := self.places[number].before) is not None:
            number, result = before
            results.append(result)
        return results[::-1]

    def _place(self, run: Run, before: tuple[int, Any] | None) -> int:
        key: Any = None
        if run.request is not None:
            self._inventory.check_argument(run.request.arguments)
            try:
                key = run.request, self._snapshots.snapshot(run.frame, run.bottom)
            except Incomplete:
                key = "after", before
        run.close()
        self._inventory.check_unchanged()
        if key not in self._numbers:
            self._numbers[key] = len(self.places)
            self.places.append(_Place(run.request, before))
        return self._numbers[key]


@dataclass(frozen=True)
class Exploration:
    """What ``explore`` found when nothing was wrong."""

    states: int
    steps: int
    executions: int
    """Ways from the beginning to an end that do not walk in circles."""
    waiting: int
    """States in which some worker has to wait."""
    ends: frozenset[tuple[Any, ...]]
    """The values of the shared objects, in the order in which they were made, when all have returned."""
    _roles: Sequence[_Role]

    def results(self, operation: str, *arguments: Any) -> set[Any]:
        """Whatever an operation returned, in any execution."""
        found: set[Any] = set()
        for place in [place for role in self._roles for place in role.places]:
            request = place.request
            if request is not None and request.name == operation and request.arguments == arguments:
                found.update(place.after)
        return found

    def __str__(self) -> str:
        executions = f"{self.executions:,}" if self.executions < 10**9 else f"{self.executions:.2e}"
        return f"{self.states:,} distinct states, {self.steps:,} steps, {executions} executions"


def explore(setup: Setup, looking_for: str | None = None, most_states: int = MOST_STATES) -> Exploration:
    """Try all interleavings; raises ``Violation`` with a shortest way to it.

    With ``looking_for`` only a violation of that kind; what comes after another is not looked at.
    """
    world = World(setup)
    world.sealed = True
    inventory = Inventory(world.workers)
    return _Graph(world, inventory, looking_for).explore(most_states)


class _Graph:
    """The states, found breadth first: each is the workers' places, one after the other, and the values."""

    def __init__(self, world: World, inventory: Inventory, looking_for: str | None) -> None:
        self._looking_for = looking_for
        functions = list(dict.fromkeys(world.workers))
        self._order = sorted(range(len(world.workers)), key=lambda n: functions.index(world.workers[n]))
        """Workers with the same function stand together."""
        workers = [world.workers[n] for n in self._order]
        roles = {function: _Role(function, inventory) for function in functions}
        self._roles = [roles[function] for function in workers]
        self._first = [workers.index(function) for function in workers]
        self._last = [first + workers.count(workers[first]) for first in self._first]
        self._names = inventory.names
        self._monitors = [(len(workers) + monitor.place, monitor.end) for monitor in world.monitors]
        self._states: list[tuple[Any, ...]] = [(*[0] * len(workers), *world.values)]
        self._came: list[tuple[int, int]] = [(-1, -1)]
        """The state before, and which of its workers moved."""
        self._next: list[list[int]] = []
        self._ends: list[int] = []
        self._left: list[int] = []
        """States with a violation that is not looked for."""
        self._waiting = 0

    def explore(self, most_states: int) -> Exploration:
        numbers = {self._states[0]: 0}
        for number, state in enumerate(self._states):
            found = []
            for moved, after in self._successors(number, state):
                known = numbers.get(after)
                if known is None:
                    known = numbers[after] = len(numbers)
                    if known >= most_states:
                        raise MemoryError(f"more than {most_states:,} states")
                    self._states.append(after)
                    self._came.append((number, moved))
                found.append(known)
            self._next.append(found)
        self._check_progress()
        return Exploration(
            states=len(numbers),
            steps=sum(map(len, self._next)),
            executions=self._executions(),
            waiting=self._waiting,
            ends=frozenset([self._states[end][len(self._roles) :] for end in self._ends]),
            _roles=self._roles,
        )

    def _successors(self, number: int, state: tuple[Any, ...]) -> Iterator[tuple[int, tuple[Any, ...]]]:
        workers = len(self._roles)
        alive = moving = waiting = False
        for moved, role in enumerate(self._roles):
            here = state[moved]
            first, last = self._first[moved], self._last[moved]
            if moved > first and here == state[moved - 1]:
                continue  # the one before stands at the same place, and does the same
            place = role.places[here]
            if place.request is None:
                continue
            alive = True
            at, operation, arguments = place.request
            try:
                outcome = operation(state[workers + at], *arguments)
                if outcome is None:
                    waiting = True
                    continue
                moving = True
                value, result = outcome
                there = place.after.get(result)
                if there is None:
                    there = role.learn(here, result)
            except Violation as violation:
                moving = True
                self._found(violation, number, moved)
                continue
            after = list(state)
            after[moved] = there
            after[workers + at] = value
            if last - first > 1:
                after[first:last] = sorted(after[first:last])
            yield moved, tuple(after)
        self._waiting += waiting
        if alive and not moving:
            self._found(Violation("deadlock", "all wait"), number)
        elif not alive:
            self._ends.append(number)
            try:
                for at, end in self._monitors:
                    end(state[at])
            except Violation as violation:
                self._found(violation, number)

    def _found(self, violation: Violation, number: int, moved: int = -1) -> None:
        if self._looking_for in (None, violation.kind):
            raise Violation(violation.kind, violation.text, self._way(number, moved)) from None
        self._left.append(number)

    def _check_progress(self) -> None:
        """From every state there is a way to an end."""
        before: list[list[int]] = [[] for _ in self._states]
        for number, found in enumerate(self._next):
            for after in found:
                before[after].append(number)
        reached = bytearray(len(self._states))
        to_do = [*self._ends, *self._left]
        while to_do:
            number = to_do.pop()
            if not reached[number]:
                reached[number] = True
                to_do += before[number]
        stuck = reached.find(0)
        if stuck >= 0:
            self._found(Violation("livelock", "from here no way leads to an end"), stuck)

    def _executions(self) -> int:
        """Ways from the first state to an end, without steps back to a state on the way."""
        ways: list[int | None] = [None] * len(self._states)
        begun = bytearray(len(self._states))
        for end in self._ends:
            ways[end] = 1
        to_do = [0]
        while to_do:
            number = to_do[-1]
            if ways[number] is not None:
                to_do.pop()
            elif begun[number]:
                ways[number] = sum([ways[after] or 0 for after in self._next[number]])
                to_do.pop()
            else:
                begun[number] = True
                to_do += [after for after in self._next[number] if not begun[after]]
        return ways[0] or 0

    def _way(self, number: int, moved: int) -> list[tuple[int, str]]:
        """The steps to a state, and one more if somebody moved there."""
        way = [(number, moved)] if moved >= 0 else []
        while self._came[number][0] >= 0:
            way.append(self._came[number])
            number = self._came[number][0]
        standing = [0] * len(self._roles)
        steps = []
        for number, moved in reversed(way):
            here = self._states[number][moved]
            who = next(n for n in range(self._first[moved], self._last[moved]) if standing[n] == here)
            place = self._roles[moved].places[here]
            assert place.request is not None
            at, operation, arguments = place.request
            try:
                outcome = operation(self._states[number][len(self._roles) + at], *arguments)
            except Violation:
                outcome = None
            if outcome is not None:
                standing[who] = place.after.get(outcome[1], -1)
            steps.append((self._order[who], place.request.spell(outcome, self._names)))
        return steps
