"""Jobs of a real SLURM: its tasks are one job, what it ends was ended from outside, and `--on srun:JOB` finds it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import Command
from slurm import Slurm, cluster, why_not

from distdoctor.recording.trace.run_folder import read_job, read_run

pytestmark = [pytest.mark.job, pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]

TRAIN = """
import os, time, torch, torch.distributed as dist
rank = int(os.environ["SLURM_PROCID"])
dist.init_process_group("gloo", init_method="file://" + os.getcwd() + "/meeting", rank=rank, world_size=2)
t = torch.ones(4)
for step in range(20):
    dist.all_reduce(t)
open(f"at-{rank}", "w").close()
"""
ON = "for step in range(100000):\n    dist.all_reduce(t)\n    time.sleep(0.02)\n"
ASLEEP = "if rank == 1:\n    time.sleep(10000)\ndist.all_reduce(t)\n"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A cluster that all tests share."""
    with cluster(tmp_path_factory.mktemp("slurm") / "cluster") as made:
        yield made


def begun(slurm: Slurm, start: Callable[..., Command], folder: Path, script: str) -> Command:
    """Two tasks, each with a launcher of its own, that have come to the end of their first steps."""
    (folder / "train.py").write_text(TRAIN + script)
    ours = [sys.executable, "-m", "distdoctor", "run", "--", sys.executable, "train.py"]
    step = start(words=["srun", "--ntasks=2", *ours], env=slurm.env)
    for rank in (0, 1):
        step.wait_for((folder / f"at-{rank}").exists)
    return step


def test_a_job_that_scancel_ends_was_ended_from_outside(
    slurm: Slurm, start: Callable[..., Command], tmp_path: Path
) -> None:
    step = begun(slurm, start, tmp_path, ON)

    slurm.ask("scancel", slurm.job())
    done = step.finish()

    (folder,) = (tmp_path / ".distdoctor" / "runs").glob("slurm-*")
    assert read_run(folder).ranks.keys() == {0, 1}, done.err
    job = read_job(folder)
    assert job is not None
    assert job.interrupted == 15, done.err
    assert "ended from outside by SIGTERM" in done.err
    assert "DD1" not in done.out, done.out + done.err


def test_a_task_that_ends_first_leaves_the_others_alone(
    slurm: Slurm, start: Callable[..., Command], tmp_path: Path
) -> None:
    done = begun(slurm, start, tmp_path, "dist.destroy_process_group()\ntime.sleep(2 * rank)\n").finish()

    assert done.code == 0, done.out + done.err


def test_a_look_at_a_job_by_its_number_names_the_rank_that_sleeps(
    slurm: Slurm, start: Callable[..., Command], tmp_path: Path
) -> None:
    step = begun(slurm, start, tmp_path, ASLEEP)
    number = slurm.job()
    time.sleep(2)  # a wait of under a second is part of each step, and a look can come as soon as the wait begins

    look = start("hang-dump", "--on", f"srun:{number}", "--no-keep", "--remote-command",
                 f"{sys.executable} -m distdoctor", env=slurm.env).finish()  # fmt: skip
    slurm.ask("scancel", number)
    step.finish()

    assert "ranks 0-1 on " in look.out, look.out + look.err
    answer = look.out.partition("\n")[0]  # on a slow machine the wait is long enough to be told as a hang (DD116)
    assert [word for word in ("rank 1", "train.py:10 <module>") if word not in answer] == [], look.out
