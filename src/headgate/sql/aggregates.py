"""Aggregate calls: parsed and typed here, accumulated by the stateful operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headgate.errors import ExpressionError, TypeMismatch, UnsupportedFunction, nearest
from headgate.sql import types as t
from headgate.sql.casts import implicit
from headgate.sql.compiler import Compiler, check_boolean
from headgate.sql.expression import Expression, strip_alias
from headgate.sql.guard import guarded
from headgate.sql.logic import conditional, conjunction, null_test
from headgate.sql.node import Node, constant
from headgate.sql.parse import parse
from headgate.sql.registry import AGGREGATES, RUNNING_ONLY, Call, build_call
from headgate.sql.spelling import spell
from headgate.sql.udfs import shipped

_CANONICAL = {
    "mean": "avg",
    "stddev_samp": "stddev",
    "std": "stddev",
    "var_samp": "variance",
    "first_value": "first",
    "any_value": "first",
    "last_value": "last",
    "array_agg": "collect_list",
    "percentile_approx": "approx_percentile",
    "bool_and": "min",
    "every": "min",
    "bool_or": "max",
    "any": "max",
    "some": "max",
    "count_if": "count",
    "approx_count_distinct": "count_distinct",
    "median": "percentile",
    "listagg": "string_agg",
    "try_avg": "avg",
}
_TRUTHS = ("bool_and", "every", "bool_or", "any", "some", "count_if")
PAIRED = (
    "corr", "covar_pop", "covar_samp", "regr_count", "regr_avgx", "regr_avgy", "regr_slope",
    "regr_intercept", "regr_r2", "regr_sxx", "regr_syy", "regr_sxy",
)  # fmt: skip
_MOMENTS = ("stddev", "stddev_pop", "variance", "var_pop")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate call with its argument and filter compiled.  Pickled as its text and schema."""

    text: str
    name: str
    function: str
    argument: Expression | None
    filter: Expression | None
    parameters: tuple[Any, ...]
    type: pa.DataType
    schema: pa.Schema

    def __reduce__(self) -> tuple[Any, ...]:
        return shipped(self.text, (compile_aggregate, (self.text, self.schema)))

    @property
    def columns(self) -> frozenset[str]:
        """The input columns that it reads."""
        return frozenset[str]().union(*(e.columns for e in (self.argument, self.filter) if e is not None))


@guarded
def compile_aggregate(text: str, schema: pa.Schema) -> Aggregate:
    """Compiles one aggregate call, such as ``"sum(x * 2) FILTER (WHERE y > 0) AS s"``."""
    tree, alias = strip_alias(parse(text))
    name = alias or spell_call(tree)
    body, condition, ignore_nulls = _unwrapped(tree)
    if not isinstance(body, exp.Anonymous) or body.name.lower() not in AGGREGATES | RUNNING_ONLY:
        raise _not_an_aggregate(body, text)
    compiler = Compiler(text, schema)
    written = body.name.lower()
    where = None
    if condition is not None:
        node = check_boolean(compiler.compile(condition), spell(condition))
        where = Expression(spell(condition), schema, "filter", node, (_part, text, schema, "filter"))
    function = _CANONICAL.get(written, written)
    operands = list(body.expressions)
    if written == "median":
        operands = [*operands[:1], exp.Literal.number("0.5")]
    if ignore_nulls and function not in ("first", "last"):
        raise ExpressionError(f"IGNORE NULLS is possible only with first() and last(), not in {text!r}.")
    if operands and isinstance(operands[0], exp.Distinct):
        function, operands = _distinct(function, operands, text)
    build = _Builder(compiler, function, operands, text, schema, truth=written in _TRUTHS)
    argument, parameters, type_ = build.build(ignore_nulls)
    return Aggregate(text, name, function, argument, where, parameters, type_, schema)


def _part(text: str, schema: pa.Schema, part: str) -> Expression:
    found: Expression = getattr(compile_aggregate(text, schema), part)
    return found


def spell_call(tree: exp.Expr) -> str:
    """An aggregate call as Spark names its column."""
    if isinstance(tree, exp.Filter):
        return f"{spell_call(tree.this)} FILTER (WHERE {spell(tree.expression.this)})"
    if isinstance(tree, exp.Anonymous):
        # Spark names count(*) by what it becomes.
        inner = ", ".join("1" if isinstance(e, exp.Star) else _spell_operand(e) for e in tree.expressions)
        return f"{tree.name.lower()}({inner})"
    return spell(tree)


def _spell_operand(tree: exp.Expr) -> str:
    if isinstance(tree, exp.Distinct):
        return "DISTINCT " + ", ".join(spell(e) for e in tree.expressions)
    return spell(tree)


def _unwrapped(tree: exp.Expr) -> tuple[exp.Expr, exp.Expr | None, bool]:
    condition = None
    ignore = False
    while True:
        if isinstance(tree, exp.Filter):
            condition, tree = tree.expression.this, tree.this
        elif isinstance(tree, exp.IgnoreNulls):
            ignore, tree = True, tree.this
        elif isinstance(tree, exp.RespectNulls | exp.Paren):
            tree = tree.this
        elif isinstance(tree, exp.Any):  # any(x) is the aggregate here, not x LIKE ANY (...)
            tree = exp.Anonymous(this="any", expressions=[tree.this.unnest()])
        else:
            return tree, condition, ignore


def _not_an_aggregate(tree: exp.Expr, text: str) -> ExpressionError:
    inside = [e.name.lower() for e in tree.find_all(exp.Anonymous) if e.name.lower() in AGGREGATES]
    if isinstance(tree, exp.Window):
        return ExpressionError(f"OVER is not supported in {text!r}. Use window() or running() of the stream.")
    if inside:
        return ExpressionError(
            f"An aggregate must be a single call, but {text!r} computes with "
            f"{', '.join(n + '()' for n in inside)}. "
            "Give each aggregate its own alias and compute with them in a following with_columns()."
        )
    if isinstance(tree, exp.Anonymous):
        name = tree.name.lower()
        return UnsupportedFunction(
            f"{name}() is not a supported aggregate in {text!r}.{nearest(name, AGGREGATES)} "
            f"Supported: {', '.join(sorted(AGGREGATES))}."
        )
    return ExpressionError(f"An aggregate call such as sum(x) is expected, not {text!r}.")


def _distinct(function: str, operands: list[exp.Expr], text: str) -> tuple[str, list[exp.Expr]]:
    inner = operands[0].expressions
    if len(operands) != 1 or len(inner) != 1:
        raise ExpressionError(f"DISTINCT of several columns is not supported in {text!r}.")
    if function == "count":
        return "count_distinct", list(inner)
    if function in ("min", "max"):
        return function, list(inner)
    raise ExpressionError(f"DISTINCT is supported with count(), min() and max(), not in {text!r}.")


class _Builder:
    """Types one aggregate call."""

    def __init__(
        self,
        compiler: Compiler,
        function: str,
        operands: list[exp.Expr],
        text: str,
        schema: pa.Schema,
        *,
        truth: bool = False,
    ) -> None:
        self.truth = truth
        self.compiler = compiler
        self.function = function
        self.operands = operands
        self.text = text
        self.schema = schema

    def build(self, ignore_nulls: bool) -> tuple[Expression | None, tuple[Any, ...], pa.DataType]:
        if self.function == "count" and len(self.operands) == 1 and isinstance(self.operands[0], exp.Star):
            return None, (), t.BIGINT
        paired = self.function in PAIRED or self.function.endswith("_by")
        most = {
            "first": 2,
            "last": 2,
            "approx_percentile": 3,
            "percentile": 2,
            "string_agg": 2,
            "lag": 3,
        }.get(self.function, 2 if paired else 1)
        if paired and len(self.operands) != 2:
            raise ExpressionError(f"{self.function}() takes 2 operands in {self.text!r}.")
        if not 1 <= len(self.operands) <= most:
            raise ExpressionError(
                f"{self.function}() takes {most} operand{'s' if most > 1 else ''} at most and 1 at "
                f"least in {self.text!r}."
            )
        for operand in self.operands:
            for inner in operand.find_all(exp.Anonymous):
                if inner.name.lower() in AGGREGATES:
                    raise ExpressionError(f"An aggregate inside an aggregate is not possible: {self.text!r}.")
        node = self._pair() if paired else self.compiler.compile(self.operands[0])
        if self.truth:
            node = check_boolean(node, spell(self.operands[0]))
        node, parameters, type_ = self._typed(node, ignore_nulls)
        origin = (_part, self.text, self.schema, "argument")
        argument = Expression(spell(self.operands[0]), self.schema, node.text, node, origin)
        return argument, parameters, type_

    def _typed(self, node: Node, ignore_nulls: bool) -> tuple[Node, tuple[Any, ...], pa.DataType]:
        what = f"{self.function}()"
        if self.truth and self.function == "count":
            # Only what is true counts: false becomes null.
            return conditional([(node, node)], None, node.text, what), (), t.BIGINT
        if self.function in PAIRED:
            return node, (), t.BIGINT if self.function == "regr_count" else t.DOUBLE
        if self.function.endswith("_by"):
            return node, (), node.type.field(0).type
        if self.function in ("bit_and", "bit_or", "bit_xor"):
            if not t.is_integral(node.type):
                raise TypeMismatch(f"{what} takes a whole number, not {node.type_name}, in {self.text!r}.")
            return node, (), node.type
        if self.function == "string_agg":
            mark = (
                self.compiler.compile(self.operands[1]).constant if len(self.operands) == 2 else pa.scalar("")
            )
            if mark is None or mark.type != t.STRING or not mark.is_valid:
                raise ExpressionError(f"The delimiter of {what} must be a constant text in {self.text!r}.")
            return implicit(node, t.STRING, what, self.text), (mark.as_py(),), t.STRING
        if self.function == "mode":
            return node, (), node.type
        if self.function == "percentile":
            if not t.is_numeric(node.type):
                raise TypeMismatch(f"{what} takes numbers, not {node.type_name}, in {self.text!r}.")
            node = implicit(node, t.DOUBLE, what, self.text)
        if self.function in ("count", "count_distinct"):
            return node, (), t.BIGINT
        if self.function in ("sum", "avg"):
            return self._total(node, what)
        if self.function in ("min", "max"):
            if not (t.is_atomic(node.type) or node.type == t.NULL):
                raise TypeMismatch(f"{what} cannot compare {node.type_name} in {self.text!r}.")
            return node, (), node.type
        if self.function in (*_MOMENTS, "skewness", "kurtosis"):
            return implicit(node, t.DOUBLE, what, self.text), (), t.DOUBLE
        if self.function in ("first", "last"):
            if len(self.operands) == 2:
                flag = self.compiler.compile(self.operands[1]).constant
                if flag is None or flag.type != t.BOOLEAN or not flag.is_valid:
                    raise ExpressionError(
                        f"The second operand of {what} must be true or false in {self.text!r}."
                    )
                ignore_nulls = bool(flag.as_py())
            return node, (ignore_nulls,), node.type
        if self.function == "lag":
            return self._lag(node, what)
        if self.function in ("collect_list", "collect_set"):
            return node, (), pa.list_(node.type)
        return self._percentile(node)

    def _lag(self, node: Node, what: str) -> tuple[Node, tuple[Any, ...], pa.DataType]:
        if len(self.operands) > 1 and self._number(self.operands[1]) != 1:
            raise ExpressionError(
                f"{what} gives the row before, so its second operand must be 1, in {self.text!r}. "
                "For rows further back, take lag() of lag() in a query around this one."
            )
        default = None
        if len(self.operands) > 2:
            given = implicit(self.compiler.compile(self.operands[2]), node.type, what, self.text).constant
            if given is None:
                raise ExpressionError(f"The third operand of {what} must be a constant in {self.text!r}.")
            default = given.as_py()
        return node, (default,), node.type

    def _pair(self) -> Node:
        """Both operands as one struct, null where the row does not count."""
        nodes = [self.compiler.compile(operand) for operand in self.operands]
        what = f"{self.function}()"
        if self.function in PAIRED:
            nodes = [implicit(n, t.DOUBLE, what, self.text) for n in nodes]
        elif not t.is_atomic(nodes[1].type):
            raise TypeMismatch(f"{what} cannot order by {nodes[1].type_name} in {self.text!r}.")
        names = [constant(pa.scalar(name, t.STRING), name, literal=True) for name in ("a", "b")]
        args = (names[0], nodes[0], names[1], nodes[1])
        both = build_call(Call("named_struct", spell(self.operands[0]), args, ()))
        counted = null_test(nodes[1], self.text, valid=True)
        if self.function in PAIRED:
            counted = conjunction("AND", null_test(nodes[0], self.text, valid=True), counted, self.text)
        return conditional([(counted, both)], None, both.text, what)

    def _total(self, node: Node, what: str) -> tuple[Node, tuple[Any, ...], pa.DataType]:
        if node.type in (t.STRING, t.NULL):
            node = implicit(node, t.DOUBLE, what, self.text)
        if not t.is_numeric(node.type):
            raise TypeMismatch(
                f"{what} takes a number, not {node.type_name} ({node.text}), in {self.text!r}."
            )
        if t.is_decimal(node.type):
            p, s = node.type.precision, node.type.scale
            extra = 10 if self.function == "sum" else 4
            type_ = (
                t.decimal(min(38, p + 10), s) if extra == 10 else t.decimal(min(38, p + 4), min(38, s + 4))
            )
            return node, (), type_
        if self.function == "sum" and t.is_integral(node.type):
            return implicit(node, t.BIGINT, what, self.text), (), t.BIGINT
        return implicit(node, t.DOUBLE, what, self.text), (), t.DOUBLE

    def _percentile(self, node: Node) -> tuple[Node, tuple[Any, ...], pa.DataType]:
        if not (t.is_numeric(node.type) or node.type in (t.DATE, t.TIMESTAMP, t.TIMESTAMP_NTZ)):
            raise TypeMismatch(
                f"approx_percentile() takes numbers or times, not {node.type_name}, in {self.text!r}."
            )
        if len(self.operands) < 2:
            raise ExpressionError(
                f"{self.function}() takes a percentage, as in {self.function}(x, 0.5), in {self.text!r}."
            )
        asked = self.operands[1]
        accuracy = 10000 if len(self.operands) < 3 else self._number(self.operands[2])
        if accuracy < 1 or accuracy != int(accuracy):
            raise ExpressionError(
                f"The accuracy of approx_percentile() must be a positive whole number in {self.text!r}."
            )
        if isinstance(asked, exp.Anonymous) and asked.name.lower() == "array":
            shares = tuple(self._share(e) for e in asked.expressions)
            return node, (shares, int(accuracy)), pa.list_(node.type)
        return node, (self._share(asked), int(accuracy)), node.type

    def _share(self, tree: exp.Expr) -> float:
        share = self._number(tree)
        if not 0 <= share <= 1:
            raise ExpressionError(
                f"A percentage of {self.function}() must be between 0 and 1, not {share}, in {self.text!r}."
            )
        return share

    def _number(self, tree: exp.Expr) -> float:
        scalar = self.compiler.compile(tree).constant
        if scalar is None or not scalar.is_valid or not t.is_numeric(scalar.type):
            raise ExpressionError(f"{spell(tree)!r} must be a constant number in {self.text!r}.")
        return float(scalar.as_py())
