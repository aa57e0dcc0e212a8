"""The atomics of ``headgate.runtime.ordered`` as shared objects, and the structures built on them.

``load`` runs the source of a module with these classes in the place of the real ones, so the structures that
are tested are the real code, or a mutant of it: the same with some lines replaced.  Only ``for`` loops are
spelled differently.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar
from unittest import mock

import choice_points
from choice_points import Shared, Violation
from headgate import atomics

T = TypeVar("T")
choice_points.HIDDEN.add(__name__)
Taken = tuple[Any, Any] | None


def _load(value: Any) -> Taken:
    return value, value


def _store(value: Any, new: Any) -> Taken:
    return new, None


def _fetch_add(value: int, amount: int) -> Taken:
    return value + amount, value


class Cell(Shared, Generic[T]):
    def load(self) -> T:
        return self._do(_load)  # type: ignore[no-any-return]

    def store(self, value: T) -> None:
        self._do(_store, value)


class Counter(Shared):
    def __init__(self, value: int = 0) -> None:
        super().__init__(value)

    def load(self) -> int:
        return self._do(_load)  # type: ignore[no-any-return]

    def fetch_add(self, amount: int) -> int:
        return self._do(_fetch_add, amount)  # type: ignore[no-any-return]


def _test_and_set(value: bool) -> Taken:
    return True, value


def _clear(value: bool) -> Taken:
    if not value:
        raise Violation("error", "a flag is cleared that is not set")
    return False, None


def _is_set(value: bool) -> Taken:
    return value, value


class Flag(Shared):
    def __init__(self) -> None:
        super().__init__(False)

    def test_and_set(self) -> bool:
        return self._do(_test_and_set)  # type: ignore[no-any-return]

    def clear(self) -> None:
        self._do(_clear)

    def is_set(self) -> bool:
        return self._do(_is_set)  # type: ignore[no-any-return]


def _load_place(value: tuple[Any, ...], place: int) -> Taken:
    return value, value[place]


def _store_place(value: tuple[Any, ...], place: int, new: Any) -> Taken:
    return (*value[:place], new, *value[place + 1 :]), None


class Slots(Shared, Generic[T]):
    def __init__(self, size: int) -> None:
        super().__init__((None,) * size)
        self._size = size

    def __len__(self) -> int:
        return self._size

    def load(self, place: int) -> T | None:
        return self._do(_load_place, place)  # type: ignore[no-any-return]

    def store(self, place: int, value: T | None) -> None:
        self._do(_store_place, place, value)


def _length(value: tuple[Any, ...]) -> Taken:
    return value, len(value)


def _enqueue(value: tuple[Any, ...], item: Any) -> Taken:
    return (*value, item), None


def _try_dequeue(value: tuple[Any, ...]) -> Taken:
    return (value[1:], value[0]) if value else (value, None)


class Queue(Shared, Generic[T]):
    def __init__(self) -> None:
        super().__init__(())

    def __len__(self) -> int:
        return self._do(_length)  # type: ignore[no-any-return]

    def items(self) -> list[T]:
        return list(self._do(_load))

    def enqueue(self, item: T) -> None:
        self._do(_enqueue, item)

    def try_dequeue(self) -> T | None:
        return self._do(_try_dequeue)  # type: ignore[no-any-return]


def _acquire(value: bool) -> Taken:
    return None if value else (True, None)


def _release(value: bool) -> Taken:
    if not value:
        raise Violation("error", "a lock is released that nobody holds")
    return False, None


class Lock(Shared):
    def __init__(self) -> None:
        super().__init__(False)

    def acquire(self) -> None:
        self._do(_acquire)

    def release(self) -> None:
        self._do(_release)


def _raise(value: int) -> Taken:
    return value + 1, None


def _lower(value: int) -> Taken:
    return (value - 1, True) if value else None


def _try_lower(value: int) -> Taken:
    return (value - 1, True) if value else (0, False)


class Semaphore(Shared):
    """As ``threading`` has it, from 0."""

    def __init__(self) -> None:
        super().__init__(0)

    def release(self) -> None:
        self._do(_raise)

    def acquire(self, blocking: bool = True, timeout: None = None) -> bool:
        return self._do(_lower if blocking else _try_lower)  # type: ignore[no-any-return]


def _contains(value: tuple[tuple[Any, Any], ...], key: Any) -> Taken:
    return value, any(key == known for known, _ in value)


def _set(value: tuple[tuple[Any, Any], ...], key: Any, new: Any) -> Taken:
    return tuple(sorted([*[pair for pair in value if pair[0] != key], (key, new)])), None


def _pop(value: tuple[tuple[Any, Any], ...], key: Any) -> Taken:
    for pair in value:
        if pair[0] == key:
            return tuple([other for other in value if other != pair]), pair[1]
    raise Violation("error", f"there is no {key!r} to pop")


class Dict(Shared):
    """For a plain dict that a lock should protect: whether it does shows only if every access is seen."""

    def __init__(self) -> None:
        super().__init__(())

    def __contains__(self, key: Any) -> bool:
        return self._do(_contains, key)  # type: ignore[no-any-return]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._do(_set, key, value)

    def pop(self, key: Any) -> Any:
        return self._do(_pop, key)


class _END:
    """What the iterators of ``_Whiles`` give last."""


ATOMICS = {made.__name__: made for made in (Cell, Counter, Flag, Slots, Queue, Lock)}


class _Whiles(ast.NodeTransformer):
    """Every ``for`` loop as a ``while`` loop with its iterator in a variable, where a snapshot sees it."""

    def __init__(self) -> None:
        self._count = 0

    def visit_For(self, loop: ast.For) -> list[ast.stmt]:
        self.generic_visit(loop)
        self._count += 1
        iterator, item = f"_iterator_{self._count}", f"_item_{self._count}"
        begin, test = ast.parse(f"{iterator} = iter(0)\n({item} := next({iterator}, _END)) is not _END").body
        assert isinstance(begin, ast.Assign)
        assert isinstance(begin.value, ast.Call)
        assert isinstance(test, ast.Expr)
        begin.value.args = [loop.iter]
        first = ast.Assign([loop.target], ast.Name(item, ast.Load()))
        return [begin, ast.While(test.value, [first, *loop.body], loop.orelse)]


def load(module: ModuleType, replaced: Mapping[str, str] | None = None) -> Any:
    """The module on instrumented atomics, with the keys of ``replaced`` replaced; each must occur once."""
    source = inspect.getsource(module)
    for old, new in (replaced or {}).items():
        if source.count(old) != 1:
            raise ValueError(f"occurs {source.count(old)} times in {module.__name__}, not once:\n{old}")
        source = source.replace(old, new)
    stand_in = ModuleType(atomics.__name__)
    vars(stand_in).update(ATOMICS)
    tree = ast.fix_missing_locations(_Whiles().visit(ast.parse(source)))
    namespace: dict[str, Any] = {"__name__": f"instrumented {module.__name__}", "Dict": Dict, "_END": _END}
    with mock.patch.dict(sys.modules, {atomics.__name__: stand_in}):
        exec(compile(tree, namespace["__name__"], "exec"), namespace)
    return SimpleNamespace(**namespace)
