"""Find the application in a file that people name on the command line."""

from __future__ import annotations

from pathlib import Path

from headgate.app import App
from headgate.errors import PipelineError
from headgate.workloads.examples import load_file


def load_app(path: Path) -> App:
    """The ``App`` that a Python file defines: a variable ``app``, or a function ``build()`` that makes it."""
    module = load_file(path)
    for name in ("app", "build"):
        found = getattr(module, name, None)
        if callable(found):
            found = found()
        if isinstance(found, App):
            return found
    raise PipelineError(
        f"{path} defines no application: give it a variable 'app = hg.App(…)' or a function 'build()'."
    )
