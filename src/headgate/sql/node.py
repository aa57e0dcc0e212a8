"""A compiled node: a type and a function from a record batch to values and bad rows.

Every node answers ``(values, bad)``.  ``bad`` is None, or marks the rows on which Spark would raise if it
evaluated this node there.  A parent merges its children's masks by what Spark would have evaluated, so a
branch that is not taken, or an operand after a null one, does not make a row bad.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from headgate.sql.types import spark_name
from headgate.sql.values import Bad, Value, as_array, is_valid, null_where, some, union

Run: TypeAlias = Callable[[pa.RecordBatch], tuple[Value, Bad]]
Kernel: TypeAlias = Callable[..., Value]
FallibleKernel: TypeAlias = Callable[..., tuple[Value, Bad]]


@dataclass(frozen=True, slots=True)
class Node:
    """One compiled sub-expression.

    ``terms`` are the operator and operands of a sum or product that may be reordered; ``reaches`` tells for a
    batch of one row which children Spark would evaluate, if not all.
    """

    type: pa.DataType
    run: Run
    text: str
    children: tuple[Node, ...] = ()
    constant: pa.Scalar | None = None
    literal: bool = False
    reason: str = ""
    columns: frozenset[str] = frozenset()
    terms: tuple[str, tuple[Node, ...]] | None = None
    reaches: Callable[[pa.RecordBatch], tuple[Node, ...]] | None = None

    @property
    def type_name(self) -> str:
        return spark_name(self.type)

    def spelled(self, text: str) -> Node:
        return replace(self, text=text)


def constant(scalar: pa.Scalar, text: str, *, literal: bool = False) -> Node:
    """A node with the same value on every row."""
    result = (scalar, None)
    return Node(scalar.type, lambda batch: result, text, constant=scalar, literal=literal)


def null_of(type_: pa.DataType, text: str = "NULL") -> Node:
    return constant(pa.scalar(None, type_), text, literal=True)


def strict(type_: pa.DataType, text: str, kernel: Kernel, *children: Node) -> Node:
    """A node that is null where an operand is null, and that itself never fails."""
    return _build(type_, text, lambda *values: (kernel(*values), None), kernel, children, "", None)


def fallible(
    type_: pa.DataType,
    text: str,
    reason: str,
    kernel: FallibleKernel,
    *children: Node,
    order: tuple[int, ...] | None = None,
    nullable: bool = False,
) -> Node:
    """A node that is null where an operand is null, and that may mark rows bad for ``reason``.

    ``order`` is the order in which Spark evaluates the operands, if not from left to right: an operand
    after a null one is not evaluated.  ``nullable`` says that the last operand may be null.
    """
    return _build(type_, text, kernel, None, children, reason, order, nullable)


def forgiving(node: Node) -> Node:
    """The ``try_`` variant of a node: null where the node itself is bad; its operands may still be."""
    children = node.children

    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        value, bad = node.run(batch)
        if bad is None:
            return value, None
        below: Bad = None
        for child in children:
            below = union(below, child.run(batch)[1])
        return null_where(value, bad), None if below is None else some(below & bad)

    return replace(node, run=run)


def _build(
    type_: pa.DataType,
    text: str,
    kernel: FallibleKernel,
    plain: Kernel | None,
    children: tuple[Node, ...],
    reason: str,
    order: tuple[int, ...] | None,
    nullable: bool = False,
) -> Node:
    columns = frozenset[str]().union(*(c.columns for c in children))
    needed = children[:-1] if nullable else children
    if any(c.constant is not None and not c.constant.is_valid for c in needed):
        return replace(null_of(type_, text), children=children, literal=False)
    node = Node(
        type_, _runner(kernel, plain, children, order), text, children, reason=reason, columns=columns
    )
    return folded(node, kernel)


def folded(node: Node, kernel: FallibleKernel) -> Node:
    """The node as a constant, if its operands are constants and it does not fail on them."""
    if not node.children or any(c.constant is None for c in node.children):
        return node
    value, bad = kernel(*(as_array(c.constant, 1) for c in node.children))
    if bad is not None and bad.any():
        return node
    scalar = value if isinstance(value, pa.Scalar) else value[0]
    return replace(constant(scalar, node.text), children=node.children)


def _runner(
    kernel: FallibleKernel, plain: Kernel | None, children: tuple[Node, ...], order: tuple[int, ...] | None
) -> Run:
    if all(c.constant is not None for c in children):
        return _constant_runner(kernel, children)
    if len(children) == 1:
        return _unary_runner(kernel, plain, children[0])
    if len(children) == 2:
        return _binary_runner(kernel, plain, children[0], children[1], order or (0, 1))
    return _n_ary_runner(kernel, children, order or tuple(range(len(children))))


def _constant_runner(kernel: FallibleKernel, children: tuple[Node, ...]) -> Run:
    # Only an expression that fails on its constants gets here; it fails on every row, but not on none.
    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        n = batch.num_rows
        value, bad = kernel(*(as_array(c.constant, n) for c in children))
        return value, bad

    return run


def _unary_runner(kernel: FallibleKernel, plain: Kernel | None, child: Node) -> Run:
    operand = child.run
    if plain is not None:

        def run_plain(batch: pa.RecordBatch) -> tuple[Value, Bad]:
            value, bad = operand(batch)
            return plain(value), bad

        return run_plain

    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        value, bad = operand(batch)
        result, own = kernel(value)
        return result, union(bad, own)

    return run


def _binary_runner(
    kernel: FallibleKernel, plain: Kernel | None, first: Node, second: Node, order: tuple[int, ...]
) -> Run:
    left, right = first.run, second.run

    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        a, bad_a = left(batch)
        b, bad_b = right(batch)
        if plain is not None:
            result, own = plain(a, b), None
        else:
            result, own = kernel(a, b)
        if bad_a is None and bad_b is None:
            return result, own
        return result, union(own, reached((a, b), (bad_a, bad_b), order))

    return run


def _n_ary_runner(kernel: FallibleKernel, children: tuple[Node, ...], order: tuple[int, ...]) -> Run:
    operands = [c.run for c in children]

    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        values, bads = zip(*[operand(batch) for operand in operands], strict=True)
        result, own = kernel(*values)
        if any(bad is not None for bad in bads):
            own = union(own, reached(values, bads, order))
        return result, own

    return run


def reached(values: tuple[Value, ...], bads: tuple[Bad, ...], order: tuple[int, ...]) -> Bad:
    """The bad rows of operands that Spark evaluates one after the other, stopping at the first null."""
    length = next(len(bad) for bad in bads if bad is not None)
    out: Bad = None
    alive = np.ones(length, dtype=bool)
    for i in order:
        bad = bads[i]
        if bad is not None:
            out = union(out, alive & bad)
            alive &= ~bad
        alive &= is_valid(values[i], length)
    return some(out) if out is not None else None


def evaluated_all(type_: pa.DataType, text: str, kernel: Kernel, *children: Node) -> Node:
    """A node that looks at all its operands, null or not, and never fails itself."""
    return examined(type_, text, "", lambda *values: (kernel(*values), None), *children)


def examined(type_: pa.DataType, text: str, reason: str, kernel: FallibleKernel, *children: Node) -> Node:
    """A node that looks at all its operands, null or not, and that may mark rows bad for ``reason``."""
    columns = frozenset[str]().union(*(c.columns for c in children))
    operands = [c.run for c in children]

    def run(batch: pa.RecordBatch) -> tuple[Value, Bad]:
        bad: Bad = None
        values = []
        for operand in operands:
            value, own = operand(batch)
            values.append(value)
            bad = union(bad, own)
        if children and not any(isinstance(value, pa.Array) for value in values):
            # Constants that could not be folded.
            values = [as_array(value, batch.num_rows) for value in values]
        out, own = kernel(*values)
        return out, union(bad, own)

    return folded(Node(type_, run, text, children, reason=reason, columns=columns), kernel)
