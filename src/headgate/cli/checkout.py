"""Finds the benchmarks, which are not in the wheel, in a checkout."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import headgate.errors
from headgate.api import App, app
from headgate.errors import HeadgateError

_INSTALLED_FROM = Path(headgate.errors.__file__).parents[2]
"""The checkout, where the package is installed from one in editable form."""
ABSENT = (
    "Benchmarks and generated workloads are not in the installed package. Get them with the source: "
    "'git clone' the repository of Headgate, change into its folder, and give this command there."
)


def find() -> Path | None:
    """The checkout that this package comes from, or else the current folder if it is one."""
    return next((place for place in (_INSTALLED_FROM, Path.cwd()) if _is_checkout(place)), None)


def _is_checkout(place: Path) -> bool:
    return (place / "benchmarks" / "registry.py").is_file() and (place / "src" / "headgate").is_dir()


def benchmarks(module: str) -> ModuleType:
    """A module of the benchmarks by its name below ``benchmarks``; an error says how to get them."""
    if not _make_importable():
        raise HeadgateError(ABSENT)
    return importlib.import_module(f"benchmarks.{module}")


def load_app(path: Path) -> App:
    """An application; those that ``headgate generate`` has written import the benchmarks."""
    _make_importable()
    try:
        return app.load_app(path)
    except ModuleNotFoundError as error:
        if error.name != "benchmarks":
            raise
        raise HeadgateError(f"{path} imports the benchmarks. {ABSENT}") from None


def _make_importable() -> bool:
    place = find()
    if place is None:
        return False
    if str(place) not in sys.path:
        # First, since other packages also install a folder of that name.
        sys.path.insert(0, str(place))
    return True
