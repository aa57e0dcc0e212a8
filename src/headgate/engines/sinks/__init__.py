"""Where results go.  A sink is a description; ``open`` gives a writer for one query of one run."""

from headgate.engines.sinks.base import Sink, Writer
from headgate.engines.sinks.console import ConsoleSink, to_console
from headgate.engines.sinks.memory import FunctionSink, ListSink, to_function, to_list
from headgate.engines.sinks.parquet import ParquetSink, to_parquet

__all__ = [
    "ConsoleSink",
    "FunctionSink",
    "ListSink",
    "ParquetSink",
    "Sink",
    "Writer",
    "to_console",
    "to_function",
    "to_list",
    "to_parquet",
]
