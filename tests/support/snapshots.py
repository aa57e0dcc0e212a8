"""Where a suspended worker stands, as a value: equal snapshots have equal futures.

What a worker does next depends on the frames of its stack: in each the instruction, the local variables and
what lies on the interpreter's evaluation stack.  The last cannot be read from Python.  So the bytecode is
analysed: a frame is *complete* if at its instruction nothing lies there but what the call in progress has
taken.  ``a.load() + b.load()`` is not, during the second call, nor is anything inside a ``for`` loop, whose
iterator lies there.  ``snapshot`` refuses such stacks, and others of which it cannot be sure: an exception is
being handled, a local is of a type that it does not know, a built-in function that is not one of ``DIRECT``
calls back.  Whoever asks must then know the worker by something else.  One thing is not noticed, and must not
be written in code under test: an operation called back from a method in C, as by ``list.sort(key=...)``.

Variables that will not be read again are left out.
"""

from __future__ import annotations

import dis
import functools
import inspect
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any

ATOMS = (NoneType, bool, int, float, complex, str, bytes, range, Enum, type, ModuleType, BuiltinFunctionType)
ITERATORS: tuple[type, ...] = (type(iter(range(0))), type(iter([])), type(iter(())), zip, enumerate)
DIRECT = {"next", "len"}
"""Built-in functions that call back once, at the end: they keep nothing meanwhile."""
ENDS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
JUMPS = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
PUSHING = {"CALL", "CALL_FUNCTION_EX", "YIELD_VALUE", "RETURN_GENERATOR", "LOAD_ATTR", "CONTAINS_OP"}
PUSHING |= {"COMPARE_OP", "BINARY_OP", "BINARY_SUBSCR"}
READS = {"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "DELETE_FAST"}
HEAP_TYPE = 1 << 9


class Incomplete(Exception):
    """The stack cannot be known whole."""


@dataclass(frozen=True)
class Site:
    """What is known of a frame that stands at an instruction."""

    name: str
    complete: bool
    alive: frozenset[str]
    calls: str | None
    """The global name that is being called."""


@functools.cache
def _sites(code: CodeType) -> tuple[list[int], list[Site]]:
    """Offsets of the instructions, and their sites."""
    instructions = list(dis.get_instructions(code))
    offsets = [instruction.offset for instruction in instructions]
    index = {offset: at for at, offset in enumerate(offsets)}
    following: list[list[tuple[int, int]]] = []
    for at, instruction in enumerate(instructions):
        found = []
        argument = instruction.arg if instruction.opcode >= dis.HAVE_ARGUMENT else None
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            found.append(
                (index[instruction.argval], dis.stack_effect(instruction.opcode, argument, jump=True))
            )
        if instruction.opname not in ENDS | JUMPS:
            effect = dis.stack_effect(instruction.opcode, argument, jump=False)
            found.append((at + 1, 1 if instruction.opname == "RETURN_GENERATOR" else effect))
        following.append(found)
    depths = _depths(following)
    if any(depths.get(at) != 1 for at in depths if instructions[at].opname == "RETURN_VALUE"):
        depths = {}
    alive = _alive(code, instructions, following)
    sites = []
    for at, instruction in enumerate(instructions):
        left = None
        if at in depths and following[at]:
            left = depths[at] + following[at][-1][1] - (instruction.opname in PUSHING)
        calls = _called(instructions, depths, at, left) if instruction.opname == "CALL" else None
        sites.append(Site(instruction.opname, left == 0, alive[at], calls))
    return offsets, sites


def _depths(following: list[list[tuple[int, int]]]) -> dict[int, int]:
    """How much lies on the evaluation stack before each instruction that no exception leads to.

    Empty if that depends on the way there: then the bytecode is not understood.
    """
    depths: dict[int, int] = {}
    to_do = [(0, 0)]
    while to_do:
        at, depth = to_do.pop()
        if at not in depths:
            depths[at] = depth
            to_do += [(target, depth + effect) for target, effect in following[at]]
        if depths[at] != depth or depth < 0:
            return {}
    return depths


def _alive(
    code: CodeType, instructions: list[dis.Instruction], following: list[list[tuple[int, int]]]
) -> list[frozenset[str]]:
    """The variables that may be read after each instruction, also by whoever handles an exception."""
    index = {instruction.offset: at for at, instruction in enumerate(instructions)}
    ways = [[target for target, _ in found] for found in following]
    handlers: list[list[int]] = [[] for _ in instructions]
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        for at, instruction in enumerate(instructions):
            if entry.start <= instruction.offset < entry.end:
                handlers[at].append(index[entry.target])
    in_cells = frozenset((*code.co_cellvars, *code.co_freevars))
    before: list[frozenset[str]] = [in_cells] * len(instructions)
    after = list(before)
    changed = True
    while changed:
        changed = False
        for at in reversed(range(len(instructions))):
            handled = in_cells.union(*[before[target] for target in handlers[at]])
            after[at] = handled.union(*[before[target] for target in ways[at]])
            opname, variable = instructions[at].opname, instructions[at].argval
            needed = after[at]
            if opname == "STORE_FAST":
                needed = needed - {variable} | handled
            elif opname in READS:
                needed = needed | {variable}
            if needed != before[at]:
                before[at], changed = needed, True
    return after


def _called(
    instructions: list[dis.Instruction], depths: dict[int, int], at: int, left: int | None
) -> str | None:
    """The global that the call at ``at`` is a call of, if it is one."""
    for earlier in reversed(range(at)):
        if depths.get(earlier) == left:
            begin = instructions[earlier]
            if begin.opname == "PUSH_NULL":
                begin = instructions[earlier + 1]
            return begin.argval if begin.opname in ("LOAD_GLOBAL", "LOAD_NAME") else None
    return None


def _site(frame: FrameType) -> tuple[int, Site]:
    """The instruction's number; ``f_lasti`` itself may be among its caches, or at the half of it before."""
    offsets, sites = _sites(frame.f_code)
    at = bisect_right(offsets, frame.f_lasti) - 1
    if at >= 0 and sites[at].name == "PRECALL":
        at += 1
    return at, sites[at]


def _calls_back(frame: FrameType, name: str) -> bool:
    """Whether a global is something in C that may keep values while it calls Python."""
    called = frame.f_globals.get(name, frame.f_builtins.get(name))
    if isinstance(called, type):
        return not called.__flags__ & HEAP_TYPE
    return isinstance(called, BuiltinFunctionType) and name not in DIRECT


def held(function: FunctionType) -> tuple[Any, ...]:
    """What a function has of its own besides its code."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    return (*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())


class Snapshots:
    """Snapshots of workers that share some objects, which are known by their identity.

    ``identity`` gives what an object is known by, or None if it is a worker's own; objects that are known by
    their identity must not change, but for what lies in shared objects.
    """

    def __init__(self, identity: Callable[[Any], Hashable | None]) -> None:
        self._identity = identity

    def snapshot(self, frame: FrameType | None, bottom: CodeType) -> Hashable:
        """The frames from ``frame`` down to the one that runs ``bottom``."""
        seen: dict[int, int] = {}
        return tuple(self._frames(frame, bottom, seen))

    def _frames(self, frame: FrameType | None, bottom: CodeType, seen: dict[int, int]) -> Iterator[Hashable]:
        inner: FrameType | None = None
        below = frame
        while below is not None and below.f_code is not bottom:
            seen[id(below)] = len(seen)
            below = below.f_back
        while frame is not None and frame.f_code is not bottom:
            _, site = _site(frame)
            if inner is not None and inner.f_code.co_flags & inspect.CO_GENERATOR:
                if site.name not in ("FOR_ITER", "SEND") and site.calls != "next":
                    raise Incomplete(f"{frame.f_code.co_qualname} runs a generator in C")
            elif inner is not None and site.calls is not None and _calls_back(frame, site.calls):
                raise Incomplete(f"{frame.f_code.co_qualname}: {site.calls} calls back")
            yield self._frame(frame, seen)
            inner, frame = frame, frame.f_back

    def _frame(self, frame: FrameType, seen: dict[int, int]) -> Hashable:
        at, site = _site(frame)
        if not site.complete:
            raise Incomplete(f"{frame.f_code.co_qualname}: {site.name} in the middle of something")
        values = frame.f_locals
        names = sorted(site.alive.intersection(values))
        return frame.f_code, at, tuple([(name, self._value(values[name], seen)) for name in names])

    def _value(self, value: Any, seen: dict[int, int]) -> Hashable:
        """A value by what it is; one changeable object in two places is told from two objects."""
        known = self._identity(value)
        if known is not None:
            return "known", known
        if isinstance(value, ATOMS):
            return type(value), value
        if isinstance(value, CodeType):
            return "code", value
        if type(value) is tuple:
            return tuple, self._values(value, seen)
        if id(value) in seen:
            return "again", seen[id(value)]
        seen[id(value)] = len(seen)
        if type(value) in (list, deque):
            return type(value), self._values(value, seen)
        if type(value) is dict:
            return dict, self._values(value, seen), self._values(value.values(), seen)
        if isinstance(value, MethodType):
            return "method", value.__func__, self._value(value.__self__, seen)
        if isinstance(value, FunctionType):
            return "function", value.__code__, id(value.__globals__), self._values(held(value), seen)
        if isinstance(value, ITERATORS):
            return type(value), self._values(value.__reduce__()[1:], seen)
        if isinstance(value, GeneratorType):
            if value.gi_running:
                return "generator", "in the stack", seen[id(value.gi_frame)]
            if value.gi_frame is None:
                return "generator", "finished"
            if value.gi_yieldfrom is not None:
                raise Incomplete("a generator in a generator")
            return "generator", self._frame(value.gi_frame, seen)
        raise Incomplete(f"a {type(value).__name__}")

    def _values(self, values: Any, seen: dict[int, int]) -> Hashable:
        return tuple([self._value(value, seen) for value in values])
