"""Bobox's plan of 170 operators: its answers are those of a walk through the document."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest

import headgate as hg
from benchmarks.workloads import xquery

NODES = 2_500


def walked(nodes: pa.Table) -> list[dict[str, Any]]:
    """The query by hand, node by node."""
    children: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in nodes.to_pylist():
        children[row["parent"]].append(row)

    def below(node: dict[str, Any], *path: str) -> list[dict[str, Any]]:
        found = [node]
        for name in path:
            code = xquery.CODE.get(name)
            found = [c for n in found for c in children[n["node"]] if name == "*" or c["name"] == code]
        return found

    [site] = children[-1]
    items: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for item in below(site, "regions", "*", "item"):
        items[below(item, "id")[0]["value"]].append(item)
    buyers = {below(person, "id")[0]["value"]: person for person in below(site, "people", "person")}
    found = []
    for sale in below(site, "closed_auctions", "closed_auction"):
        person = buyers[below(sale, "buyer", "person")[0]["value"]]
        [price] = below(sale, "price")
        if price["value"] <= 20 or not any(i["value"] > 40_000 for i in below(person, "profile", "income")):
            continue
        for item in items[below(sale, "itemref", "item")[0]["value"]]:
            [quantity] = below(item, "quantity")
            if quantity["value"] < 4:
                row = {"buyer_name": below(person, "name")[0]["value"]}
                row |= {"item_name": below(item, "name")[0]["value"], "quantity": quantity["value"]}
                found.append((price["value"], sale["node"], row | {"price": price["value"]}))
    return [row for _, _, row in sorted(found, key=lambda one: one[:2])]


def asked(engine: Any, policy: str, requests: int = 1) -> list[list[dict[str, Any]]]:
    out: dict[str, list[dict[str, Any]]] = {f"r{number}": [] for number in range(requests)}
    app = xquery.network(xquery.document(NODES), requests, to=lambda name: hg.to_list(out[name]))
    report = app.run(engine, policy)
    assert [query.error for query in report.queries.values()] == [None] * requests
    return list(out.values())


def test_a_document_is_in_document_order_and_the_same_by_seed() -> None:
    nodes = xquery.document(NODES)
    assert abs(nodes.num_rows - NODES) < NODES / 20
    assert nodes["node"].to_pylist() == list(range(nodes.num_rows))
    assert all(parent < node for node, parent in enumerate(nodes["parent"].to_pylist()))
    assert nodes == xquery.document(NODES)
    assert nodes != xquery.document(NODES, seed=1)


def test_a_request_has_the_papers_number_of_operators() -> None:
    network = xquery.network(xquery.document(100), 2).network
    assert len(network.boxes) == 2 * xquery.OPERATORS == 340
    assert sorted(set(network.requests)) == [0, 1]


@pytest.mark.parametrize("policy", ["bobox", "bobox_baseline", "las", "nls"])
def test_its_answers_are_those_of_a_walk(policy: str) -> None:
    wanted = walked(xquery.document(NODES))
    assert len(wanted) > 5
    simulated = hg.Simulated(topology="e7540", memory=True, packet_rows=512)
    for engine, requests in ((hg.Threads(workers=2, packet_rows=1_024), 3), (simulated, 2)):
        assert asked(engine, policy, requests) == [wanted] * requests
