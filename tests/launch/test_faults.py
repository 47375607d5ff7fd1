"""What goes wrong around a job goes as under plain torchrun: the same end, the same losses, and a report that says what it saw.

Faults that end nothing happen together, in one job. `benchmarks/faults.py` has each of them, and many more, beside torchrun.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from launching import Command, Finished

pytestmark = pytest.mark.job

Start = Callable[..., Command]
TORCHRUN = f"{sys.executable} -m torch.distributed.run --nproc-per-node 2 train.py"
OURS = f"{sys.executable} -m distdoctor run --nproc 2 train.py"
TRAIN = """
import atexit, json, os, signal, subprocess, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
weight = torch.nn.Parameter(torch.ones(16))
optimizer = torch.optim.SGD([weight], lr=0.01)
losses = []
for step in range(15):
    loss = (torch.randn(8, 16) * weight).square().mean()
    optimizer.zero_grad()
    loss.backward()
    dist.all_reduce(weight.grad)
    weight.grad /= 2
    optimizer.step()
    losses.append(loss.item())
    if rank == 0:
        print("step", step, flush=True)
    if step == 5:
        open(f"pid-{rank}", "w").write(str(os.getpid()))
        os.replace(f"pid-{rank}", f"ready-{rank}")  # with its content, or not yet there
        if rank == 1:
            exec(os.environ.get("FAULT", ""))
    time.sleep(0.05)
with open(f"losses-{rank}", "w") as file:
    json.dump(losses, file)
dist.destroy_process_group()
"""
# What rank 1 does on its way that ends no training: each of these has once been somebody's bug report.
ODD = """
atexit.register(lambda: 1 / 0)
type("Bad", (), {"__del__": lambda self: 1 / 0})()
pid = os.fork()
if not pid:
    torch.ones(4).sum()
    sys.exit(0)  # a child that leaves by the front door, through what the rank has registered for its end
os.waitpid(pid, 0)
subprocess.run([sys.executable, "-c", "import torch; torch.ones(1)"], check=True)
path = globals().pop("__file__")  # what spawn starts is not to train as well
import spawned, torch.multiprocessing
torch.multiprocessing.spawn(spawned.work, nprocs=2)
__file__ = path
open("set-back", "w").close()  # from here on, the clock of the job is an hour behind
held = []  # all the files that this rank may open, until some steps later
optimizer.register_step_pre_hook(lambda *_: held.clear() if step == 12 else None)
try:
    while True:
        held.append(open(os.devnull))
except OSError:
    pass
"""
# A job of their own, that children of a rank make up among themselves.
SPAWNED = """
import os, torch, torch.distributed as dist

def work(rank):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/inner", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(1))
    open(f"spawned-{rank}", "w").close()
    dist.destroy_process_group()
"""
CLOCK = Path(__file__).with_name("clock_set_back.c")


@pytest.fixture
def job(start: Start, tmp_path: Path) -> Callable[..., Command]:
    """Start the training by a command line of the shell; rank 1 runs `inside` after step 5. Back when both are that far."""

    def begin(words: str, inside: str = "", **variables: str) -> Command:
        (tmp_path / "train.py").write_text(TRAIN)
        env = {"FAULT": inside, **variables}
        command = start(words=["bash", "-c", words], env=env)
        command.wait_for(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
        return command

    return begin


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The losses under torchrun when nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "train.py").write_text(TRAIN)
    subprocess.run(["bash", "-c", TORCHRUN], cwd=folder, check=True, capture_output=True, timeout=120)
    return losses(folder)


def losses(folder: Path) -> dict[str, list[float]]:
    return {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("losses-*"))}


def clock(folder: Path) -> str:
    """A library that, preloaded, sets the clock an hour back once a file says so."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the clock is set back by a library that a C compiler has to make")
    library = str(folder / "clock.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(CLOCK), "-ldl"], check=True)
    return library


def pid_of(folder: Path, rank: int) -> int:
    return int((folder / f"ready-{rank}").read_text())


def test_what_ends_no_training_changes_none_and_is_no_finding(
    job: Callable[..., Command], tmp_path: Path, undisturbed: dict[str, list[float]]
) -> None:
    """Few files and little address space, no HOME, no stdin, another locale, a clock that goes back; exceptions where nobody can
    catch them, children of all kinds, for some steps no file left to open; launcher and rank are stopped and go on."""
    world = "ulimit -n 64; ulimit -v 8388608; unset HOME; export LANG=C LC_ALL=C PYTHONUTF8=0 TERM=dumb"

    (tmp_path / "spawned.py").write_text(SPAWNED)
    command = job(f"{world}; exec {OURS} <&-", ODD, LD_PRELOAD=clock(tmp_path))
    for process in (psutil.Process(pid_of(tmp_path, 1)).parent(), psutil.Process(pid_of(tmp_path, 1))):
        process.suspend()
        time.sleep(0.5)
        process.resume()
    done = command.finish()

    assert done.code == 0, done.err
    assert losses(tmp_path) == undisturbed
    assert "2 ranks, 15 steps" in done.err
    assert "healthy" in done.err
    assert sorted(path.name for path in tmp_path.glob("spawned-*")) == ["spawned-0", "spawned-1"]
    assert done.traces == ["rank-00000.a0.trace", "rank-00001.a0.trace"]


def test_a_rank_that_dies_is_named_in_the_run_folder_where_nobody_listens(
    job: Callable[..., Command], tmp_path: Path
) -> None:
    done = job(f"exec {OURS} >&- 2>&-", "os.kill(os.getpid(), signal.SIGSEGV)", HOME="/sys").finish()

    assert done.code == 1
    assert losses(tmp_path) == {}
    assert done.folder is not None
    found = json.loads((done.folder / "diagnosis.json").read_text())["findings"]
    assert [(one["code"], one["ranks"], one["title"]) for one in found] == [("DD110", [1], "died of SIGSEGV")]


def test_a_rank_that_dies_while_its_interpreter_goes_down_fails_the_job_as_under_torchrun(
    job: Callable[..., Command], tmp_path: Path, undisturbed: dict[str, list[float]]
) -> None:
    done = job(f"exec {OURS}", "atexit.register(lambda: os._exit(3))").finish()

    assert done.code == 1
    assert losses(tmp_path) == undisturbed
    assert "ended with exit code 3" in done.out


def test_a_killed_launcher_leaves_what_torchrun_leaves_and_later_nobody_calls_it_healthy(
    job: Callable[..., Command],
    distdoctor: Callable[..., Finished],
    tmp_path: Path,
    undisturbed: dict[str, list[float]],
) -> None:
    """Ranks of a killed agent train on to their end, under torchrun as well."""
    command = job(f"exec {OURS}")
    ranks = [psutil.Process(pid_of(tmp_path, rank)) for rank in (0, 1)]

    command.process.send_signal(signal.SIGKILL)
    psutil.wait_procs(ranks, timeout=60)
    later = distdoctor("examine", ".distdoctor/runs/latest")

    assert losses(tmp_path) == undisturbed
    assert not any(rank.is_running() for rank in ranks)
    assert later.code == 5
    assert "nobody saw how the job ended" in later.out + later.err


def test_a_job_whose_run_folder_is_removed_trains_on_and_nothing_is_called_healthy(
    job: Callable[..., Command], tmp_path: Path, undisturbed: dict[str, list[float]]
) -> None:
    command = job(f"exec {OURS}")
    shutil.rmtree(tmp_path / ".distdoctor")
    done = command.finish()

    assert done.code == 0, done.err
    assert losses(tmp_path) == undisturbed
    assert "nothing was seen: 0 of 2 ranks seen" in done.err
    assert "healthy" not in done.err


def test_a_reader_that_leaves_ends_the_job_as_it_would_end_torchruns(start: Start, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)

    done = start(words=["bash", "-c", f"{OURS} | head -1; exit ${{PIPESTATUS[0]}}"]).finish()

    assert done.code == 1
    assert losses(tmp_path) == {}
    assert "BrokenPipeError" in done.err
    assert "distdoctor/cli" not in done.err


def test_two_jobs_in_one_folder_at_the_same_time_have_a_run_folder_each(
    start: Start, tmp_path: Path, undisturbed: dict[str, list[float]]
) -> None:
    """Each rank of the one waits until the other is running as well."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    commands = []
    for mine, its in (("one", "other"), ("other", "one")):
        wait = f"import os, time; os.chdir({mine!r}); open('here-' + os.environ['RANK'], 'w').close()\n"
        wait += f"while len(os.listdir('../{its}')) < 2: time.sleep(0.02)\n"
        (tmp_path / f"{mine}.py").write_text(wait + TRAIN)
        commands.append(start("run", "--nproc", 2, f"{mine}.py"))
    done = [command.finish() for command in commands]

    assert [one.code for one in done] == [0, 0], done
    assert losses(tmp_path / "one") == losses(tmp_path / "other") == undisturbed
    assert all("2 ranks, 15 steps" in one.err and "healthy" in one.err for one in done), done
    folders = [path for path in (tmp_path / ".distdoctor" / "runs").iterdir() if not path.is_symlink()]
    assert sorted(len(list(path.glob("*.trace"))) for path in folders) == [2, 2]
    assert not os.path.exists(tmp_path / "losses-0")
