"""A job under the probe opens the TCP ports that it opens under torchrun, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.job

WAITING = """
import pathlib, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
here = pathlib.Path(sys.argv[1])
(here / f"there-{dist.get_rank()}").touch()
while not (here / "looked").exists():
    time.sleep(0.05)
dist.destroy_process_group()
"""
TORCHRUN = ("-m", "torch.distributed.run")
DISTDOCTOR = ("-m", "distdoctor", "run", "--run-dir", "run")


def test_nothing_listens_that_torchrun_would_not_open(tmp_path: Path) -> None:
    assert listening(tmp_path / "bare", TORCHRUN) == listening(tmp_path / "probed", DISTDOCTOR) > 0


def listening(folder: Path, launcher: tuple[str, ...]) -> int:
    """How many TCP sockets of the launcher and all below it wait for connections while both ranks stand."""
    folder.mkdir()
    (folder / "train.py").write_text(WAITING)
    command = [sys.executable, *launcher, "--nproc-per-node", "2", "train.py", str(folder)]
    job = subprocess.Popen(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not all((folder / f"there-{rank}").exists() for rank in range(2)):
            assert job.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        launched = psutil.Process(job.pid)
        found = [one for each in (launched, *launched.children(recursive=True)) for one in each.net_connections("tcp")]
        return len({one.laddr for one in found if one.status == psutil.CONN_LISTEN})
    finally:
        (folder / "looked").touch()
        assert job.wait(timeout=60) == 0
