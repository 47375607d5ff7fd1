"""A trace belongs to the process that joins the job, whoever imports torch first with its environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from launching import Finished

from distdoctor.recording.trace.run_folder import read_run

pytestmark = pytest.mark.job

WRAPPER = """
import subprocess, sys
import torch
p = torch.ones(1, requires_grad=True)
sys.exit(subprocess.run([sys.executable, "train.py"]).returncode)
"""

TRAIN = """
import os, subprocess, sys
import torch, torch.distributed as dist
first = os.environ["RANK"] == "0"
if first:
    inner = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "inner.py"]
    subprocess.run(inner, check=True)
before = dict(os.environ)
dist.init_process_group("gloo")
p = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([p], 0.1)
for step in range(4):
    p.sum().backward()
    dist.all_reduce(p.grad)
    optimizer.step()
    optimizer.zero_grad()
if first:
    open("pid", "w").write(str(os.getpid()))
    alone = "d.init_process_group('gloo', store=d.HashStore(), rank=0, world_size=1)"
    subprocess.run([sys.executable, "-c", "import torch.distributed as d; " + alone], check=True, env=before)
    print("inherits", "DISTDOCTOR_PROBE" in os.environ)
dist.barrier()
dist.destroy_process_group()
"""

INNER = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
# In one piece: with PYTHONUNBUFFERED, print() writes word by word, and those of three processes get mixed up.
os.write(1, f"inner {os.environ.get('DISTDOCTOR_PROBE') or 'unrecorded'}\\n".encode())
"""


def test_wrappers_helpers_and_launchers_around_and_below_a_rank_take_no_trace(
    distdoctor: Callable[..., Finished], tmp_path: Path
) -> None:
    """A wrapper imports torch first, the rank starts jobs of its own before and after it joins: only the rank counts."""
    for name, text in (("wrapper.py", WRAPPER), ("train.py", TRAIN), ("inner.py", INNER)):
        (tmp_path / name).write_text(text)

    done = distdoctor("run", "--nproc", 2, "--on-hang", "report", "wrapper.py")

    assert done.code == 0, done.out + done.err
    assert done.out.count("inner unrecorded") == 3, done.out + done.err
    assert "inherits False" in done.out
    assert done.traces == ["rank-00000.a0.trace", "rank-00001.a0.trace"]
    assert done.folder is not None
    ranks = read_run(done.folder).ranks
    assert {rank: (log.world_size, len(log.steps)) for rank, log in ranks.items()} == {0: (2, 4), 1: (2, 4)}
    assert ranks[0].pid == int((tmp_path / "pid").read_text())
    assert "2 ranks, 4 steps" in done.err
    assert "healthy" in done.err, done.err


def test_a_helper_of_another_launchers_rank_is_no_start_of_its_own(
    distdoctor: Callable[..., Finished], script: Callable[..., Path], tmp_path: Path
) -> None:
    """A helper of rank 0 has come and gone before the rank imports torch, as in many a wrapper script."""
    script("dist.barrier()\ndist.destroy_process_group()")
    (tmp_path / "wrapper.sh").write_text('[ $RANK = 0 ] && python -c "import torch"\nexec python train.py\n')
    command = ("torchrun", "--nproc-per-node", 2, "--no-python", "bash", "wrapper.sh")

    done = distdoctor("run", "--on-hang", "report", "--", *command)

    assert done.code == 0, done.out + done.err
    assert done.traces == ["rank-00000.a0.trace", "rank-00001.a0.trace"]
    assert "2 ranks" in done.err
    assert "healthy" in done.err, done.err


def test_a_rank_without_its_settings_trains_unrecorded_and_the_report_says_so(
    distdoctor: Callable[..., Finished], script: Callable[..., Path], tmp_path: Path
) -> None:
    script("dist.destroy_process_group()\nprint('trained')")
    (tmp_path / "first.sh").write_text(
        '[ $RANK = 1 ] && export DISTDOCTOR_PROBE="$DISTDOCTOR_PROBE.gone"\nexec python train.py\n'
    )

    done = distdoctor("run", "--nproc", 2, "--no-python", "bash", "first.sh")

    assert done.code in (0, 1), done.err
    assert done.out.count("trained") == 2
    assert "healthy" not in done.err
    assert "is not recorded" in done.err
    assert "cannot be read: No such file or directory" in done.err
