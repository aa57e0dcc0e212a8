"""The artificial networks of Aurora's experiments (section 5.1).

A network is a number of application trees: trees of universal boxes, each rooted at an output box, whose
leaves are fed by sources of one common rate.  The rate follows from the load, the fraction of the ideal
capacity that processing the input takes, by an open-loop computation: every tuple costs the boxes on its
path, each weighted with the share of tuples that reaches it.

    app = aurora.network(queries=5, depth=5, fan_out=3, load=0.9)
    app.run(engine="simulated", policy="mc", until="drained")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

import headgate as hg
from headgate.errors import PipelineError

Graph = Sequence[tuple[float, float]]

TIGHT: Graph = ((0, 1), (0.001, 1), (1, 0))
LOOSE: Graph = ((0, 1), (4, 1), (5, 0))
"""The two kinds of QoS graphs of figure 11."""


class ParameterError(PipelineError):
    """An invalid parameter of a network; its name lets a caller say where the user gave it."""

    def __init__(self, parameter: str, value: Any, problem: str) -> None:
        super().__init__(f"aurora: {parameter}={value}: {problem}")
        self.parameter, self.value, self.problem = parameter, value, problem


@dataclass(frozen=True)
class Tree:
    """A universal box and the trees that feed it; a leaf is fed by a source."""

    name: str
    cost: float
    selectivity: float
    children: tuple[Tree, ...] = ()

    def boxes(self) -> Iterator[Tree]:
        """The boxes, children before parents."""
        for child in self.children:
            yield from child.boxes()
        yield self

    def inputs(self) -> int:
        return sum(child.inputs() for child in self.children) if self.children else 1

    def work(self) -> float:
        """Seconds that one tuple at each input takes in all boxes, as expected."""
        return self._work()[0]

    def _work(self) -> tuple[float, float]:
        """The work, and how many tuples leave the root."""
        parts = [child._work() for child in self.children]
        arriving = sum(tuples for _, tuples in parts) if parts else 1.0
        return sum(seconds for seconds, _ in parts) + arriving * self.cost, arriving * self.selectivity


@dataclass(frozen=True)
class Plan:
    """A network before it is an application: what is drawn at random, and the rate that follows from it."""

    trees: tuple[Tree, ...]
    qos: tuple[Any, ...]
    rate: float
    """Tuples per second at each input."""
    phases: tuple[float, ...]
    """Where in its first interval each input begins."""

    @property
    def inputs(self) -> int:
        return sum(tree.inputs() for tree in self.trees)

    @property
    def load(self) -> float:
        """Processors that the input keeps busy."""
        return self.rate * sum(tree.work() for tree in self.trees)


def plan(
    queries: int = 5,
    depth: int = 5,
    fan_out: float = 3,
    cost: tuple[float, float] = (1e-4, 1e-3),
    selectivity: float | tuple[float, float] = 1.0,
    load: float = 0.5,
    workers: int = 1,
    qos: Sequence[Any] = (TIGHT, LOOSE),
    seed: int = 0,
) -> Plan:
    """Draw the trees, their costs, selectivities and QoS graphs, and compute the rate.

    ``fan_out`` is the number of children of a box; a fraction is an average.  ``cost`` and, if a pair,
    ``selectivity`` are ranges that each box draws from uniformly.  ``load`` is relative to ``workers``
    processors that do nothing but process tuples.
    """
    for name, value in (("queries", queries), ("depth", depth), ("fan_out", fan_out), ("workers", workers)):
        if not 1 <= value < math.inf:
            raise ParameterError(name, value, "it must be at least 1.")
    if not 0 < cost[0] <= cost[1] < math.inf:
        raise ParameterError("cost", cost, "it must be a range of positive seconds per tuple.")
    low, high = selectivity if isinstance(selectivity, tuple) else (selectivity, selectivity)
    if not 0 < low <= high <= 1:
        raise ParameterError("selectivity", selectivity, "it must lie in (0, 1].")
    if not 0 < load < math.inf:
        raise ParameterError("load", load, "it must be positive; 1 is all of the capacity.")
    if not qos:
        raise ParameterError("qos", qos, "it needs at least one QoS graph to choose from.")
    random = np.random.default_rng(seed)

    def tree(name: str, levels: int) -> Tree:
        price, share = float(random.uniform(*cost)), float(random.uniform(low, high))
        if levels == 1:
            return Tree(name, price, share)
        children = int(fan_out) + int(random.random() < fan_out - int(fan_out))
        return Tree(name, price, share, tuple(tree(f"{name}.{i + 1}", levels - 1) for i in range(children)))

    trees = tuple(tree(f"q{i + 1}", depth) for i in range(queries))
    graphs = tuple(qos[int(i)] for i in random.integers(0, len(qos), queries))
    phases = tuple(random.random(sum(t.inputs() for t in trees)).tolist())
    return Plan(trees, graphs, load * workers / sum(t.work() for t in trees), phases)


def network(
    queries: int = 5,
    depth: int = 5,
    fan_out: float = 3,
    cost: tuple[float, float] = (1e-4, 1e-3),
    selectivity: float | tuple[float, float] = 1.0,
    load: float = 0.5,
    burst: int = 1,
    tuples: int = 1000,
    qos: Sequence[Any] = (TIGHT, LOOSE),
    seed: int = 0,
    workers: int = 1,
    together: bool = False,
    sink: Callable[[str], Any] | None = None,
    order: Literal["serial", "arrival"] = "serial",
) -> hg.App:
    """The network as an application, its queries named q1, q2, … after their output boxes.

    ``tuples`` is the number of input tuples of the whole network.  With ``burst`` n, a source delivers n
    tuples as a group and then nothing for n intervals (section 5.4).  Sources know nothing of each other:
    each begins somewhere in its first interval, unless they are ``together``.  QoS graphs, given as points
    or as ``hg.QoS``, are assigned to queries at random.  ``sink`` makes a query's sink from its name; by
    default results are dropped.  ``order`` is that of the unions.
    """
    drawn = plan(queries, depth, fan_out, cost, selectivity, load, workers, qos, seed)
    if burst < 1:
        raise ParameterError("burst", burst, "it must be at least 1.")
    if tuples < drawn.inputs:
        raise ParameterError(
            "tuples",
            tuples,
            f"they cannot feed {drawn.inputs} inputs; give {drawn.inputs} or more, or smaller trees.",
        )
    app = hg.App("aurora")
    phases = iter(drawn.phases)
    limits = iter(tuples // drawn.inputs + (i < tuples % drawn.inputs) for i in range(drawn.inputs))

    def grow(tree: Tree) -> hg.Stream:
        if tree.children:
            first, *others = (grow(child) for child in tree.children)
            arriving = first.union(*others, order=order)
        else:
            begin = 0.0 if together else next(phases) * burst / drawn.rate
            rate = hg.from_rate(drawn.rate, limit=next(limits), burst=burst, first=begin)
            arriving = app.source(f"in {tree.name}", rate)
        return arriving.universal(cost=tree.cost, selectivity=tree.selectivity, name=tree.name)

    for tree, graph in zip(drawn.trees, drawn.qos, strict=True):
        utility = graph if isinstance(graph, hg.QoS) else hg.QoS(list(graph))
        grow(tree).to(tree.name, hg.to_function(_drop) if sink is None else sink(tree.name), qos=utility)
    return app


def _drop(query: str, batch: pa.RecordBatch) -> None:
    """Results of a synthetic network say nothing."""
