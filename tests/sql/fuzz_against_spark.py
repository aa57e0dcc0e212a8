"""Compares random expressions with Spark: ``make fuzz``, or ``python tests/sql/fuzz_against_spark.py 20000``.

Types and values of all rows are compared, but for those that are bad here.  A first seed, a number of minutes
and how many bad rows of each expression must raise in Spark too (each takes a job) may follow; the last line
says with which seed to go on.  Spark computes
parts that occur twice in an expression once, and then at times where they are not needed: which rows raise
depends on that, so it is off.
"""

from __future__ import annotations

import logging
import math
import sys
import time
import warnings

from expression_grammar import expressions
from expression_oracle import Oracle, table
from hypothesis import HealthCheck, Phase, given, seed, settings


def texts(count: int, start: int) -> list[str]:
    """So many different expressions."""
    found: dict[str, None] = {}

    @seed(start)
    @settings(
        max_examples=count, phases=[Phase.generate], database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(expressions())
    def collect(text: str) -> None:
        found[text] = None

    collect()
    return list(found)


def main(count: int, start: int = 1, minutes: float = math.inf, raising: int = 0) -> int:
    from pyspark.sql import SparkSession

    warnings.simplefilter("ignore")
    logging.disable()  # PySpark logs every error that Spark raises
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        .config("spark.sql.ansi.enabled", "true").config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.subexpressionElimination.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "OFF").getOrCreate()
    )  # fmt: skip
    oracle = Oracle(spark, table(rows=64, seed=11))
    done, problems, end = 0, 0, time.monotonic() + 60 * minutes
    seen: set[str] = set()
    while done < count and time.monotonic() < end:
        fresh = [text for text in texts(400, start) if text not in seen][: count - done]
        seen.update(fresh)
        start += 1
        for low in range(0, len(fresh), 100):
            try:
                oracle.check(fresh[low : low + 100], raising=raising)
            except AssertionError as error:
                found = str(error).splitlines()
                problems += len(found)
                print(*found, sep="\n", flush=True)
        done += len(fresh)
        print(f"{done} expressions, {problems} differences; the next seed is {start}", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*[int(argument) for argument in sys.argv[1:]] or [20_000]))
