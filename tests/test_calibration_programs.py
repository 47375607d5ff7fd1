"""The programs by which `benchmarks/calibration.py` measures: what their manifests say is there, and can be judged."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distdoctor import plugins

PROGRAMS = Path(__file__).parents[1] / "benchmarks" / "programs"
FAMILIES = sorted(path.parent.name for path in PROGRAMS.glob("*/manifest.json"))
KNOWN = {"name", "file", "nproc", "kind", "codes", "ranks", "line", "lines", "tolerated", "part2", "args", "env", "launcher",
         "truth", "source"}  # fmt: skip


def cases(family: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((PROGRAMS / family / "manifest.json").read_text())
    return found


def test_there_are_programs_of_all_families() -> None:
    assert FAMILIES == [
        "autumn_near",
        "autumn_rest",
        "autumn_silent",
        "autumn_stops",
        "dawn_costs",
        "dawn_late",
        "dawn_near",
        "dawn_silent",
        "dusk_costs",
        "dusk_healthy",
        "dusk_silent",
        "dusk_stops",
        "frames_and_loops",
        "framework_mixed",
        "fresh_hangs",
        "fresh_resumes",
        "fresh_silent",
        "fresh_stops",
        "frost_late",
        "frost_near",
        "frost_stops",
        "hangs",
        "healthy_ways",
        "hoar_late",
        "hoar_messages",
        "hoar_silent",
        "language_recipes",
        "late_silent",
        "later_mixed",
        "lookalike_mixed",
        "mixed",
        "modes_and_parts",
        "module_mixed",
        "more_hangs",
        "more_mixed",
        "more_silent",
        "near_misses",
        "newer_mixed",
        "newest_mixed",
        "newest_rules",
        "noon_costs",
        "noon_near",
        "noon_silent",
        "noon_stops",
        "other_recipes",
        "own_ways",
        "quiet_faults",
        "quiet_mixed",
        "research_code",
        "rime_healthy",
        "rime_late",
        "rime_silent",
        "rime_stops",
        "scales_and_saves",
        "sharded_and_adapted",
        "silent",
        "sleet_late",
        "sleet_silent",
        "sleet_stops",
        "spring_healthy",
        "spring_pretrain",
        "spring_vision",
        "standing_jobs",
        "turns_and_shares",
        "upstream_mixed",
        "waits_and_time",
        "wider_mixed",
        "winter_recipes",
        "winter_stops",
        "winter_unusual",
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_program_is_there_once_and_compiles(family: str) -> None:
    every = cases(family)

    assert [name for name, count in Counter(case["name"] for case in every).items() if count > 1] == []
    for case in every:
        assert set(case) <= KNOWN
        assert case["kind"] in {"sick", "fixed", "healthy"}
        ast.parse((PROGRAMS / family / case["file"]).read_text())
    files = set((PROGRAMS / family).rglob("*.py"))
    programs = {PROGRAMS / family / case["file"] for case in every}
    assert programs <= files
    root = PROGRAMS / family
    imported = {(part_of(path, root), part) for path in files for name in imports_of(path) for part in name.split(".")}
    for helper in files - programs:
        names = {helper.parent.name} if helper.stem == "__init__" else {helper.stem, helper.parent.name}
        assert any((part_of(helper, root), name) in imported for name in names), f"nobody imports {helper}"


def part_of(path: Path, root: Path) -> str:
    """The folder of a program, or "" for what stands beside the others."""
    return "/".join(path.relative_to(root).parts[:-1][:1])


def imports_of(path: Path) -> Iterator[str]:
    """The modules that a program imports, and the packages that it is told by name to go through (`--extras`)."""
    packages = {inner.parent.name for inner in path.parent.glob("*/__init__.py")}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Constant) and node.value in packages:
            yield node.value


@pytest.mark.parametrize("family", FAMILIES)
def test_every_sick_program_names_codes_that_exist_and_a_line_of_its_own(family: str) -> None:
    checks = set(plugins.load().checks)
    for case in cases(family):
        assert set(case.get("tolerated", ())) <= checks, case["name"]
        if case["kind"] == "sick":
            assert case["codes"], case["name"]
            assert set(case["codes"]) <= checks, case["name"]
            folder = (PROGRAMS / family / case["file"]).parent
            for place in case.get("lines", [f"{Path(case['file']).name}:{case['line']}"]):
                file, _, line = place.partition(":")
                found = [path for path in folder.rglob("*.py") if path.name == file]
                assert any(0 < int(line) <= len(path.read_text().splitlines()) for path in found), (case["name"], place)
            assert all(0 <= rank < case["nproc"] for rank in case["ranks"]), case["name"]
