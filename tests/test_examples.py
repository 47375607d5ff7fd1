"""Each example shows the illness that its README names, and its healthy twin is silent."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Said
from test_drills import run

pytestmark = pytest.mark.job
EXAMPLES = Path(__file__).parent.parent / "examples"
ILLNESSES = dict(
    re.findall(r"^\| `(\w+\.py)` \| .* \| (DD\d+) \|$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
)


def test_every_script_is_in_the_table_or_is_a_twin() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py")}

    assert scripts == set(ILLNESSES) | {name.replace(".py", "_healthy.py") for name in ILLNESSES}


@pytest.mark.parametrize(("script", "code"), ILLNESSES.items())
def test_an_example_is_found(script: str, code: str, tmp_path: Path) -> None:
    _, report = run(tmp_path / "run", "--nproc", "2", str(EXAMPLES / script))

    assert report["findings"][0]["code"] == code
    assert report["findings"][0]["place"]["path"] == str(EXAMPLES / script)


@pytest.mark.parametrize("script", ILLNESSES)
def test_its_healthy_twin_is_silent(script: str, tmp_path: Path, say: Callable[..., Said]) -> None:
    say("run", "--nproc", 2, "-o", "report.json", EXAMPLES / script.replace(".py", "_healthy.py"))

    report = json.loads((tmp_path / "report.json").read_text())
    assert [f["code"] for f in report["findings"]] == []


def test_no_thread_of_gloo_outlives_the_process_group_of_an_example(tmp_path: Path) -> None:
    """What would: torch.distributed.nn, if the first optimizer step imported it. Such a thread aborts a rank now and then."""
    code = (
        "import os, runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')\n"
        "print('THREADS', *(open(f'/proc/self/task/{t}/comm').read().strip() for t in os.listdir('/proc/self/task')))"
    )
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}

    done = subprocess.run(
        [sys.executable, "-c", code, str(EXAMPLES / "swapped_metrics_healthy.py")],
        env={**os.environ, **rank}, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert "THREADS" in done.stdout, done.stderr
    assert "gloo" not in done.stdout.rpartition("THREADS")[2]
