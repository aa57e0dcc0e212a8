"""Headgate: many continuous queries, one scheduler that decides what runs next.

Layers, each resting on the ones below it:

- ``headgate.cli``: the command line.
- ``headgate.app``: the pipeline as people write it.
- ``headgate.engines``: where it runs; beside it ``headgate.memory``, where packets' memory comes from.
- ``headgate.scheduling``: what runs next.
- ``headgate.graph``: operators, expressions, packets, and the network.
"""

from headgate.app import App, KeyedStream, Stream, WindowedStream
from headgate.app.running import Running
from headgate.engines.base import Engine
from headgate.engines.change import Change
from headgate.engines.memory_model import MemoryModel
from headgate.engines.report import Report
from headgate.engines.simulated import Simulated
from headgate.engines.sinks import to_console, to_function, to_kafka, to_list, to_parquet, to_table
from headgate.engines.sources import from_batches, from_files, from_kafka, from_rate, from_table
from headgate.engines.spark import Spark
from headgate.engines.threads import Threads
from headgate.errors import HeadgateError
from headgate.graph.qos import QoS
from headgate.graph.windows import session, sliding, tumbling
from headgate.scheduling import policies, trains
from headgate.scheduling.features import feature

__all__ = [
    "App",
    "Change",
    "Engine",
    "HeadgateError",
    "KeyedStream",
    "MemoryModel",
    "QoS",
    "Report",
    "Running",
    "Simulated",
    "Spark",
    "Stream",
    "Threads",
    "WindowedStream",
    "feature",
    "from_batches",
    "from_files",
    "from_kafka",
    "from_rate",
    "from_table",
    "policies",
    "session",
    "sliding",
    "to_console",
    "to_function",
    "to_kafka",
    "to_list",
    "to_parquet",
    "to_table",
    "trains",
    "tumbling",
]
