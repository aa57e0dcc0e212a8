"""Random well-typed expressions over the oracle's table."""

from __future__ import annotations

import functools
from collections.abc import Callable

from hypothesis import strategies as st

Texts = st.SearchStrategy[str]

NUMBERS = ["tiny", "small", "num", "num2", "big", "big2"]


def _columns(*names: str) -> Texts:
    return st.sampled_from(names)


def _format(pattern: str, *parts: Texts) -> Texts:
    return st.tuples(*parts).map(lambda values: pattern.format(*values))


def _choice(pattern: str, *parts: Texts) -> Texts:
    """A conditional with branches that differ: Spark drops the condition of equal ones, errors and all."""
    return st.tuples(*parts).filter(lambda v: v[1] != v[-1]).map(lambda values: pattern.format(*values))


def _once(grow: Callable[[int], Texts]) -> Callable[[int], Texts]:
    """Makes the strategy of a depth once, and late: the grammar refers to itself many times."""

    @functools.cache
    def strategy(depth: int) -> Texts:
        @functools.cache
        def grown() -> Texts:
            return grow(depth)

        @st.composite
        def text(draw: st.DrawFn) -> str:
            return draw(grown())

        return text()

    return strategy


@_once
def integers(depth: int) -> Texts:
    """Whole numbers, with room for overflow and division by zero."""
    leaves = st.one_of(
        _columns(*NUMBERS), st.sampled_from(["0", "1", "-1", "2", "7", "2147483647", "3L", "5Y"])
    )
    if not depth:
        return leaves
    a = integers(depth - 1)
    return st.one_of(
        leaves,
        _format("({} {} {})", a, st.sampled_from(["+", "-", "*", "%", "div", "&", "|"]), a),
        _format("abs({})", a),
        _format("(- {})", a),
        _format("pmod({}, {})", a, a),
        _format("try_add({}, {})", a, a),
        _format("coalesce({}, {})", a, a),
        _choice("if({}, {}, {})", booleans(depth - 1), a, a),
        _choice("CASE WHEN {} THEN {} WHEN {} THEN {} END", booleans(depth - 1), a, booleans(depth - 1), a),
        _format("nullif({}, {})", a, a),
        _format("greatest({}, {})", a, a),
        _format("length({})", strings(depth - 1)),
        _format("year({})", times(depth - 1)),
        _format("CAST({} AS INT)", doubles(depth - 1)),
        _format("CAST({} AS SMALLINT)", a),
        _format("TRY_CAST({} AS TINYINT)", a),
        _format("round({}, -1)", a),
        _format("unix_seconds({})", times(depth - 1)),
    )


@_once
def doubles(depth: int) -> Texts:
    """Doubles, with NaN, infinities and both zeros."""
    leaves = st.one_of(_columns("dbl", "dbl2", "real"), st.sampled_from(["0.5D", "-2.0D", "1e10", "0.0D"]))
    if not depth:
        return leaves
    a = doubles(depth - 1)
    return st.one_of(
        leaves,
        _format("({} {} {})", a, st.sampled_from(["+", "-", "*", "/", "%"]), a),
        _format("({} / {})", integers(depth - 1), integers(depth - 1)),
        _format("try_divide({}, {})", a, integers(depth - 1)),
        _format("sqrt({})", a),
        _format("ln({})", integers(depth - 1)),
        _format("nanvl({}, {})", a, a),
        _format("least({}, {})", a, a),
        _format("coalesce({}, {})", a, integers(depth - 1)),
        _choice("CASE WHEN {} THEN {} ELSE {} END", booleans(depth - 1), a, a),
        _format("CAST({} AS DOUBLE)", decimals(depth - 1)),
        _format("({} * {})", a, decimals(depth - 1)),
    )


@_once
def decimals(depth: int) -> Texts:
    """Decimals that stay small enough for every operator."""
    leaves = st.one_of(_columns("money", "money2"), st.sampled_from(["0.5", "2.25", "-1.0"]))
    if not depth:
        return leaves
    a = decimals(0)
    return st.one_of(
        leaves,
        _format("({} {} {})", a, st.sampled_from(["+", "-", "*", "/"]), a),
        _format("({} {} {})", a, st.sampled_from(["+", "-", "*"]), _columns("num", "tiny", "3")),
        _format("CAST({} AS DECIMAL(12,3))", doubles(depth - 1)),
        _format("CAST({} AS DECIMAL(6,2))", integers(depth - 1)),
        _format("round({}, 1)", a),
        _choice("if({}, {}, {})", booleans(depth - 1), a, a),
    )


@_once
def strings(depth: int) -> Texts:
    """Strings, with more than ASCII."""
    leaves = st.one_of(_columns("text", "text2", "digits"), st.sampled_from(["'a'", "''", "'é'", "'x,y'"]))
    if not depth:
        return leaves
    a = strings(depth - 1)
    small = st.sampled_from(["-2", "0", "1", "3", "tiny"])
    return st.one_of(
        leaves,
        _format("concat({}, {})", a, a),
        _format("({} || {})", a, a),
        _format("upper({})", a),
        _format("lower({})", a),
        _format("trim({})", a),
        _format("reverse({})", a),
        _format("substring({}, {}, {})", a, small, small),
        _format("left({}, {})", a, small),
        _format("lpad({}, 6, 'ab')", a),
        _format("replace({}, 'a', 'bb')", a),
        _format("concat_ws('-', {}, {})", a, a),
        _format("CAST({} AS STRING)", st.one_of(integers(depth - 1), times(depth - 1), dates(depth - 1))),
        _format("nvl({}, {})", a, a),
        _choice("CASE WHEN {} THEN {} ELSE {} END", booleans(depth - 1), a, a),
        _format("date_format({}, 'yyyy-MM-dd HH:mm')", times(depth - 1)),
    )


@_once
def times(depth: int) -> Texts:
    """Timestamps, also before 1970."""
    leaves = st.one_of(_columns("ts", "ts2"), st.just("timestamp'2021-12-31 23:59:59.5'"))
    if not depth:
        return leaves
    a = times(depth - 1)
    units = st.sampled_from(["DAY", "HOURS", "MINUTE", "MONTHS", "SECONDS", "WEEK"])
    return st.one_of(
        leaves,
        _format(
            "({} {} INTERVAL {} {})", a, st.sampled_from("+-"), st.sampled_from(["1", "13", "'5'"]), units
        ),
        _format("date_trunc('{}', {})", st.sampled_from(["year", "week", "hour", "quarter"]), a),
        _format("greatest({}, {})", a, a),
        _format("CAST({} AS TIMESTAMP)", dates(depth - 1)),
        _format("timestamp_seconds({})", st.sampled_from(["num", "small", "tiny"])),
        _format("coalesce({}, {})", a, a),
    )


@_once
def dates(depth: int) -> Texts:
    """Dates, also before 1970."""
    leaves = st.one_of(_columns("day", "day2"), st.just("date'2020-02-29'"))
    if not depth:
        return leaves
    a = dates(depth - 1)
    return st.one_of(
        leaves,
        _format("({} + {})", a, st.sampled_from(["1", "small", "tiny"])),
        _format("date_sub({}, {})", a, st.sampled_from(["1", "small"])),
        _format("last_day({})", a),
        _format("trunc({}, 'month')", a),
        _format("CAST({} AS DATE)", times(depth - 1)),
        _format("({} + INTERVAL 1 MONTH)", a),
        _choice("if({}, {}, {})", booleans(depth - 1), a, a),
    )


@_once
def booleans(depth: int) -> Texts:
    """Conditions, three-valued and able to fail."""
    leaves = _columns("flag", "flag2")
    if not depth:
        return leaves
    a = booleans(depth - 1)
    compare = st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "<=>"])
    i, d, s = integers(depth - 1), doubles(depth - 1), strings(depth - 1)
    return st.one_of(
        leaves,
        _format("({} {} {})", i, compare, i),
        _format("({} {} {})", d, compare, d),
        _format("({} {} {})", d, compare, i),
        _format("({} {} {})", s, compare, s),
        _format("({} {} {})", times(depth - 1), compare, times(depth - 1)),
        _format("({} {} {})", decimals(depth - 1), compare, decimals(depth - 1)),
        _format("({} AND {})", a, a),
        _format("({} OR {})", a, a),
        _format("(NOT {})", a),
        _format("({} IS NULL)", st.one_of(i, d, s)),
        _format("({} IN ({}, {}, NULL))", i, i, i),
        _format("({} BETWEEN {} AND {})", d, d, i),
        _format("({} LIKE '%a_')", s),
        _format("startswith({}, {})", s, s),
        _format("isnan({})", d),
    )


def expressions(depth: int = 3) -> Texts:
    """Any expression."""
    return st.one_of(
        integers(depth),
        doubles(depth),
        decimals(depth),
        strings(depth),
        times(depth),
        dates(depth),
        booleans(depth),
    )
