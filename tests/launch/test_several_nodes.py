"""One launcher per node, one recording: both nodes here are this machine."""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import FINISH, Command

from distdoctor.launch.other_launcher import nodes_of
from distdoctor.recording.trace.run_folder import read_job, read_run

pytestmark = [pytest.mark.job, pytest.mark.slow]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("fails", [False, True])
def test_two_launchers_share_one_recording(
    start: Callable[..., Command], script: Callable[..., Path], tmp_path: Path, fails: bool
) -> None:
    script(("if rank == 1: os._exit(3)\n" if fails else "") + FINISH)
    options = ["--nnodes", 2, "--nproc", 1, "--rdzv-backend", "c10d", "--rdzv-id", "shared"]
    endpoint = f"127.0.0.1:{free_port()}"

    nodes = [start("run", *options, "--rdzv-endpoint", endpoint, "--run-dir", "shared", "train.py") for _ in range(2)]
    done = [node.finish() for node in nodes]

    recording = read_run(tmp_path / "shared")
    job = read_job(tmp_path / "shared")
    assert job is not None
    assert recording.ranks.keys() == {0, 1}, [node.err for node in done]
    assert job.world_size == 2
    assert job.ends.keys() == {0, 1}
    assert job.ends[1].exit_code == (3 if fails else 0)
    if not fails:
        assert [node.code for node in done] == [0, 0], [node.err for node in done]


def test_a_launcher_that_waits_for_another_host_is_a_job_without_ranks_to_hang_dump(
    start: Callable[..., Command], script: Callable[..., Path]
) -> None:
    script(FINISH)
    options = ["--nnodes", 2, "--nproc", 1, "--rdzv-backend", "c10d", "--rdzv-id", "waits-alone"]
    known_by = [sys.executable, "-m", "distdoctor", "run"]  # its command line
    waits = start(words=[*known_by, *map(str, options), "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "train.py"])
    looks: list[str] = []

    def is_known() -> bool:
        looks.append(start("hang-dump", "--no-keep").finish().out)  # of all jobs of this machine
        return "no rank has started yet" in looks[-1]

    waits.wait_for(is_known)
    waits.end()

    assert "--nnodes 2 --nproc 1" in looks[-1], looks[-1]


@pytest.mark.parametrize(
    ("words", "nodes"),
    [
        ("accelerate launch --num_machines 2 train.py", 2),
        ("accelerate launch --num-machines=3 train.py", 3),
        ("torchrun --nnodes 1:4 train.py", 4),
        ("python -m torch.distributed.run --nnodes=2 train.py", 2),
        ("deepspeed --num_nodes=2 train.py", 1),  # one for all hosts
        ("srun -N2 torchrun --nnodes 2 train.py", 1),
        ("torchrun --nnodes", 1),
        ("python train.py --nodes 4", 1),
    ],
)
def test_other_launchers_say_on_how_many_hosts_they_run(words: str, nodes: int) -> None:
    assert nodes_of(words.split()) == nodes


@pytest.mark.skipif(not importlib.util.find_spec("accelerate"), reason="accelerate is not installed")
def test_launchers_of_accelerate_share_one_recording(
    start: Callable[..., Command], script: Callable[..., Path], tmp_path: Path
) -> None:
    script(FINISH)
    words = [
        "accelerate",
        "launch",
        "--multi_gpu",
        "--num_machines",
        "2",
        "--num_processes",
        "2",
        "--dynamo_backend",
        "no",
    ]
    words += ["--mixed_precision", "no", "--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port())]

    nodes = [
        start("run", "--run-dir", "shared", "--", *words, "--machine_rank", str(node), "train.py") for node in (0, 1)
    ]
    done = [node.finish() for node in nodes]

    assert [one.code for one in done] == [0, 0], [one.err for one in done]
    assert read_run(tmp_path / "shared").ranks.keys() == {0, 1}
    assert all("2 ranks" in one.err and "healthy" in one.err for one in done), [one.err for one in done]
