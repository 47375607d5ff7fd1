"""How long a job has to stand still before distdoctor says why: the seconds from the standstill to the first right verdict.

    python benchmarks/time_to_verdict.py [--limit 60] [JOB ...]

Every job is a script of two ranks that trains for some steps and then stands still; it writes down when. It is ended as soon as
the right code and the right rank have been said. What was said before that is listed too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer

import psutil

TRAINING = """
import os, re, signal, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.ones(8)

def stands():
    open(os.environ["STANDS_AT"], "a").write(f"{time.time()}\\n")

def spin():
    turns = 0
    while turns >= 0:
        turns += 1

def look_again(names):
    while True:
        found = [name for name in names if name in os.environ]
        sorted(found)

def match():
    re.match(r"(a+)+$", "a" * 64 + "b")

for step in range(6):
    time.sleep(0.1)
    dist.all_reduce(x)
"""


@dataclass(frozen=True)
class Job:
    """What is done after the training, and what has to be said of it."""

    ends_with: str
    codes: tuple[str, ...]
    rank: int | None = 1


JOBS = {
    "skips a call": Job(
        "if rank == 0:\n    dist.all_reduce(x)\nstands()\ndist.barrier()\n", ("DD101", "DD112"), 0
    ),
    "another root": Job("stands()\ndist.broadcast(x, src=rank)\ndist.all_reduce(x)\ndist.barrier()\n", ("DD106",), None),
    "another operation": Job(
        "stands()\ndist.all_reduce(x) if rank == 0 else dist.broadcast(x, src=0)\ndist.barrier()\n",
        ("DD102", "DD101"),
        None,
    ),
    "GIL held by the main thread": Job("if rank == 1:\n    stands()\n    match()\ndist.all_reduce(x)\n", ("DD116",)),
    "GIL held by another thread": Job(
        "if rank == 1:\n    stands()\n    threading.Thread(target=match, name='cleaner', daemon=True).start()\n"
        "    time.sleep(0.5)\ndist.all_reduce(x)\n",
        ("DD116",),
    ),
    "spins": Job("if rank == 1:\n    stands()\n    spin()\ndist.all_reduce(x)\n", ("DD116",)),
    "spins through several functions": Job(
        "if rank == 1:\n    stands()\n    look_again(['A', 'B'])\ndist.all_reduce(x)\n", ("DD116",)
    ),
    "sleeps in user code": Job("if rank == 1:\n    stands()\n    time.sleep(1000)\ndist.all_reduce(x)\n", ("DD116",)),
    "waits for a lock": Job(
        "if rank == 1:\n    lock = threading.Lock()\n    lock.acquire()\n    stands()\n    lock.acquire()\n"
        "dist.all_reduce(x)\n",
        ("DD116",),
    ),
    "stopped": Job("if rank == 1:\n    stands()\n    os.kill(os.getpid(), signal.SIGSTOP)\ndist.all_reduce(x)\n", ("DD117",)),
    "killed": Job("if rank == 1:\n    stands()\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(x)\n", ("DD110",)),
    "leaves": Job("if rank == 1:\n    stands()\n    sys.exit(0)\ndist.all_reduce(x)\n", ("DD109",)),
}  # fmt: skip


@dataclass
class Course:
    """What was said of one job, each with the seconds after the standstill."""

    said: list[tuple[float, str]] = field(default_factory=list)
    right: float | None = None
    words: str = ""


def watched(job: Job, limit: float) -> Course:
    """Run one job until the right verdict is said, at most for `limit` seconds after the start."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAINING + job.ends_with)
        stands = folder / "stands"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "CI": "true", "STANDS_AT": str(stands)}
        words = [sys.executable, "-m", "distdoctor", "run", "--on-hang", "report", "--nproc", "2", "train.py"]
        running = subprocess.Popen(
            words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, bufsize=1, start_new_session=True,
        )  # fmt: skip
        ended = Timer(limit, lambda: _end(running))
        ended.start()
        try:
            return _course(running, job, stands)
        finally:
            ended.cancel()
            _end(running)


def _course(running: subprocess.Popen[str], job: Job, stands: Path) -> Course:
    course = Course()
    assert running.stdout is not None
    for line in running.stdout:
        found = re.match(r"(DD\d+) \w+ +(ranks? [\d,-]+)?", line)
        if found is None:
            continue
        since = time.time() - max(map(float, stands.read_text().split())) if stands.exists() else 0.0
        course.said.append((since, f"{found[1]} {found[2] or ''}".strip()))
        if found[1] in job.codes and job.rank in (None, *_ranks(found[2] or "")):
            course.right, course.words = since, line.strip()
            break
    return course


def _ranks(words: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", words)]


def _end(running: subprocess.Popen[str]) -> None:
    """The launcher ends its ranks on the second signal at once; a stopped one, for which it waits longer, is killed here."""
    try:
        ranks = psutil.Process(running.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    _signal(running)
    for rank in ranks:
        with contextlib.suppress(psutil.NoSuchProcess):
            rank.kill()


def _signal(running: subprocess.Popen[str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if running.poll() is not None:
            return
        running.send_signal(number)
        try:
            running.wait(5 if number != signal.SIGKILL else None)
        except subprocess.TimeoutExpired:
            continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--limit", type=float, default=90.0)
    parser.add_argument("jobs", nargs="*", default=[])
    options = parser.parse_args()
    print("| job | seconds to the right verdict | said before | the verdict |\n|---|---|---|---|", flush=True)
    for name in options.jobs or JOBS:
        course = watched(JOBS[name], options.limit)
        right = f"{course.right:.1f}" if course.right is not None else "never"
        before = "; ".join(f"{what} ({since:.0f} s)" for since, what in course.said if since != course.right)
        print(f"| {name} | {right} | {before} | {course.words[:110]} |", flush=True)


if __name__ == "__main__":
    main()
