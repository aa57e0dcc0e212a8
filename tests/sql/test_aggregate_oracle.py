"""Spark is the oracle of aggregates too: over groups, in two parts that are snapshotted and merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expression_oracle import same, table

from headgate.graph.aggregates import Accumulators, evaluate
from headgate.sql import compile_aggregate
from headgate.sql.registry import AGGREGATES
from headgate.sql.types import spark_name

PAIRS = [
    "corr",
    "covar_pop",
    "covar_samp",
    "regr_count",
    "regr_avgx",
    "regr_avgy",
    "regr_slope",
    "regr_intercept",
]
CASES = [
    *(f"{name}(small, tiny)" for name in [*PAIRS, "regr_r2", "regr_sxx", "regr_syy", "regr_sxy"]),
    *(
        "skewness(small)",
        "kurtosis(tiny)",
        "max_by(id, id)",
        "min_by(text, id)",
        "median(tiny)",
        "mode(flag)",
    ),
    *(
        "max_by(text, id) FILTER (WHERE num > 0)",
        "percentile(small, 0.3)",
        "percentile(tiny, array(0.25, 0.5))",
    ),
    *("bit_and(num)", "bit_or(big)", "bit_xor(tiny)", "collect_set(text)", "count_if(num > 1)", "any(flag)"),
    *(
        "bool_and(flag)",
        "some(flag)",
        "every(flag)",
        "bool_or(num > 1)",
        "try_avg(tiny)",
        "listagg(text, ',')",
    ),
    *("string_agg(text)", "approx_count_distinct(text)", "count(*)", "count(num)", "count(DISTINCT text)"),
    *("sum(tiny)", "avg(small)", "mean(tiny)", "min(text)", "max(day)", "stddev(tiny)", "stddev_samp(tiny)"),
    *("std(tiny)", "stddev_pop(tiny)", "variance(tiny)", "var_samp(tiny)", "var_pop(tiny)", "first(id)"),
    *(
        "first_value(id)",
        "last(id)",
        "last_value(id)",
        "any_value(id)",
        "collect_list(text)",
        "array_agg(id)",
    ),
    *("approx_percentile(tiny, 0.5)", "percentile_approx(tiny, 0.5)"),
]


def test_types_and_values_of_aggregates_are_sparks(spark: Any) -> None:
    data = table(rows=96, seed=5)
    batch = data.combine_chunks().to_batches()[0]
    columns = ["id", "small", "tiny", "text", "num", "big", "flag", "flag2", "day"]
    frame = spark.createDataFrame(data.select(columns)).coalesce(1)
    order = {None: 0, True: 1, False: 2}
    groups = np.array([order[v] for v in batch.column("flag2").to_pylist()])
    frame.createOrReplaceTempView("grouped")
    # With a DISTINCT in the same SELECT Spark groups twice, and the rows come in another order.
    distinct = [case for case in CASES if "DISTINCT" in case]
    problems = []
    for cases in (distinct, [case for case in CASES if case not in distinct]):
        listed = ", ".join(f"{case} AS c{i}" for i, case in enumerate(cases))
        found = spark.sql(f"SELECT flag2, {listed} FROM grouped GROUP BY flag2")
        theirs = {order[row[0]]: row for row in found.collect()}
        problems += _differences(cases, batch, groups, found.schema, theirs)
    assert not problems, "\n".join(problems)


def _differences(cases: list[str], batch: Any, groups: Any, schema: Any, theirs: dict[int, Any]) -> list[str]:
    """Where ours are not Spark's."""
    problems = []
    for i, case in enumerate(cases):
        aggregate = compile_aggregate(case, batch.schema)
        ours = _in_parts(aggregate, batch, groups)
        type_ = schema[i + 1].dataType.simpleString()
        if spark_name(aggregate.type).lower().replace(", ", ",") != type_:
            problems.append(f"{case}: {aggregate.type}, Spark's {type_}")
        for group in range(3):
            mine, answer = ours[group], theirs[group][i + 1]
            if case.startswith(("collect_set", "listagg", "string_agg")) and answer is not None:
                mine, answer = sorted(mine), sorted(answer)  # Spark does not say in which order
            if not same(mine, answer):
                problems.append(f"{case}: {mine}, Spark's {answer}")
    return problems


def _in_parts(aggregate: Any, batch: Any, groups: Any) -> list[Any]:
    everything, half = np.arange(3), batch.num_rows // 2
    parts = []
    for start in (0, half):
        part = Accumulators([aggregate])
        part.grow(3)
        rows = batch.slice(start, half)
        part.update(groups[start : start + half], evaluate([aggregate], rows), np.arange(start, start + half))
        restored = Accumulators([aggregate])
        restored.grow(3)
        restored.restore(everything, part.snapshot(everything))
        parts.append(restored)
    parts[0].merge(everything, parts[1], everything)
    result = parts[0].results(everything)[0]
    assert result.type == aggregate.type
    values: list[Any] = result.to_pylist()
    return values


def test_every_aggregate_has_an_oracle_case() -> None:
    assert not AGGREGATES - {case.split("(")[0] for case in CASES}


@pytest.mark.parametrize(
    "text", ["corr(tiny, small)", "median(tiny)", "collect_set(text)", "string_agg(text)"]
)
def test_what_cannot_run_along_is_refused_with_a_reason(text: str) -> None:
    from headgate.errors import UnsupportedFunction
    from headgate.graph.aggregates.running_functions import running_state

    with pytest.raises(UnsupportedFunction, match=r"not possible as a running value; .* use it in a window"):
        running_state(compile_aggregate(text, table(rows=4).schema))
