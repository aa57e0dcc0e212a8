"""From a parsed tree to a compiled node: names are resolved, types checked, constants folded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headgate.errors import ExpressionError, TypeMismatch, UnknownColumn, nearest
from headgate.sql import arithmetic, comparison, intervals, lambdas, logic, patterns, subscripts
from headgate.sql import types as t
from headgate.sql.casts import cast
from headgate.sql.literals import literal, suffixed
from headgate.sql.names import places
from headgate.sql.node import Node, constant, null_of
from headgate.sql.parse import SUFFIX
from headgate.sql.registry import AGGREGATES, FUNCTIONS, Call, build_call, unsupported
from headgate.sql.spelling import ARITHMETIC, BITS, COMPARISON, SHIFTS, spell
from headgate.sql.strings import trimmed
from headgate.sql.values import kernel

_PLAIN_PARTS = frozenset(["this", "expression", "expressions"])
# The compiler would silently lose a part of a tree that it does not look at, so it refuses unlisted parts.
_KNOWN_PARTS: dict[type[exp.Expr], frozenset[str]] = {
    kind: _PLAIN_PARTS | set(parts.split())
    for kind, parts in {
        exp.Literal: "is_string",
        exp.Div: "typed safe",
        exp.DPipe: "safe",
        exp.Concat: "safe coalesce",
        exp.Cast: "to safe",
        exp.TryCast: "to safe",
        exp.Case: "ifs default",
        exp.If: "true false",
        exp.Between: "low high",
        exp.Like: "negate",
        exp.ILike: "negate",
        exp.Trim: "position",
        exp.Substring: "start length",
        exp.StrPosition: "substr position",
        exp.Column: "table db catalog",
        exp.Interval: "unit",
    }.items()
}


class Compiler:
    """Compiles the trees of one text against one schema.

    ``variables`` are the names, in lower case, of a lambda's variables and the columns that hold them.
    """

    def __init__(self, text: str, schema: pa.Schema, variables: Mapping[str, int] | None = None) -> None:
        self.text = text
        self.schema = schema
        self.variables = dict(variables or {})
        self._handlers: dict[type[exp.Expr], Callable[[Any], Node]] = {
            exp.Paren: lambda e: self.compile(e.this),
            exp.Column: self._column,
            exp.Literal: lambda e: literal(e, spell(e)),
            exp.Null: lambda e: null_of(t.NULL),
            exp.Boolean: lambda e: constant(pa.scalar(bool(e.this)), str(bool(e.this)).lower(), literal=True),
            exp.RawString: lambda e: constant(pa.scalar(e.this, t.STRING), e.this, literal=True),
            exp.HexString: self._hex,
            exp.Concat: self._adjacent_strings,
            exp.Neg: self._negate,
            exp.Not: lambda e: logic.negation(self.compile(e.this), spell(e)),
            exp.And: lambda e: self._conjunction("AND", e),
            exp.Or: lambda e: self._conjunction("OR", e),
            exp.NullSafeEQ: lambda e: comparison.null_safe_equal(*self._sides(e), spell(e)),
            exp.NullSafeNEQ: lambda e: logic.negation(
                comparison.null_safe_equal(*self._sides(e), spell(e)), spell(e)
            ),
            exp.BitwiseNot: lambda e: arithmetic.bit_not(self.compile(e.this), spell(e)),
            exp.DPipe: lambda e: self._call("concat", [e.this, e.expression], e),
            exp.Is: self._is,
            exp.In: self._in,
            exp.Between: self._between,
            exp.Like: lambda e: self._like(e, None),
            exp.ILike: lambda e: self._like(e, None),
            exp.Escape: lambda e: self._like(e.this, e.expression),
            exp.RegexpLike: lambda e: patterns.rlike(*self._sides(e), spell(e)),
            exp.Case: self._case,
            exp.If: self._if,
            exp.Cast: self._cast,
            exp.TryCast: self._cast,
            exp.Extract: lambda e: self._call("extract", [exp.Literal.string(e.this.name), e.expression], e),
            exp.Trim: self._trim,
            exp.Substring: lambda e: self._call(
                "substring", [a for a in (e.this, e.args.get("start"), e.args.get("length")) if a], e
            ),
            exp.StrPosition: lambda e: self._call(
                "position", [a for a in (e.args["substr"], e.this, e.args.get("position")) if a], e
            ),
            exp.Bracket: self._bracket,
            exp.Dot: lambda e: subscripts.field(self.compile(e.this), e.expression.name, spell(e)),
            exp.Identifier: lambda e: self._input(self._resolve(e.name, e.name)),
            exp.Transform: lambda e: self._call("transform", [e.this, e.expression], e),
            exp.Anonymous: lambda e: self._call(e.name.lower(), e.expressions, e),
        }

    def compile(self, tree: exp.Expr) -> Node:
        """The node of a tree, or an error that names what is wrong in the user's text."""
        known = _KNOWN_PARTS.get(type(tree), _PLAIN_PARTS)
        if any(value and part not in known for part, value in tree.args.items()):
            raise self._refuse(tree)
        operator = ARITHMETIC.get(type(tree))
        if operator is not None:
            return self._arithmetic(operator, tree)
        operator = COMPARISON.get(type(tree))
        if operator is not None:
            return comparison.compare(operator, *self._sides(tree), spell(tree))
        if type(tree) in BITS:
            return arithmetic.bits(BITS[type(tree)], *self._sides(tree), spell(tree))
        if type(tree) in SHIFTS:
            return arithmetic.shift(SHIFTS[type(tree)], *self._sides(tree), spell(tree))
        handler = self._handlers.get(type(tree))
        if handler is None:
            raise self._refuse(tree)
        return handler(tree)

    def _refuse(self, tree: exp.Expr) -> ExpressionError:
        if isinstance(tree, exp.CurrentDate | exp.CurrentTimestamp):
            return unsupported(type(tree).sql_name().lower(), self.text)
        if isinstance(tree, exp.Alias):
            return ExpressionError(f"An alias is possible only at the end of an expression: {self.text!r}.")
        if isinstance(tree, exp.Star):
            return ExpressionError(
                f"'*' is possible only by itself, as all columns, or in count(*): {self.text!r}."
            )
        if isinstance(tree, exp.Interval):
            return ExpressionError(
                f"An interval is possible only in '+' or '-' with a date or timestamp: {self.text!r}."
            )
        if isinstance(tree, exp.Lambda):
            return ExpressionError(
                f"A function such as {spell(tree)} is possible only in transform(), filter(), exists() and "
                f"the like, not in {self.text!r}."
            )
        if isinstance(tree, exp.Window):
            return ExpressionError(
                f"OVER is not supported in {self.text!r}. Use window() or running() of the stream."
            )
        if isinstance(tree, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
            return unsupported(tree.this.name.lower(), self.text)
        if isinstance(tree, exp.Query | exp.Subquery | exp.Exists):
            return ExpressionError(
                f"A subquery is not supported in {self.text!r}. Use lookup() or join() of the stream."
            )
        return ExpressionError(
            f"{tree.sql('spark')!r} ({type(tree).__name__}) is not supported in {self.text!r}."
        )

    def _sides(self, tree: exp.Expr) -> tuple[Node, Node]:
        return self.compile(tree.this), self.compile(tree.expression)

    def _arithmetic(self, operator: str, tree: exp.Expr) -> Node:
        if operator in ("+", "-"):
            shifted = intervals.shifted(self.compile, operator, tree)
            if shifted is not None:
                return shifted
        left, right = self._sides(tree)
        if operator in ("+", "-") and t.DATE in (left.type, right.type):
            return intervals.date_arithmetic(operator, left, right, spell(tree))
        if operator == "-" and t.is_timestamp(left.type) and t.is_timestamp(right.type):
            raise ExpressionError(
                f"The difference of two timestamps is an interval, which is not supported as a "
                f"column, in {spell(tree)!r}. "
                "Use unix_micros(a) - unix_micros(b), or timestampdiff(SECOND, b, a)."
            )
        return arithmetic.arithmetic(operator, left, right, spell(tree))

    def _conjunction(self, operator: str, tree: exp.Expr) -> Node:
        return logic.conjunction(operator, *self._sides(tree), spell(tree))

    def _column(self, tree: exp.Column) -> Node:
        if isinstance(tree.this, exp.Star):
            raise self._refuse(tree.this)
        names = [part.name for part in tree.parts]
        index = self._resolve(names[0], spell(tree))
        node = self._input(index)
        for name in names[1:]:
            node = subscripts.field(node, name, spell(tree))
        return node

    def _resolve(self, name: str, text: str) -> int:
        if name.lower() in self.variables:
            return self.variables[name.lower()]
        found = places(self.schema).get(name.lower(), ())
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(repr(self.schema.names[i]) for i in found)
            raise ExpressionError(f"The column {name!r} is ambiguous in {self.text!r}: it may be {names}.")
        raise UnknownColumn(
            f"There is no column {name!r} (in {self.text!r}).{nearest(name, self.schema.names)} "
            f"Columns: {', '.join(self.schema.names) or 'none'}."
        )

    def _input(self, index: int) -> Node:
        field = self.schema.field(index)
        columns = frozenset([field.name])
        target = t.stored_as(field.type)
        if target is None or target == field.type:
            return Node(field.type, lambda batch: (batch.column(index), None), field.name, columns=columns)
        convert = kernel("cast", pc.CastOptions.safe(target))
        return Node(target, lambda batch: (convert(batch.column(index)), None), field.name, columns=columns)

    def _hex(self, tree: exp.HexString) -> Node:
        digits = str(tree.this)
        return constant(
            pa.scalar(bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2)), t.BINARY),
            spell(tree),
            literal=True,
        )

    def _adjacent_strings(self, tree: exp.Concat) -> Node:
        if not all(isinstance(e, exp.Literal) and e.is_string for e in tree.expressions):
            raise self._refuse(tree)
        joined = "".join(e.this for e in tree.expressions)
        return constant(pa.scalar(joined, t.STRING), joined, literal=True)

    def _negate(self, tree: exp.Neg) -> Node:
        if isinstance(tree.this, exp.Literal) and not tree.this.is_string:
            return literal(tree.this, spell(tree), negative=True)
        if isinstance(tree.this, exp.Anonymous) and tree.this.name.startswith(SUFFIX):
            return self._suffixed(tree.this, negative=True)
        return arithmetic.negate(self.compile(tree.this), spell(tree))

    def _suffixed(self, tree: exp.Anonymous, *, negative: bool = False) -> Node:
        number = tree.expressions[0]
        text = ("-" if negative else "") + number.this
        return suffixed(number, tree.name.removeprefix(SUFFIX), text, negative=negative)

    def _is(self, tree: exp.Is) -> Node:
        node = self.compile(tree.this)
        if isinstance(tree.expression, exp.Null):
            return logic.null_test(node, spell(tree), valid=False)
        if isinstance(tree.expression, exp.Boolean):
            return logic.truth_test(node, bool(tree.expression.this), spell(tree))
        raise self._refuse(tree)

    def _in(self, tree: exp.In) -> Node:
        if not tree.expressions:
            raise ExpressionError(
                f"IN takes a list of values in {self.text!r}; for another table use lookup()."
            )
        return comparison.membership(
            self.compile(tree.this), [self.compile(e) for e in tree.expressions], spell(tree)
        )

    def _between(self, tree: exp.Between) -> Node:
        text = spell(tree)
        value = self.compile(tree.this)
        low = comparison.compare(">=", value, self.compile(tree.args["low"]), text)
        high = comparison.compare("<=", value, self.compile(tree.args["high"]), text)
        return logic.conjunction("AND", low, high, text)

    def _like(self, tree: exp.Expr, escape: exp.Expr | None) -> Node:
        if not isinstance(tree, exp.Like | exp.ILike) or isinstance(tree.expression, exp.Any | exp.All):
            raise self._refuse(tree)
        if escape is not None and not (isinstance(escape, exp.Literal) and len(escape.this) == 1):
            raise ExpressionError(f"ESCAPE takes one character in {self.text!r}.")
        left, right = self._sides(tree)
        mark = "\\" if escape is None else str(escape.this)
        if isinstance(tree, exp.ILike):
            left, right = (build_call(Call("lower", n.text, (n,), ())) for n in (left, right))
        node = patterns.like(left, right, mark, spell(tree))
        return logic.negation(node, spell(tree)) if tree.args.get("negate") else node

    def _case(self, tree: exp.Case) -> Node:
        text = spell(tree)
        branches = []
        subject = None if tree.this is None else self.compile(tree.this)
        for branch in tree.args["ifs"]:
            condition = self.compile(branch.this)
            if subject is not None:
                condition = comparison.compare("=", subject, condition, text)
            branches.append((condition, self.compile(branch.args["true"])))
        default = tree.args.get("default")
        return logic.conditional(branches, None if default is None else self.compile(default), text, "CASE")

    def _if(self, tree: exp.If) -> Node:
        if tree.args.get("false") is None:
            raise ExpressionError(f"if() takes 3 operands in {self.text!r}.")
        parts = [tree.this, tree.args["true"], tree.args["false"]]
        return self._call("if", parts, tree)

    def _cast(self, tree: exp.Cast) -> Node:
        safe = bool(tree.args.get("safe"))
        return cast(self.compile(tree.this), self._type(tree.to), spell(tree), safe=safe)

    def _type(self, tree: exp.DataType) -> pa.DataType:
        # sqlglot writes Spark's TIMESTAMP_NTZ and TIMESTAMP_LTZ back under other names.
        renamed = {"TIMESTAMPTZ": "TIMESTAMP", "TIMESTAMPLTZ": "TIMESTAMP", "TIMESTAMPNTZ": "TIMESTAMP_NTZ"}
        name = getattr(tree.this, "name", str(tree.this))
        return t.parse_type(renamed.get(name) or tree.sql("spark"))

    def _trim(self, tree: exp.Trim) -> Node:
        name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(
            str(tree.args.get("position") or "").upper(), "trim"
        )
        characters = tree.args.get("expression")
        nodes = tuple(self.compile(e) for e in (tree.this, characters) if e is not None)
        return trimmed(Call(name, spell(tree), nodes, ()))

    def _bracket(self, tree: exp.Bracket) -> Node:
        if len(tree.expressions) != 1 or tree.args.get("offset"):
            raise self._refuse(tree)
        return subscripts.subscript(self.compile(tree.this), self.compile(tree.expressions[0]), spell(tree))

    def _call(self, name: str, trees: list[exp.Expr], tree: exp.Expr) -> Node:
        if name.startswith(SUFFIX) and isinstance(tree, exp.Anonymous):
            return self._suffixed(tree)
        if name in AGGREGATES:
            raise unsupported(name, self.text)
        if (
            name in ("timestampdiff", "timestampadd", "date_diff", "datediff", "dateadd", "date_add")
            and len(trees) == 3
        ):
            # The first operand is a bare word, not a column.
            trees = [exp.Literal.string(trees[0].name.upper()), *trees[1:]]
            name = "timestampdiff" if name in ("date_diff", "datediff", "timestampdiff") else "timestampadd"
        if name in lambdas.LAMBDAS and (
            name not in FUNCTIONS or any(isinstance(e, exp.Lambda) for e in trees)
        ):
            return lambdas.build(lambdas.LambdaCall(name, spell(tree), trees, self.compile, self._body))
        named = name == "struct"
        args = tuple(self.compile(e.this if named and isinstance(e, exp.Alias) else e) for e in trees)
        return build_call(Call(name, spell(tree), args, tuple(trees)))

    def _body(self, tree: exp.Lambda, types: list[pa.DataType]) -> lambdas.Lambda:
        names = [e.name.lower() for e in tree.expressions]
        if len(set(names)) < len(names):
            raise ExpressionError(f"A function has a variable twice in {self.text!r}.")
        # No column of a user starts with a NUL.
        first = len(self.schema)
        fields = [pa.field(f"\0{first + i}", kind) for i, kind in enumerate(types)]
        schema = pa.schema([*self.schema, *fields])
        inner = Compiler(
            self.text, schema, self.variables | {name: first + i for i, name in enumerate(names)}
        )
        return lambdas.Lambda(inner.compile(tree.this), schema, len(types))


def check_boolean(node: Node, text: str) -> Node:
    """The node as a condition; raises if it is not BOOLEAN."""
    if node.type == t.NULL:
        return null_of(t.BOOLEAN, node.text)
    if node.type != t.BOOLEAN:
        raise TypeMismatch(f"A condition must be BOOLEAN, but {text!r} is {node.type_name}.")
    return node
