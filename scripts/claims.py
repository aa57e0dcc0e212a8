"""Writes the tables of claims in ``docs/research/`` from what ``headgate bench NAME --json FILE`` measured.

    python scripts/claims.py FILE [FILE …]

A page has, for each benchmark that it shows, a pair of lines ``<!-- claims: NAME -->`` and
``<!-- end of claims -->``; what stands between them is replaced.  Nobody types a verdict: each is the
benchmark's own, computed from the two figures beside it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESEARCH = Path(__file__).parent.parent / "docs" / "research"
ENGINES = ("threads", "simulated", "spark", "host")
BLOCK = re.compile(r"(<!-- claims: ([\w-]+) -->\n).*?(<!-- end of claims -->)", re.DOTALL)


def table(results: Iterable[dict[str, Any]]) -> str:
    """A row for each claim, with both figures and the verdict on each engine."""
    rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for result in results:
        _, *what = result["name"].split(", ")
        engine = what.pop() if what and what[-1] in ENGINES else ""
        place = what[0].removeprefix("figure ") if what and what[0].startswith("figure ") else ", ".join(what)
        rows.setdefault((place, result["claim"]), {})[engine] = result
    engines = list(dict.fromkeys(engine for found in rows.values() for engine in found))
    heads = ["figure", "claim", *(head for engine in engines for head in (engine or "measured", "holds"))]
    lines = [heads, ["---"] * len(heads)]
    reasons: dict[str, str] = {}
    for (place, claim), found in rows.items():
        cells = [cell for engine in engines for cell in _cells(found.get(engine))]
        lines.append([place, claim, *cells])
        for result in found.values():
            if result["holds"] is False and result.get("why"):
                reasons[f"**{place}, {claim}**"] = result["why"]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
    if reasons:
        text += "\nWhat does not hold, and what the same run says of it:\n\n"
        text += "\n".join(f"- {claim}: {why}." for claim, why in reasons.items()) + "\n"
    return text


def _cells(result: dict[str, Any] | None) -> list[str]:
    if result is None:
        return ["-", ""]
    figures = [result["measured"], result["baseline"]]
    verdict = {True: "yes", False: "no", None: ""}[result["holds"]]
    return [" : ".join(f"{figure:,.3g}" for figure in figures if figure is not None), verdict]


def written(page: str, results: list[dict[str, Any]]) -> str:
    """A page with the tables of the benchmarks that there are results of; other tables stay."""

    def block(found: re.Match[str]) -> str:
        own = [result for result in results if result["name"].split(",")[0] == found[2]]
        return f"{found[1]}\n{table(own)}\n{found[3]}" if own else found[0]

    return BLOCK.sub(block, page)


def main(files: list[str]) -> None:
    results = [result for file in files for result in json.loads(Path(file).read_text())]
    for page in sorted(RESEARCH.glob("*.md")):
        before = page.read_text()
        after = written(before, results)
        if after != before:
            page.write_text(after)
            print(f"{page.name}: written")


if __name__ == "__main__":
    main(sys.argv[1:])
