"""Where tuples come from.  A source is a description that pickles; ``open`` gives a reader of one run.

A reader is polled: it never waits and never starts a thread, so the same source serves the threads
engine in real time and the simulated one in virtual time.
"""

from headgate.engines.sources.base import Chunk, Reader, Source, Wait
from headgate.engines.sources.batches import BatchSource, from_batches
from headgate.engines.sources.files import FileSource, from_files
from headgate.engines.sources.kafka import KafkaSource, from_kafka
from headgate.engines.sources.rate import RateSource, from_rate
from headgate.engines.sources.table import TableSource, from_table

__all__ = [
    "BatchSource",
    "Chunk",
    "FileSource",
    "KafkaSource",
    "RateSource",
    "Reader",
    "Source",
    "TableSource",
    "Wait",
    "from_batches",
    "from_files",
    "from_kafka",
    "from_rate",
    "from_table",
]
