"""Where results go.  A sink is a description; ``open`` gives a writer for one query of one run."""

from headgate.engines.sinks.base import Sink, Writer
from headgate.engines.sinks.console import ConsoleSink, to_console
from headgate.engines.sinks.kafka import KafkaSink, to_kafka
from headgate.engines.sinks.memory import FunctionSink, ListSink, to_function, to_list
from headgate.engines.sinks.parquet import ParquetSink, to_parquet
from headgate.engines.sinks.table import TableSink, to_table

__all__ = [
    "ConsoleSink",
    "FunctionSink",
    "KafkaSink",
    "ListSink",
    "ParquetSink",
    "Sink",
    "TableSink",
    "Writer",
    "to_console",
    "to_function",
    "to_kafka",
    "to_list",
    "to_parquet",
    "to_table",
]
