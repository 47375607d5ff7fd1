"""The architecture in numbers: files and imports per package, cycles, the longest functions.

    python benchmarks/architecture.py            one table, as in docs/architecture.md

Read from the source with grimp, which import-linter brings. Imports under TYPE_CHECKING count: what needs a type cannot be built
alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grimp
import networkx

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "distdoctor",
    "distdoctor_strategies",
    "distdoctor_checks",
    "distdoctor_remedies",
    "distdoctor_drills",
)


@dataclass(frozen=True)
class Package:
    """A package directly below `distdoctor`, or a plugin package. `imports`: from file to file inside it; `cycles`:
    groups of files that import one another."""

    name: str
    files: int
    imports: int
    cycles: tuple[tuple[str, ...], ...]


def imports() -> networkx.DiGraph:
    """Who imports whom, file by file."""
    graph = grimp.build_graph(*PACKAGES, include_external_packages=False, cache_dir=None)
    found = networkx.DiGraph()
    found.add_nodes_from(graph.modules)
    found.add_edges_from(
        (one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)
    )
    return found


def package_of(module: str) -> str:
    """`distdoctor.probe` of `distdoctor.probe.gradients.stream`; a plugin package is one."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "distdoctor" else parts[0]


def packages(graph: networkx.DiGraph) -> list[Package]:
    """Every package that has more than one file."""
    files: dict[str, list[str]] = {}
    for module in sorted(graph):
        files.setdefault(package_of(module), []).append(module)
    return [_package(name, graph.subgraph(modules)) for name, modules in sorted(files.items()) if len(modules) > 1]


def _package(name: str, inside: networkx.DiGraph) -> Package:
    cycles = [tuple(sorted(part)) for part in networkx.strongly_connected_components(inside) if len(part) > 1]
    return Package(name, len(inside), inside.number_of_edges(), tuple(sorted(cycles)))


def longest_functions(count: int = 10) -> list[tuple[int, str, str]]:
    """(lines, file, name), the longest first."""
    paths = [path for folder in ("distdoctor", "plugins") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [(lines, str(path.relative_to(ROOT)), name) for path in paths for lines, name in _functions(path)]
    return sorted(found, reverse=True)[:count]


def _functions(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, node.name


def main() -> None:
    graph = imports()
    print("| package | files | imports inside | cycles |\n|---|---|---|---|")
    for package in packages(graph):
        print(f"| {package.name} | {package.files} | {package.imports} | {len(package.cycles)} |")
    for package in packages(graph):
        for cycle in package.cycles:
            print(
                f"\ncycle in {package.name}: {', '.join(module.removeprefix(package.name + '.') for module in cycle)}"
            )
    between = {(package_of(one), package_of(other)) for one, other in graph.edges}
    print(f"\n{sum(one != other for one, other in between)} imports between packages, {len(graph)} files\n")
    print("| lines | function | file |\n|---|---|---|")
    for lines, file, name in longest_functions():
        print(f"| {lines} | `{name}` | {file} |")


if __name__ == "__main__":
    main()
