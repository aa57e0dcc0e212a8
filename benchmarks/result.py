"""One line of a benchmark: a claim, what was measured, what it is compared with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """``measured`` and ``baseline`` share the unit that ``claim`` names; ``ratio`` is one over the other."""

    name: str
    source: str
    claim: str
    measured: float
    baseline: float | None
    holds: bool | None
    """None: nothing is claimed."""
    why: str = ""
    """If it does not hold: what was measured that says why."""

    @property
    def ratio(self) -> float | None:
        return self.measured / self.baseline if self.baseline else None

    def to_data(self) -> dict[str, Any]:
        data = asdict(self) | {"ratio": self.ratio}
        if not self.why:
            del data["why"]
        return data

    def cells(self) -> list[str]:
        def number(value: float | None) -> str:
            return "-" if value is None else f"{value:,.4g}"

        holds = {True: "[green]yes[/]", False: "[red]no[/]", None: "-"}[self.holds]
        return [
            self.name,
            self.source,
            self.claim,
            number(self.measured),
            number(self.baseline),
            number(self.ratio),
            holds,
        ]
