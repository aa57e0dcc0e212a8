"""What becomes of every query in an upgrade, in words: verdicts, reasons, and what the user can do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.checkpoint.differences import difference
from headgate.checkpoint.heirs import added
from headgate.checkpoint.position import Position
from headgate.errors import RunError
from headgate.graph.network import Network

Data = dict[str, Any]
GOES_ON, BEGINS, LEAVES, REFUSED = "goes on", "begins", "leaves", "refused"
HALF_WAY = "has changed while rows were half-way through it; let the old one run until it is done"


@dataclass(frozen=True)
class Choices:
    """What the user has decided about queries that changed."""

    reset: Collection[str] = ()
    """They forget their states and begin anew where they were."""
    replay: Collection[str] = ()
    """They forget their states and begin anew with the earliest row."""

    @property
    def queries(self) -> list[str]:
        return [*self.reset, *self.replay]


@dataclass
class Verdict:
    """What becomes of a query."""

    query: str
    what: str
    why: str = ""
    at: int | None = None
    """The serial at which it goes on or begins."""
    offers: list[str] = field(default_factory=list)
    """What the user can do instead, if it is refused."""


def offers(query: str, root: str) -> list[str]:
    """What the user can do about a query that cannot keep its state."""
    return [
        f"keep the name and begin anew from here (headgate run --reset {query}, or hg.Spark(reset=[…]))",
        f"begin anew with the earliest row, whose results come again (--replay {query}, replay=[…])",
        f"look at the old state first (headgate state {root} {query})",
        "give the changed query another name, or start with a new checkpoint",
    ]


def why_refused(
    lost: Sequence[Data], new: Sequence[Data], gone: Sequence[Data], fresh: Sequence[Data]
) -> str | None:
    """Why a query cannot keep its state; None if it can."""
    if lost and new:
        return f"has changed ({difference(lost[0], new[0])}), and its state was made by the old one"
    if lost:
        told = f"box '{lost[0]['name']}' ({lost[0]['does']}) is not there any more"
        return f"has changed ({told}), and its state would be lost"
    if new:
        told = f"box '{new[0]['name']}' ({new[0]['does']}) is new"
        return f"has changed ({told}), and it has not seen the rows before"
    return None


def how_changed(
    before: dict[str, Data], gone: Sequence[Data], fresh: Sequence[Data], taken: dict[str, str]
) -> str:
    """How a query goes on that has changed, in the user's words."""
    said = []
    for box in fresh:
        if box["key"] in taken:
            more = added(before[taken[box["key"]]], box)
            said.append(
                f"'{box['name']}' keeps its state" + (f", {', '.join(more)} from now on" if more else "")
            )
    left = [box["name"] for box in gone if box["key"] not in taken.values()]
    come = [box["name"] for box in fresh if box["key"] not in taken]
    if come:
        said.append(f"{', '.join(map(repr, come))} from now on")
    if left:
        said.append(f"without {', '.join(map(repr, left))}")
    return "; ".join(said) or "with the same boxes"


def sentence(offers: Sequence[str]) -> str:
    """Offers as one sentence."""
    told = "; or ".join(offers)
    return f"{told[:1].upper()}{told[1:]}." if told else ""


def check_sources(network: Network, position: Position, before: Data, root: str) -> None:
    """Columns may come and go, but keep their types.  Finite sources keep their turns."""
    names = [source["name"] for source in before["sources"]]
    schemas = {source["name"]: source["schema"] for source in before["sources"]}
    for source in network.sources:
        known = dict(schemas.get(source.name, []))
        now = [[field.name, str(field.type)] for field in source.schema]
        other = next((name for name, kind in now if known.get(name, kind) != kind), None)
        if other is not None:
            raise RunError(
                f"checkpoint '{root}': source '{source.name}' had the columns "
                f"{_columns(schemas[source.name])} and has {_columns(now)} now. Columns may come and go, but "
                f"'{other}' was {known[other]}: keep its type with schema=, give it another name, or start "
                "with a new checkpoint."
            )
    old = position.offsets
    turns = any(own.turns is not None for own in old.sources)
    live = [source.name for source in network.sources if source.origin.live]
    if old.next_serial and turns == bool(live):
        was = "were all finite" if turns else "were followed as they grew"
        told = f"'{live[0]}' is followed" if live else "all are finite"
        raise RunError(
            f"checkpoint '{root}': its sources {was}, and now {told}; their rows had another order. Give "
            "them their old follow=, or start with a new checkpoint."
        )
    added_sources = [source.name for source in network.sources if source.name not in names]
    if turns and added_sources:
        raise RunError(
            f"checkpoint '{root}': its finite sources take turns ({', '.join(names)}), so "
            f"'{added_sources[0]}' cannot join them now. Start with a new checkpoint."
        )


def _columns(schema: Sequence[Sequence[str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in schema)
