"""The command line: ``run``, ``simulate``, ``show``, ``demo``, ``policies``, ``generate``, ``bench``."""

from headgate.cli.main import main

__all__ = ["main"]
