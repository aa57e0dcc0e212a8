"""Find and load the example applications, from a checkout or from the installed package."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from headgate.api.loading import load_file
from headgate.errors import PipelineError

_PLACES = (
    Path(__file__).parents[3] / "examples",  # a checkout
    Path(__file__).parents[1] / "examples",  # a wheel, which carries them inside the package
)


def load_example(name: str) -> ModuleType:
    """An example by its path without suffix: ``load_example("tpcx_bb/q4").build(data, sinks)``."""
    for place in _PLACES:
        if (place / f"{name}.py").is_file():
            return load_file(place / f"{name}.py")
    raise PipelineError(f"There is no example '{name}'.")
