"""What is in a record's value: JSON, Avro or Protobuf, by a schema that the user or a registry gives."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors import avro_decode, avro_encode, json_decode, protobuf
from headgate.connectors import registry as registries
from headgate.connectors.avro_schema import Avro, AvroError, describing, parse
from headgate.connectors.registry import HEADER, Registered, Registry, Unknown, behind, header, numbers
from headgate.errors import BadRow, HeadgateError
from headgate.graph.schema import normalise

FORMATS = ("json", "avro", "protobuf")
_NEEDED = "give schema=, or registry='http://host:8081' if a registry knows the values' schemas."


class Values(ABC):
    """How a value becomes a row.  Travels to the workers."""

    schema: pa.Schema

    @abstractmethod
    def decode(self, values: pa.Array) -> pa.RecordBatch:
        """A row for each value; BadRow for the first that is bad."""


class Json(Values):
    """One object per value."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def decode(self, values: pa.Array) -> pa.RecordBatch:
        return json_decode.decode(values, self.schema)


class PlainAvro(Values):
    """All values are of one schema, and nothing is before them."""

    def __init__(self, reader: Avro) -> None:
        self._reader, self.schema = reader, normalise(reader.schema)

    def decode(self, values: pa.Array) -> pa.RecordBatch:
        return avro_decode.decode(values, self._reader, self._reader)


class PlainProtobuf(Values):
    """All values are messages of one type, and nothing is before them."""

    def __init__(self, messages: protobuf.Messages) -> None:
        self._messages, self.schema = messages, messages.schema

    def decode(self, values: pa.Array) -> pa.RecordBatch:
        return self._messages.decode(values)


class RegisteredAvro(Values):
    """Each value says which schema of the registry wrote it; rows are those of the source's schema."""

    def __init__(self, registry: Registry, reader: Avro) -> None:
        self._registry, self._reader = registry, reader
        self._writers: dict[int, Avro] = {}
        self.schema = normalise(reader.schema)

    def decode(self, values: pa.Array) -> pa.RecordBatch:
        return _by_number(values, self.schema, self._decode)

    def _decode(self, number: int, values: pa.Array) -> pa.RecordBatch:
        try:
            if number not in self._writers:
                self._writers[number] = _avro(self._registry.schema(number))
            return avro_decode.decode(values, self._writers[number], self._reader, skip=HEADER)
        except AvroError as error:
            raise BadRow(f"schema {number} of the registry does not fit: {error}", 0) from error


class RegisteredProtobuf(Values):
    """Each value says which schema of the registry wrote it, and which of its messages it is."""

    def __init__(self, registry: Registry, messages: protobuf.Messages) -> None:
        self._registry, self._messages = registry, messages
        self.schema = messages.schema

    def decode(self, values: pa.Array) -> pa.RecordBatch:
        return _by_number(values, self.schema, self._decode)

    def _decode(self, number: int, values: pa.Array) -> pa.RecordBatch:
        # The first message of a file is one zero; a list of places stands before the others.
        if pc.all(pc.starts_with(behind(values, HEADER), "\0")).as_py():
            self._check(number, (0,), 0)
            return self._messages.decode(behind(values, HEADER + 1))
        bare = []
        for at, value in enumerate(values.to_pylist()):
            path, rest = _path(value[HEADER:], at)
            self._check(number, path, at)
            bare.append(rest)
        return self._messages.decode(pa.array(bare, pa.binary()))

    def _check(self, number: int, path: tuple[int, ...], at: int) -> None:
        one = self._registry.schema(number)
        if one.kind != "PROTOBUF":
            raise BadRow(f"schema {number} of the registry is {one.kind}, not PROTOBUF", at)
        try:
            name = protobuf.named(one.text, one.texts, path)
        except IndexError:
            raise BadRow(f"schema {number} of the registry has no message {list(path)}", at) from None
        if name != self._messages.message:
            raise BadRow(f"it is a message '{name}', not '{self._messages.message}'", at)


def _path(data: bytes, at: int) -> tuple[tuple[int, ...], bytes]:
    """The places before a message, and the message."""
    found: list[int] = []
    place = 0
    wanted = 1
    while len(found) < wanted:
        number = shift = 0
        while True:
            if place >= len(data) or shift > 28:
                raise BadRow("it does not say which message it is", at)
            byte = data[place]
            number |= (byte & 127) << shift
            place, shift = place + 1, shift + 7
            if byte < 128:
                break
        found.append((number >> 1) ^ -(number & 1))
        wanted = found[0] + 1
    return tuple(found[1:]) or (0,), data[place:]


def _by_number(
    values: pa.Array, schema: pa.Schema, decode: Callable[[int, pa.Array], pa.RecordBatch]
) -> pa.RecordBatch:
    """The rows of values of several schemas, in order; BadRow for the first bad one."""
    bad: list[BadRow] = []
    try:
        which = numbers(values)
    except BadRow as error:
        bad.append(error)
        values = values.slice(0, error.index)
        which = numbers(values)
    pieces: list[pa.RecordBatch] = []
    places: list[npt.NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
    kinds = np.unique(which).tolist()
    for number in kinds:
        mine = np.flatnonzero(which == number)
        part = values if len(kinds) == 1 else values.take(pa.array(mine))
        try:
            pieces.append(decode(number, part))
            places.append(mine)
        except BadRow as error:
            bad.append(BadRow(str(error), int(mine[error.index])))
        except Unknown as error:
            bad.append(BadRow(str(error), int(mine[0])))
    if bad:
        raise min(bad, key=lambda error: error.index)
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    order = np.argsort(np.concatenate(places), kind="stable")
    return pa.concat_batches(pieces).take(pa.array(order))


def reading(format: str, schema: Any, message: Any, registry: str | None, topic: str) -> Values:
    """How the values of a topic are read."""
    if format == "json":
        columns = normalise(schema)
        if not columns.names:
            raise HeadgateError("schema= has no columns; leave it out to get the records as they are.")
        json_decode.check_types(columns, "from_kafka")
        return Json(columns)
    if schema is None and registry is None:
        raise HeadgateError(_NEEDED)
    at = None if registry is None else registries.at(registry)
    if format == "avro":
        if at is None:
            return PlainAvro(_given(schema))
        return RegisteredAvro(
            at, _given(schema) if schema is not None else _avro(at.latest(f"{topic}-value"))
        )
    if at is None:
        return PlainProtobuf(protobuf.described(schema, message))
    return RegisteredProtobuf(at, _messages(at, schema, message, topic))


def _messages(registry: Registry, schema: Any, message: Any, topic: str) -> protobuf.Messages:
    if schema is not None:
        return protobuf.described(schema, message)
    found = registry.latest(f"{topic}-value")
    if found.kind != "PROTOBUF":
        raise HeadgateError(
            f"subject '{topic}-value' has schemas of {found.kind}; use format='{found.kind.lower()}'."
        )
    return protobuf.registered(found.text, found.texts, message)


def _avro(found: Registered) -> Avro:
    if found.kind != "AVRO":
        raise AvroError(f"it is {found.kind}, not AVRO; use format='{found.kind.lower()}'")
    return parse(found.text, *(text for _, text in found.texts))


def _given(schema: Any) -> Avro:
    """An Avro schema as JSON, as what JSON stands for, or in a file."""
    if isinstance(schema, Path) or (isinstance(schema, str) and not schema.lstrip().startswith(("{", "["))):
        try:
            return parse(Path(schema).read_text("utf-8"))
        except OSError as error:
            raise AvroError(
                f"the Avro schema '{schema}' is neither JSON nor a file: {error.strerror}."
            ) from None
    if not isinstance(schema, (str, dict)):
        raise AvroError(
            f"a {type(schema).__name__} is no Avro schema; give JSON, a dict or the path of an .avsc file."
        )
    return parse(schema)


class Writing:
    """How rows become values, Avro or Protobuf, with a registry's number before them or without."""

    def __init__(self, format: str, schema: Any, message: Any, registry: str | None, topic: str) -> None:
        self.format = format
        self._topic = topic
        self._registry = None if registry is None else registries.at(registry)
        self._avro = _given(schema) if format == "avro" and schema is not None else None
        self._text = ""
        self._head = b""
        self._messages: protobuf.Messages | None = None
        if self._avro is not None:
            self._text = schema if isinstance(schema, str) and schema.lstrip()[:1] in "{[" else _text(schema)
        if format == "protobuf" and schema is None and registry is None:
            raise HeadgateError(_NEEDED)
        if format == "protobuf" and schema is not None:
            self._messages = protobuf.described(schema, message)
        self._message = message

    def prepare(self, schema: pa.Schema) -> None:
        """Look up, or register, what rows of ``schema`` are written as; an error if they cannot be."""
        if self.format == "protobuf":
            self._prepare_messages(schema)
            return
        if self._avro is None:
            self._text = json.dumps(describing(schema, _record_name(self._topic)))
            self._avro = parse(self._text)
        avro_encode.check(schema, self._avro)
        if self._registry is not None:
            self._head = header(self._registry.register(f"{self._topic}-value", self._text))

    def _prepare_messages(self, schema: pa.Schema) -> None:
        if self._registry is not None:
            found = self._registry.latest(f"{self._topic}-value")
            self._messages = self._messages or protobuf.registered(found.text, found.texts, self._message)
            if protobuf.named(found.text, found.texts, (0,)) != self._messages.message:
                raise HeadgateError(
                    f"message '{self._messages.message}' is not the first of subject '{self._topic}-value'; "
                    "only that one is written."
                )
            self._head = header(found.number) + b"\0"
        assert self._messages is not None
        self._messages.check(schema)

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """The value of each row."""
        if self._messages is not None:
            found = self._messages.encode(batch)
        else:
            assert self._avro is not None
            found = avro_encode.encode(batch, self._avro)
        if not self._head:
            return found
        return pc.binary_join_element_wise(pa.scalar(self._head), found, pa.scalar(b""))


def _text(schema: Any) -> str:
    return json.dumps(schema) if isinstance(schema, dict) else Path(schema).read_text("utf-8")


def _record_name(topic: str) -> str:
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in topic)
    return f"_{name}" if name[:1].isdigit() else name
