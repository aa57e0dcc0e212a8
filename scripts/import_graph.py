"""Draws which layer imports which, and writes docs/imports.md.

Imports for type checking and inside functions count like all others.  ``tests/test_layers.py`` uses the same
functions.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path

LAYERS = [
    "errors",
    "atomics",
    "sql",
    "graph",
    "machine",
    "memory",
    "scheduling",
    "checkpoint",
    "connectors",
    "runtime",
    "control",
    "engines",
    "recording",
    "telemetry",
    "web",
    "api",
    "extend",
    "headgate",
    "testing",
    "demo",
    "cli",
]
"""From the bottom up; a module may import its own layer and those before it.  ``headgate`` is the package's
own ``__init__``: the public names."""


def layer(module: str) -> str:
    found = module.split(".")[1] if "." in module else module
    return "cli" if found == "__main__" else found


def modules(root: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if "examples" not in parts:
            found[".".join(("headgate", *parts)).removesuffix(".__init__")] = path
    return found


def imports(root: Path, ours: bool = True) -> dict[str, set[str]]:
    """By module the modules of ours that it imports, or the packages that are not ours."""
    known = modules(root)
    return {module: set(_imports(module, path, known, ours)) for module, path in known.items()}


def _imports(module: str, path: Path, known: dict[str, Path], ours: bool) -> list[str]:
    found = []
    for node in _import_statements(path):
        if isinstance(node, ast.Import):
            full = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{module} imports relatively; write full names"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            full = [name if name in known else str(node.module) for name in names]
        for name in full:
            if (name.split(".")[0] == "headgate") == ours:
                found.append(name if ours else name.split(".")[0])
    return [name for name in found if name != module]


@functools.cache
def _import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Imports are statements, so expressions, which are most of a file, are not looked into."""
    found: list[ast.Import | ast.ImportFrom] = []
    left: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, [])
            left += inner if isinstance(inner, list) else []
    return found


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, directly or by others (Tarjan's components of more than one)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph.get(module, ())):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            component = []
            while True:
                component.append(stack.pop())
                if component[-1] == module:
                    break
            if len(component) > 1:
                found.append(sorted(component))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found


def picture(graph: dict[str, set[str]]) -> str:
    """The layers as a Mermaid graph; an arrow's number is how many imports it stands for."""
    counts: Counter[tuple[str, str]] = Counter()
    for module, others in graph.items():
        counts.update((layer(module), layer(other)) for other in others if layer(other) != layer(module))
    sizes = Counter(layer(module) for module in graph)
    lines = ["flowchart TD"]
    lines += [f'    {name}["{name} ({sizes[name]})"]' for name in reversed(LAYERS) if sizes[name]]
    hidden = {"errors"}  # every layer imports it
    lines += [
        f"    {own} -->|{count}| {other}"
        for (own, other), count in sorted(counts.items())
        if other not in hidden
    ]
    return "\n".join(lines)


PAGE = """# Who imports whom

This page shows the layers of the package and the imports between them. A box is a layer with its number of
modules; the number on an arrow is how many imports it stands for. Arrows point down: a layer imports itself
and the layers below it, and no others. Imports for type checking count. Arrows to `errors`, which every layer
imports, are left out.

`scripts/import_graph.py` writes this page, and `tests/test_layers.py` fails if the code says something else.

```mermaid
{picture}
```
"""


def main() -> None:
    checkout = Path(__file__).resolve().parents[1]
    graph = imports(checkout / "src" / "headgate")
    (checkout / "docs" / "imports.md").write_text(PAGE.format(picture=picture(graph)), encoding="utf-8")
    print(f"{len(graph)} modules, {sum(map(len, graph.values()))} imports, cycles: {cycles(graph) or 'none'}")


if __name__ == "__main__":
    main()
