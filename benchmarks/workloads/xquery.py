"""Bobox's load (section 6): a plan of 170 operators over a document, by as many requests at once as wanted.

The paper compiles an XQuery to some 170 operators and reads 10 MB of XML; it prints neither.  This is a
document like XMark's, which holds an auction house, as a table of nodes in document order, and a query that
an XQuery compiler would turn into steps along the child axis (each a join by parent), sorts and joins:

    for $p in /site/people/person[profile/@income > 40000],
        $c in /site/closed_auctions/closed_auction[buyer/@person = $p/@id][price > 20],
        $i in /site/regions/*/item[@id = $c/itemref/@item][quantity < 4]
    order by $c/price, $c
    return (distinct) $p/name, $i/name, $i/quantity, $c/price

Texts are numbers here: the value of a node is its place among the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headgate as hg
from headgate.api import Stream
from headgate.api.finite import sort_net
from headgate.connectors.sink import Sink
from headgate.graph.operators.distinct import Distinct
from headgate.graph.operators.merge_join import MergeJoin

OPERATORS = 170
MEGABYTES = 190_000 / 10
"""Nodes of a megabyte of XMark's XML, about."""
NODES = round(10 * MEGABYTES)
NODE = pa.schema([(name, pa.int32()) for name in ("node", "parent", "name", "value")])
BATCH = 32_768
REGIONS = ("africa", "asia", "australia", "europe", "namerica", "samerica")
WAYS = 4
"""Runs that a sort is decomposed into."""

Ints = npt.NDArray[np.int64]
Field = tuple[str, str | None, int, float]
"""A child of a record: its name, its parent if that is another child, the bound of its value, its share."""

_SHARES = {"item": 21_750, "person": 25_500, "open_auction": 12_000, "closed_auction": 9_750}
"""Records of XMark's largest unit."""
_FIELDS: dict[str, Sequence[Field]] = {
    "item": (
        ("id", None, 0, 1.0),
        ("location", None, 250, 1.0),
        ("quantity", None, 6, 1.0),
        ("name", None, 50_000, 1.0),
        ("payment", None, 16, 1.0),
        ("mailbox", None, 0, 0.8),
        ("mail", "mailbox", 1 << 20, 0.6),
    ),
    "person": (
        ("id", None, 0, 1.0),
        ("name", None, 50_000, 1.0),
        ("emailaddress", None, 1 << 20, 1.0),
        ("phone", None, 1 << 20, 0.5),
        ("profile", None, 0, 0.7),
        ("income", "profile", 100_000, 0.9),
        ("gender", "profile", 2, 0.5),
    ),
    "open_auction": (
        ("initial", None, 300, 1.0),
        ("bidder", None, 0, 0.9),
        ("increase", "bidder", 60, 1.0),
        ("current", None, 500, 1.0),
    ),
    "closed_auction": (
        ("buyer", None, 0, 1.0),
        ("person", "buyer", -1, 1.0),
        ("itemref", None, 0, 1.0),
        ("item", "itemref", -2, 1.0),
        ("price", None, 200, 1.0),
    ),
}
NAMES = sorted(
    {"site", "regions", "people", "open_auctions", "closed_auctions", *REGIONS, *_FIELDS}
    | {field[0] for fields in _FIELDS.values() for field in fields}
)
CODE = {name: number for number, name in enumerate(NAMES)}


def document(nodes: int = NODES, seed: int = 0) -> pa.Table:
    """A document of about so many nodes in document order: each one's parent, name and value."""
    each = sum(_SHARES[kind] * (1 + sum(f[3] for f in fields)) for kind, fields in _FIELDS.items())
    counts = {kind: max(round(share * nodes / each), len(REGIONS)) for kind, share in _SHARES.items()}
    made = _Document(np.random.default_rng(seed), counts)
    site = made.element("site", -1)
    regions = made.element("regions", site)
    for region, share in zip(REGIONS, np.array_split(np.arange(counts["item"]), len(REGIONS)), strict=True):
        made.records("item", made.element(region, regions), share)
    for section, kind in (
        ("people", "person"),
        ("open_auctions", "open_auction"),
        ("closed_auctions", "closed_auction"),
    ):
        made.records(kind, made.element(section, site), np.arange(counts[kind]))
    columns = [np.concatenate(parts) for parts in zip(*made.parts, strict=True)]
    return pa.table([column.astype(np.int32) for column in columns], schema=NODE)


class _Document:
    def __init__(self, random: np.random.Generator, counts: dict[str, int]) -> None:
        self._random, self._counts = random, counts
        self.parts: list[tuple[Ints, Ints, Ints, Ints]] = []
        self._next = 0

    def element(self, name: str, parent: int) -> int:
        self.parts.append(tuple(np.array([n]) for n in (self._next, parent, CODE[name], -1)))  # type: ignore[arg-type]
        self._next += 1
        return self._next - 1

    def records(self, kind: str, parent: int, ids: Ints) -> None:
        """Records side by side, each with those of its children that it has."""
        fields, many = _FIELDS[kind], len(ids)
        place = {name: number for number, (name, *_) in enumerate(fields, 1)}
        there = np.ones((many, len(fields) + 1), dtype=bool)
        values = np.full(there.shape, -1)
        for number, (name, above, below, share) in enumerate(fields, 1):
            there[:, number] = self._random.random(many) < share
            if above is not None:
                there[:, number] &= there[:, place[above]]
            if name == "id":
                values[:, number] = ids
            elif below:
                most = {-1: self._counts["person"], -2: self._counts["item"]}.get(below, below)
                values[:, number] = self._random.integers(0, most, many)
        nodes = self._next + np.cumsum(there).reshape(there.shape) - 1
        parents = np.full(there.shape, parent)
        for number, (_, above, _, _) in enumerate(fields, 1):
            parents[:, number] = nodes[:, 0 if above is None else place[above]]
        names = np.broadcast_to([CODE[name] for name in (kind, *place)], there.shape)
        self.parts.append((nodes[there], parents[there], names[there], values[there]))
        self._next += int(there.sum())


def network(nodes: pa.Table, requests: int = 1, *, to: Callable[[str], Sink] | None = None) -> hg.App:
    """An application of so many requests, each with the plan and a reader of the document of its own."""
    app = hg.App(f"{requests}-xquery")
    for number in range(requests):
        source = app.source(f"s{number}", hg.from_batches(nodes.to_batches(BATCH), schema=NODE))
        sink = hg.to_function(lambda query, batch: None) if to is None else to(f"r{number}")
        plan(source).to(f"r{number}", sink)
    return app


def plan(source: Stream) -> Stream:
    """The query as its operators."""
    steps = _Steps(source.filter("node >= 0"))
    persons = steps.child(steps.named("people"), "people", "person")
    persons = steps.value(persons, "person", "id", "who")
    persons = steps.child(persons, "person", "profile")
    persons = steps.value(persons, "profile", "income", "income").filter("income > 40000")
    persons = steps.value(persons, "person", "name", "buyer_name")
    sales = steps.child(steps.named("closed_auctions"), "closed_auctions", "closed_auction")
    sales = steps.child(sales, "closed_auction", "buyer")
    sales = steps.value(sales, "buyer", "person", "who_bought")
    sales = steps.child(sales, "closed_auction", "itemref")
    sales = steps.value(sales, "itemref", "item", "sold")
    sales = steps.value(sales, "closed_auction", "price", "price").filter("price > 20")
    bought = _joined(persons, "who", sales, "who_bought", ["buyer_name", "closed_auction", "sold", "price"])
    regions = []
    for region in REGIONS:
        items = steps.child(steps.named(region, "region"), "region", "item")
        items = steps.value(items, "item", "id", "offered")
        items = steps.value(items, "item", "name", "item_name")
        items = steps.value(items, "item", "quantity", "quantity").filter("quantity < 4")
        regions.append(items)
    keep = ["buyer_name", "item_name", "quantity", "price", "closed_auction"]
    found = _joined(bought, "sold", regions[0].union(*regions[1:]), "offered", keep)
    found = sort_net(found.apply(Distinct(found.schema)), "price, closed_auction", 2)
    return found.select("buyer_name", "item_name", "quantity", "price")


class _Steps:
    """Steps along the child axis.  Elements of one name do not nest, so parents ascend like children."""

    def __init__(self, nodes: Stream) -> None:
        self._nodes = nodes

    def named(self, name: str, column: str | None = None) -> Stream:
        return self._nodes.filter(f"name = {CODE[name]}").select(f"node AS {column or name}")

    def child(self, context: Stream, of: str, name: str) -> Stream:
        """The children ``name`` of the nodes in column ``of``, beside what is known of these."""
        return self._step(context, of, name, f"node AS {name}", name)

    def value(self, context: Stream, of: str, name: str, column: str) -> Stream:
        """The values of these children."""
        return self._step(context, of, name, f"value AS {column}", column)

    def _step(self, context: Stream, of: str, name: str, what: str, column: str) -> Stream:
        children = self._nodes.filter(f"name = {CODE[name]}").select("parent", what)
        keep = [*context.schema.names, column]
        return context.apply(MergeJoin(context.schema, children.schema, (of, "parent"), keep), children)


def _joined(one: Stream, key: str, other: Stream, with_key: str, keep: Sequence[str]) -> Stream:
    """Both sorted by their keys, by a net each, and merged."""
    left, right = sort_net(one, key, WAYS), sort_net(other, with_key, WAYS)
    return left.apply(MergeJoin(left.schema, right.schema, (key, with_key), keep), right)
