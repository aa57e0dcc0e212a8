"""The tables of claims in the research notes are written from a benchmark's JSON."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from benchmarks.findings import SIMULATED, THREADS, Finding, Side

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("claims", ROOT / "scripts" / "claims.py")
assert SPEC is not None
assert SPEC.loader is not None
claims = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(claims)

FINDINGS = [
    Finding(
        "8a", "ct", "CT is best", {THREADS: Side(1.0, 2.0, False), SIMULATED: Side(3.0, 2.0, True)}, "slow"
    ),
    Finding("9", "hybrid", "hybrid is steady", {SIMULATED: Side(1.5, 1.4, True)}),
]
END = "<!-- end of claims -->"
PAGE = f"before\n<!-- claims: ordered -->\nold\n{END}\n<!-- claims: x -->\nkept\n{END}"


def test_a_page_gets_the_figures_and_verdicts_of_the_json_and_keeps_the_rest() -> None:
    results = [result.to_data() for finding in FINDINGS for result in finding.results()]
    assert claims.written(PAGE, results).splitlines() == [
        "before",
        "<!-- claims: ordered -->",
        "",
        "| figure | claim | threads | holds | simulated | holds |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 8a | CT is best | 1 : 2 | no | 3 : 2 | yes |",
        "| 9 | hybrid is steady | - |  | 1.5 : 1.4 | yes |",
        "",
        "What does not hold, and what the same run says of it:",
        "",
        "- **8a, CT is best**: slow.",
        "",
        "<!-- end of claims -->",
        "<!-- claims: x -->",
        "kept",
        "<!-- end of claims -->",
    ]
    assert claims.written(PAGE, []) == PAGE


def test_the_pages_have_places_for_the_benchmarks_tables() -> None:
    pages = {page.name: page.read_text() for page in claims.RESEARCH.glob("*.md")}
    found = {name for page in pages.values() for _, name, _ in claims.BLOCK.findall(page)}
    assert found == {"aurora", "ordered"}
