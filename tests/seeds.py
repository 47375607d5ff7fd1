"""Run folders of real jobs, made once per test session and copied for each test that spoils them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DISTDOCTOR = Path(sys.executable).with_name("distdoctor")
WORDS: dict[str, tuple[str, ...]] = {
    "healthy": ("--strategy", "ddp", "--nproc", "2", "--epochs", "1"),
    "non-finite": ("--strategy", "ddp", "--nproc", "2", "--epochs", "1", "--fire-drill", "non-finite-origin"),
}


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """One for all workers of this test session."""
    mine = factory.getbasetemp()
    return mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine


def run_folder(name: str, factory: pytest.TempPathFactory) -> Path:
    """The run folder of that job; the first test who asks has it made, the others wait."""
    shared = shared_folder(factory)
    folder = shared / f"seed-{name}"
    with open(shared / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "diagnosis.json").exists():
            environment = {k: v for k, v in os.environ.items() if not k.startswith("DISTDOCTOR")}
            command = [str(DISTDOCTOR), "run", *WORDS[name], "--run-dir", str(folder)]
            done = subprocess.run(command, env=environment, cwd=shared, capture_output=True, text=True, timeout=280)
            assert (folder / "diagnosis.json").exists(), done.stderr
    return folder


def copy_of(seed: Path, to: Path) -> Path:
    """A copy that may be spoiled."""
    return Path(shutil.copytree(seed, to, ignore=shutil.ignore_patterns("*.sock")))
