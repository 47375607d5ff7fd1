"""Another user of the machine: cannot read, change or attach to a run, lays no link that is followed, and does not stop root's
`hang-dump` with what it writes into its own processes' environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.job,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user"),
]
OTHER = 54321
COMMAND = [sys.executable, "-m", "distdoctor"]
JOB = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
folder = sys.argv[1]
dist.all_reduce(torch.ones(4))
open(f"{folder}/ready-{dist.get_rank()}", "w").write(str(os.getpid()))
until = time.monotonic() + 90
while not os.path.exists(f"{folder}/go") and time.monotonic() < until:
    time.sleep(0.05)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""
# What a second user tries on everything below a folder, and on a process; prints what it was let do.
ATTACK = """
folder, *pids = sys.argv[1:]
def tried(what, act):
    try:
        act()
    except OSError:
        return
    print(what)
def connect(path):
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
names = sys.stdin.read().split()
tried("list", lambda: os.listdir(folder))
for path in names:
    tried(f"read {path}", lambda: open(path, "rb").read(1))
    tried(f"write {path}", lambda: open(path, "r+b"))
    tried(f"unlink {path}", lambda: os.unlink(path))
    tried(f"connect {path}", lambda: connect(path))
tried("plant", lambda: os.symlink("/etc/passwd", os.path.join(folder, "planted")))
tried("rename", lambda: os.rename(folder, folder + "-gone"))
for pid in pids:
    tried(f"memory of {pid}", lambda: open(f"/proc/{pid}/mem", "rb").read(1))
    tried(f"environment of {pid}", lambda: open(f"/proc/{pid}/environ", "rb").read(1))
    tried(f"files of {pid}", lambda: os.listdir(f"/proc/{pid}/fd"))
"""
# Puts a run folder of its own in the place of a living one, full of links to what it wants overwritten.
SWAP = """
place, run, precious = sys.argv[1:]
top = os.path.join(place, ".distdoctor")
os.rename(top, top + "-taken")
os.makedirs(f"{top}/runs/{run}")
for name in ("diagnosis.json", "job.json", "seen-x.json", "traceback.txt"):
    os.symlink(precious, f"{top}/runs/{run}/{name}")
print("swapped")
"""
# A command of distdoctor: the first time as root, because only root may read the interpreter's own folder where the tests run.
SAME_COMMAND = f"""
import contextlib, io, os, sys
from distdoctor.cli.main import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
    main([*sys.argv[1:], *(["--no-keep"] if sys.argv[1] == "hang-dump" else [])])
os.setgroups([]); os.setgid({OTHER}); os.setuid({OTHER})
main(sys.argv[1:])
"""
AS_OTHER = f"import os, socket, sys, time; os.setgroups([]); os.setgid({OTHER}); os.setuid({OTHER}); os.umask(0)"


def as_other(source: str, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python as the second user."""
    source = source if "setuid" in source else f"{AS_OTHER}\n{source}"
    return subprocess.run(
        [sys.executable, "-c", source, *words], input=given, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter; what pytest makes is its owner's alone anyway."""
    with tempfile.TemporaryDirectory(prefix="distdoctor-two-users-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "job.py").write_text(JOB)
        yield Path(folder)


@dataclass
class Run:
    """A job of two ranks that waits for a word."""

    place: Path
    process: subprocess.Popen[str]

    @property
    def ranks(self) -> list[int]:
        return [int((self.place / f"ready-{rank}").read_text()) for rank in range(2)]

    @property
    def folder(self) -> Path:
        return (self.place / ".distdoctor/runs/latest").resolve()

    def wait_until_ready(self) -> None:
        until = time.monotonic() + 60
        while len([p for p in self.place.glob("ready-*") if p.stat().st_size]) < 2 and time.monotonic() < until:
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def finish(self) -> tuple[int, str]:
        (self.place / "go").touch()
        out, _ = self.process.communicate(timeout=90)
        return self.process.returncode, out


@pytest.fixture
def run(place: Path) -> Iterator[Run]:
    """The job, of root and with umask 000, in a folder that the second user may write where the test says so."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DISTDOCTOR")} | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*COMMAND, "run", "--nproc", "2", "job.py", str(place)], cwd=place, env=environment, umask=0, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        yield Run(place, process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def test_a_second_user_neither_reads_nor_writes_nor_attaches(run: Run) -> None:
    run.wait_until_ready()
    files = [str(path) for path in run.folder.iterdir()]
    assert [path for path in files if path.endswith(".trace")]
    assert [path for path in files if path.endswith(".sock")]
    pids = [run.process.pid, *run.ranks]

    tried = as_other(ATTACK, str(run.folder), *map(str, pids), given="\n".join([*files, str(run.folder)]))
    looked = as_other(SAME_COMMAND, "hang-dump", "--patience", "0", "--pid", str(run.ranks[0]))
    examined = as_other(SAME_COMMAND, "examine", str(run.folder))

    assert (tried.stdout, tried.stderr) == ("", "")
    assert looked.returncode == 5, looked.stdout + looked.stderr
    assert "belongs to uid 0, you are uid 54321" in looked.stdout + looked.stderr
    assert examined.returncode in (4, 5)
    assert "Traceback" not in looked.stderr + examined.stderr
    assert run.finish()[0] == 0


def test_a_folder_that_is_swapped_while_the_job_runs_takes_nothing_along(place: Path, run: Run) -> None:
    place.chmod(0o777)
    precious = place / "precious"
    precious.write_text("mine")
    precious.chmod(0o600)
    run.wait_until_ready()

    swapped = as_other(SWAP, str(place), run.folder.name, str(precious))
    code, said = run.finish()

    assert swapped.stdout == "swapped\n", swapped.stderr
    assert code == 0, said
    assert precious.read_text() == "mine"
    assert "Traceback" not in said


@pytest.mark.parametrize("how", ["folder of its own", "link to what is root's"])
def test_what_a_second_user_has_laid_in_the_way_is_not_used(place: Path, how: str) -> None:
    place.chmod(0o777)
    roots = place / "roots"
    roots.mkdir(mode=0o700)
    laid = "os.makedirs('.distdoctor/runs'); os.symlink('/etc', '.distdoctor/runs/latest')"
    laid = laid if how.startswith("folder") else f"os.symlink({str(roots)!r}, '.distdoctor')"
    as_other(f"os.chdir({str(place)!r}); {laid}")
    before = sorted(path for path in place.rglob("*"))

    done = subprocess.run(
        [*COMMAND, "run", "--nproc", "1", "--no-python", "true"],
        cwd=place, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert f"the recording is in {tempfile.gettempdir()}/distdoctor-" in done.stderr
    assert sorted(path for path in place.rglob("*")) == before


# How a process of somebody else may describe itself.
LIES: dict[str, dict[str, str]] = {
    "a world of 10^9": {"RANK": "0", "WORLD_SIZE": "1000000000", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1000000000"},
    "a rank that is no number": {"RANK": "²", "WORLD_SIZE": "2"},
    "numbers of 5,000 digits": {"RANK": "9" * 5000, "WORLD_SIZE": "9" * 5000, "LOCAL_RANK": "9" * 5000},
    "words of terminals and CI servers": {"RANK": "0", "MASTER_ADDR": "\x1b[2J\n::error::x", "MASTER_PORT": "1"},
    "SLURM with 10^9 tasks": {
        "SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "999999(x999999)", "SLURM_NODEID": "0"
    },
    "a run folder that is a trap": {"RANK": "0", "WORLD_SIZE": "2", "DISTDOCTOR_PROBE": "{trap}/probe.json"},
    "a run folder that is root's": {"RANK": "0", "WORLD_SIZE": "1", "DISTDOCTOR_PROBE": "{roots}/probe.json"},
}  # fmt: skip
LIAR = f"{AS_OTHER}; print('here', flush=True); time.sleep(100)"
TRAP = f"""{AS_OTHER}
os.chdir(sys.argv[1])
os.mkfifo("rank-00000.a0.trace"); os.mkfifo("host-x-1-1-1.json"); os.symlink("/dev/zero", "job.json")
open("rank-00001.a0.trace.memory-1-0", "w"); os.symlink("/etc/passwd", "seen-hang-dump.json")
line = socket.socket(socket.AF_UNIX); line.bind("rank-00000.a0.sock"); line.listen()
print("laid", flush=True); sys.stdin.read()
"""


def test_folders_that_may_not_be_entered_do_not_keep_a_log_beside_them_from_being_read(place: Path) -> None:
    folder = place / "logs"
    (folder / "listed").mkdir(parents=True)
    (folder / "closed").mkdir()
    (folder / "listed" / "inner").mkdir()
    (folder / "job.log").write_text("[rank1]: ValueError: boom\n")
    (folder / "listed").chmod(0o744)
    (folder / "closed").chmod(0o700)

    examined = as_other(SAME_COMMAND, "examine", str(folder))

    assert "ValueError: boom" in examined.stdout, examined.stderr
    assert "could not go on" not in examined.stderr


def test_roots_hang_dump_is_safe_beside_another_users_lies(place: Path) -> None:
    place.chmod(0o777)
    trap, roots, own = place / "trap", place / "roots", place / "own"
    own.mkdir(mode=0o700)
    trap.mkdir()
    os.chown(trap, OTHER, OTHER)
    roots.mkdir(mode=0o700)
    (roots / "job.json").write_text("{}")
    pipe = subprocess.PIPE
    started = [subprocess.Popen([sys.executable, "-c", TRAP, str(trap)], stdin=pipe, stdout=pipe)]
    for lie in LIES.values():
        words = {name: value.format(trap=trap, roots=roots) for name, value in lie.items()}
        argv = [sys.executable, "-c", LIAR, "\x1b]0;x\a\n::error::y"]
        started.append(subprocess.Popen(argv, env=words, stdout=pipe))
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline(), "it did not start"
        before = [sorted(os.listdir(folder)) for folder in (trap, roots)]
        pids = [str(process.pid) for process in started[-2:]]
        for more in (["--no-keep", "--json"], ["--pid", pids[0]], ["--pid", pids[1]]):
            since = time.monotonic()
            done = subprocess.run(
                ["prlimit", f"--as={4 << 30}", *COMMAND, "hang-dump", "--patience", "0", "--interval", "0.1", *more],
                cwd=own, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert (done.returncode in (0, 3, 5), bool(done.stdout)) == (True, True), done.stderr
            assert "Traceback" not in done.stderr
            assert time.monotonic() - since < 60
            assert "\x1b" not in done.stdout + done.stderr
            assert not [line for line in done.stdout.splitlines() if line.startswith("::error")]
            if "--json" in more:
                json.loads(done.stdout)
        assert sorted(os.listdir(trap)) == before[0]
        assert sorted(os.listdir(roots)) == before[1]
        assert len(list(own.glob(".distdoctor/runs/hang-dump-*/seen-hang-dump.json"))) == 1
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                process.kill()
            process.communicate()
