"""A fault and the job that it happens to, under torchrun or under distdoctor: two ranks behind DistributedDataParallel that write
down their losses."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from pids import process_under

from distdoctor.launch.kernel_kills import levels_of

PLAIN = f"{sys.executable} -m torch.distributed.run --nproc-per-node 2"
OURS = f"{sys.executable} -m distdoctor run --nproc 2"
LIMIT_SECONDS = 300  # on a busy machine a job takes two minutes
ROOM = 2 << 30  # bytes that a job may hold which the kernel is to kill
LIMITS = ("memory.max", "memory.limit_in_bytes")  # cgroup versions 2 and 1
JOB = """
import atexit, hashlib, json, os, resource, signal, subprocess, sys, time
marks = os.environ["FAULTS_MARKS"]
open(f"{marks}/begun-{os.environ.get('RANK')}", "w").close()
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":  # spawn imports this file in its children
    open(f"{marks}/joining-{os.environ['RANK']}", "w").close()
    if os.environ["RANK"] == "1":
        time.sleep(float(os.environ.get("FAULTS_LATE", "0")))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    open(f"{marks}/joined-{rank}", "w").close()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    losses = []
    for step in range(60):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if rank == 0:
            print(f"step {step}", flush=True)
        if step == 10:
            open(f"{marks}/pid-{rank}", "w").write(str(os.getpid()))
            os.replace(f"{marks}/pid-{rank}", f"{marks}/ready-{rank}")  # with its content, or not yet there
            if rank == 1:
                exec(os.environ.get("FAULTS_INSIDE", ""))
        time.sleep(0.03)
    with open(f"{marks}/losses-{rank}.json", "w") as file:
        json.dump(losses, file)
    dist.destroy_process_group()
"""
# What the children of a rank do that `torch.multiprocessing.spawn` has started: a job of their own, with a store of its own.
SPAWNED = """
import os, torch, torch.distributed as dist

def work(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/inner", rank=rank, world_size=2)
    for step in range(5):
        dist.all_reduce(torch.ones(1))
    open(f"{folder}/spawned-{rank}", "w").close()
    dist.destroy_process_group()
"""


@dataclass
class Stage:
    """Where one job runs."""

    folder: Path  # its working directory
    marks: Path  # where it says how far it is, and leaves its losses
    process: subprocess.Popen[bytes] | None = None

    def wait_until_trained(self) -> None:
        """Come back when both ranks have done some steps, or the job is over."""
        self.wait_for("ready", 2)

    def wait_for(self, mark: str, ranks: int) -> None:
        """Come back when so many ranks have left this mark, or the job is over."""
        while not self.over() and len(list(self.marks.glob(f"{mark}*"))) < ranks:
            time.sleep(0.005)

    def over(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def signal_rank(self, *numbers: int, pause: float = 0.0) -> None:
        self.wait_until_trained()
        pid = int((self.marks / "ready-1").read_text())
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            time.sleep(pause)

    def launcher(self) -> psutil.Process:
        """The process that holds torch's agent: the parent of a rank."""
        return psutil.Process(int((self.marks / "ready-1").read_text())).parent()

    def signal_launcher(self, *numbers: int, pause: float = 0.0) -> None:
        self.wait_until_trained()
        launcher = self.launcher()
        for number in numbers:
            with contextlib.suppress(psutil.NoSuchProcess):
                launcher.send_signal(number)
            time.sleep(pause)

    def press(self, *numbers: int, pause: float = 0.0, mark: str = "ready", ranks: int = 2) -> None:
        """A signal to the whole foreground group, as a terminal sends it, when so many ranks have left a mark."""
        self.wait_for(mark, ranks)
        assert self.process is not None
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            time.sleep(pause)

    def fill_disk(self) -> None:
        with contextlib.suppress(OSError), open(self.folder / "fill", "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        with contextlib.suppress(OSError), open(self.folder / "fill2", "wb", buffering=0) as file:
            while True:
                file.write(b"x")

    def remove_run(self) -> None:
        self.wait_until_trained()
        shutil.rmtree(self.folder / ".distdoctor", ignore_errors=True)

    def take_pid(self) -> None:
        """Rank 1 is killed, and as soon as its parent has collected it, another process has its pid; that one must live on."""
        self.signal_rank(signal.SIGKILL)
        pid = int((self.marks / "ready-1").read_text())
        while psutil.pid_exists(pid):
            time.sleep(0.001)
        with process_under(pid, ["sleep", "100"]) as stranger:
            while not self.over():
                time.sleep(0.02)
            (self.marks / "losses-stranger.json").write_text(json.dumps([float(stranger.poll() is None)]))

    def press_after(self, seconds: float, *numbers: int) -> None:
        """The same, so long after the command was typed."""
        time.sleep(seconds)
        self.press(*numbers, pause=0.1, ranks=0)

    def make_group(self) -> None:
        """A memory cgroup of `ROOM` bytes: what is in it and wants more makes the kernel kill."""
        self.group.mkdir()
        for name, value in ((self.limit, ROOM), ("memory.swap.max", 0), ("memory.swappiness", 0)):
            with contextlib.suppress(OSError):
                (self.group / name).write_text(str(value))

    @property
    def group(self) -> Path:
        memory = [
            level.folder for level in levels_of(os.getpid()) if any((level.folder / one).exists() for one in LIMITS)
        ]
        own = memory[0] if memory else self.marks  # where there is none, that fault happens to nobody
        return own / self.folder.parent.name

    @property
    def limit(self) -> str:
        return next(one for one in LIMITS if (self.group / one).exists())

    def make_clock(self) -> None:
        source = Path(__file__).with_name("clock_set_back.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self.folder / "clock.so", source, "-ldl"], check=True)

    def second_job(self) -> None:
        """The same command line once more, in the same folder at the same time."""
        assert self.process is not None
        marks = self.marks / "second"
        marks.mkdir()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "FAULTS_MARKS": str(marks)}
        words = self.process.args
        with open(os.devnull, "wb") as nowhere:
            code = subprocess.call(words, cwd=self.folder, env=environment, stdout=nowhere, stderr=nowhere)
        (self.marks / "second-code").write_text(str(code))


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong: source that rank 1 runs after step 10, a deed from outside, a shell around the command line,
    variables, or a file system of its own."""

    name: str
    inside: str = ""
    outside: Callable[[Stage], None] = lambda stage: None
    shell: str = "exec {}"
    variables: dict[str, str | None] = field(default_factory=dict)
    file_system: str = ""  # options of a tmpfs
    before: Callable[[Stage], None] = lambda stage: None


@dataclass(frozen=True)
class Seen:
    """How a job ended. `losses` by rank; `left`: processes that outlive the launcher by five seconds."""

    code: int
    losses: dict[str, list[float]]
    left: int
    said: str

    def like(self, other: Seen) -> bool:
        """Whether a user would call it the same end."""
        return (self.code == 0, self.losses, self.left) == (other.code == 0, other.losses, other.left)

    def __str__(self) -> str:
        ended = "0" if self.code == 0 else f"{self.code}"
        return f"{ended}, losses of {len(self.losses)}" + (f", {self.left} left" if self.left else "")


@contextlib.contextmanager
def _stage(fault: Fault) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="faults-") as top:
        stage = Stage(Path(top) / "work", Path(top) / "marks")
        stage.folder.mkdir()
        stage.marks.mkdir()
        if fault.file_system:
            subprocess.run(["mount", "-t", "tmpfs", "-o", fault.file_system, "none", str(stage.folder)], check=True)
        try:
            (stage.folder / "job.py").write_text(JOB)
            (stage.folder / "inner.py").write_text(INNER)
            (stage.folder / "spawned.py").write_text(SPAWNED)
            fault.before(stage)
            yield stage
        finally:
            if fault.file_system:
                subprocess.run(["umount", "-l", str(stage.folder)], check=True)
            with contextlib.suppress(FileNotFoundError):
                stage.group.rmdir()


INNER = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(5):
    dist.all_reduce(torch.ones(dist.get_rank() + 1) if step > 9 else torch.ones(1))
dist.destroy_process_group()
"""


def run(fault: Fault, launcher: str) -> Seen:
    with _stage(fault) as stage:
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "FAULTS_MARKS": str(stage.marks), "FAULTS_INSIDE": fault.inside
        }  # fmt: skip
        for name, value in fault.variables.items():
            environment.pop(name, None) if value is None else environment.update({name: value})
        out, err = stage.marks / "out", stage.marks / "err"
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            stage.process = subprocess.Popen(
                ["bash", "-c", fault.shell.format(f"{launcher} job.py", group=stage.group)],
                cwd=stage.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            fault.outside(stage)
            try:
                code = stage.process.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                code = -999
        left = _left(stage)
        losses = {path.name: json.loads(path.read_text()) for path in sorted(stage.marks.glob("**/losses-*.json"))}
        return Seen(code, losses, left, _said(stage, err.read_text(errors="replace")))


def _left(stage: Stage) -> int:
    """How many processes of the job live five seconds later; they are ended."""
    deadline = time.monotonic() + 5
    while (mine := list(_processes(str(stage.marks)))) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in mine:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return len(mine)


def _processes(marks: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and marks in process.environ().get("FAULTS_MARKS", ""):
                yield process


def _said(stage: Stage, err: str) -> str:
    """The findings of the stored diagnosis, else the last words on stderr."""
    words = [line.removeprefix("distdoctor: ") for line in err.splitlines() if line.startswith("distdoctor: ")]
    runs = sorted(stage.folder.glob(".distdoctor/runs/2*"))
    if runs and not words:  # nobody was left to say anything: what does one see who comes later
        look = [sys.executable, "-m", "distdoctor", "examine", str(runs[-1])]
        looked = subprocess.run(
            look, capture_output=True, text=True, cwd=stage.folder, timeout=LIMIT_SECONDS, check=False
        )
        lines = [*looked.stdout.splitlines()[:2], *looked.stderr.splitlines()[-2:]]
        return f"later, `examine` (exit {looked.returncode}): " + "; ".join(line.strip() for line in lines)[:420]
    stored = [run / "diagnosis.json" for run in runs if (run / "diagnosis.json").exists()]
    findings = json.loads(stored[-1].read_text())["findings"] if stored and stored[-1].stat().st_size else []
    told = [f"{one['code']} {one['confidence']} {one['ranks']}: {one['title']}" for one in findings]
    trace = "TRACEBACK OF OURS; " if 'distdoctor/cli/main.py"' in err else ""
    return trace + "; ".join([*told[:3], *[word for word in words if "withdrawn" not in word][-2:]])[:420]
