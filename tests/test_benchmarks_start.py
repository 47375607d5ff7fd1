"""Every benchmark finds what it imports when it is started as its first lines say: `python benchmarks/NAME.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
STARTED_BY_ITSELF = {"hang_job.py"}  # a rank's script, which joins the job as it begins
IMPORTED = """
import os, runpy, sys, traceback
import torch.distributed
for path in sys.argv[1:]:
    if not (child := os.fork()):
        sys.path[0] = os.path.dirname(path)
        try:
            runpy.run_path(path, run_name="imported")
        except BaseException as error:
            if getattr(error, "name", "") != "expecttest":  # which torch's own tests import, and nothing of ours
                traceback.print_exc()
                os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(os.path.basename(path))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="one process that has imported torch forks for each")
def test_every_benchmark_finds_what_it_imports() -> None:
    paths = [str(path) for path in sorted(BENCHMARKS.glob("*.py")) if path.name not in STARTED_BY_ITSELF]
    ended = subprocess.run([sys.executable, "-c", IMPORTED, *paths], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
