"""The fixtures: the number of ranks, torch.distributed inside a rank, the diagnosis of a script, a planted fault."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from distdoctor.pytest_plugin.in_rank import RANK
from distdoctor.pytest_plugin.mark import MARK, is_marked, mark_of
from distdoctor.testing.faults import Fault, planted


@pytest.fixture
def nproc(request: pytest.FixtureRequest) -> int:
    """In how many ranks this test runs."""
    return mark_of(request.node).nproc if is_marked(request.node) else 1


@pytest.fixture
def dist(request: pytest.FixtureRequest) -> ModuleType:
    """`torch.distributed` inside a rank that has joined its group. What asks for this fixture is set up in each rank."""
    import torch.distributed

    if not is_marked(request.node):
        pytest.fail(f"the fixture dist needs @pytest.mark.{MARK}: only ranks have a process group", pytrace=False)
    if RANK not in request.config.stash:
        pytest.fail(
            "request.getfixturevalue asked for a fixture that needs the ranks before they were started: "
            "name it, or `dist`, among the arguments of the fixture that asks",
            pytrace=False,
        )
    return torch.distributed


@pytest.fixture
def diagnose(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`diagnose(script, *arguments, nproc=2, options=())`: run a script under distdoctor; its JSON report as a dict."""

    def run(script: str | Path, *arguments: str, nproc: int = 2, options: tuple[str, ...] = ()) -> dict[str, Any]:
        folder = tmp_path / f"distdoctor-run-{len([*tmp_path.glob('distdoctor-run-*')])}"
        words = [sys.executable, "-m", "distdoctor", "run", "--nproc", str(nproc), "--output-format", "json"]
        words += ["--run-dir", str(folder), "--on-hang", "abort", *options, str(script), *arguments]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if not done.stdout.startswith("{"):
            pytest.fail(f"distdoctor could not run {script}:\n{done.stderr}", pytrace=False)
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    return run


@pytest.fixture
def inject_fault(dist: ModuleType) -> Iterator[Callable[..., Fault]]:
    """`inject_fault("skip", rank=1, at="all_reduce", number=3)`: from now on to the end of the test, see `testing.faults`."""
    with contextlib.ExitStack() as stack:

        def plant(action: str, **how: Any) -> Fault:
            return stack.enter_context(planted(Fault(action, **how)))

        yield plant
