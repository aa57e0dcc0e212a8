"""Haren's feature table: the features that functions have asked for, and which may have changed.

A policy's functions get boxes whose attributes are features.  One that is asked for the first time is
computed and stays with its box; from then on scheduling tasks keep it fresh.  A feature that no
function asks for is never computed, and one that cannot have changed is not computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from headgate.errors import HeadgateError, PipelineError
from headgate.machine.topology import Topology
from headgate.scheduling.catalog import BoxEntry, reached
from headgate.scheduling.haren import features
from headgate.scheduling.haren.features import BESIDES, Feature


class FunctionFailed(HeadgateError):
    """A function that a policy was made of did not give what it should."""


class BoxView:
    """A box as the functions of a policy see it: its features are its attributes."""

    def __init__(self, table: FeatureTable, number: int, entry: BoxEntry, worker: int) -> None:
        self._table = table
        self._seen: dict[str, tuple[float, float, float]] = {}
        self.number = number
        self.name = entry.name
        self.entry = entry
        """All that the engine measured."""
        self.queries = entry.queries
        self.upstream: list[BoxView] = []
        self.downstream: list[BoxView] = []
        self.worker = worker
        """The worker that it is assigned to."""
        self.last_worker = -1
        self.last_run = 0.0

    @property
    def now(self) -> float:
        """Seconds of the run."""
        return self._table.now

    def per_second(self, what: str, total: float) -> float:
        """By how much a total has grown per second since the last scheduling task.

        A total that falls, because a queue was emptied from outside, has not grown: a rate is never negative.
        """
        now = self._table.now
        before, total_before, rate = self._seen.get(what, (0.0, 0.0, 0.0))
        if now > before:
            total = max(total, total_before)
            rate = (total - total_before) / (now - before)
            self._seen[what] = (now, total, rate)
        return rate

    def shared_level(self, one: int, other: int) -> int:
        """Level of the nearest cache that two workers' cores share; 0 for none, or before a first run."""
        return self._table.shared_level(one, other)

    def __getattr__(self, name: str) -> Any:
        """Called only for a feature that this box does not have yet."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self._table.first(self, features.known(name))

    def __repr__(self) -> str:
        return f"BoxView({self.name})"


_Kept = tuple[Feature, str, Callable[[BoxView], Any], bool]
"""A feature that is kept fresh: its name, what computes it, and whether dependent ones follow from it."""


def _kept(feature: Feature, followed: bool = False) -> _Kept:
    compute = feature.value if feature.depends_on in BESIDES else feature.function
    return feature, feature.name, compute, followed


def _fail(feature: Feature, box: BoxView, error: Exception) -> NoReturn:
    """Tell of a feature that could not be computed; our own errors say themselves what is wrong."""
    if isinstance(error, HeadgateError):
        raise error
    if isinstance(error, RecursionError):
        raise PipelineError(
            f"feature '{feature.name}' depends on itself in a circle, on box '{box.name}'."
        ) from None
    raise FunctionFailed(
        f"feature '{feature.name}' failed on box '{box.name}': {type(error).__name__}: {error}"
    ) from error


class FeatureTable:
    """Views of all boxes, and the features that are kept fresh."""

    def __init__(
        self,
        entries: Sequence[BoxEntry],
        workers: int,
        topology: Topology | None = None,
        cores: Sequence[int] = (),
    ) -> None:
        self._topology, self._cores = topology, cores
        self.now = 0.0
        self.needs: set[str] = set()
        """Measurements that the features asked for rest on."""
        self.boxes = [BoxView(self, number, e, number % workers) for number, e in enumerate(entries)]
        for box in self.boxes:
            box.upstream = [self.boxes[up] for up in box.entry.upstream]
            box.downstream = [self.boxes[down] for down in box.entry.downstream]
        each = range(len(self.boxes))
        self._before = [{box, *reached(lambda place: entries[place].upstream, box)} for box in each]
        self._after = [{box, *reached(lambda place: entries[place].downstream, box)} for box in each]
        self._asked: dict[str, Feature] = {}
        self._sorted = 0
        self._own: list[_Kept] = []
        self._timed: list[_Kept] = []
        self._dependent: list[tuple[_Kept, frozenset[str]]] = []
        self._any_change = False
        """Some dependent feature may follow from whatever happens to a box."""
        self._marked = [False] * len(self.boxes)
        """Boxes with an own feature that has changed since dependent ones were refreshed."""
        self.altered = [False] * len(self.boxes)
        """Boxes with a feature that has changed since the schedule in force was made."""

    def shared_level(self, one: int, other: int) -> int:
        """See ``BoxView.shared_level``; on an unknown machine only a worker and itself share a cache."""
        if min(one, other) < 0:
            return 0
        if one == other or self._topology is None or max(one, other) >= len(self._cores):
            return int(one == other)
        found = self._topology.cache_distance(self._cores[one], self._cores[other])
        return 0 if found == math.inf else int(found)

    @property
    def asked(self) -> list[str]:
        """Names of the features that were asked for."""
        return sorted(self._asked)

    def first(self, box: BoxView, feature: Feature) -> Any:
        """A feature of a box that is asked for the first time."""
        value = box.__dict__[feature.name] = self._value(box, feature)
        if feature.name not in self._asked:
            self._asked[feature.name] = feature
        return value

    def begin(self, now: float) -> None:
        """Before a scheduling task: sort what was asked for since the last one, by what follows from what."""
        self.now = now
        if len(self._asked) == self._sorted:
            return
        made = sorted(self._asked.values(), key=features.depth)
        self._sorted = len(made)
        self.needs = {need for each in made for need in each.needs}
        dependent = [each for each in made if each.depends_on in BESIDES]
        if all(each.shipped for each in dependent):
            followed = {name for each in dependent for name in features.follows_from(each)}
        else:  # a function of the user's may read more than its own lines show
            followed = set(self._asked)
        self._own = [_kept(each, each.name in followed) for each in made if each.depends_on == "own"]
        self._timed = [_kept(each) for each in made if each.depends_on == "time"]
        self._dependent = [(_kept(each), features.reach(each)) for each in dependent]
        self._any_change = any(map(features.looks_past_features, dependent))

    def settle(self) -> None:
        """A schedule by these features has come into force."""
        self.altered = [False] * len(self.boxes)

    def _value(self, box: BoxView, feature: Feature) -> Any:
        try:
            return feature.value(box)
        except Exception as error:
            _fail(feature, box, error)

    # --- refreshing -----------------------------------------------------------------------------------

    def refresh_own(self, touched: Iterable[int]) -> int:
        """Independent features of boxes that ran or whose queues changed; marks those that others follow."""
        count = 0
        for number in touched:
            count += 1
            if self._renew(self.boxes[number], self._own) or self._any_change:
                self._marked[number] = True
        return count

    def refresh_timed(self, numbers: Iterable[int]) -> int:
        """Features that time alone changes."""
        if not self._timed:
            return 0
        count = 0
        for number in numbers:
            self._renew(self.boxes[number], self._timed)
            count += 1
        return count

    def _renew(self, box: BoxView, kept: Sequence[_Kept]) -> bool:
        """Compute again what a box has; whether something changed that others follow."""
        held, changed = box.__dict__, False
        feature: Feature | None = None
        # For most boxes in every task: one try for all, and no call that can be spared.
        try:
            for feature, name, function, followed in kept:
                if name in held:
                    value, before = function(box), held[name]
                    if value != before and not (feature.tolerance and feature.same(before, value)):
                        held[name] = value
                        self.altered[box.number] = True
                        changed = changed or followed
        except Exception as error:
            assert feature is not None
            _fail(feature, box, error)
        return changed

    def refresh_dependent(self) -> int:
        """Dependent features of the boxes that are marked, each after those that it follows from."""
        changed = [number for number, marked in enumerate(self._marked) if marked]
        count = 0
        for kept, kinds in self._dependent:
            numbers = self._may_have_changed(changed, kinds)
            # Boxes stand in topological order: what a feature reads of its neighbours is there before it.
            for number in sorted(numbers, reverse=kept[0].depends_on == "downstream"):
                self._renew(self.boxes[number], (kept,))
                count += 1
        for number in changed:
            self._marked[number] = False
        return count

    def _may_have_changed(self, changed: Sequence[int], kinds: frozenset[str]) -> Iterable[int]:
        """Boxes for which a dependent feature may have changed."""
        if "time" in kinds or (changed and kinds.issuperset(BESIDES)):
            return range(len(self.boxes))
        reached = self._before if "downstream" in kinds else self._after
        return {box for number in changed for box in reached[number]}
