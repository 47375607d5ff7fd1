"""Real jobs whose stacks somebody copies with py-spy or faulthandler, as one does where distdoctor is not at hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from looking import Job, environment, stand_still

from distdoctor.attach.py_spy import program

pytestmark = pytest.mark.job
Start = Callable[..., Job]


def copied(pid: int, *more: str) -> str:
    """What py-spy prints of a process."""
    words = [str(program()), "dump", "--pid", str(pid), *more]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


def examined(folder: Path) -> list[dict[str, Any]]:
    """The findings of `distdoctor examine` in a process of its own."""
    command = [sys.executable, "-m", "distdoctor", "examine", str(folder), "--output-format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(NO_COLOR="1"))
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return findings


def of(findings: list[dict[str, Any]]) -> list[tuple[str, list[int], str]]:
    return [(one["code"], one["ranks"], one["confidence"]) for one in findings]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("sleep", [("DD116", [1], "likely")]), ("loader", [("DD115", [1], "possible")])],
)
def test_copies_of_a_job_that_stands_name_the_rank_and_its_line(
    mode: str, expected: list[tuple[str, list[int], str]], jobs: Start, tmp_path: Path
) -> None:
    job = jobs(mode, ready=1)
    stand_still()
    for form, options in (("txt", []), ("json", ["--json"]), ("locals.txt", ["--locals"])):
        folder = tmp_path / form
        folder.mkdir()
        for rank, pid in enumerate(job.pids):
            (folder / f"rank{rank}.{form}").write_text(copied(pid, *options))
            for child in psutil.Process(pid).children():
                (folder / f"rank{rank}_worker_{child.pid}.{form}").write_text(copied(child.pid, *options))

        findings = examined(folder)

        assert of(findings) == expected, form
        assert findings[0]["place"]["path"].endswith("victim.py")
        assert "not for how long" in findings[0]["why"]


def test_one_file_of_all_processes_says_whose_the_workers_are(jobs: Start, tmp_path: Path) -> None:
    job = jobs("loader", ready=1)
    stand_still()
    for rank, pid in enumerate(job.pids):
        (tmp_path / f"all_{rank}.txt").write_text(copied(pid, "--subprocesses"))

    assert of(examined(tmp_path)) == [("DD115", [1], "possible")]


STANDS = """
import faulthandler, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
faulthandler.dump_traceback_later(3 if dist.get_rank() == 1 else 60, exit=True)

def nap():
    time.sleep(600)

if dist.get_rank() == 1:
    nap()
dist.all_reduce(torch.ones(1))
"""
CRASHES = """
import ctypes, faulthandler
import torch, torch.distributed as dist
faulthandler.enable()
dist.init_process_group("gloo")

def look_up(address):
    return ctypes.string_at(address)

dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    look_up(8)
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.parametrize(
    ("script", "expected"), [(STANDS, ("DD116", [1], "nap")), (CRASHES, ("DD110", [1], "look_up"))]
)
def test_what_faulthandler_printed_into_the_log_of_torchrun_is_read(
    script: str, expected: tuple[str, list[int], str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    words = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2", "train.py"]
    env = environment()
    with open(tmp_path / "job.log", "w") as log:
        subprocess.run(words, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT, timeout=120, env=env, check=False)

    [found] = examined(tmp_path / "job.log")

    assert (found["code"], found["ranks"], found["place"]["function"]) == expected, (tmp_path / "job.log").read_text()


DUMPS = """
import faulthandler, threading, time
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace_json
dist.init_process_group("gloo")

def nap():
    time.sleep(600)

def dump():
    time.sleep(2)
    data = _dump_fr_trace_json()
    with open("dumps/rank_0.json", "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)

for _ in range(5):
    dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    faulthandler.dump_traceback_later(8, exit=True)
    nap()
threading.Thread(target=dump, daemon=True).start()
dist.all_reduce(torch.ones(4))
"""


def test_the_dump_of_one_rank_and_the_stack_of_the_other_in_the_log_are_one_answer(tmp_path: Path) -> None:
    """The dump says in which call rank 0 waits, and knows no lines nor other ranks; the log shows where rank 1 is."""
    (tmp_path / "train.py").write_text(DUMPS)
    (tmp_path / "dumps").mkdir()
    words = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2", "--tee", "3"]
    with open(tmp_path / "job.log", "w") as log:
        subprocess.run(
            [*words, "train.py"],
            cwd=tmp_path,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=120,
            env=environment(),
            check=False,
        )
    (tmp_path / "train.py").unlink()

    [found] = examined(tmp_path)

    assert (found["code"], found["ranks"], found["place"]["function"]) == ("DD116", [1], "nap"), (
        tmp_path / "job.log"
    ).read_text()
    assert "all_reduce #6" in found["why"]
