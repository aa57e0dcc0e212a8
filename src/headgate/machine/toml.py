"""Descriptions of machines as TOML: read by ``tomllib``, written here, with errors in the user's words."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from headgate.errors import PipelineError, nearest

_WIDTH = 100


def loads(text: str, where: str) -> dict[str, Any]:
    """The tables of a description, not checked yet."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(f"'{where}' cannot be read as TOML: {error}") from None


def table(data: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """A table, which must be there."""
    found = data.get(name)
    if not isinstance(found, dict):
        raise PipelineError(f"'{where}': it has no table [{name}].")
    return found


def number(data: Mapping[str, Any], word: str, where: str) -> float:
    """A number of a table, 0 or more."""
    value = data.get(word)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise PipelineError(f"'{where}': '{word}' must be a number, 0 or more, not {value!r}.")
    return float(value)


def check_words(data: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raise if a table has a word that means nothing there."""
    for word in data:
        if word not in known:
            raise PipelineError(
                f"{where}: '{word}' means nothing here.{nearest(word, known)} It takes {', '.join(known)}."
            )


def dumps(data: Mapping[str, Any]) -> str:
    """Values, then tables and lists of tables, as a description that ``loads`` gives back."""
    lines: list[str] = []
    tables: list[tuple[str, Mapping[str, Any]]] = []
    for word, value in data.items():
        if isinstance(value, Mapping):
            tables += [(f"[{word}]", value)] if value else []
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            tables += [(f"[[{word}]]", one) for one in value]
        else:
            lines.append(f"{_key(word)} = {_spelt(value)}")
    for title, values in tables:
        lines += ["", title, *(f"{_key(word)} = {_spelt(value)}" for word, value in values.items())]
    return "\n".join(lines) + "\n"


def _key(word: str) -> str:
    return word if re.fullmatch(r"[A-Za-z0-9_-]+", word) else _spelt(word)


def _spelt(value: Any) -> str:
    if isinstance(value, str):
        # JSON's strings are TOML's, except that TOML wants this character escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if not isinstance(value, list | tuple):
        return repr(value)
    parts = [_spelt(part) for part in value]
    line = f"[{', '.join(parts)}]"
    return line if len(line) <= _WIDTH else "[\n" + "".join(f"    {part},\n" for part in parts) + "]"
