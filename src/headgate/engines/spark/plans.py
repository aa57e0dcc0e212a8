"""What a plan of Spark's own says: its schema, and the rows of one that is no stream."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa


def arrow_schema(schema: Any) -> pa.Schema:
    """The Arrow schema of a schema that lives in the JVM."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(StructType.fromJson(json.loads(schema.json())), timezone="UTC")


def rows_of(plan: Any) -> pa.Table:
    """The rows of a plan that is no stream."""
    from pyspark.sql import DataFrame, SparkSession

    session = SparkSession.active()
    datasets = getattr(session._jvm, "org.apache.spark.sql.classic.Dataset$")
    made = getattr(datasets, "MODULE$").ofRows(session._jsparkSession, plan)
    return DataFrame(made, session).toArrow()
