"""A job that hangs is noticed from outside, told at once, and ended only where that was asked for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import FINISH, Command, Finished

pytestmark = pytest.mark.job
Run = Callable[..., Finished]
Script = Callable[..., Path]
HANG = "if rank == 1: time.sleep(1000)\ndist.all_reduce(t)"


def test_a_hang_is_ended_without_a_terminal_and_exits_with_3(
    distdoctor: Run, script: Script, toy_plugin: dict[str, str]
) -> None:
    script(HANG)

    done = distdoctor("run", "--nproc", 2, "--output-format", "json", "train.py", env=toy_plugin)

    assert done.code == 3, done.err
    assert done.document["findings"][0]["code"] == "DD199"
    assert done.document["findings"][0]["ranks"] == [1]
    assert done.document["job"]["root_cause"]["rank"] == 1
    assert done.document["findings"][0]["remedies"][0]["what"] == "Call it on every rank."
    assert "the job hangs: ending its ranks" in done.err
    assert all(end["ended_by_launcher"] for end in done.job["ends"].values())
    later = distdoctor("examine", ".distdoctor/runs/latest", env=toy_plugin)
    assert later.code == 3


def test_a_hung_rank_that_ignores_sigterm_is_ended_all_the_same(
    distdoctor: Run, script: Script, toy_plugin: dict[str, str]
) -> None:
    script("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HANG)

    done = distdoctor("run", "--nproc", 2, "train.py", env=toy_plugin)

    assert done.code == 3, done.err
    assert [end["signal"] for end in done.job["ends"].values()] == [signal.SIGKILL, signal.SIGKILL]


def test_a_rank_that_has_not_imported_torch_is_no_rank_of_another_host(
    start: Callable[..., Command], script: Script
) -> None:
    path = script("")
    path.write_text("import os, time\nif os.environ['RANK'] == '1':\n    time.sleep(1000)\n" + path.read_text())
    job = start("run", "--nproc", 2, "--on-hang", "report", "train.py")

    said = next(line for line in job.hear("DD118", within=100).splitlines() if "DD118" in line)
    job.process.terminate()
    done = job.finish()

    assert "DD118 error  rank 1  train.py:3" in said
    assert "(likely)" in said
    assert "other hosts" not in done.out + done.err


OWN_PORT = """
import os
import torch.distributed as dist
import torch.multiprocessing as mp
def work(rank, world):
    os.environ["MASTER_PORT"] = "29533"
    dist.init_process_group("gloo", rank=rank, world_size=world)
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
"""


@pytest.mark.parametrize(
    ("ranks", "begins", "fix"),
    [
        (2, "work(int(os.environ['RANK']), int(os.environ['WORLD_SIZE']))", "leave MASTER_ADDR and MASTER_PORT"),
        (1, "mp.spawn(work, args=(2,), nprocs=2)", "start the script without torchrun"),
    ],
)
def test_under_torchrun_no_rank_holds_a_store_at_a_port_of_the_scripts_own(
    start: Callable[..., Command], tmp_path: Path, ranks: int, begins: str, fix: str
) -> None:
    (tmp_path / "train.py").write_text(f"{OWN_PORT}    {begins}\n")
    job = start("run", "--nproc", ranks, "--on-hang", "report", "train.py")

    said = job.hear("more  distdoctor explain", within=100)
    job.process.terminate()
    job.finish()

    assert "DD118 error  ranks 0-1  train.py:7 work  wait for a store at" in said
    assert f"  fix   {fix}" in said


def test_a_script_that_starts_its_ranks_itself_trains_without_torchrun(distdoctor: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"{OWN_PORT}    os.environ['MASTER_ADDR'] = 'localhost'\n    mp.spawn(work, args=(2,), nprocs=2)\n"
    )

    done = distdoctor("run", "--", "python", "train.py")

    assert done.code == 0, done.err
    assert "2 ranks, 0 steps" in done.out + done.err
    assert "healthy" in done.out + done.err


def test_a_hang_is_reported_and_left_alone_where_that_is_asked_for(
    start: Callable[..., Command], script: Script, tmp_path: Path, toy_plugin: dict[str, str]
) -> None:
    script("open(f'pid-{rank}', 'w').write(str(os.getpid()))\n" + HANG)
    command = start("run", "--nproc", 2, "--on-hang", "report", "train.py", env=toy_plugin)
    said: list[str] = []

    while not said or "the job hangs" not in said[-1]:
        assert command.process.stderr is not None
        said.append(command.process.stderr.readline())
        assert said[-1], said

    assert any(line.startswith("DD199 error  rank 1  train.py:") for line in said)
    for rank in (0, 1):
        os.kill(int((tmp_path / f"pid-{rank}").read_text()), 0)
    command.process.send_signal(signal.SIGINT)
    assert command.finish().code == 3


def test_what_was_said_of_a_hang_outlives_a_launcher_that_is_killed(
    start: Callable[..., Command], distdoctor: Run, script: Script, tmp_path: Path
) -> None:
    script("if rank == 1: time.sleep(1000)\n" + FINISH)
    job = start("run", "--nproc", 2, "--on-hang", "report", "train.py")
    runs = tmp_path / ".distdoctor" / "runs"
    job.wait_for(lambda: any('"code":"DD116"' in path.read_text() for path in runs.glob("*/seen-*.json")))

    job.process.kill()
    job.process.wait()
    later = distdoctor("examine", runs / "latest")

    assert later.code == 3, later.err
    assert later.out.startswith("DD116 error  rank 1"), later.out
    assert "nobody saw how the job ended" in later.out


def test_a_hang_under_another_launcher_is_ended_too(
    distdoctor: Run, script: Script, toy_plugin: dict[str, str]
) -> None:
    script(HANG)

    done = distdoctor("run", "--", "torchrun", "--nproc-per-node", 2, "train.py", env=toy_plugin)

    assert done.code == 3, done.err
    assert "DD199" in done.out


def test_a_pause_is_no_hang(distdoctor: Run, script: Script, toy_plugin: dict[str, str]) -> None:
    """The late rank comes after all: nobody may have ended the job, and nothing is wrong with it afterwards."""
    script("if rank == 1: time.sleep(0.4)\ndist.all_reduce(t)\ndist.barrier()\ndist.destroy_process_group()")

    done = distdoctor("run", "--nproc", 2, "--ignore", "DD198", "train.py", env=toy_plugin)

    assert done.code == 0, done.err
    assert "nothing else found; 1 suppressed" in done.err


def test_a_comment_on_the_line_suppresses_the_finding(
    distdoctor: Run, script: Script, toy_plugin: dict[str, str]
) -> None:
    path = script("dist.destroy_process_group()")
    text = path.read_text()
    path.write_text(
        text.replace("dist.all_reduce(t)", "dist.all_reduce(t)  # distdoctor: ignore[DD198] -- it is the first")
    )

    done = distdoctor(
        "run", "--nproc", 2, "--fail-on", "warning", "--output-format", "json", "train.py", env=toy_plugin
    )
    path.write_text(text)
    again = distdoctor(
        "run", "--nproc", 2, "--fail-on", "warning", "--output-format", "json", "train.py", env=toy_plugin
    )

    assert done.code == 0, done.err
    assert done.document["findings"] == []
    assert [finding["code"] for finding in done.document["suppressed"]] == ["DD198"]
    assert again.code == 1
    assert [finding["code"] for finding in again.document["findings"]] == ["DD198"]


def test_a_finding_below_the_bar_exits_with_0(distdoctor: Run, script: Script, toy_plugin: dict[str, str]) -> None:
    script("dist.destroy_process_group()")

    done = distdoctor("run", "train.py", env=toy_plugin)

    assert done.code == 0, done.err
    assert done.out.startswith("DD198 warning  rank 0  train.py:6 <module>  the first collective (certain)")


def test_a_rank_that_sleeps_is_named_with_its_line(distdoctor: Run, script: Script) -> None:
    """Nothing proves that a sleeping rank never comes; who does not want to wait says for how long."""
    script(HANG)

    done = distdoctor("run", "--nproc", 2, "--hang-after", 20, "--output-format", "json", "train.py")

    assert done.code == 3, done.err
    first = done.document["findings"][0]
    assert (first["code"], first["ranks"], first["place"]["line"]) == ("DD116", [1], 7)
    assert done.document["job"]["root_cause"]["rank"] == 1


def test_a_key_of_the_store_that_two_ranks_name_differently_is_shown_with_both_names(
    distdoctor: Run, script: Script
) -> None:
    script(
        "store = dist.distributed_c10d._get_default_store()\n"
        "def mark(words): return f'{hash(words) & 0xffffffff:08x}9'\n"
        "key = f'packed/{mark((\"dedup\", 3))}/ready'\n"
        "if rank == 0: store.set(key, '1')\n"
        "else: store.wait([key])\n"
        "dist.all_reduce(t)"
    )

    done = distdoctor("run", "--nproc", 2, "--hang-after", 15, "--output-format", "json", "train.py")

    assert done.code == 3, done.err
    first = done.document["findings"][0]
    assert (first["code"], first["ranks"], first["place"]["line"]) == ("DD116", [1], 11)
    assert "for the key `packed/" in first["title"]
    assert ", and rank 0 set `packed/" in first["title"]
    assert [place["line"] for place in first["places"][:4]] == [11, 10, 9, 8]


def test_ranks_that_all_stand_in_their_own_code_are_ended_when_asked_for(distdoctor: Run, script: Script) -> None:
    """Nobody waits for another, so no timeout of torch's ends this job: each rank waits for a child that asks a question."""
    script(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "child.wait()\n"
        "dist.all_reduce(t)"
    )

    done = distdoctor("run", "--nproc", 2, "--hang-after", 12, "--output-format", "json", "train.py")

    assert done.code == 3, done.err
    first = done.document["findings"][0]
    assert (first["code"], first["ranks"], first["place"]["line"]) == ("DD116", [0, 1], 9)
    assert first["confidence"] == "possible"


def test_a_thread_that_keeps_the_gil_is_named_with_its_line(distdoctor: Run, script: Script) -> None:
    """A pattern that backtracks without end, in a thread of rank 1: no other thread of that rank runs any more."""
    script(
        "import re, threading\n"
        "def match(): re.match(r'(a+)+$', 'a' * 64 + 'b')\n"
        "if rank == 1:\n"
        "    threading.Thread(target=match, name='cleaner', daemon=True).start()\n"
        "    time.sleep(1)\n"
        "dist.all_reduce(t)"
    )

    done = distdoctor("run", "--nproc", 2, "--hang-after", 25, "--output-format", "json", "train.py")

    assert done.code == 3, done.err
    first = done.document["findings"][0]
    assert (first["code"], first["ranks"], first["place"]["line"]) == ("DD116", [1], 8)
    assert "its thread cleaner never releases the GIL, in match at train.py:8" in first["title"]


def test_a_rank_that_dies_while_its_interpreter_goes_down_has_complete_results(distdoctor: Run, script: Script) -> None:
    script(
        "class Late:\n"
        "    def __del__(self, abort=os.abort): abort()  # when the module is torn down\n"
        "late = Late() if rank == 1 else None\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()"
    )

    done = distdoctor("run", "--nproc", 2, "--output-format", "json", "train.py")

    assert done.code == 1, done.err
    first = done.document["findings"][0]
    assert (first["code"], first["ranks"], first["confidence"]) == ("DD130", [1], "certain")
    assert "its results are complete" in first["title"]


def test_a_timeout_that_ends_a_rank_at_work_is_told_as_too_short(distdoctor: Run, script: Script) -> None:
    path = script("if rank == 1:\n    file = open('x.pt', 'wb')\n    torch.save(t, Slow(file))\ndist.barrier()")
    slow = "class Slow:\n    def __init__(self, file): self.file = file\n    def flush(self): pass\n"
    slow += "    def write(self, data): time.sleep(12); return self.file.write(data)\n"
    text = path.read_text().replace(
        "dist.init_process_group('gloo')", slow + "dist.init_process_group('gloo', timeout=LIMIT)"
    )
    path.write_text("from datetime import timedelta\nLIMIT = timedelta(seconds=6)\n" + text)

    done = distdoctor("run", "--nproc", 2, "--output-format", "json", "train.py")

    assert done.code == 1, done.err
    first = done.document["findings"][0]
    assert (first["code"], first["ranks"], first["confidence"]) == ("DD129", [1], "likely")
    assert "was in a checkpoint when rank 0 gave up waiting for it" in first["title"]


def test_a_rank_that_comes_after_the_others_gave_up_is_late_and_not_stuck_with_them(
    distdoctor: Run, script: Script
) -> None:
    late = "import atexit; atexit.register(time.sleep, 4)\nif rank == 1: time.sleep(5)\ndist.barrier()"
    path = script(late)
    text = path.read_text().replace(
        "dist.init_process_group('gloo')", "dist.init_process_group('gloo', timeout=timedelta(seconds=3))"
    )
    path.write_text("from datetime import timedelta\n" + text)

    done = distdoctor("run", "--nproc", 2, "--output-format", "json", "train.py")

    assert done.code == 1, done.err
    first = done.document["findings"][0]
    assert (first["code"], first["ranks"], first["confidence"]) == ("DD129", [1], "likely")
    assert "only after rank 0 had given up waiting there" in first["title"]
