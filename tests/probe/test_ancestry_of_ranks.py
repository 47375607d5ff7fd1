"""Which launcher a rank comes from, where one launcher runs within a rank of another."""

from __future__ import annotations

import os
import subprocess
import sys

WORDS = "import sys; from distdoctor.probe.ancestry import as_launched; print(as_launched('OF_ONE_RANK').get('MASTER_PORT'))"


def port(*environments: dict[str, str]) -> str:
    """What the innermost of processes says that start each other with these environments, the outermost first."""
    words = [sys.executable, "-c", WORDS]
    for own in environments[:0:-1]:
        words = ["env", *(f"{name}={value}" for name, value in own.items()), *words]
        words = [sys.executable, "-c", f"import subprocess; subprocess.run({words!r}, check=True)"]
    return subprocess.run(
        words, env={**os.environ, **environments[0]}, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_what_a_script_sets_for_its_own_ranks_is_not_the_launchers() -> None:
    assert port({"OF_ONE_RANK": "/tmp/a/0", "MASTER_PORT": "41000"}, {"MASTER_PORT": "29533"}) == "41000"


def test_ranks_of_a_launcher_within_a_rank_come_from_that_one() -> None:
    inner = {"OF_ONE_RANK": "/tmp/b/0", "MASTER_PORT": "42000"}
    assert port({"OF_ONE_RANK": "/tmp/a/0", "MASTER_PORT": "41000"}, inner) == "42000"


def test_without_a_launcher_there_is_none() -> None:
    assert port({"MASTER_PORT": "41000"}) == "None"
