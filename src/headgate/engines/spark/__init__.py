"""The Spark engine: the scheduler in the driver, steps as Spark jobs, results exactly once.

``engine`` runs an application; ``runtime`` turns a policy's plans into steps; ``jobs`` runs a step and
``task`` is what runs in its tasks; ``log``, ``position`` and ``storage`` are what survives a crash.
"""

from headgate.engines.spark.engine import Spark

__all__ = ["Spark"]
