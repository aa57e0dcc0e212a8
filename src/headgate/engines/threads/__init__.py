"""The threads engine: workers in one process, in real time."""

from headgate.engines.threads.engine import Threads

__all__ = ["Threads"]
