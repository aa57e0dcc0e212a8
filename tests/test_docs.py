"""The documentation is true: examples run, links and paths exist, and only public names are imported."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import headgate as hg
from headgate.cli.main import cli

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page.relative_to(ROOT).as_posix() for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
)
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PUBLIC_MODULES = {"headgate", "headgate.extend", "headgate.testing"}


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[str]:
    return BLOCK.findall(text(page))


WITH_EXAMPLES = [page for page in PAGES if blocks(page)]


def run(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run a page's examples one after the other, in an empty folder; the names that they define."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "example"}
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_the_examples_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(page, tmp_path, monkeypatch)


def test_the_pages_that_should_have_examples_have_some() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/haren.md", "docs/spark.md"} <= set(WITH_EXAMPLES)


def test_the_tests_of_contributing_pass(
    engine: hg.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = run("CONTRIBUTING.md", tmp_path, monkeypatch)
    tests: list[Callable[..., None]] = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test(*([engine] if inspect.signature(test).parameters else []))


def test_the_operators_policy_and_connectors_of_contributing_run_on_every_engine(
    engine: hg.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = run("CONTRIBUTING.md", tmp_path, monkeypatch)
    (tmp_path / "numbers.txt").write_text("".join(f"{number}\n" for number in range(50)))
    app, deltas = hg.App("all"), []
    lines = app.source("lines", names["Lines"]("numbers.txt"))
    numbers = lines.select("CAST(line AS BIGINT) AS n")
    numbers.apply(names["Delta"](numbers.schema)).to("deltas", hg.to_list(deltas))
    numbers.apply(names["Clip"](numbers.schema, "n", 7)).to("clipped", names["ToLines"]("clipped.txt"))
    app.run(engine, names["LongestQueue"]())
    assert [row["delta"] for row in deltas] == [0] + [1] * 49
    clipped = [f"{{'n': {min(number, 7)}}}" for number in range(50)]
    assert (tmp_path / "clipped.txt").read_text().splitlines() == clipped


def test_the_first_example_is_short() -> None:
    first = blocks("README.md")[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 15
    assert 'engine="threads"' in first


@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_examples_import_public_names_only(page: str) -> None:
    for block in blocks(page):
        for node in ast.walk(ast.parse(block)):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            assert not [m for m in modules if m.startswith("headgate") and m not in PUBLIC_MODULES]


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_of_a_page_exist(page: str) -> None:
    for link in LINK.findall(text(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link
    for path in re.findall(r"`((?:src/headgate/)?[a-z]+/[a-z_/]+\.py)`", text(page)):
        places = (ROOT / path, ROOT / "src" / "headgate" / path)
        assert any(place.exists() for place in places), path


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_a_page_starts_with_what_it_is_for(page: str) -> None:
    title, _, rest = text(page).partition("\n\n")
    assert title.startswith("# ")
    assert re.match(r"This (page|folder) ", rest), f"{page} should begin with 'This page …'"


# --- the site -----------------------------------------------------------------------------------------------


def site() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text("mkdocs.yml"))
    return found


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    def pages(part: Any) -> list[str]:
        if isinstance(part, str):
            return [part]
        return [page for each in (part if isinstance(part, list) else part.values()) for page in pages(each)]

    generated = {"index.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"}
    listed = pages(site()["nav"])
    assert sorted(listed) == sorted({*generated, *(p.removeprefix("docs/") for p in PAGES if "/" in p)})


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_outside(tmp_path: Path) -> None:
    """Every link and anchor leads somewhere; what a page loads comes with it."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "api.html").read_text(encoding="utf-8")
    assert all(f'id="headgate.{name}"' in api for name in ("App", "Stream", "from_files", "Threads"))
    loads = re.compile(r"""<(?:script|img|link)[^>]*?(?:src|href)="(https?:[^"]*)""")
    for page in tmp_path.rglob("*.html"):
        assert [
            url for url in loads.findall(page.read_text(encoding="utf-8")) if "canonical" not in url
        ] == []


def test_the_kubernetes_manifest_says_what_the_guide_promises() -> None:
    parts = {part["kind"]: part for part in yaml.safe_load_all(text("deploy/kubernetes.yaml"))}
    run = parts["Deployment"]["spec"]
    [container] = run["template"]["spec"]["containers"]
    assert (run["replicas"], run["strategy"]["type"]) == (1, "Recreate")
    assert container["env"][0]["name"] == "HEADGATE_TOKEN"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "page"}
    assert str(ports["page"]) in container["args"][-1]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in run["template"]["spec"]["volumes"]}
    # The image's command takes these arguments.
    told = CliRunner().invoke(cli, ["run", "--help"])
    assert all(option in told.output for option in container["args"] if option.startswith("--"))
