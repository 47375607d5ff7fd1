"""Hangs, debuggers, coverage, and a pytest that is killed itself."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from inner import Session, _environment, run_suite

pytestmark = pytest.mark.job

HANGS = """
import time

import pytest
import torch
import torch.distributed as dist


@pytest.mark.distdoctor(nproc=2, timeout=8)
def test_one_rank_sleeps():
    if dist.get_rank() == 1:
        time.sleep(100)
    dist.barrier()


@pytest.mark.distdoctor(nproc=2, timeout=60)
def test_one_rank_leaves_out_a_barrier():
    for step in range(3):
        dist.all_reduce(torch.ones(4))
        if not (step == 1 and dist.get_rank() == 1):
            dist.barrier()


@pytest.mark.timeout(4, method="thread")  # which ends the whole process
@pytest.mark.distdoctor(nproc=2)
def test_that_pytest_timeout_ends():
    if dist.get_rank() == 1:
        time.sleep(100)
    dist.barrier()


def test_without_ranks_is_an_ordinary_test():
    assert True
"""


@pytest.fixture(scope="module")
def hangs(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return run_suite(tmp_path_factory.mktemp("hangs"), {"test_hangs.py": HANGS})


def test_a_sleeping_rank_is_named_with_its_line(hangs: Session) -> None:
    late = hangs.tests["test_one_rank_sleeps"]

    assert late.text.startswith("DD116 rank 1: ")
    assert "did not end within 8 s" in late.text
    assert "DD116 error  rank 1  test_hangs.py:12 test_one_rank_sleeps" in late.everything
    assert "rank 0  test_hangs.py:13 test_one_rank_sleeps > torch barrier" in late.everything


def test_a_proven_standstill_does_not_wait_for_the_time_limit(hangs: Session) -> None:
    stuck = hangs.tests["test_one_rank_leaves_out_a_barrier"]

    assert stuck.text.startswith("DD112 rank 1: ")
    assert "ranks 0-1 did not end and never would have" in stuck.text
    assert "+        dist.barrier()" in stuck.everything  # the patch takes it out of the condition
    assert stuck.seconds < 40


def test_the_recording_that_a_diagnosis_names_is_still_there(hangs: Session) -> None:
    stuck = hangs.tests["test_one_rank_leaves_out_a_barrier"].everything

    folder = Path(stuck.partition("\n  recording  ")[2].partition("\n")[0])
    assert len([*folder.glob("rank-*")]) >= 2


def test_the_limit_of_pytest_timeout_holds_with_a_verdict(hangs: Session) -> None:
    late = hangs.tests["test_that_pytest_timeout_ends"]

    assert late.text.startswith("DD116 rank 1: ")
    assert "ranks 0-1 did not end within 4 s" in late.text
    assert hangs.tests["test_without_ranks_is_an_ordinary_test"].outcome == "passed"


DEBUGGED = """
import pytest
import torch.distributed as dist


@pytest.mark.distdoctor(nproc=2, timeout=5)
def test_wrong_here():
    secret = 40 + dist.get_rank()
    if dist.get_rank() == 1:
        assert secret == 0


def test_that_comes_after():
    pass
"""


def test_the_debugger_opens_in_the_rank_that_failed(tmp_path: Path) -> None:
    typed = "p 'secret is', secret\nimport time; time.sleep(6)\np 'still here'\nc\n"

    session = run_suite(tmp_path, {"test_debugged.py": DEBUGGED}, "--pdb", typed=typed)

    assert "('secret is', 41)" in session.output
    assert "'still here'" in session.output  # after the time limit of the test
    assert session.outcomes() == {"test_wrong_here": "failed", "test_that_comes_after": "passed"}
    assert session.output.count("entering PDB") == 1


def test_a_failure_counts_although_its_debugger_is_quit(tmp_path: Path) -> None:
    session = run_suite(tmp_path, {"test_debugged.py": DEBUGGED}, "--pdb", typed="q\n")

    assert session.outcomes() == {"test_wrong_here": "failed"}
    assert "1 failed" in session.output
    assert "Quitting debugger" in session.output
    assert session.exit_code == 2


@pytest.mark.parametrize("rest", ["", "dist.barrier()"], ids=["at once", "as a consequence"])
def test_who_quits_a_debugger_is_not_asked_by_another_rank(tmp_path: Path, rest: str) -> None:
    source = DEBUGGED.replace("if dist.get_rank() == 1:", f"if dist.get_rank() == 1 or not {bool(rest)}:")
    source = source.replace("assert secret == 0\n", f"assert secret == 0\n    {rest}\n")

    session = run_suite(tmp_path, {"test_debugged.py": source}, "--pdb", typed="q\n")

    assert session.output.count("(Pdb)") == 1
    assert session.exit_code == 2


def test_ranks_that_a_worker_of_xdist_ran_are_shown_as_without_it(tmp_path: Path) -> None:
    session = run_suite(tmp_path, {"test_debugged.py": DEBUGGED}, "-n", "1", "--junitxml=junit.xml")

    assert "FAILED test_debugged.py::test_wrong_here - rank 1: assert 41 == 0" in session.output
    assert '<failure message="rank 1: assert 41 == 0' in (tmp_path / "junit.xml").read_text()


COVERED = """
def only_in_ranks(number):
    if number == 1:
        return "one"
    return "zero"
"""
COVERING = """
import pytest
import torch.distributed as dist
from covered import only_in_ranks


@pytest.mark.distdoctor(nproc=2)
def test_covering():
    assert only_in_ranks(dist.get_rank())
"""


UNHELPFUL = """
[pytest]
filterwarnings = error
"""
ELSEWHERE = """
import pytest

@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
"""
RELATIVE = """
[run]
relative_files = true
"""


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["--cov=covered", "--cov-branch"]),
        ({"pytest.ini": UNHELPFUL, ".coveragerc": RELATIVE, "conftest.py": ELSEWHERE}, ["--cov=.", "-n", "2"]),
    ],
    ids=["without settings", "in spite of settings"],
)
def test_lines_that_only_ranks_run_are_covered(tmp_path: Path, files: dict[str, str], words: list[str]) -> None:
    pytest.importorskip("pytest_cov")
    files = {**files, "covered.py": COVERED, "test_covering.py": COVERING}

    session = run_suite(tmp_path, files, *words, "--cov-context=test", "--cov-report=term-missing")

    assert "\ncovered.py" in session.output
    assert session.output.partition("\ncovered.py")[2].partition("\n")[0].split()[-1] == "100%", session.output
    contexts = sqlite3.connect(tmp_path / ".coverage").execute("select context from context").fetchall()
    assert ("test_covering.py::test_covering|run",) in contexts


KILLED = """
import os, subprocess, time
import pytest
import torch.distributed as dist


@pytest.mark.distdoctor(nproc=2, timeout=100)
def test_that_is_killed():
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open("pids", "a") as file:
        file.write(f"{os.getpid()} {child.pid}\\n")
    time.sleep(100)
"""


def test_ranks_and_their_children_go_when_pytest_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_killed.py").write_text(KILLED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_killed.py"]
    session = subprocess.Popen(command, cwd=tmp_path, env=_environment(), stdout=subprocess.DEVNULL)
    pids = _once(lambda: (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else [], 4, 60)

    os.kill(session.pid, signal.SIGKILL)
    session.wait()

    gone = _once(lambda: [pid for pid in pids if not Path(f"/proc/{pid}").exists()], 4, 20)
    assert len(gone) == 4


def _once(read, count: int, seconds: float) -> list[str]:
    deadline = time.monotonic() + seconds
    while len(found := read()) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_the_plugin_imports_no_torch(tmp_path: Path) -> None:
    suite = "import sys\ndef test_it():\n    assert 'torch' not in sys.modules\n"

    session = run_suite(tmp_path, {"test_nothing.py": suite}, "-p", "no:hypothesispytest")

    assert session.outcomes() == {"test_it": "passed"}, session.output


IMPORTS = """
import pathlib, sys, threading
import pytest

two = pytest.mark.distdoctor(nproc=2, timeout=60)


@two
def test_imports():
    assert "jinja2.nativetypes" not in sys.modules
    import jinja2.nativetypes, mine


@two
def test_has_it():
    assert "jinja2.nativetypes" in sys.modules
    assert "mine" not in sys.modules
    assert "jinja2.meta" not in sys.modules
    import jinja2.meta
    threading.Thread(target=lambda: threading.Event().wait(30), daemon=True).start()


@two
def test_not_what_may_have_started_a_thread():
    assert "jinja2.meta" not in sys.modules
"""


def test_what_a_test_imports_is_there_for_later_ranks(tmp_path: Path) -> None:
    suite = {"test_imports.py": IMPORTS, "mine.py": ""}

    session = run_suite(tmp_path, suite, "-p", "no:hypothesispytest")

    assert set(session.outcomes().values()) == {"passed"}, session.output


def test_a_script_is_diagnosed_by_a_fixture(diagnose) -> None:
    examples = Path(__file__).parent.parent.parent / "examples"

    report = diagnose(examples / "forgotten_set_epoch.py", nproc=2)

    assert [finding["code"] for finding in report["findings"]] == ["DD301"]
