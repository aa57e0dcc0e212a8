"""What a plan of Spark's own says: its schema."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pyarrow as pa


def arrow_schema(schema: Any) -> pa.Schema:
    """The Arrow schema of a schema that lives in the JVM."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    structure = StructType.fromJson(json.loads(schema.json()))
    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(structure, timezone="UTC")
    return to_arrow_schema(structure)  # PySpark 4.0 has no other zone
