"""A thousand recordings damaged on purpose: none is called healthy, none ends in a crash or takes longer than it may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from seeds import run_folder

HERE = Path(__file__).parent


@pytest.mark.job
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_a_thousand_damaged_recordings_do_no_harm(first: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    seed = run_folder("healthy", tmp_path_factory)

    done = subprocess.run(
        [sys.executable, str(HERE / "fuzz.py"), str(seed), "--inputs", "250", "--seed", str(first)],
        capture_output=True,
        text=True,
        timeout=280,
    )

    assert done.returncode == 0, done.stdout + done.stderr
