"""One launcher per node, one recording: both nodes here are this machine."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import FINISH, Command

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
