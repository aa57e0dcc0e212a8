"""The table of functions: what a name means, how many operands it takes, and what is refused and why."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from sqlglot import exp

from headgate.errors import ExpressionError, TypeMismatch, UnsupportedFunction
from headgate.sql.casts import implicit
from headgate.sql.node import Node, fallible
from headgate.sql.types import DOUBLE, NULL, STRING, common_of, is_numeric, spark_name
from headgate.sql.values import per_value


@dataclass(frozen=True, slots=True)
class Call:
    """A function call whose operands are compiled."""

    name: str
    text: str
    args: tuple[Node, ...]
    trees: tuple[exp.Expr, ...]

    def cast(self, index: int, target: pa.DataType) -> Node:
        """An operand brought to a type as Spark does for function arguments."""
        return implicit(self.args[index], target, f"{self.name}()", self.text)

    def common(self, *indices: int, strings: bool = True) -> list[Node]:
        """Operands brought to their common type (all of them, if none is named)."""
        chosen = [self.args[i] for i in indices] if indices else list(self.args)
        target = common_of([n.type for n in chosen], f"{self.name}()", self.text, strings=strings)
        return [implicit(n, target, f"{self.name}()", self.text) for n in chosen]

    def constant(self, index: int, target: pa.DataType, what: str) -> pa.Scalar:
        """The value of an operand that must be a constant."""
        scalar = self.cast(index, target).constant
        if scalar is None:
            raise ExpressionError(
                f"{self.name}() is supported only with a constant {what}, not "
                f"{self.args[index].text!r}, in {self.text!r}."
            )
        return scalar

    def numeric(self, index: int = 0) -> Node:
        """An operand that must be a number; a string is read as a double."""
        node = self.args[index]
        if node.type in (STRING, NULL):
            return self.cast(index, DOUBLE)
        if not is_numeric(node.type):
            raise self.mismatch("a number", index)
        return node

    def mismatch(self, expected: str, *indices: int) -> TypeMismatch:
        given = ", ".join(spark_name(self.args[i].type) for i in (indices or range(len(self.args))))
        return TypeMismatch(f"{self.name}() takes {expected}, not {given}, in {self.text!r}.")


Build: TypeAlias = Callable[[Call], Node]


@dataclass(frozen=True, slots=True)
class Function:
    """A supported function: its builder and how many operands it may have.

    ``per_row`` says that Python sees its values one by one, because no kernel computes it.
    """

    build: Build
    least: int
    most: int | None
    per_row: bool = False


FUNCTIONS: dict[str, Function] = {}

RUNNING_ONLY = frozenset(["lag"])
"""What is called as aggregates are, but has a value for each row only."""
AGGREGATES = frozenset(
    [
        "count",
        "sum",
        "avg",
        "mean",
        "min",
        "max",
        "stddev",
        "stddev_samp",
        "std",
        "stddev_pop",
        "variance",
        "var_samp",
        "var_pop",
        "first",
        "first_value",
        "last",
        "last_value",
        "any_value",
        "collect_list",
        "array_agg",
        "approx_percentile",
        "percentile_approx",
        *("bool_and", "every", "bool_or", "any", "some", "count_if", "approx_count_distinct", "median"),
        *("percentile", "mode", "collect_set", "string_agg", "listagg", "max_by", "min_by", "try_avg"),
        *("bit_and", "bit_or", "bit_xor", "skewness", "kurtosis", "corr", "covar_pop", "covar_samp"),
        *("regr_count", "regr_avgx", "regr_avgy", "regr_slope", "regr_intercept", "regr_r2"),
        *("regr_sxx", "regr_syy", "regr_sxy"),
    ]
)
_DEPENDS_ON_NOW = frozenset(
    [
        "current_timestamp",
        "now",
        "current_date",
        "curdate",
        "current_time",
        "localtimestamp",
        "unix_timestamp",
    ]
)
_DEPENDS_ON_CHANCE = frozenset(
    [
        "rand",
        "random",
        "randn",
        "uuid",
        "shuffle",
        "randstr",
        "uniform",
        "monotonically_increasing_id",
        "spark_partition_id",
        "input_file_name",
    ]
)


_GENERATORS = (
    "explode",
    "explode_outer",
    "posexplode",
    "posexplode_outer",
    "inline",
    "inline_outer",
    "stack",
)
REFUSED: dict[str, str] = {
    **dict.fromkeys(_DEPENDS_ON_NOW, "results must not depend on when they are computed"),
    **dict.fromkeys(_DEPENDS_ON_CHANCE, "results must not depend on chance or on where a row is computed"),
    **dict.fromkeys(_GENERATORS, "it makes several rows of one; use explode() of the stream"),
    "json_tuple": "it makes several columns; use get_json_object() for each",
    "window": "use window() of the stream",
    "session_window": "use window(hg.session(...)) of the stream",
    "array_sort": "only without a function",
    **dict.fromkeys(
        ("rank", "dense_rank", "row_number", "ntile"), "a rank needs an order; use top() of the stream"
    ),
    "lag": "write lag(x) OVER (PARTITION BY key ORDER BY ts) in app.sql, or running('lag(x) AS before')",
    **dict.fromkeys(("lead", "nth_value"), "it looks at other rows; lag(x) OVER (…) has those before"),
}
_MEANT = """
    aggregate: fold array_aggregate
    approx_count_distinct: uniq nunique
    array: list
    array_contains: list_contains has
    avg: average
    bool_and: logical_and
    bool_or: logical_or
    coalesce: nvl3
    contains: str_contains
    convert_timezone: at_timezone
    count_if: countif
    date_format: strftime format_datetime
    div: ceil_div
    double: to_double
    endswith: ends_with
    exists: any_match
    filter: array_filter list_filter
    float: to_float
    forall: all_match
    from_json: parse_json json_parse
    get_json_object: json_extract json_value json_query jsonb_extract_path json_extract_scalar
    hash: murmur3
    if: iff ifelse
    int: to_int
    isnotnull: notnull
    isnull: isnone is_null
    json_array_length: json_length
    length: strlen str_len len_string
    ln: log_e
    map: dict
    max_by: arg_max argmax
    min_by: arg_min argmin
    named_struct: struct_pack
    percentile: quantile
    power: pow2
    regexp_extract: regex_extract
    regexp_like: regexp_matches
    regexp_replace: regex_replace
    round: rnd
    sha2: sha256 sha512
    size: array_length
    split: string_split
    startswith: starts_with
    stddev: stdev
    string: to_str str tostring to_string
    string_agg: group_concat
    substring_index: substr_index
    timestamp: datetime
    to_date: str_to_date
    to_timestamp: strptime parse_datetime
    transform: list_transform map_array
    unix_timestamp: epoch to_epoch
    variance: var
"""
MEANT = {
    word: line.split(":")[0].strip()
    for line in _MEANT.strip().splitlines()
    for word in line.split(":")[1].split()
}
"""What people type who know another database, and what is meant here."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """``" Did you mean 'x'?"``: what the name means elsewhere, or else what is spelled almost alike."""
    meant = MEANT.get(name.lower())
    if meant is not None:
        return f" Did you mean '{meant}'?"
    close = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.8)
    return f" Did you mean '{close[0]}'?" if close else ""


def function(
    *names: str, args: int | tuple[int, int | None], per_row: bool = False
) -> Callable[[Build], Build]:
    """Registers a builder under its names; ``args`` is a count, or the least and most (None: any)."""
    least, most = (args, args) if isinstance(args, int) else args

    def register(build: Build) -> Build:
        for name in names:
            FUNCTIONS[name] = Function(build, least, most, per_row)
        return build

    return register


def valued(
    *names: str, takes: tuple[pa.DataType, ...], gives: pa.DataType, optional: int = 0
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a Python function of single values, which is called per distinct value or per row.

    The last ``optional`` operands may be left out.  ``ValueError`` makes the row bad.
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        kernel = per_value(fn, gives)

        def build(call: Call) -> Node:
            nodes = [call.cast(i, takes[i]) for i in range(len(call.args))]
            return fallible(gives, call.text, f"{call.text} has no value", kernel, *nodes)

        function(*names, args=(len(takes) - optional, len(takes)), per_row=True)(build)
        return fn

    return register


def build_call(call: Call) -> Node:
    """Compiles a call, or says why it is not supported."""
    found = FUNCTIONS.get(call.name)
    if found is None:
        raise unsupported(call.name, call.text)
    count = len(call.args)
    if count < found.least or (found.most is not None and count > found.most):
        if call.name in _DEPENDS_ON_NOW and not count:
            raise unsupported(call.name, call.text)
        raise ExpressionError(f"{call.name}() takes {_arity(found)}, not {count}, in {call.text!r}.")
    return found.build(call).spelled(call.text)


def unsupported(name: str, text: str) -> UnsupportedFunction:
    where = f" in {text!r}"
    if name in _DEPENDS_ON_NOW:
        return UnsupportedFunction(
            f"{name}() is not supported{where}: results must not depend on when they are computed. "
            "Use a timestamp column of the source."
        )
    if name in _DEPENDS_ON_CHANCE:
        return UnsupportedFunction(
            f"{name}() is not supported{where}: results must not depend on chance or on where a "
            f"row is computed. "
            "Use a column of the source."
        )
    if name in AGGREGATES:
        return UnsupportedFunction(
            f"{name}() is an aggregate and cannot be used in a row expression{where}. Use it in "
            f"agg(), running() or window()."
        )
    if name in REFUSED:
        return UnsupportedFunction(f"{name}() is not supported{where}: {REFUSED[name]}.")
    hint = suggestion(name, [*FUNCTIONS, *AGGREGATES])
    return UnsupportedFunction(f"The function {name}() is not supported{where}.{hint}")


def _arity(found: Function) -> str:
    if found.most is None:
        return f"at least {found.least} operands"
    if found.least == found.most:
        return f"{found.least} operand{'s' if found.least != 1 else ''}"
    return f"{found.least} to {found.most} operands"
