"""Spark SQL expressions over Arrow record batches.

An expression is the user's text.  ``parse`` reads it as Spark would, ``compiler`` resolves names and types
against a schema by Spark's ANSI rules and turns every operator and function into a function over Arrow
arrays, and ``Expression`` evaluates that on packets.  The modules named after families of functions
(``strings``, ``finding``, ``patterns``, ``maths``, ``precision``, ``temporal``, ``epochs``, ``logic``,
``subscripts``) fill the table in
``registry``; what is not in the table is refused when the pipeline is built.  Nothing here knows a thread,
a clock or Spark; Spark is the oracle of the tests.
"""

from headgate.sql import (
    arrays,
    calendars,
    characters,
    conversions,
    digits,
    epochs,
    finding,
    hashes,
    logic,
    maps,
    maths,
    patterns,
    precision,
    strings,
    subscripts,
    temporal,
    urls,
    zones,
)
from headgate.sql.aggregates import Aggregate, compile_aggregate
from headgate.sql.expression import Expression, compile_expression, compile_predicate
from headgate.sql.lambdas import LAMBDAS
from headgate.sql.projection import compile_ordering, compile_projection
from headgate.sql.registry import FUNCTIONS


def supported_functions() -> list[str]:
    """The names of all functions that a row expression may call."""
    return sorted({*FUNCTIONS, *LAMBDAS})


__all__ = [
    "Aggregate",
    "Expression",
    "compile_aggregate",
    "compile_expression",
    "compile_ordering",
    "compile_predicate",
    "compile_projection",
    "supported_functions",
]

_REGISTERED = (
    arrays,
    calendars,
    characters,
    conversions,
    digits,
    epochs,
    finding,
    hashes,
    logic,
    maps,
    maths,
    patterns,
    precision,
    strings,
    subscripts,
    temporal,
    urls,
    zones,
)
