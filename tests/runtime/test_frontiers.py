"""How far every arrow has come is kept, not searched for: what a call costs does not grow with the tree."""

from __future__ import annotations

import pytest

import headgate as hg
from headgate.runtime.network import LiveNetwork
from headgate.runtime.queues import Fifo, Merge


def _looks(depth: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """How many queues and boxes are looked at for frontiers, per box call, on a tree of fan-out 3."""
    looks = 0
    with monkeypatch.context() as patched:
        for owner, name in ((Fifo, "first_serial"), (Merge, "first_serial"), (LiveNetwork, "_held")):
            plain = getattr(owner, name)

            def counted(*given: object, plain: object = plain) -> object:
                nonlocal looks
                looks += 1
                return plain(*given)  # type: ignore[operator]

            patched.setattr(owner, name, counted)
        app = hg.App("tree")

        def grow(name: str, levels: int) -> hg.Stream:
            if levels == 1:
                source = app.source(f"at {name}", hg.from_rate(100, limit=20))
                return source.universal(cost=1e-6, name=name)
            first, *others = (grow(f"{name}{i}", levels - 1) for i in range(3))
            return first.union(*others).universal(cost=1e-6, name=name)

        grow("b", depth).to("q", hg.to_function(lambda query, batch: None))
        report = app.run(hg.Simulated(workers=1), "mc")
    assert report.queries["q"].tuples_out == 20 * 3 ** (depth - 1)
    return looks / len(report.trace)


def test_what_a_call_costs_does_not_grow_with_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 13, 40 and 121 boxes."""
    small, middle, large = (_looks(depth, monkeypatch) for depth in (3, 4, 5))
    assert large < 1.2 * middle < 1.5 * small
