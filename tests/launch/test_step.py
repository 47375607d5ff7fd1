"""Several launchers that a scheduler starts for one job share one recording."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import Command

from distdoctor.launch.step import SchedulerStep, step_of
from distdoctor.recording.trace.run_folder import read_run

SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}
OPEN_MPI = {"PMIX_NAMESPACE": "prte-x@1", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}

MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "step"),
    [
        (SLURM, SchedulerStep("slurm-77.0", 3, 4)),
        (OPEN_MPI, SchedulerStep("mpi-prte-x_1", 1, 2)),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, None),
        (SLURM | {"SLURM_STEP_ID": str(0xFFFFFFFB)}, None),  # the batch script itself
        (SLURM | {"SLURM_RESTART_COUNT": "1"}, SchedulerStep("slurm-77.0-again1", 3, 4)),  # requeued
        (MPICH | {"PMI_JOBID": "a.7"}, SchedulerStep("mpich-a.7", 1, 2)),
        (MPICH, None),  # no proxy of mpiexec above
        ({}, None),
    ],
)
def test_the_tasks_of_a_step_are_one_job(environment: dict[str, str], step: SchedulerStep | None) -> None:
    assert step_of(environment) == step


def test_a_job_of_mpich_is_named_by_the_port_that_all_its_proxies_report_to() -> None:
    proxy = ["/usr/bin/hydra_pmi_proxy", "--control-port", "node1:35515", "--proxy-id", "1"]

    assert step_of(MPICH, lambda: [["sh"], proxy]) == SchedulerStep("mpich-node1_35515", 1, 2)


TRAIN = """
import os, torch, torch.distributed as dist
rank = int(os.environ.get("PMI_RANK") or os.environ["SLURM_PROCID"])
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


@pytest.mark.job
@pytest.mark.skipif(not shutil.which("mpiexec.hydra"), reason="MPICH's mpiexec is not installed")
def test_a_job_of_a_real_mpiexec_that_hangs_is_one_job(start: Callable[..., Command], tmp_path: Path) -> None:
    wrong = "if rank == 1:\n    dist.barrier()\ndist.all_reduce(torch.ones(4))\n"
    (tmp_path / "train.py").write_text(TRAIN.replace("dist.destroy", wrong + "dist.destroy"))
    words = ["mpiexec.hydra", "-n", "2", sys.executable, "-m", "distdoctor", "run", "--on-hang", "abort", "--"]

    done = start(words=[*words, "python", "train.py"]).finish()

    (folder,) = (tmp_path / ".distdoctor" / "runs").glob("mpich-*")
    assert read_run(folder).ranks.keys() == {0, 1}, done.err
    assert done.code != 0, done.err
    assert "DD112" in done.out, done.out + done.err
    assert "healthy" not in done.err
