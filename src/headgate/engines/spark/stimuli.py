"""What happens on Spark beyond what happens on every engine, and the one instruction that only Spark has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.engines.spark.cursors import Step
from headgate.engines.spark.messages import TaskResult
from headgate.runtime.instructions import Instruction
from headgate.runtime.stimuli import Stimulus


@dataclass(slots=True)
class RunStep(Instruction):
    """Let this worker run this step as a Spark job and commit it."""

    worker: int
    step: Step


@dataclass(slots=True)
class Noticed(Stimulus):
    """Sources have brought tuples, or boxes that stood still go on: queues may have changed."""


@dataclass(slots=True)
class Announced(Stimulus):
    """A step was announced and not committed: it has to be repeated, by these queries if any are named."""

    intent: dict[str, Any]
    queries: frozenset[str] | None = None


@dataclass(slots=True)
class Suspected(Stimulus):
    """A step died without a culprit: this worker tries these queries alone."""

    worker: int
    queries: frozenset[str]


@dataclass(slots=True)
class StepCommitted(Stimulus):
    """A step has been committed, and the position knows it; ``refused``: outlets whose sinks took nothing."""

    step: Step
    results: Sequence[TaskResult]
    refused: Collection[int] = ()


@dataclass(slots=True)
class StepAbandoned(Stimulus):
    """A step did not work: everything it took waits again, and steps that built on it are void."""

    step: Step


@dataclass(slots=True)
class QueryStopped(Stimulus):
    """A query has failed."""

    query: str
    error: BaseException


@dataclass(slots=True)
class QueryRestarted(Stimulus):
    """A stopped query goes on from its last commit."""

    query: str
