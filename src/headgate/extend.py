"""Base classes for your own operators, sources, sinks and policies.

CONTRIBUTING.md has a short example of each.  An operator joins a pipeline with ``stream.apply(operator)``, a
source with ``app.source(name, source)``, a sink with ``stream.to(name, sink)``, and a policy with
``app.run(policy=policy)``.  All of them run on every engine.
"""

from headgate.connectors.sink import Sink, Writer
from headgate.connectors.source import BatchReader, Chunk, Reader, Source, Wait
from headgate.graph.operator import Kind, Operator, State
from headgate.graph.packet import Packet
from headgate.scheduling.catalog import BoxEntry, Catalog
from headgate.scheduling.events import (
    Arrived,
    Changed,
    Event,
    Finished,
    Idle,
    Moved,
    QueueState,
    Spawned,
    Started,
    Timer,
)
from headgate.scheduling.interface import Call, Decision, Plan, Policy, Run, SetTimer, Wake
from headgate.scheduling.pull import Pull

__all__ = [
    "Arrived",
    "BatchReader",
    "BoxEntry",
    "Call",
    "Catalog",
    "Changed",
    "Chunk",
    "Decision",
    "Event",
    "Finished",
    "Idle",
    "Kind",
    "Moved",
    "Operator",
    "Packet",
    "Plan",
    "Policy",
    "Pull",
    "QueueState",
    "Reader",
    "Run",
    "SetTimer",
    "Sink",
    "Source",
    "Spawned",
    "Started",
    "State",
    "Timer",
    "Wait",
    "Wake",
    "Writer",
]
