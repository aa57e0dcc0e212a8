"""LIKE, RLIKE and the regular-expression functions: RE2 where it agrees with Java, refused elsewhere."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import ExpressionError
from headgate.sql import types as t
from headgate.sql import utf8
from headgate.sql.casts import implicit
from headgate.sql.node import Kernel, Node, fallible, null_of, strict
from headgate.sql.registry import Call, function
from headgate.sql.values import Value, as_array, both_valid, from_numbers, kernel, numbers, per_value

_LINE_END = r"\n\r\x{85}\x{2028}\x{2029}"
_SPACE = r"\t\n\x0b\f\r "
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": _SPACE}
_LITERAL_ESCAPES = set("\\.^$|?*+()[]{}-/\"'#&~@!%,:;<>=` _")


def _constant_pattern(node: Node, what: str, text: str) -> str | None:
    node = implicit(node, t.STRING, what, text)
    if node.constant is None:
        raise ExpressionError(
            f"{what} is supported only with a constant pattern, not {node.text!r}, in {text!r}."
        )
    pattern: str | None = node.constant.as_py()
    return pattern


def like(subject: Node, pattern: Node, escape: str, text: str) -> Node:
    """``LIKE``: ``%`` and ``_``, which match line ends too."""
    value = _constant_pattern(pattern, "LIKE", text)
    if value is None:
        return null_of(t.BOOLEAN, text)
    subject = implicit(subject, t.STRING, "LIKE", text)
    return strict(t.BOOLEAN, text, _like_kernel(_like_parts(value, escape, text)), subject)


def _like_parts(pattern: str, escape: str, text: str) -> list[str]:
    """The pattern as pieces: ``%`` and ``_`` for themselves, and runs of literal text behind a ``=``."""
    parts: list[str] = []
    characters = iter(pattern)
    for char in characters:
        if char == escape:
            follower = next(characters, None)
            if follower is None or follower not in ("_", "%", escape):
                raise ExpressionError(
                    f"The escape character of LIKE must precede '_', '%' or itself in {text!r}."
                )
            char = "=" + follower
        elif char not in "_%":
            char = "=" + char
        if char[0] == "=" and parts and parts[-1][0] == "=":
            parts[-1] += char[1:]
        else:
            parts.append(char)
    return parts


def _like_kernel(parts: list[str]) -> Kernel:
    match parts:
        case []:
            return _equals("")
        case [piece] if piece[0] == "=":
            return _equals(piece[1:])
        case [piece, "%"] if piece[0] == "=":
            return kernel("starts_with", pc.MatchSubstringOptions(piece[1:]))
        case ["%", piece] if piece[0] == "=":
            return kernel("ends_with", pc.MatchSubstringOptions(piece[1:]))
        case ["%", piece, "%"] if piece[0] == "=":
            return kernel("match_substring", pc.MatchSubstringOptions(piece[1:]))
    wild = {"%": ".*", "_": "."}
    body = "".join(wild.get(p) or re.escape(p[1:]) for p in parts)
    return kernel("match_substring_regex", pc.MatchSubstringOptions(rf"(?s)\A(?:{body})\z"))


def _equals(text: str) -> Kernel:
    equal, scalar = kernel("equal"), pa.scalar(text, t.STRING)
    return lambda v: equal(v, scalar)


def rlike(subject: Node, pattern: Node, text: str) -> Node:
    """``RLIKE``: whether the pattern is found anywhere."""
    value = _constant_pattern(pattern, "RLIKE", text)
    if value is None:
        return null_of(t.BOOLEAN, text)
    subject = implicit(subject, t.STRING, "RLIKE", text)
    found = kernel("match_substring_regex", pc.MatchSubstringOptions(to_re2(value, text, end_consumes=True)))
    return strict(t.BOOLEAN, text, found, subject)


def to_re2(pattern: str, text: str, *, end_consumes: bool = False, capture: int | None = None) -> str:
    """A Java pattern as an RE2 pattern of the same meaning, or an error naming what has none.

    Java's ``.`` stops at more line ends than RE2's, its ``\\s`` knows the vertical tab, and its ``$`` also
    matches before a final line end; these are written out.  ``capture`` names one group ``found``.
    """
    translated = _Translator(pattern, text, end_consumes, capture).translate()
    try:
        pc.match_substring_regex(pa.array([""]), translated)
    except pa.ArrowInvalid as error:
        raise ExpressionError(f"The pattern {pattern!r} is not supported in {text!r}: {error}.") from None
    return translated


class _Translator:
    """Walks over a Java pattern once."""

    def __init__(self, pattern: str, text: str, end_consumes: bool, capture: int | None) -> None:
        self.pattern = pattern
        self.text = text
        self.end_consumes = end_consumes
        self.capture = capture
        self.at = 0
        self.groups = 0

    def refuse(self, what: str) -> ExpressionError:
        return ExpressionError(
            f"{what} in the pattern {self.pattern!r} is not supported in {self.text!r}: RE2 cannot "
            f"do it as Java does."
        )

    def translate(self) -> str:
        out = [] if self.capture != 0 else ["(?P<found>"]
        while self.at < len(self.pattern):
            out.append(self._next())
        if self.capture == 0:
            out.append(")")
        if self.capture is not None and self.capture > self.groups:
            raise ExpressionError(
                f"The pattern {self.pattern!r} has {self.groups} groups, so there is no group "
                f"{self.capture}, in {self.text!r}."
            )
        return "".join(out)

    def _take(self) -> str:
        char = self.pattern[self.at]
        self.at += 1
        return char

    def _next(self) -> str:
        char = self._take()
        if char == "\\":
            return self._escape(in_class=False)
        if char == "[":
            return self._class()
        if char == "(":
            return self._group()
        if char == ".":
            return f"[^{_LINE_END}]"
        if char == "$":
            return self._end()
        if char in "*+?}" and self.pattern[self.at : self.at + 1] == "+":
            raise self.refuse("A possessive quantifier")
        return char

    def _end(self) -> str:
        if not self.end_consumes or self.at < len(self.pattern):
            raise self.refuse(
                "'$' before the end of the pattern" if self.end_consumes else "'$' (use '\\\\z')"
            )
        return rf"(?:\r\n|[{_LINE_END}])?\z"

    def _group(self) -> str:
        if self.pattern[self.at : self.at + 1] != "?":
            self.groups += 1
            if self.capture is None:
                return "("
            return "(?P<found>" if self.capture == self.groups else "(?:"
        if self.pattern.startswith("?:", self.at):
            self.at += 2
            return "(?:"
        raise self.refuse(f"'({self.pattern[self.at : self.at + 3]}'")

    def _escape(self, *, in_class: bool) -> str:
        if self.at >= len(self.pattern):
            raise self.refuse("A trailing backslash")
        char = self._take()
        if char in _CLASSES:
            return _CLASSES[char] if in_class else f"[{_CLASSES[char]}]"
        if char.lower() in _CLASSES and not in_class:
            return f"[^{_CLASSES[char.lower()]}]"
        if char in _LITERAL_ESCAPES:
            return "\\" + char if char in "\\.^$|?*+()[]{}-" else char
        if char in "tnrf":
            return "\\" + char
        if char in "Az" and not in_class:
            return "\\" + char
        raise self.refuse(f"'\\{char}'")

    def _class(self) -> str:
        out = ["["]
        if self.pattern[self.at : self.at + 1] == "^":
            out.append(self._take())
        first = True
        while True:
            if self.at >= len(self.pattern):
                raise self.refuse("An unclosed '['")
            char = self._take()
            if char == "]" and not first:
                return "".join([*out, "]"])
            if char in "[]" or (char == "&" and self.pattern[self.at : self.at + 1] == "&"):
                raise self.refuse(f"{char!r} inside '[...]'")
            out.append(self._escape(in_class=True) if char == "\\" else char)
            first = False


def _not_empty(translated: str, call: Call) -> None:
    if pc.match_substring_regex(pa.array([""]), translated)[0].as_py():
        raise ExpressionError(f"A pattern that matches the empty string is not supported in {call.text!r}.")


function("rlike", "regexp_like", "regexp", args=2)(lambda call: rlike(call.args[0], call.args[1], call.text))


@function("regexp_extract", args=(2, 3))
def _regexp_extract(call: Call) -> Node:
    pattern = call.constant(1, t.STRING, "pattern").as_py()
    group = call.constant(2, t.INT, "group number").as_py() if len(call.args) == 3 else 1
    if pattern is None or group is None:
        return null_of(t.STRING, call.text)
    if group < 0:
        raise ExpressionError(f"The group number of {call.text!r} must not be negative.")
    translated = to_re2(pattern, call.text, end_consumes=group > 0, capture=group)
    extract = kernel("extract_regex", pc.ExtractRegexOptions(translated))
    field = kernel("struct_field", pc.StructFieldOptions(["found"]))
    if_else, valid, empty = kernel("if_else"), kernel("is_valid"), pa.scalar("", t.STRING)
    coalesce, none = kernel("coalesce"), pa.scalar(None, t.STRING)

    def run(value: Value) -> Value:
        found = field(extract(value))
        return if_else(valid(value), coalesce(found, empty), none)

    return strict(t.STRING, call.text, run, call.cast(0, t.STRING))


@function("regexp_replace", args=3)
def _regexp_replace(call: Call) -> Node:
    pattern = call.constant(1, t.STRING, "pattern").as_py()
    replacement = call.constant(2, t.STRING, "replacement").as_py()
    if pattern is None or replacement is None:
        return null_of(t.STRING, call.text)
    translated = to_re2(pattern, call.text)
    _not_empty(translated, call)
    if "\\" in replacement or re.search(r"\$(?!\d(?!\d))", replacement):
        raise ExpressionError(
            f"The replacement of {call.text!r} may refer to groups only as $0 to $9, followed by no digit."
        )
    groups = (
        re.compile(translated.replace(r"\z", r"\Z").replace(r"\x{", r"\x7b")).groups
        if "$" in replacement
        else 9
    )
    for number in re.findall(r"\$(\d)", replacement):
        if int(number) > groups:
            raise ExpressionError(f"The pattern of {call.text!r} has no group {number}.")
    written = re.sub(r"\$(\d)", r"\\\1", replacement)
    options = pc.ReplaceSubstringOptions(translated, written)
    return strict(t.STRING, call.text, kernel("replace_substring_regex", options), call.cast(0, t.STRING))


@function("split", args=2)
def _split(call: Call) -> Node:
    pattern = call.constant(1, t.STRING, "pattern").as_py()
    target = pa.list_(t.STRING)
    if pattern is None:
        return null_of(target, call.text)
    translated = to_re2(pattern, call.text)
    _not_empty(translated, call)
    options = pc.SplitPatternOptions(translated)
    return strict(target, call.text, kernel("split_pattern_regex", options), call.cast(0, t.STRING))


@function("regexp_count", "regexp_instr", "regexp_substr", args=(2, 3))
def _regexp_find(call: Call) -> Node:
    pattern = call.constant(1, t.STRING, "pattern").as_py()
    gives = t.STRING if call.name == "regexp_substr" else t.INT
    if len(call.args) == 3 and call.name != "regexp_instr":
        raise ExpressionError(f"{call.name}() takes 2 operands, not 3, in {call.text!r}.")
    if pattern is None:
        return null_of(gives, call.text)
    translated = to_re2(pattern, call.text, capture=0 if gives == t.STRING else None)
    _not_empty(translated, call)
    string = call.cast(0, t.STRING)
    if call.name == "regexp_count":
        return strict(
            gives, call.text, kernel("count_substring_regex", pc.MatchSubstringOptions(translated)), string
        )
    if call.name == "regexp_substr":
        extract = kernel("extract_regex", pc.ExtractRegexOptions(translated))
        field = kernel("struct_field", pc.StructFieldOptions(["found"]))
        return strict(gives, call.text, lambda v: field(extract(v)), string)
    find = kernel("find_substring_regex", pc.MatchSubstringOptions(translated))

    def place(value: Value) -> Value:
        array = as_array(value, 1)
        byte = numbers(find(array)).astype(np.int64)
        point = utf8.point_index(array, np.maximum(byte, 0)) + 1
        return from_numbers(np.where(byte < 0, 0, point), t.INT, both_valid(len(array), array))

    return strict(gives, call.text, place, string)


@function("regexp_extract_all", args=(2, 3), per_row=True)
def _regexp_extract_all(call: Call) -> Node:
    pattern = call.constant(1, t.STRING, "pattern").as_py()
    group = call.constant(2, t.INT, "group number").as_py() if len(call.args) == 3 else 1
    target = pa.list_(t.STRING)
    if pattern is None or group is None:
        return null_of(target, call.text)
    # Checked as for RE2, so that Python's own dialect does not show.
    translated = re.sub(
        r"\\x\{([0-9a-f]+)\}", lambda m: re.escape(chr(int(m[1], 16))), to_re2(pattern, call.text)
    )
    compiled = re.compile(translated.replace(r"\z", r"\Z"))
    if not 0 <= group <= compiled.groups:
        raise ExpressionError(f"The pattern of {call.text!r} has no group {group}.")

    def every(text: str) -> list[str]:
        return [match[group] or "" for match in compiled.finditer(text)]

    return fallible(target, call.text, "", per_value(every, target), call.cast(0, t.STRING))
