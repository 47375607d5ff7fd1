"""Every launcher that people use: each rank is recorded, and the job ends as it would without distdoctor."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import FINISH, Finished
from torch.cuda import device_count

from distdoctor.recording.trace.run_folder import read_run

pytestmark = pytest.mark.job
Run = Callable[..., Finished]
Script = Callable[..., Path]

SPAWN = """
import sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
    if rank == 1:
        sys.exit(3)

if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (port,), nprocs=2)
"""
LIGHTNING = """
import torch, lightning
from torch.utils.data import DataLoader

class Small(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

if __name__ == "__main__":
    lightning.Trainer(
        accelerator="cpu", devices=2, strategy="STRATEGY", max_steps=3, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    ).fit(Small(), DataLoader(torch.ones(64, 4), batch_size=4))
"""


def calls_of(done: Finished) -> dict[int, int]:
    """rank -> collectives recorded."""
    assert done.folder is not None
    return {rank: len(log.calls) for rank, log in read_run(done.folder).ranks.items()}


def assert_recorded(done: Finished) -> None:
    assert calls_of(done).keys() == {0, 1}, done.err
    assert all(calls_of(done).values())


IN_PROCESS = {  # a script is started in the next test
    "module": ["-m", "train"],
    "isolated": ["--no-python", sys.executable, "-I", "train.py"],
}


@pytest.mark.parametrize("way", IN_PROCESS)
def test_every_rank_is_recorded_in_each_way_to_start_it(distdoctor: Run, script: Script, way: str) -> None:
    script(FINISH)

    done = distdoctor("run", "--nproc", 2, *IN_PROCESS[way])

    assert done.code == 0, done.err
    assert_recorded(done)


def test_every_rank_is_recorded_with_run_path(distdoctor: Run, script: Script) -> None:
    path = script(FINISH)

    done = distdoctor("run", "--nproc", 2, "--run-path", path)

    assert done.code == 0, done.err
    assert_recorded(done)
    assert {rank: end["exit_code"] for rank, end in done.job["ends"].items()} == {"0": 0, "1": 0}


@pytest.mark.parametrize("ends_with", ["raise ValueError(1)", "pass"])
def test_the_exit_code_is_torchruns_own(distdoctor: Run, script: Script, ends_with: str) -> None:
    script(FINISH + f"\nif rank == 1: {ends_with}")
    options = ["--nproc-per-node", "2", "train.py"]

    bare = distdoctor(words=["torchrun", *options])
    ours = distdoctor("run", *options)
    around = distdoctor("run", "--", "torchrun", *options)

    assert ours.code == around.code == bare.code == (0 if ends_with == "pass" else 1), (ours.err, around.err)
    assert ours.out.count("\n") >= bare.out.count("\n")
    assert_recorded(ours)
    assert_recorded(around)


def test_the_error_file_of_a_recorded_function_is_handed_on_as_torchrun_does(distdoctor: Run, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main():\n    raise ValueError('who asked?')\nmain()\n"
    )

    distdoctor("run", "failing.py", env={"TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")})

    assert "who asked?" in (tmp_path / "error.json").read_text()


def test_ranks_of_mp_spawn_are_recorded(distdoctor: Run, tmp_path: Path) -> None:
    (tmp_path / "spawning.py").write_text(SPAWN)

    bare = distdoctor(words=[sys.executable, "spawning.py"])
    done = distdoctor("run", "--", sys.executable, "spawning.py")

    assert done.code == bare.code, done.err
    assert_recorded(done)


FORKS = """
import multiprocessing, os, socket, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
how, ill = sys.argv[1:]

def work(rank):
    meeting = "file://" + os.getcwd() + "/meeting"
    if how == "by hand":  # RANK is in the environment of the child alone
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    for step in range(4):
        dist.all_reduce(torch.ones(4))
    if ill == "raises" and rank == 1:
        raise ValueError("a bad batch")
    if ill == "hangs" and rank == 1:
        dist.barrier()
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()

if how == "by hand":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for rank in range(2):
        pid = os.fork()
        if not pid:
            work(rank)
            sys.exit()
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)]
elif how == "start_processes":
    mp.start_processes(work, nprocs=2, start_method="fork")
    codes = []
else:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(rank,)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    codes = [worker.exitcode for worker in workers]
sys.exit(max(map(abs, codes), default=0))
"""


@pytest.mark.parametrize(
    ("how", "ill", "code"),
    [("Process", "", 0), ("Process", "hangs", 3), ("start_processes", "raises", 1), ("by hand", "hangs", 3)],
)
def test_ranks_that_are_forked_are_recorded_and_judged(
    distdoctor: Run, tmp_path: Path, how: str, ill: str, code: int
) -> None:
    (tmp_path / "forking.py").write_text(FORKS)

    done = distdoctor("run", "--", sys.executable, "forking.py", how, ill)

    assert done.code == code, done.out + done.err
    assert_recorded(done)
    assert ("healthy" in done.err) == (not ill)
    if ill == "raises":
        assert "DD110 error  rank 1  forking.py:16 work  raised ValueError: a bad batch (certain)" in done.out
    if ill == "hangs":
        assert "DD112 error  rank 1  forking.py:17 work" in done.out


HELPER = """
import os
import torch, torch.distributed as dist
pid = os.fork()
if not pid:
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/own-{os.environ['RANK']}", rank=0, world_size=1)
    for step in range(5):
        dist.all_reduce(torch.ones(4))
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


def test_a_forked_helper_of_a_rank_that_makes_a_group_of_its_own_is_no_rank(distdoctor: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HELPER)

    done = distdoctor("run", "--nproc", 2, "train.py")

    assert done.code == 0, done.err
    assert calls_of(done) == {0: 1, 1: 1}


@pytest.mark.skipif(not importlib.util.find_spec("accelerate"), reason="accelerate is not installed")
def test_ranks_of_accelerate_are_recorded(distdoctor: Run, script: Script) -> None:
    script(FINISH)

    done = distdoctor("run", "--", "accelerate", "launch", "--multi_gpu", "--num_processes", 2, "--num_machines", 1,
                      "--mixed_precision", "no", "--dynamo_backend", "no", "--num_cpu_threads_per_process", 1,
                      "train.py")  # fmt: skip

    assert done.code == 0, done.err
    assert_recorded(done)


@pytest.mark.skipif(not importlib.util.find_spec("accelerate"), reason="accelerate is not installed")
@pytest.mark.skipif(device_count() > 1, reason="accelerate starts a rank on each GPU")
@pytest.mark.parametrize("launch", [["accelerate", "launch"], [sys.executable, "-m", "accelerate.commands.launch"]])
def test_one_process_of_accelerate_is_said_to_be_no_rank(distdoctor: Run, tmp_path: Path, launch: list[str]) -> None:
    (tmp_path / "train.py").write_text("import torch; print('trained')")

    done = distdoctor("run", "--", *launch, "train.py")

    assert (done.code, done.out) == (0, "trained\n"), done.err
    assert "accelerate starts one process, which is no rank (distdoctor run --nproc 2" in done.err


@pytest.mark.skipif(not importlib.util.find_spec("lightning"), reason="lightning is not installed")
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_ranks_of_lightning_are_recorded(distdoctor: Run, tmp_path: Path, strategy: str) -> None:
    (tmp_path / "lit.py").write_text(LIGHTNING.replace("STRATEGY", strategy))

    done = distdoctor("run", "--", sys.executable, "lit.py")

    assert done.code == 0, done.err
    assert_recorded(done)


def test_a_launcher_that_is_not_there_is_wrong_use(distdoctor: Run) -> None:
    done = distdoctor("run", "--", "no-such-launcher", "train.py")

    assert done.code == 2
    assert done.err.splitlines() == [
        "distdoctor: no-such-launcher cannot be started: there is no such program",
        "  What follows `--` is a whole command line, for example `distdoctor run -- torchrun train.py`.",
    ]


def test_a_program_without_torch_leaves_no_recording_and_that_is_said(distdoctor: Run) -> None:
    done = distdoctor("run", "--", sys.executable, "-c", "print('no torch here')")

    assert done.code == 0
    assert done.out == "no torch here\n"
    assert "no rank left a recording" in done.err


WORKERS = """
import multiprocessing, os, sys, time
import torch, torch.distributed as dist

def work(rank, done):
    dist.init_process_group("gloo", init_method="file://" + os.getcwd() + "/meeting", rank=rank, world_size=2)
    for step in range(5):
        dist.all_reduce(torch.ones(4))
    if "leaves" in sys.argv:
        time.sleep(2)
        if rank == 1:
            os._exit(3)
        time.sleep(2)
        return
    done.release()
    time.sleep(1000)  # for more work, as an actor of Ray does

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    done = spawn.Semaphore(0)
    workers = [spawn.Process(target=work, args=(rank, done)) for rank in range(2)]
    for worker in workers:
        worker.start()
    if "leaves" not in sys.argv:
        done.acquire(), done.acquire()
        workers[0].terminate(), workers[1].kill()
    for worker in workers:
        worker.join()
"""


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["leaves"], 1)])
def test_workers_that_their_parent_ends_after_success_are_healthy_and_a_failure_that_it_swallows_is_told(
    distdoctor: Run, tmp_path: Path, arguments: list[str], code: int
) -> None:
    (tmp_path / "workers.py").write_text(WORKERS)

    done = distdoctor("run", "--", sys.executable, "workers.py", *arguments)

    assert done.code == code, done.out + done.err
    assert ("healthy" in done.err) == (code == 0)
    assert ("rank 1" in done.out and "exit code 3" in done.out) == bool(code), done.out
