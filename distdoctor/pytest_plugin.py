"""pytest plugin: a test function that runs in several ranks, and says why when they fail or hang.

    @pytest.mark.distdoctor(ranks=2, timeout=30)
    def test_everybody_sums():
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == dist.get_world_size()

The body runs once in each rank of a real gloo job; a hang, an exception in any rank or an error that a check finds fails the
test, with the diagnosis in a section of its own. `allow=("DD301",)` accepts a finding. The fixture `diagnose` does the same
for a script: `report = diagnose("train.py", nproc=2)` is the document of `distdoctor run --output-format json`.

Loaded by an entry point; it imports no torch, and costs nothing where neither is used.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from distdoctor.diagnosis.diagnosis import Diagnosis
    from distdoctor.launch.fork_server import RankResult
    from distdoctor.recording.recording import Job

MARK = "distdoctor"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARK}(ranks=2, timeout=60, allow=()): run the test in this many ranks, and fail with a diagnosis when they hang, "
        "raise or are ill",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test in its ranks instead of here."""
    mark = pyfuncitem.get_closest_marker(MARK)
    if mark is None:
        return None
    ranks, timeout, allow = (
        mark.kwargs.get(key, usual) for key, usual in (("ranks", 2), ("timeout", 60), ("allow", ()))
    )
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    with tempfile.TemporaryDirectory(prefix="distdoctor-") as folder:
        results, diagnosis = _run(pyfuncitem.path, pyfuncitem.nodeid, arguments, ranks, timeout, Path(folder))
    trouble = _trouble(results, diagnosis, frozenset(allow), timeout)
    if trouble:
        from distdoctor.report.text import render

        pyfuncitem.add_report_section("call", "distdoctor", render(diagnosis, base=str(pyfuncitem.config.rootpath)))
        pytest.fail(trouble, pytrace=False)
    return True


def _run(
    path: Path, nodeid: str, arguments: dict[str, Any], ranks: int, timeout: float, folder: Path
) -> tuple[list[RankResult], Diagnosis]:
    """What became of each rank, and the diagnosis of it: made before what hangs is killed, if anything does."""
    from distdoctor.launch.fork_server import run_ranks

    hung: list[Diagnosis] = []

    def while_it_hangs() -> None:
        hung.append(_diagnose(folder, [], ranks, running=True))

    names = nodeid.partition("[")[0].split("::")[1:]
    results = run_ranks(
        call_test, ranks, str(path), names, arguments, timeout=timeout, folder=str(folder), at_timeout=while_it_hangs
    )
    return results, hung[0] if hung else _diagnose(folder, results, ranks, running=False)


def call_test(rank: int, world_size: int, path: str, names: list[str], arguments: dict[str, Any]) -> None:
    """Call the test in this rank. Its module is loaded from its file, whichever way pytest has imported it."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(module.__name__, module)
    sys.path.insert(0, str(Path(path).parent))
    spec.loader.exec_module(module)
    found: Any = module
    for name in names:
        found = getattr(found() if isinstance(found, type) else found, name)
    found(**arguments)


def _diagnose(folder: Path, results: list[RankResult], ranks: int, *, running: bool) -> Diagnosis:
    from distdoctor import plugins
    from distdoctor.diagnosis.examination import examine
    from distdoctor.launch.sources import with_sources
    from distdoctor.recording.recording import Job
    from distdoctor.recording.trace.run_folder import JOB_FILE, job_to_json, read_run

    job: Job = Job(
        argv=("pytest",),
        world_size=ranks,
        ends={result.rank: _end(result) for result in results},
        running=running,
        read_at_ns=time.monotonic_ns() if running else 0,
        launcher="pytest",
    )
    (folder / JOB_FILE).write_text(job_to_json(job), "utf-8")
    recording = with_sources(read_run(folder))
    if running:
        from dataclasses import replace

        recording = replace(recording, job=job)
    found = plugins.load()
    return examine(recording, found.checks.values(), found.remedies)


def _end(result: RankResult) -> Any:
    from distdoctor.recording.recording import RankEnd

    code = result.exit_code
    if code is not None and code < 0:
        return RankEnd(None, signal=-code, ended_by_launcher=result.timed_out)
    return RankEnd(code)


def _trouble(results: list[RankResult], diagnosis: Diagnosis, allow: frozenset[str], timeout: float) -> str:
    """Why the test fails, "" when it does not: the diagnosis first, since a traceback may be that of a victim."""
    from distdoctor.diagnosis.finding import ERROR
    from distdoctor.launch.suppressions import is_named

    errors = [finding for finding in diagnosis.at_least(ERROR) if not is_named(finding.code, finding.slug, allow)]
    late = [result.rank for result in results if result.timed_out]
    raised = [result for result in results if result.error or result.exit_code]
    lines = [f"{finding.code} {finding.ranks_named}: {finding.title}" for finding in errors[:1]]
    if late:
        lines.append(f"ranks {', '.join(map(str, late))} did not end within {timeout:g} s")
    elif raised:
        first = next((r for r in raised if errors and r.rank in errors[0].ranks), raised[0])
        lines.append(first.error or f"rank {first.rank} ended with {first.exit_code}")
    return "\n".join(lines)


@pytest.fixture
def diagnose(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`diagnose(script, *arguments, nproc=2, options=())`: run a script under distdoctor; its JSON report as a dict."""

    def run(script: str | Path, *arguments: str, nproc: int = 2, options: tuple[str, ...] = ()) -> dict[str, Any]:
        words = [sys.executable, "-m", "distdoctor", "run", "--nproc", str(nproc), "--output-format", "json"]
        words += [
            "--run-dir",
            str(tmp_path / "distdoctor-run"),
            "--on-hang",
            "abort",
            *options,
            str(script),
            *arguments,
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if not done.stdout.startswith("{"):
            pytest.fail(f"distdoctor could not run {script}:\n{done.stderr}", pytrace=False)
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    return run
