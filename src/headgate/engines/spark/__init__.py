"""The Spark engine: the scheduler in the driver, steps as Spark jobs, results exactly once.

``engine`` runs an application; ``runtime`` turns a policy's plans into steps; ``jobs`` runs a step and
``task`` is what runs in its tasks; ``log``, ``position`` and ``storage`` are what survives a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.engines.spark.engine import Spark

__all__ = ["Spark"]


def __getattr__(name: str) -> Any:
    """The engine, when it is asked for: a task imports this package too, and does not need it."""
    if name != "Spark":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from headgate.engines.spark.engine import Spark

    return Spark
