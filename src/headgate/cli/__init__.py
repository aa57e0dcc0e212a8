"""The command line: ``headgate run``, ``simulate``, ``demo``, ``policies``, ``generate``, ``bench``, ``show``."""

from headgate.cli.main import main

__all__ = ["main"]
