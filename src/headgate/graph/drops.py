"""Load shedding's drop boxes (Aurora's load shedder, section 2.2): which of the tuples that come are dropped.

A random drop chooses by a hash of box and serial, a semantic one by importance: what is below a quantile of
recent tuples goes.  Either is a function of the tuples and of a ``Drop``, so a recovery that knows the drop
in force repeats it exactly.  A larger share drops the same tuples as a smaller one, and more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.graph.importance import Floats, Importance
from headgate.graph.packet import Packet
from headgate.graph.partition import chosen, seed_of

RANDOM, SEMANTIC = "random", "semantic"
RECENT = 4096
"""Tuples whose importance is remembered."""
RENEW = 16
"""The quantile is computed anew when one of so many of them has changed."""


@dataclass(frozen=True, slots=True)
class Drop:
    """What is dropped before a box: a share at random, or what is less important than ``below``.

    Of tuples that are exactly as important as ``below`` a share of ``ties`` goes.
    """

    reason: str
    share: float
    below: float = -math.inf
    ties: float = 0.0


class Dropper:
    """Chooses, before one box."""

    def __init__(self, box: str, importance: Importance | None = None) -> None:
        # Not the hash by which the synthetic box selects: what is dropped must not depend on that.
        self._seed = seed_of(box, b"shed")
        self.importance = importance

    def keep(self, packet: Packet, drop: Drop, values: Floats | None = None) -> Packet:
        """What is left of a packet; its markers stay with it.  ``values``: its rows' importance."""
        if drop.reason == RANDOM:
            gone = chosen(packet.order.origins, self._seed, drop.share)
        else:
            assert values is not None
            gone = values < drop.below
            if drop.ties:
                gone |= (values == drop.below) & chosen(packet.order.origins, self._seed, drop.ties)
        if not gone.any():
            return packet
        return packet.filter(pa.array(~gone))


class Recent:
    """The importance of the tuples that came last, and the quantile that a share of them lies below."""

    def __init__(self, size: int = RECENT) -> None:
        self._values = np.empty(size)
        self._held = self._next = 0
        self._fresh = 0
        self._drop: Drop | None = None

    def __len__(self) -> int:
        return self._held

    def add(self, values: Floats) -> None:
        size = len(self._values)
        values = values[-size:]
        places = (self._next + np.arange(len(values))) % size
        self._values[places] = values
        self._next = (self._next + len(values)) % size
        self._held = min(size, self._held + len(values))
        self._fresh += len(values)

    def drop(self, share: float) -> Drop:
        """What to drop so that a share of tuples like these goes."""
        known = self._drop
        if known is None or known.share != share or self._fresh * RENEW >= self._held:
            self._drop, self._fresh = semantic(self._values[: self._held], share), 0
        assert self._drop is not None
        return self._drop

    def sample(self, count: int) -> Floats:
        """So many of the values, evenly spread over their order; all if there are fewer."""
        values = np.sort(self._values[: self._held])
        if len(values) <= count:
            return values
        return values[np.linspace(0, len(values) - 1, count).astype(np.int64)]


def semantic(values: Floats, share: float) -> Drop:
    """The drop by which the least important share of these values goes."""
    wanted = share * len(values)
    if not wanted:
        return Drop(SEMANTIC, share)
    below = float(np.partition(values, min(int(wanted), len(values) - 1))[min(int(wanted), len(values) - 1)])
    fewer, equal = np.count_nonzero(values < below), np.count_nonzero(values == below)
    return Drop(SEMANTIC, share, below, min((wanted - fewer) / equal, 1.0))
