"""Ranks of SLURM steps are found by what srun writes into their environment; no slurm is needed to say so."""

from __future__ import annotations

import sys

import pytest
from looking import VICTIM, Job, free_port, hang_dump, stand_still, start

from distdoctor.attach.processes import HostProcesses, Process, jobs_of, place_of, ranks_by_environment


def task(pid: int, rank: int, *, parent: int = 1, step: str = "0", **more: str) -> Process:
    """A task of two nodes with four and two tasks."""
    environment = {
        "SLURM_JOB_ID": "77", "SLURM_STEP_ID": step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NTASKS": "48",
        "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "4,2",
    }  # fmt: skip
    return Process(
        pid, parent, float(pid), ("python", "train.py"), environment | more, 0, "sleeping", "/usr/bin/python3"
    )


def host(*processes: Process) -> HostProcesses:
    return HostProcesses({process.pid: process for process in processes})


def test_a_step_is_counted_by_its_own_size_and_knows_who_is_missing_here() -> None:
    here = host(task(10, 0), task(11, 1), task(13, 3))

    (job,) = jobs_of(here, ranks_by_environment(here))

    assert (sorted(job.ranks), job.world_size) == ([0, 1, 3], 6)
    assert (job.absent, job.elsewhere) == ((2,), (4, 5))


def test_two_steps_of_one_job_are_two_jobs() -> None:
    here = host(task(10, 0), task(11, 1), task(20, 0, step="1"), task(21, 1, step="1"))

    jobs = jobs_of(here, ranks_by_environment(here))

    assert [sorted(p.pid for p in job.ranks.values()) for job in jobs] == [[10, 11], [20, 21]]


def test_the_batch_script_is_no_rank() -> None:
    environment = dict(task(10, 0).environment or {})
    del environment["SLURM_STEP_ID"]
    batch = Process(10, 1, 1.0, ("python", "prepare.py"), environment, 0, "sleeping", "/usr/bin/python3")

    assert place_of(batch) is None
    assert place_of(task(10, 0, step=str(0xFFFFFFFB))) is None  # as the batch step numbers itself


@pytest.mark.parametrize(
    ("words", "node", "size"), [("8(x3),4", "2", 8), ("8(x3),4", "3", 4), ("2", "0", 2), ("nonsense", "0", 0)]
)
def test_tasks_per_node_are_read_as_slurm_writes_them(words: str, node: str, size: int) -> None:
    place = place_of(task(10, 0, SLURM_STEP_TASKS_PER_NODE=words, SLURM_NODEID=node))

    assert place is not None
    assert place.local_size == size


def test_torchrun_below_srun_counts_by_its_own_ranks() -> None:
    place = place_of(task(10, 0, RANK="5", WORLD_SIZE="8", LOCAL_RANK="1", LOCAL_WORLD_SIZE="4"))

    assert place is not None
    assert (place.rank, place.world_size) == (5, 8)


@pytest.mark.job
def test_tasks_that_each_have_a_shell_around_them_are_one_job() -> None:
    shared = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2",
              "SLURM_NODEID": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}  # fmt: skip
    words = ["bash", "-c", f"{sys.executable} {VICTIM} sleep; true"]
    job = Job([start(words, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), **shared) for rank in range(2)])
    try:
        job.wait_for("ready", 2)
        stand_still()
        look = hang_dump("--pid", str(job.pids[0]))  # the shell
    finally:
        job.end()

    assert look.first_line.startswith("hang: rank 1 has been at `time.sleep(600)`"), look.text + look.errors
    assert "ranks 0-1 of 2" in look.text
