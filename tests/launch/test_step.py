"""Several launchers that a scheduler starts for one job share one recording."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import Command

from distdoctor.launch.step import SchedulerStep, step_of
from distdoctor.recording.trace.run_folder import read_run

SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}
OPEN_MPI = {"PMIX_NAMESPACE": "prte-x@1", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "step"),
    [
        (SLURM, SchedulerStep("slurm-77.0", 3, 4)),
        (OPEN_MPI, SchedulerStep("mpi-prte-x_1", 1, 2)),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, None),
        (SLURM | {"SLURM_STEP_ID": str(0xFFFFFFFB)}, None),  # the batch script itself
        ({}, None),
    ],
)
def test_the_tasks_of_a_step_are_one_job(environment: dict[str, str], step: SchedulerStep | None) -> None:
    assert step_of(environment) == step


TRAIN = """
import os, torch, torch.distributed as dist
rank = int(os.environ["SLURM_PROCID"])
dist.init_process_group("gloo", init_method="file://" + os.getcwd() + "/meeting", rank=rank, world_size=2)
for step in range(5):
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


@pytest.mark.job
def test_a_launcher_for_each_task_makes_one_recording(start: Callable[..., Command], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    tasks = [
        start("run", "--", "python", "train.py", env=SLURM | {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2"})
        for rank in (0, 1)
    ]

    done = [task.finish() for task in tasks]

    assert [one.code for one in done] == [0, 0], [one.err for one in done]
    assert sorted(os.listdir(tmp_path / ".distdoctor" / "runs")) == ["latest", "slurm-77.0"]
    assert read_run(tmp_path / ".distdoctor" / "runs" / "slurm-77.0").ranks.keys() == {0, 1}
    assert all("2 ranks" in one.err and "healthy" in one.err for one in done), [one.err for one in done]
