"""The running form of every aggregate function that has one."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headgate.errors import UnsupportedFunction
from headgate.graph.aggregates import Input
from headgate.graph.aggregates.running import Change, Rows, Running
from headgate.graph.aggregates.running_choices import (
    RunningChoice,
    RunningDistinct,
    RunningExtreme,
    RunningLag,
)
from headgate.graph.aggregates.running_sums import RunningCount, RunningFloat, RunningMoments, RunningSum
from headgate.graph.aggregates.scans import Segments
from headgate.graph.columns import is_narrow
from headgate.sql import Aggregate


def running_state(aggregate: Aggregate) -> Running:
    """The running form of ``aggregate``; refuses those that have none."""
    function = aggregate.function
    if function in ("count", "count_distinct"):
        return (RunningCount if function == "count" else RunningDistinct)(aggregate)
    if function in ("stddev", "stddev_pop", "variance", "var_pop"):
        return RunningMoments(aggregate)
    argument = aggregate.argument.type if aggregate.argument is not None else None
    if function == "sum" and not pa.types.is_floating(argument):
        return RunningSum(aggregate)
    if function == "sum" or (function == "avg" and not pa.types.is_decimal(argument)):
        return RunningFloat(aggregate)
    if function in ("min", "max") and is_narrow(aggregate.type):
        return RunningExtreme(aggregate)
    if function in ("min", "max", "max_by", "min_by", "first", "last"):
        return RunningChoice(aggregate)
    if function == "lag":
        if aggregate.filter is not None:
            raise UnsupportedFunction(f"running: '{aggregate.text}': lag() takes no FILTER; filter the rows.")
        return RunningLag(aggregate)
    hint = (
        "cast it to DOUBLE"
        if function == "avg"
        else "it would grow with every row; use it in a window, with agg()"
    )
    raise UnsupportedFunction(f"running: '{aggregate.text}' is not possible as a running value; {hint}.")


def scan_all(
    states: Sequence[Running], inputs: Sequence[Input], rows: int, segments: Segments
) -> tuple[list[pa.Array], list[Change]]:
    """Every aggregate's values and changes.  Those that cannot fail on a row and note it come last."""
    results: list[pa.Array] = [None] * len(states)
    changes: list[Change] = []
    for place in sorted(range(len(states)), key=lambda p: isinstance(states[p], RunningDistinct)):
        state = states[place]
        results[place], change = state.scan(Rows(inputs[place], rows, segments, state.skip_nulls), segments)
        changes.append(change)
    return results, changes
