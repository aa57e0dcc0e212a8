"""Times in other zones."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import ExpressionError
from headgate.sql import types as t
from headgate.sql.node import Node, fallible
from headgate.sql.registry import Call, function
from headgate.sql.values import Bad, Numbers, Value, as_array, both_valid, checked, numbers, rows

_SHORT = {
    "EST": "-05:00", "HST": "-10:00", "MST": "-07:00", "PST": "America/Los_Angeles", "CST": "America/Chicago",
    "AET": "Australia/Sydney", "ECT": "Europe/Paris", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo",
    "CTT": "Asia/Shanghai", "BST": "Asia/Dhaka", "NST": "Pacific/Auckland", "CAT": "Africa/Harare",
    "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "ACT": "Australia/Darwin", "ART": "Africa/Cairo",
}  # fmt: skip
_FIXED = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")


def _zone(name: str) -> int | str:
    """Microseconds east of Greenwich, or the name of a zone; ValueError if there is none."""
    name = _SHORT.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return 0
    match = _FIXED.fullmatch(name)
    if match is not None:
        hour, minute, second = (int(part or 0) for part in match.groups()[1:])
        size = hour * 3600 + minute * 60 + second
        if minute > 59 or second > 59 or size > 18 * 3600:
            raise ValueError(name)
        return (-size if match[1] == "-" else size) * 1_000_000
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, OSError) as error:
        raise ValueError(name) from error
    return name


def local(micros: Numbers, zone: int | str) -> Numbers:
    """What clocks in a zone show at instants."""
    if isinstance(zone, int):
        return micros + zone
    return numbers(pc.local_timestamp(pa.array(micros).view(pa.timestamp("us", tz=zone))))


def instant(micros: Numbers, zone: int | str) -> Numbers:
    """The instants at which clocks in a zone show times.

    A time that clocks show twice is the earlier one.  A time that they skip is moved by the gap, as in Java.
    """
    if isinstance(zone, int):
        return micros - zone
    naive = pa.array(micros).view(t.TIMESTAMP_NTZ)
    guess = numbers(
        pc.assume_timezone(naive, zone, ambiguous="earliest", nonexistent="earliest").view(t.TIMESTAMP)
    )
    found: Numbers = micros - (local(guess, zone) - guess)
    return found


def by_zone(
    move: Callable[..., Numbers], result: pa.DataType, value: Value, *names: Value
) -> tuple[Value, Bad]:
    """Times moved by the zones of their rows; an unknown zone makes the row bad."""
    n = rows(value, *names)
    micros = np.broadcast_to(numbers(value), n).astype(np.int64)
    valid = both_valid(n, value, *names)
    out, bad = micros.copy(), np.zeros(n, dtype=bool)
    columns = [as_array(name, n).dictionary_encode() for name in names]
    codes = [c.indices.fill_null(0).to_numpy(zero_copy_only=False) for c in columns]
    for pair in sorted(set(zip(*codes, strict=True))):
        mine = np.logical_and.reduce([code == one for code, one in zip(codes, pair, strict=True)])
        if valid is not None:
            mine &= valid
        if not mine.any():
            continue
        try:
            zones = [_zone(c.dictionary[int(one)].as_py()) for c, one in zip(columns, pair, strict=True)]
            out[mine] = move(micros[mine], *zones)
        except ValueError:
            bad |= mine
    return checked(out, bad, result, value, *names)


def _check(call: Call, *nodes: Node) -> None:
    for node in nodes:
        if node.constant is not None and node.constant.is_valid:
            try:
                _zone(node.constant.as_py())
            except ValueError:
                raise ExpressionError(
                    f"There is no time zone {node.constant.as_py()!r} in {call.text!r}. "
                    "Write it as 'Europe/Berlin', 'UTC' or '+02:00'."
                ) from None


@function("from_utc_timestamp", "to_utc_timestamp", args=2)
def _utc(call: Call) -> Node:
    move = local if call.name == "from_utc_timestamp" else instant
    zone = call.cast(1, t.STRING)
    _check(call, zone)
    return fallible(
        t.TIMESTAMP, call.text, f"the zone of {call.text} does not exist",
        lambda v, z: by_zone(move, t.TIMESTAMP, v, z), call.cast(0, t.TIMESTAMP), zone,
    )  # fmt: skip


@function("convert_timezone", args=(2, 3))
def _convert(call: Call) -> Node:
    zones = [call.cast(i, t.STRING) for i in range(len(call.args) - 1)]
    _check(call, *zones)

    def run(*values: Value) -> tuple[Value, Bad]:
        def move(micros: Numbers, *given: int | str) -> Numbers:
            return local(instant(micros, given[0]) if len(given) == 2 else micros, given[-1])

        return by_zone(move, t.TIMESTAMP_NTZ, values[-1], *values[:-1])

    reason = f"a zone of {call.text} does not exist"
    return fallible(t.TIMESTAMP_NTZ, call.text, reason, run, *zones, call.cast(len(zones), t.TIMESTAMP_NTZ))
