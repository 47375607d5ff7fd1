"""The layers hold: who imports whom, and what a rank and a quick command never load."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sick import own

from distdoctor.recording.trace.probe_settings import ProbeSettings

ROOT = Path(__file__).parent.parent


def loaded_after(code: str, *, env: dict[str, str] | None = None) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after running `code`."""
    import os

    script = f"{code}\nimport sys\nprint('LOADED', *sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})}
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_imports_go_downwards_only() -> None:
    done = subprocess.run([str(Path(sys.executable).parent / "lint-imports")], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout


@pytest.mark.job
def test_a_rank_with_the_probe_gets_the_standard_library_and_torch_and_nothing_else(tmp_path: Path) -> None:
    env = {**ProbeSettings().hand_over(tmp_path), "RANK": "0", "WORLD_SIZE": "1"}

    loaded = loaded_after("import torch", env=env)

    assert list(tmp_path.glob("*.trace"))
    assert "distdoctor" in loaded
    assert not loaded & {"click", "rich_click", "pluggy", "rich", "psutil", "msgspec"}


@pytest.mark.job
def test_importing_torch_without_a_run_loads_only_the_door() -> None:
    loaded = loaded_after("import torch, sys\nassert 'distdoctor.probe.start' not in sys.modules")

    assert "torch" in loaded


# Files of the core that carry a code, and why that is no decision about somebody else's check.
CODES_AS_DATA = {
    "launch/devices.py": "its own: DD601 and DD602 are decided there, before any rank is started",
    "report/checkpoint.py": "a pointer to the page that explains a number of the table",
    "recording/checkpoint/contents.py": "a pointer to the page that explains an error",
    "cli/lint.py": "an example of how to write a code",
    "pytest_plugin/mark.py": "an example of how to write a code",
}


def _codes_in_code(file: Path) -> list[str]:
    """Codes in the texts of a file that a program reads; docstrings are for people."""
    source = file.read_text("utf-8")
    if "DD" not in source:
        return []
    tree = ast.parse(source)
    words = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [code for node in texts if id(node) not in words for code in re.findall(r"\bDD\d{1,3}\b", str(node.value))]


def test_no_code_is_decided_outside_the_check_that_carries_it() -> None:
    core = ROOT / "distdoctor"
    files = [file for file in core.rglob("*.py") if "lint/rules" not in file.as_posix()]  # a rule carries its own
    found = {file.relative_to(core).as_posix() for file in files if _codes_in_code(file)}

    assert found == set(CODES_AS_DATA)
    named = {file.name for file in (core / "diagnosis").rglob("*.py") if re.search(r"DD\d{3}", file.read_text("utf-8"))}
    assert named == {"not_examined.py"}  # the page of a state of checks, which is no finding


@pytest.mark.parametrize("family", ["hang", "replicas"])
def test_checks_that_explain_the_same_facts_are_ranked_whichever_is_asked_first(family: str) -> None:
    from distdoctor import plugins
    from distdoctor.diagnosis.examination import examine

    checks = list(plugins.load().checks.values())
    rivals = [check for check in checks if check.family == family]
    assert len({check.specificity for check in rivals}) > 5

    for check in rivals:
        sick = own(check.code)
        assert examine(sick, checks).findings == examine(sick, checks[::-1]).findings
