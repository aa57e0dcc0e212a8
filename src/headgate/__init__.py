"""Headgate: many continuous queries, one scheduler that decides what runs next.

Layers, each resting on the ones below it:

- ``headgate.cli``: the command line.
- ``headgate.api``: the pipeline as people write it.
- ``headgate.engines``: where it runs; beside it ``headgate.memory``, where packets' memory comes from.
- ``headgate.scheduling``: what runs next.
- ``headgate.graph``: operators, expressions, packets, and the network.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate import extend
    from headgate.api import App, KeyedStream, Stream, WindowedStream
    from headgate.api.app import from_spark
    from headgate.api.pyspark.pooling import Pool, pooled
    from headgate.api.running import Running
    from headgate.connectors.batches import from_batches
    from headgate.connectors.console import to_console
    from headgate.connectors.delta_sink import to_delta
    from headgate.connectors.files import from_files
    from headgate.connectors.iceberg_sink import to_iceberg
    from headgate.connectors.kafka import from_kafka
    from headgate.connectors.kafka_sink import to_kafka
    from headgate.connectors.parquet import to_parquet
    from headgate.connectors.python import to_function, to_list
    from headgate.connectors.rate import from_rate
    from headgate.connectors.sql_sink import to_sql
    from headgate.connectors.table import from_table
    from headgate.connectors.table_sink import to_table
    from headgate.engines.base import Engine
    from headgate.engines.simulated import Simulated
    from headgate.engines.spark import Spark
    from headgate.engines.threads import Threads
    from headgate.errors import HeadgateError
    from headgate.graph.operators.side import Side
    from headgate.graph.qos import QoS
    from headgate.graph.windows import session, sliding, tumbling
    from headgate.machine.memory_model import MemoryModel
    from headgate.recording.advising import advise
    from headgate.recording.replaying import replay
    from headgate.runtime.change import Change
    from headgate.runtime.report import Report
    from headgate.scheduling import policies, trains
    from headgate.scheduling.haren.features import feature
    from headgate.sql import udf
    from headgate.telemetry.openlineage import lineage
    from headgate.telemetry.spans import traces

__version__ = "0.3.0"
"""The one place that states the version; pyproject.toml reads it from here."""

__all__ = [
    "App",
    "Change",
    "Engine",
    "HeadgateError",
    "KeyedStream",
    "MemoryModel",
    "Pool",
    "QoS",
    "Report",
    "Running",
    "Side",
    "Simulated",
    "Spark",
    "Stream",
    "Threads",
    "WindowedStream",
    "__version__",
    "advise",
    "extend",
    "feature",
    "from_batches",
    "from_files",
    "from_kafka",
    "from_rate",
    "from_spark",
    "from_table",
    "lineage",
    "policies",
    "pooled",
    "replay",
    "session",
    "sliding",
    "to_console",
    "to_delta",
    "to_function",
    "to_iceberg",
    "to_kafka",
    "to_list",
    "to_parquet",
    "to_sql",
    "to_table",
    "traces",
    "trains",
    "tumbling",
    "udf",
]

_PLACES = {
    "App": "headgate.api",
    "Change": "headgate.runtime.change",
    "Engine": "headgate.engines.base",
    "HeadgateError": "headgate.errors",
    "KeyedStream": "headgate.api",
    "MemoryModel": "headgate.machine.memory_model",
    "Pool": "headgate.api.pyspark.pooling",
    "QoS": "headgate.graph.qos",
    "Report": "headgate.runtime.report",
    "Running": "headgate.api.running",
    "Side": "headgate.graph.operators.side",
    "Simulated": "headgate.engines.simulated",
    "Spark": "headgate.engines.spark",
    "Stream": "headgate.api",
    "Threads": "headgate.engines.threads",
    "WindowedStream": "headgate.api",
    "advise": "headgate.recording.advising",
    "extend": "headgate.extend",
    "feature": "headgate.scheduling.haren.features",
    "from_batches": "headgate.connectors.batches",
    "from_files": "headgate.connectors.files",
    "from_kafka": "headgate.connectors.kafka",
    "from_rate": "headgate.connectors.rate",
    "from_spark": "headgate.api.app",
    "from_table": "headgate.connectors.table",
    "lineage": "headgate.telemetry.openlineage",
    "policies": "headgate.scheduling.policies",
    "pooled": "headgate.api.pyspark.pooling",
    "replay": "headgate.recording.replaying",
    "session": "headgate.graph.windows",
    "sliding": "headgate.graph.windows",
    "to_console": "headgate.connectors.console",
    "to_delta": "headgate.connectors.delta_sink",
    "to_function": "headgate.connectors.python",
    "to_iceberg": "headgate.connectors.iceberg_sink",
    "to_kafka": "headgate.connectors.kafka_sink",
    "to_list": "headgate.connectors.python",
    "to_parquet": "headgate.connectors.parquet",
    "to_sql": "headgate.connectors.sql_sink",
    "to_table": "headgate.connectors.table_sink",
    "traces": "headgate.telemetry.spans",
    "trains": "headgate.scheduling.trains",
    "tumbling": "headgate.graph.windows",
    "udf": "headgate.sql",
}
"""Where the public names come from; a module that is public as a whole comes from itself."""


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used.

    A Spark task imports this package to find a module of it, and needs neither engines nor policies.
    """
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    module = importlib.import_module(place)
    value = module if place.endswith(f".{name}") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
