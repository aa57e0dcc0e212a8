"""Run a Python file that people name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from headgate.errors import PipelineError


def load_file(path: Path) -> ModuleType:
    """Run a Python file as a module; its neighbours can be imported from it."""
    if not path.is_file():
        raise PipelineError(f"There is no file {path}.")
    spec = importlib.util.spec_from_file_location(f"headgate_app_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise PipelineError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module
