"""The documentation's Python examples run as they stand, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headgate as hg
from benchmarks.workloads import tpcx_bb

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
WITH_EXAMPLES = [page for page in PAGES if BLOCK.search((ROOT / page).read_text())]


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_the_examples_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tpcx_bb.generate(tmp_path / "data" / "tpcx-bb", rows=3_000)
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text()
    blocks = BLOCK.findall(text)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    policy = names.get("LongestQueue")
    if policy is None:
        return
    assert isinstance(policy, type)

    app, results = hg.App("doc"), []
    app.source("rows", hg.from_rate(1000, limit=100)).filter("value % 2 = 0").to("even", hg.to_list(results))
    for engine in ("threads", "simulated"):
        results.clear()
        app.run(engine, policy())
        assert [row["value"] for row in results] == list(range(0, 100, 2))


def test_every_module_of_the_docs_exists() -> None:
    """Paths that the pages name are there."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        for path in re.findall(r"`((?:engines|graph|scheduling)/[a-z_/]+\.py)`", text):
            assert (ROOT / "src" / "headgate" / path).exists(), path
        for path in re.findall(r"\]\(([a-zA-Z_/.]+)\)", text):
            assert (ROOT / Path(page).parent / path).exists(), path
