"""Policies with their options, spelled in one line: ``mc(train=64)``, ``shedding(qos, strategy=semantic)``.

The text is read as a Python call, never run as one: a word is a name, ``file.py:function`` a function of that
file, and everything else is made by the functions in ``makers``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from headgate.errors import PipelineError, nearest
from headgate.scheduling import trains

Load = Callable[[str, str], Any]
"""Gives the function of a file: its path and its name."""
TRAINS: dict[str, Callable[..., Any]] = {
    made.__name__.lower(): made
    for made in (trains.Share, trains.Count, trains.Time, trains.Spread, trains.Bytes)
} | {"per_box": trains.PerBox}
_OF_FILE = re.compile(r"(?<!['\"\w./~-])([\w./~-]+\.py):(\w+)")
_EXAMPLES = "mc(train=64), top_k(k=5), shedding(qos, strategy=semantic), haren(prioritize=mine.py:cheapest)"


def read(text: str, make: Callable[..., Any], makers: Mapping[str, Callable[..., Any]], load: Load) -> Any:
    """What a text says; ``make(name, **options)`` makes a named policy."""
    try:
        tree = ast.parse(_OF_FILE.sub(r"'\1:\2'", text.strip()), mode="eval").body
    except SyntaxError as error:
        raise PipelineError(f"Policy '{text}' cannot be read: {error.msg}. Examples: {_EXAMPLES}.") from None
    return _Reader(text, make, makers, load).value(tree)


class _Reader:
    def __init__(
        self, text: str, make: Callable[..., Any], makers: Mapping[str, Callable[..., Any]], load: Load
    ) -> None:
        self._text, self._make, self._makers, self._load = text, make, makers, load

    def value(self, tree: ast.expr, option: str = "") -> Any:
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            return self._call(tree, tree.func.id)
        if isinstance(tree, ast.Name):
            return tree.id
        if isinstance(tree, ast.Dict) and None not in tree.keys:
            keys = [self.value(key) for key in tree.keys if key is not None]
            return dict(zip(keys, map(self.value, tree.values), strict=True))
        try:
            found = ast.literal_eval(tree)
        except ValueError:
            raise self._wrong(f"'{ast.unparse(tree)}' is no value") from None
        if isinstance(found, str) and ".py:" in found:
            return self._load(*found.rsplit(":", 1))
        if option == "train" and isinstance(found, int):
            return trains.Count(found)
        return found

    def _call(self, tree: ast.Call, name: str) -> Any:
        given = [self.value(each) for each in tree.args]
        options = {each.arg: self.value(each.value, each.arg) for each in tree.keywords if each.arg}
        if len(options) < len(tree.keywords):
            raise self._wrong("give options by their names")
        make = TRAINS.get(name) or self._makers.get(name)
        if make is None:
            if given:
                raise self._wrong(f"give the options of '{name}' by their names")
            return self._make(name, **options)
        known = signature(make).parameters
        unknown = next((each for each in options if each not in known), None)
        if unknown is not None:
            hint = nearest(unknown, known)
            raise self._wrong(f"'{name}' has no option '{unknown}';{hint} it takes {', '.join(known)}")
        try:
            signature(make).bind(*given, **options)
            return make(*given, **options)
        except TypeError as error:
            raise self._wrong(f"'{name}': {error}") from None

    def _wrong(self, why: str) -> PipelineError:
        return PipelineError(f"Policy '{self._text}': {why}. Examples: {_EXAMPLES}.")
