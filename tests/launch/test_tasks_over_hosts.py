"""Tasks of one step over several hosts, as srun starts them: `srun -n 2 distdoctor run -- python train.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import Command, Finished
from network import Hosts, finished
from test_step import SLURM

from distdoctor.launch.processes import key_of
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.recording import Attempt
from distdoctor.recording.trace.host_file import HostFile, job_from
from distdoctor.recording.trace.run_folder import seals_of

TRAIN = """
import os, time, torch, torch.distributed as dist
rank = int(os.environ["SLURM_PROCID"])
dist.init_process_group("gloo", init_method="tcp://{first}:29555", rank=rank, world_size=2)
t = torch.ones(4)
for step in range(5):
    dist.all_reduce(t)
"""
FINISH = "dist.destroy_process_group()\n"
KILLED = """
if rank == 1:
    time.sleep(2)
    os.kill(os.getpid(), 9)
while True:
    dist.all_reduce(t)
"""


def tasks(hosts: Hosts, body: str, *options: str) -> list[Finished]:
    """One task on each host, a rank each, at their ends."""
    (hosts.folder / "train.py").write_text(TRAIN.format(first=hosts.addresses[1]) + body)
    step = SLURM | {"SLURM_STEP_NUM_TASKS": "2", "GLOO_SOCKET_IFNAME": "eth0"}
    started: list[Command] = []
    for host in hosts.addresses:
        folder = [option.format(host=host) for option in options]
        started.append(
            hosts.start(host, "run", *folder, "--", "python", "train.py", env=step | {"SLURM_PROCID": str(host - 1)})
        )
    return finished(started)


@pytest.mark.job
@pytest.mark.slow
def test_a_rank_that_is_killed_on_another_host_is_named_by_all_tasks(hosts: Hosts) -> None:
    done = tasks(hosts, KILLED)

    for one in done:
        assert one.out.startswith("DD110 error  rank 1  "), one.out + one.err
        assert "SIGKILL" in one.out, one.out
        assert "damaged" not in one.err, one.err


@pytest.mark.job
@pytest.mark.slow
def test_ranks_on_hosts_that_record_elsewhere_are_not_said_to_have_left_nothing(hosts: Hosts) -> None:
    done = tasks(hosts, FINISH, "--run-dir", "run{host}")

    for host, one in zip(hosts.addresses, done, strict=True):
        assert one.code == 0, one.err
        assert f"1 of 2 ranks seen on ddh{host}: rank {2 - host} ran elsewhere, and nothing came from there" in one.err
        assert "healthy" not in one.err, one.err


def launcher(task: int, ranks: tuple[int, ...] = (), world: int = 4) -> HostFile:
    key = key_of(os.getpid())
    return HostFile(key, launcher="python", hosts=4, running=False, task=task, starts={0: Attempt(0, world, ranks)})


def test_a_rank_whose_own_launcher_is_here_did_not_run_elsewhere() -> None:
    job = job_from([launcher(0, (0,)), launcher(1)])

    assert job is not None
    assert job.started == (0, 1)


def test_of_a_job_that_was_over_at_once_the_number_of_the_task_is_that_of_its_rank() -> None:
    key = key_of(os.getpid())
    job = job_from([HostFile(key, launcher="python", hosts=2, running=False, task=1, starts={0: Attempt(0, 0)})])

    assert job is not None
    assert job.started == (1,)


def test_where_all_launchers_are_here_nobody_knows_who_started_an_absent_rank() -> None:
    job = job_from([launcher(task) for task in range(4)])

    assert job is not None
    assert job.started == ()


def test_the_trace_of_a_rank_that_still_writes_gets_no_checksum(tmp_path: Path) -> None:
    TraceWriter(str(tmp_path), 0, 2, 0, 0)
    program = f"from distdoctor.probe.writer import TraceWriter; TraceWriter({str(tmp_path)!r}, 1, 2, 0, 0)"
    with subprocess.Popen([sys.executable, "-c", program]) as other:
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on

        assert seals_of(tmp_path).keys() == {"rank-00001.a0.trace"}
