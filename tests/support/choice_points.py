"""Shared objects whose every operation is a choice point, and workers that stop there.

An operation is a pure function of the object's value, so whoever chooses can try one, keep all values in a
tuple, and go back to earlier ones.
"""

from __future__ import annotations

import operator
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

import greenlet  # type: ignore[import-untyped]

from snapshots import ATOMS, held

Operation = Callable[..., "tuple[Any, Any] | None"]
"""Of the object's value and the arguments: the new value and the result; None if it has to wait."""
Worker = Callable[[], None]
Setup = Callable[[], Sequence[Worker]]
"""Makes what the workers share, and the workers."""
SHOWN = 60


class Violation(Exception):
    """What must not happen, and the steps that led to it.

    Kinds: ``deadlock``, ``livelock``, ``error``, and whatever the monitors know.  ``schedule`` says by number
    which worker did each step.
    """

    def __init__(self, kind: str, text: str, steps: Sequence[tuple[int, str]] = ()) -> None:
        self.kind = kind
        self.text = text
        self.schedule = [who for who, _ in steps]
        left_out = [f"({len(steps) - SHOWN} earlier steps)"] if len(steps) > SHOWN else []
        shown = [f"{who}: {what}" for who, what in steps[-SHOWN:]]
        super().__init__("\n  ".join([f"{kind}: {text}", *left_out, *shown]))


class Request(NamedTuple):
    """The operation before which a worker stands."""

    place: int
    operation: Operation
    arguments: tuple[Any, ...]

    @property
    def name(self) -> str:
        return self.operation.__name__.strip("_")

    def spell(self, outcome: tuple[Any, Any] | None, names: Mapping[int, str]) -> str:
        arguments = ", ".join(map(repr, self.arguments))
        called = f"{names.get(self.place, self.place)}.{self.name}({arguments})"
        return called if outcome is None else f"{called} = {outcome[1]!r}"


class Shared:
    """What workers may share.  Operations call ``_do``; everything that can change is in the value."""

    def __init__(self, value: Hashable) -> None:
        self._world = _setting_up[-1]
        self.place = self._world.add(value)

    def _do(self, operation: Operation, *arguments: Hashable) -> Any:
        return self._world.do(Request(self.place, operation, arguments))


class Monitor(Shared):
    """Told what happens, it raises ``Violation`` if that must not, or if at the end something is missing."""

    def __init__(
        self,
        value: Hashable,
        step: Callable[[Any, Any], Any],
        end: Callable[[Any], None] = lambda value: None,
    ) -> None:
        super().__init__(value)
        self._step = step
        self.end = end
        self._world.monitors.append(self)

    def tell(self, event: Hashable) -> None:
        self._do(self._told, event)

    def _told(self, value: Any, event: Any) -> tuple[Any, None]:
        return self._step(value, event), None


class World:
    """The shared objects of one setup, and the workers."""

    def __init__(self, setup: Setup) -> None:
        self.values: list[Any] = []
        self.monitors: list[Monitor] = []
        self.sealed = False
        _setting_up.append(self)
        try:
            self.workers = list(setup())
        finally:
            _setting_up.pop()

    def add(self, value: Hashable) -> int:
        if self.sealed:
            raise TypeError("workers cannot make shared objects when all is explored; make them in the setup")
        self.values.append(value)
        return len(self.values) - 1

    def do(self, request: Request) -> Any:
        run = getattr(greenlet.getcurrent(), "run_of_worker", None)
        if run is not None:
            return run.ask(request)
        outcome = self.take(request)
        assert outcome is not None, "the setup would have to wait"
        return outcome[1]

    def take(self, request: Request) -> tuple[Any, Any] | None:
        """Do an operation; None if it has to wait."""
        place, operation, arguments = request
        outcome = operation(self.values[place], *arguments)
        if outcome is not None:
            self.values[place] = outcome[0]
        return outcome


_setting_up: list[World] = []
HIDDEN = {__name__}
"""Modules of shared objects: their frames only hand on a request and its result."""


class _Closed(greenlet.GreenletExit):  # type: ignore[misc]
    """Sent to a worker that is no longer needed."""


class Run:
    """A worker that runs, up to its next request."""

    def __init__(self, function: Worker) -> None:
        self.request: Request | None = None
        """None when it has returned."""
        self._function = function
        self._closing = False
        self._greenlet = greenlet.greenlet(self._work)
        self._greenlet.run_of_worker = self
        self._switch()

    def _work(self) -> Violation | None:
        try:
            self._function()
        except _Closed:
            pass
        except Exception as error:
            return Violation("error", "".join(traceback.format_exception(error)[-2:]).strip())
        return None

    def _switch(self, *result: Any) -> None:
        self.request = None
        failed = self._greenlet.switch(*result)
        if failed is not None:
            raise failed

    def ask(self, request: Request) -> Any:
        if self._closing:
            raise _Closed
        self.request = request
        return self._greenlet.parent.switch(None)

    def go_on(self, result: Any) -> None:
        """Give it the result of its request; raises ``Violation`` if the worker fails."""
        self._switch(result)

    @property
    def frame(self) -> FrameType:
        """The innermost frame that is not of a shared object."""
        frame: FrameType = self._greenlet.gr_frame
        while frame.f_globals.get("__name__") in HIDDEN:
            assert frame.f_back is not None
            frame = frame.f_back
        return frame

    bottom = _work.__code__

    def close(self) -> None:
        """Leave it where it is; what it still asks for as it unwinds is refused."""
        self._closing = True
        if not self._greenlet.dead:
            self._greenlet.throw(_Closed)


class Inventory:
    """What the workers have in common from the start.

    But for the values of shared objects it must not change, nor may workers pass each other what can: they
    are run apart from each other, and would not see it.
    """

    def __init__(self, workers: Sequence[Worker], strict: bool = True) -> None:
        self._strict = strict
        self.names: dict[int, str] = {}
        """Of shared objects, by place."""
        self._objects: dict[int, Any] = {}
        self._to_do: list[tuple[str, Any]] = [(worker.__name__, worker) for worker in workers]
        while self._to_do:
            name, value = self._to_do.pop()
            if isinstance(value, Shared):
                self.names.setdefault(value.place, name)
            elif not isinstance(value, ATOMS) and id(value) not in self._objects:
                self._objects[id(value)] = value
                self._to_do += self._parts(name, value)
        self._contents = self._look()

    def _look(self) -> list[list[Any]]:
        return [[part for _, part in self._parts("", value)] for value in self._objects.values()]

    def _parts(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, FunctionType):
            names = value.__code__.co_freevars
            yield from ((names[at] if at < len(names) else name, part) for at, part in enumerate(held(value)))
        elif isinstance(value, MethodType):
            yield name, value.__self__
        elif isinstance(value, tuple | list | deque):
            yield from ((f"{name}[{at}]", part) for at, part in enumerate(value))
        elif isinstance(value, dict):
            yield from ((f"{name}[{key!r}]", part) for key, part in value.items())
            yield from ((name, key) for key in value)
        elif type(value).__module__ != "builtins" and hasattr(value, "__dict__"):
            yield from vars(value).items()
        elif self._strict:
            raise TypeError(f"workers share {name}, a {type(value).__name__}, which cannot be looked into")

    def identity(self, value: Any) -> Hashable | None:
        """What a common object is known by; None for one that is a worker's own."""
        if isinstance(value, Shared):
            return "shared", value.place
        return id(value) if id(value) in self._objects else None

    def check_argument(self, value: Any) -> None:
        if type(value) is tuple:
            for part in value:
                self.check_argument(part)
        elif not isinstance(value, ATOMS) and self.identity(value) is None:
            raise TypeError(f"a worker passes on {value!r}, which could change")

    def check_unchanged(self) -> None:
        for before, now in zip(self._contents, self._look(), strict=True):
            if len(before) != len(now) or not all(map(operator.is_, before, now)):
                raise TypeError("a worker changed something common that is no shared object")
