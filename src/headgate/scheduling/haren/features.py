"""Features (Haren, "feature categories"): the named values by which a scheduler sees operators.

A feature is a function of a box.  What it depends on says when it is computed again: ``"constant"`` never;
``"own"`` when its box ran or its queue changed; ``"time"`` at every scheduling task; ``"downstream"`` and
``"upstream"`` when that happened to a box it can reach, or to the box itself.  Such a function is also given
the boxes next to it in that direction, whose features it may read, itself included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, Protocol, TypeVar, overload

from headgate.errors import PipelineError, nearest

KINDS = ("constant", "own", "time", "downstream", "upstream")
BESIDES = ("downstream", "upstream")
"""Kinds whose functions are given other boxes too."""
TREMBLE = 0.05
"""Measured costs and selectivities always move a little; by less than this share, nothing follows from it."""
MEASUREMENTS = frozenset({"head", "latency", "bytes"})
BOX_HAS = frozenset(
    {"name", "number", "entry", "queries", "upstream", "downstream", "worker", "last_worker", "last_run"}
    | {"now", "per_second", "shared_level"}
)
"""What every box has anyway; no feature can be called so."""

Function = TypeVar("Function", bound=Callable[..., Any])


class Neighbours(Protocol):
    """A box, as far as computing one of its features needs it."""

    @property
    def downstream(self) -> Any: ...
    @property
    def upstream(self) -> Any: ...


@dataclass(frozen=True)
class Feature:
    """A named value of a box."""

    name: str
    function: Callable[..., Any]
    depends_on: str = "own"
    needs: frozenset[str] = frozenset()
    """Measurements that the engine takes only if a feature needs them."""
    tolerance: float = 0.0
    shipped: bool = False

    @property
    def about(self) -> str:
        return (self.function.__doc__ or "").strip().split("\n")[0]

    def value(self, box: Neighbours) -> Any:
        """The feature of a box, computed now."""
        if self.depends_on == "downstream":
            return self.function(box, box.downstream)
        if self.depends_on == "upstream":
            return self.function(box, box.upstream)
        return self.function(box)

    def same(self, before: Any, now: Any) -> bool:
        """Whether nothing follows from the change of a value."""
        if not self.tolerance or before is None:
            return bool(before == now)
        return bool(abs(now - before) <= self.tolerance * abs(before))


_FEATURES: dict[str, Feature] = {}


def features() -> Mapping[str, Feature]:
    """All features by name, the shipped ones and the users' own."""
    return dict(_FEATURES)


def known(name: str) -> Feature:
    """The feature of that name."""
    if name not in _FEATURES:
        raise PipelineError(
            f"There is no feature '{name}'.{nearest(name, _FEATURES)} There are: "
            f"{', '.join(sorted(_FEATURES))}; define your own with @hg.feature."
        )
    return _FEATURES[name]


@overload
def feature(function: Function, /) -> Function: ...
@overload
def feature(
    *, depends_on: str = "own", name: str | None = None, needs: str | None = None
) -> Callable[[Function], Function]: ...


def feature(
    function: Any = None,
    /,
    *,
    depends_on: str = "own",
    name: str | None = None,
    needs: str | None = None,
) -> Any:
    """Define a feature: ``@hg.feature(depends_on="downstream")`` above a function of that name.

    The function takes a box and returns a value; one that depends on "downstream" or "upstream" takes the
    boxes next to it there as well: ``def ahead(box, downstream): return box.cost + sum(b.ahead for b in
    downstream)``.  It must read other features in its own lines, as attributes of boxes.  ``needs``: a
    measurement to take for it: "head" (arrival of the oldest tuple), "latency" (of all) or "bytes".
    """

    def define(function: Function) -> Function:
        own = name or str(getattr(function, "__name__", ""))
        wanted = frozenset() if needs is None else frozenset({needs})
        _define(Feature(own, function, depends_on, wanted))
        return function

    return define if function is None else define(function)


def _define(made: Feature) -> None:
    what = f"feature '{made.name}'"
    if not made.name.isidentifier() or made.name.startswith("_"):
        raise PipelineError(f"{what}: give the function a name, or say @hg.feature(name='…').")
    if made.depends_on not in KINDS:
        raise PipelineError(
            f"{what}: depends_on={made.depends_on!r}: use one of {', '.join(map(repr, KINDS))}."
        )
    if made.needs - MEASUREMENTS:
        raise PipelineError(
            f"{what}: needs={next(iter(made.needs))!r}: use one of {', '.join(sorted(MEASUREMENTS))}."
        )
    if made.name in BOX_HAS:
        raise PipelineError(f"{what}: every box has that already; take another name.")
    before = _FEATURES.get(made.name)
    if before is not None and before.shipped:
        raise PipelineError(f"{what} is one of Headgate's own; take another name.")
    _check_parameters(made, what)
    _FEATURES[made.name] = made
    try:
        _check_circles(made)
        for each in _FEATURES.values():
            _check_reads(each)
    except PipelineError:
        del _FEATURES[made.name]
        if before is not None:
            _FEATURES[made.name] = before
        raise


def _check_parameters(made: Feature, what: str) -> None:
    code = getattr(made.function, "__code__", None)
    if not isinstance(code, CodeType):
        return
    wanted = 2 if made.depends_on in BESIDES else 1
    if code.co_argcount != wanted:
        others = f", {made.depends_on}" if wanted == 2 else ""
        raise PipelineError(
            f"{what} depends on '{made.depends_on}', so its function takes (box{others}), not "
            f"{code.co_argcount} parameters."
        )


def _check_circles(made: Feature) -> None:
    """Features that read each other have no value; one may read itself of other boxes."""
    path = [made.name]

    def visit(name: str) -> None:
        for read in sorted(reads(_FEATURES[name])):
            if read == made.name and (len(path) > 1 or made.depends_on not in BESIDES):
                circle = " -> ".join([*path, made.name])
                raise PipelineError(
                    f"feature '{made.name}' depends on itself in a circle: {circle}. Let one of them be "
                    "computed without the others."
                )
            if read not in path:
                path.append(read)
                visit(read)
                path.pop()

    visit(made.name)


def _check_reads(made: Feature) -> None:
    """A feature that reads another changes at least as often as that one."""
    for read in sorted(reads(made)):
        other = _FEATURES[read].depends_on
        free = made.depends_on in BESIDES or other == "constant"
        if not free and other != made.depends_on and (made.depends_on, other) != ("time", "own"):
            raise PipelineError(
                f"feature '{made.name}' reads '{read}', which depends on '{other}': say "
                f"@hg.feature(depends_on={other!r}) of it too."
            )


def reads(made: Feature) -> set[str]:
    """Features that a feature's function names; Headgate's own are called as what the engine measured."""
    found = {name for name in _names(getattr(made.function, "__code__", None)) if name in _FEATURES}
    return found - {made.name} if made.shipped and made.depends_on not in BESIDES else found


def _names(code: Any) -> Iterator[str]:
    if isinstance(code, CodeType):
        yield from code.co_names
        for constant in code.co_consts:
            yield from _names(constant)


def looks_past_features(made: Feature) -> bool:
    """Whether a feature reads what the engine measured, so that whatever happens to a box may change it."""
    return not made.shipped and "entry" in _names(getattr(made.function, "__code__", None))


def follows_from(made: Feature) -> set[str]:
    """Names of all features that a feature's value follows from."""
    found = reads(made) - {made.name}
    return found.union(*[follows_from(_FEATURES[name]) for name in found])


def depth(made: Feature) -> int:
    """How many others must be computed before a feature, one after the other."""
    return 1 + max((depth(_FEATURES[name]) for name in reads(made) - {made.name}), default=0)


def reach(made: Feature) -> frozenset[str]:
    """The kinds of everything that a feature's value follows from."""
    found = {made.depends_on}
    for name in reads(made) - {made.name}:
        found |= reach(_FEATURES[name])
    return frozenset(found)


def ship(
    depends_on: str = "own", *, needs: str | None = None, tolerance: float = 0.0
) -> Callable[[Function], Function]:
    """Define one of Headgate's own features."""

    def define(function: Function) -> Function:
        wanted = frozenset() if needs is None else frozenset({needs})
        _define(Feature(function.__name__, function, depends_on, wanted, tolerance, shipped=True))
        return function

    return define
