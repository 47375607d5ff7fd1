"""Ranks that distdoctor starts answer for their flight recorder: from outside, without their help, to their owner alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import Command, Finished

pytestmark = pytest.mark.job
Start = Callable[..., Command]
Run = Callable[..., Finished]
Script = Callable[..., Path]
KEEPS_THE_GIL = """
import re
for _ in range(3):
    dist.all_reduce(t)
open(f'pid-{rank}', 'w').write(str(os.getpid()))
if rank == 1:
    re.match(r'(a+)+$', 'a' * 64 + 'b')
dist.all_reduce(t)
"""


def test_the_flight_recorder_of_a_rank_that_keeps_the_gil_is_read(start: Start, script: Script, tmp_path: Path) -> None:
    script(KEEPS_THE_GIL)
    job = start("run", "--nproc", 2, "--on-hang", "wait", "train.py")
    marks = [tmp_path / f"pid-{rank}" for rank in (0, 1)]
    job.wait_for(lambda: all(mark.exists() and mark.read_text() for mark in marks))
    ranks = [int(mark.read_text()) for mark in marks]
    folder = (tmp_path / ".distdoctor" / "runs" / "latest").resolve()
    sockets = sorted(folder.glob("*.sock"))

    assert [path.name for path in sockets] == ["rank-00000.a0.sock", "rank-00001.a0.sock"]
    assert [path.stat().st_mode & 0o777 for path in sockets] == [0o600, 0o600]
    words = [sys.executable, "-m", "distdoctor", "hang-dump", "--pid", str(ranks[0]), "--json", "--samples", "1"]
    groups: dict[int, dict[str, object]] = {}

    def waits() -> bool:
        look = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        groups.update({one["rank"]: one["groups"][0] for one in json.loads(look.stdout)["flight_recorder"]})
        return bool(groups.get(0, {}).get("pending"))

    job.wait_for(waits)
    (pending,) = groups[0]["pending"]
    assert (pending["operation"], pending["number"], pending["state"]) == ("all_reduce", 5, "scheduled")
    assert (groups[1]["enqueued"], groups[1]["pending"]) == (4, [])
    job.process.terminate()
    done = job.finish()
    assert "WorkerServer" not in done.err
    assert not [*folder.glob("*.sock")]


def test_without_a_worker_server_the_rank_trains_all_the_same(distdoctor: Run, script: Script) -> None:
    path = script("dist.barrier()\nprint('trained', rank)")
    path.write_text("import torch\ndel torch._C._distributed_c10d._WorkerServer\n" + path.read_text())

    done = distdoctor("run", "--nproc", 2, path.name)

    assert done.code == 0, done.err
    assert done.out.count("trained") == 2
    assert done.folder is not None
    assert "fell silent" not in done.out + done.err


def test_a_rank_that_has_set_the_types_of_pythons_own_functions_answers_and_ends(
    distdoctor: Run, script: Script
) -> None:
    """`ctypes.pythonapi` is shared by all that use it. A server that nobody keeps waits in its destructor for ever."""
    answering = "len(glob.glob('.distdoctor/runs/2*/*.sock'))"  # a rank that has ended takes its own away
    path = script(f"dist.barrier()\nn = {answering}\ndist.barrier()\nprint(str(n) + ' answer\\n', end='')")
    types = "import ctypes, glob\nctypes.pythonapi.Py_IncRef.argtypes = [ctypes.c_void_p]\n"
    path.write_text(types + path.read_text())

    done = distdoctor("run", "--nproc", 2, path.name)

    assert done.code == 0, done.err
    assert done.out.count("2 answer") == 2
