"""Pages of the site that are files of the repository's root, and links between them and those in docs/.

On GitHub the same files are read where they are; so links are rewritten while the site is built.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
"""By file of the root, its place in the site."""
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s:]+)\)")


def on_files(files: Files, config: Any) -> Files:
    for name, place in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/page.png)", "](page.png)")
        text = text.replace("](docs/demo.svg)", "](demo.svg)")
        files.append(File.generated(config, place, content=LINK.sub(_from_root, text)))
    return files


def on_page_markdown(markdown: str, page: Any, **given: Any) -> str:
    """Links of a page in docs/ that lead out of it."""
    if page.file.src_uri in PAGES.values():
        return markdown
    up = "../" * page.file.src_uri.count("/")

    def linked(found: re.Match[str]) -> str:
        path, mark, anchor = found[2].partition("#")
        name = path.removeprefix(f"../{up}")
        if name == path:
            return found[0]
        return f"[{found[1]}]({up}{PAGES[name]}{mark}{anchor})" if name in PAGES else found[1]

    return LINK.sub(linked, markdown)


def _from_root(found: re.Match[str]) -> str:
    path, mark, anchor = found[2].partition("#")
    if not path:
        return found[0]
    place = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    # Other files of the repository are no pages: their names are enough.
    return f"[{found[1]}]({place}{mark}{anchor})" if place else found[1]
