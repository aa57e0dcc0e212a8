"""The second of Aurora's two levels (sections 4 and 6): how a superbox is traversed, whatever chose it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from headgate.errors import PipelineError, nearest
from headgate.scheduling.aurora.traversals import Traversal, mean_latency, min_cost, min_latency, min_memory
from headgate.scheduling.catalog import Catalog

_BY_NAME: dict[str, Traversal] = {
    "mc": min_cost,
    "ml": min_latency,
    "mm": min_memory,
    "min_cost": min_cost,
    "min_latency": min_latency,
    "min_memory": min_memory,
}
AUTO = "auto"
LOOK_AGAIN = 16
"""Plans of a superbox after which its traversal is chosen anew."""
BETTER = 0.95
"""Another traversal must promise that share of the present one's latency, so that noise changes nothing."""


class Traverser:
    """Orders the calls of superboxes by one traversal, or by the better of two for each (``"auto"``)."""

    def __init__(self, traverse: str) -> None:
        if traverse != AUTO and traverse not in _BY_NAME:
            raise PipelineError(
                f"traverse={traverse!r}: there is no such traversal."
                f"{nearest(str(traverse), [*_BY_NAME, AUTO])} There are: mc, ml, mm, auto."
            )
        self._traversal = _BY_NAME.get(traverse)
        self.needs: frozenset[str] = frozenset({"bytes"} if self._traversal is min_memory else ())

    def begin(self, catalog: Catalog) -> None:
        self._boxes = catalog.boxes
        self._min_cost: dict[str, list[int]] = {}
        self._plans: Counter[str] = Counter()
        self.chosen: dict[str, str] = {}
        """With ``"auto"``, each query's traversal: ``"mc"`` or ``"ml"``."""

    def order(self, superbox: Collection[int], query: str | None = None) -> list[int]:
        """The calls for a superbox; ``query``: it is always all boxes of that query."""
        if self._traversal is None:
            return self._better(superbox, query)
        if self._traversal is min_cost:
            return self._few(superbox, query)
        return self._traversal(self._boxes, superbox)

    def _few(self, superbox: Collection[int], query: str | None) -> list[int]:
        if query is None:
            return min_cost(self._boxes, superbox)
        if query not in self._min_cost:
            self._min_cost[query] = min_cost(self._boxes, superbox)
        return self._min_cost[query]

    def _better(self, superbox: Collection[int], query: str | None) -> list[int]:
        few = self._few(superbox, query)
        name = "" if query is None else query
        if not any(self._boxes[box].calls for box in superbox):
            return few  # what a call costs is not known yet
        again = query is None or self._plans[name] % LOOK_AGAIN == 0
        self._plans[name] += 1
        if not again and self.chosen[name] == "mc":
            return few
        early = min_latency(self._boxes, superbox)
        if again:
            promised = {"mc": mean_latency(self._boxes, superbox, few)}
            promised["ml"] = mean_latency(self._boxes, superbox, early)
            present = self.chosen.setdefault(name, min(promised, key=promised.__getitem__))
            other = "ml" if present == "mc" else "mc"
            if promised[other] < BETTER * promised[present]:
                self.chosen[name] = other
        return early if self.chosen[name] == "ml" else few
