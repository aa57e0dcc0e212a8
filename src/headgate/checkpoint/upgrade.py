"""A pipeline meets what an earlier run left: what goes on, what begins anew, and what cannot be.

Nothing here writes: the engine logs what was decided with its start, and ``headgate plan`` prints it.

Queries may come and go.  Of a query that is still there, boxes that do what they did keep their states and
queues.  A box with state that has changed takes over the state of the one that it stands for (``heirs``), if
it could have made it; otherwise the query is refused, as its state was made by something else.  Stateless
boxes may come, go and change, as nothing remembers how they were.  All of it unless rows wait half-way
through the part that changes: these are neither the old one's nor the new one's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headgate.checkpoint.added_queries import Beginning, beginning, copied, private_name
from headgate.checkpoint.graph import Nodes
from headgate.checkpoint.heirs import heirs, layout
from headgate.checkpoint.log import Log
from headgate.checkpoint.renames import renamed
from headgate.checkpoint.verdicts import (
    BEGINS,
    GOES_ON,
    HALF_WAY,
    LEAVES,
    REFUSED,
    Choices,
    Verdict,
    check_sources,
    how_changed,
    offers,
    sentence,
    why_refused,
)
from headgate.errors import RunError, nearest
from headgate.graph.network import Network, Output, upstream_boxes

Data = dict[str, Any]


@dataclass
class _Slot:
    """What a box is for one query: one that was there, the heir of one, or a new one."""

    stays: str | None = None
    heir: str | None = None
    begins: int | None = None


class Upgrade:
    """A network fitted to a checkpoint, and how."""

    def __init__(self, network: Network, log: Log, choices: Choices | None = None) -> None:
        self._storage = log.storage
        self._choices = choices or Choices()
        self.network, self.nodes = network, Nodes(network)
        self.position, self.intents, self.start = log.recover(self.nodes, network.name)
        self.verdicts: list[Verdict] = []
        self.lost: list[str] = []
        """Rows that queries ask for and that are really gone."""
        self.gone: list[str] = []
        """Queries that are not there any more."""
        self.beginnings: dict[str, Beginning] = {}
        """Of queries that are new here, or that begin anew."""
        self.record: Data = {}
        """What the start record must say of it."""
        self._slots: dict[str, dict[str, _Slot]] = {}
        """By query and natural key of a box."""
        self._check_choices()
        if self.start is None:
            self.verdicts = [Verdict(o.name, BEGINS, "there is no checkpoint yet", 0) for o in self._outputs]
            return
        self._before, names = renamed(self.start["pipeline"], network)
        self.record = {"renamed": names} if any(names.values()) else {}
        self.position.rename(names)
        check_sources(network, self.position, self._before, self._storage.root)
        self._fit(log)

    @property
    def _outputs(self) -> list[Output]:
        dead = self.network.dead_letter
        return [*self.network.outputs, *([dead] if dead is not None else [])]

    def refuse(self) -> None:
        """An error if a query cannot keep its state and the user has not said what to do about that."""
        for verdict in self.verdicts:
            if verdict.what == REFUSED:
                raise RunError(
                    f"checkpoint '{self._storage}': query '{verdict.query}' {verdict.why}. "
                    f"{sentence(verdict.offers)}"
                )

    @property
    def accepted(self) -> bool:
        return all(verdict.what != REFUSED for verdict in self.verdicts)

    def _check_choices(self) -> None:
        known = [output.name for output in self.network.outputs]
        for query in self._choices.queries:
            if query not in known:
                raise RunError(f"There is no query '{query}' to begin anew.{nearest(query, known)}")
        both = set(self._choices.reset) & set(self._choices.replay)
        if both:
            raise RunError(f"Query '{min(both)}' cannot be both reset and replayed; choose one.")

    # --- what stays, what is taken over, what is new --------------------------------------------------

    def _fit(self, log: Log) -> None:
        described = self.nodes.describe()["queries"]
        old = {q: own for q, own in self._before["queries"].items() if q not in self._choices.queries}
        for output in self._outputs:
            if output.name in old:
                self._meet(output, old[output.name], described[output.name])
        copies = self._copies(old)
        for output in self.network.outputs:
            if output.name not in old:
                self._join(output, copies, old)
        dead = self.network.dead_letter
        if dead is not None and dead.name not in self._before["queries"]:
            self.beginnings[dead.name] = beginning(dead, self.position, self._storage)
        found = {output.name: self._private(output) for output in self.network.outputs}
        private = {query: sources for query, sources in found.items() if sources}
        if copies or private:
            self.network = copied(self.network, self.nodes, copies, private)
            self.nodes = Nodes(self.network)
            self.position, self.intents, _ = log.recover(self.nodes, self.network.name)
            self.position.rename(self.record.get("renamed", {}))
        self._settle(old, described)

    def _private(self, output: Output) -> list[str]:
        """The sources that a query reads by itself, from their beginning."""
        begun = self.beginnings.get(output.name)
        return self._known_private(output) if begun is None else begun.private

    def _known_private(self, output: Output) -> list[str]:
        known = {source["name"] for source in self._before["sources"]}
        mine = self.network.sources_by_query[output.name]
        return [source.name for source in mine if private_name(source.name, output.name) in known]

    def _meet(self, output: Output, old: Data, new: Data) -> None:
        """A query that was there before: what becomes of its boxes."""
        query = output.name
        before = {box["key"]: box for box in old["boxes"]}
        slots = self._slots[query] = {}
        fresh = []
        for box in new["boxes"]:
            own = f"{box['key']}@{query}"
            stays = next((key for key in (own, box["key"]) if key in before), None)
            if stays is None:
                fresh.append(box)
            else:
                slots[box["key"]] = _Slot(stays=stays)
        kept = {slot.stays for slot in slots.values()}
        gone = [box for box in old["boxes"] if box["key"] not in kept]
        if not gone and not fresh:
            self._goes_on(query, "unchanged", old)
            return
        states = [box for box in gone if box["stateful"]], [box for box in fresh if box["stateful"]]
        taken = heirs(*states)
        lost = [box for box in states[0] if box["key"] not in taken.values()]
        new_states = [box for box in states[1] if box["key"] not in taken]
        why = why_refused(lost, new_states, gone, fresh)
        at = None if why else self._between([*(box["key"] for box in gone), old["outlet"]], old)
        if why is None and at is None:
            why = HALF_WAY
        if why is not None:
            self.verdicts.append(Verdict(query, REFUSED, why, offers=offers(query, self._storage.root)))
        start = at or 0
        for box in fresh:
            heir = taken.get(box["key"])
            slots[box["key"]] = _Slot(heir=heir) if heir is not None else _Slot(begins=start)
        if why is None:
            self._goes_on(query, how_changed(before, gone, fresh, taken), old)

    def _goes_on(self, query: str, how: str, old: Data) -> None:
        self.verdicts.append(Verdict(query, GOES_ON, how, self.position.nodes[old["outlet"]].cursor))

    def _between(self, keys: Sequence[str], old: Data) -> int | None:
        """The serial at which the part of a query that changes stands; None if rows are half-way through it.

        Rows that wait elsewhere do so before boxes that stay, which will take them.
        """
        nodes = [self.position.nodes[key] for key in keys if key in self.position.nodes]
        if any(queue for own in nodes for queue in own.queues):
            return None
        low, high = min(own.cursor for own in nodes), max(own.cursor for own in nodes)
        if low < high and any(own.below(low) < own.below(high) for own in self.position.offsets.sources):
            return None
        return high

    # --- copies -----------------------------------------------------------------------------------------

    def _copies(self, old: Collection[str]) -> dict[str, dict[str, str]]:
        """By query that was there: its own copies of boxes that it cannot share, by natural key."""
        copies: dict[str, dict[str, str]] = {}
        shared: dict[str, _Slot] = {}
        for output in self.network.outputs:
            slots, own = self._slots.get(output.name, {}), dict[str, str]()
            for node in self._boxes_of(output):
                slot = slots.get(node.key)
                if slot is None:
                    continue
                copy = f"{node.key}@{output.name}"
                box = self.network.boxes[node.place]
                after = any(self.nodes.all[self.network.index[up]].key in own for up in upstream_boxes(box))
                if slot.stays == copy or after or shared.setdefault(node.key, slot) != slot:
                    own[node.key] = copy
            if own:
                copies[output.name] = own
        self._shared = shared
        return copies

    def _boxes_of(self, output: Output) -> list[Any]:
        return [self.nodes.all[place] for place in sorted(self.network.queries[output.name])]

    def _stands(self, slot: _Slot) -> int:
        key = slot.stays or slot.heir
        return self.position.nodes[key].cursor if key is not None else slot.begins or 0

    def _join(self, output: Output, copies: dict[str, dict[str, str]], old: dict[str, Data]) -> None:
        """A query that is new here, or begins anew: where, and which boxes it can share."""
        query, anew = output.name, output.name in self._choices.queries
        if anew and query in self._before["queries"]:
            begun = self._begun_anew(output)
        else:
            begun = beginning(output, self.position, self._storage)
        self.beginnings[query] = begun
        if begun.lost:
            self.lost.append(begun.lost)
        known = {box["key"] for own in old.values() for box in own["boxes"]}
        if not self._choices.queries:
            known |= {box["key"] for own in self._before["queries"].values() for box in own["boxes"]}
        slots, own = self._slots.setdefault(query, {}), dict[str, str]()
        for node in self._boxes_of(output):
            there = self._shared.get(node.key)
            if there is None and node.key in known:
                there = _Slot(stays=node.key)
            slot = there or _Slot(begins=begun.serial)
            stands = self._stands(slot)
            shares = (stands == begun.serial and not (anew and node.stateful)) or (
                not node.stateful and stands < begun.serial
            )
            box = self.network.boxes[node.place]
            after = any(self.nodes.all[self.network.index[up]].key in own for up in upstream_boxes(box))
            if (there is not None and not shares) or after or begun.private:
                own[node.key] = f"{node.key}@{query}"
                slot = _Slot(begins=begun.serial)
            else:
                self._shared.setdefault(node.key, slot)
            slots[node.key] = slot
        if own:
            copies[query] = own
        why = "as you said" if anew else "new"
        if begun.private:
            why += f"; it reads {', '.join(begun.private)} by itself, as others have passed the first rows"
        self.verdicts.append(Verdict(query, BEGINS, why, begun.serial))

    def _begun_anew(self, output: Output) -> Beginning:
        if output.name in self._choices.replay:
            return beginning(replace(output, start="earliest"), self.position, self._storage)
        outlet = self._before["queries"][output.name]["outlet"]
        return Beginning(self.position.nodes[outlet].cursor, self._known_private(output))

    # --- the position -------------------------------------------------------------------------------------

    def _settle(self, old: dict[str, Data], described: Data) -> None:
        """Every node gets what it goes on from, or where it begins; the start record will say so."""
        position, before = self.position, self._before["queries"]
        boxes = {box["key"]: box for own in before.values() for box in own["boxes"]}
        natural = {box["key"]: box for own in described.values() for box in own["boxes"]}
        taken: dict[str, Data] = {}
        placed: dict[str, int] = {}
        for query, slots in self._slots.items():
            for key, slot in slots.items():
                own = f"{key}@{query}"
                name = own if own in self.nodes.by_key else key
                if slot.heir is not None:
                    now = layout(natural[key]["what"])
                    told = boxes[slot.heir].get("what")  # if it is not told, the box is one of the same text
                    taken[name] = {"of": slot.heir, "was": layout(told) if told else now, "now": now}
                elif slot.begins is not None:
                    placed[name] = slot.begins
        for outlet in self.nodes.outlets:
            begun, was_there = self.beginnings.get(outlet.name), old.get(outlet.name)
            if begun is not None:
                placed[outlet.key] = begun.serial
            elif was_there is not None and was_there["outlet"] != outlet.key:
                self._place_outlet(outlet.name, was_there, placed, outlet.key)
        for query in [q for q in position.failed if q not in described]:
            del position.failed[query]
        self._tell_leaving(described)
        sources = [source.name for source in self.network.sources]
        memories = {
            private_name(name, query): memory
            for query, begun in self.beginnings.items()
            for name, memory in begun.memories.items()
        }
        restarted = [
            private_name(name, query)
            for query, begun in self.beginnings.items()
            if begun.restarts
            for name in begun.private
        ]
        position.restart(restarted)
        position.renumber(sources)
        position.sources |= memories
        position.take_over(taken)
        position.place(placed)
        position.forget_others()
        changed = {"heirs": taken, "placed": placed, "sources": memories, "restarted": restarted}
        self.record |= {what: found for what, found in changed.items() if found}

    def _place_outlet(self, query: str, old: Data, placed: dict[str, int], key: str) -> None:
        """What stands before a query's sink reads something else, though all boxes may be as before."""
        at = self._between([old["outlet"]], old)
        if at is None and not any(v.query == query and v.what == REFUSED for v in self.verdicts):
            self.verdicts.append(Verdict(query, REFUSED, HALF_WAY, offers=offers(query, self._storage.root)))
        placed[key] = at or 0

    def _tell_leaving(self, described: Data) -> None:
        """Queries that ran when the earlier run ended, and are not there now."""
        for query, own in self._before["queries"].items():
            if query in described or own["outlet"] not in self.position.nodes:
                continue
            at = self.position.nodes[own["outlet"]].cursor
            keys = {box["key"] for box in own["boxes"]}
            same = [q for q in self.beginnings if keys and keys == set(self._slots.get(q, ()))]
            why = f"If it has a new name, say so: .to('{same[0]}', …, was='{query}')." if same else ""
            self.verdicts.append(Verdict(query, LEAVES, f"its state goes with it. {why}".strip(), at))
            self.gone.append(
                f"Query '{query}' ran on this checkpoint, and the application does not have it any more. "
                + (why or f"If it was added while the application ran, add it again with start={at}: there "
                   "it ended.")
            )  # fmt: skip
