"""hang-dump on real jobs that it did not start: which rank, which line, and the job goes on as before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from looking import VICTIM, Job, hang_dump, reported_later, stand_still

from distdoctor.attach import pystack

pytestmark = pytest.mark.job
Start = Callable[..., Job]


def line_of(words: str) -> int:
    """The number of the first of the victim's lines with these words."""
    text = VICTIM.read_text()
    return text[: text.index(words)].count("\n") + 1


def states(pids: list[int]) -> set[str]:
    return {psutil.Process(pid).status() for pid in pids}


def test_a_rank_of_a_plain_torchrun_job_that_sleeps_is_named_with_its_line(launched: Start) -> None:
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2"]
    job = launched([*torchrun, str(VICTIM), "sleep"])
    stand_still()

    look = hang_dump("--pid", str(job.pids[0]))

    assert look.code == 3, look.text + look.errors
    assert look.first_line.startswith("hang: rank 1 has been at `time.sleep(600)`")
    assert f"victim.py:{line_of('time.sleep(600)')}" not in look.first_line  # that line is the loader's
    assert "misbehave (DD116, likely)" in look.first_line
    assert "rank 0" in look.text
    assert "torch all_reduce" in look.text
    assert "here they part" in look.text
    job.end()
    assert [(f["code"], f["ranks"]) for f in reported_later()["findings"]] == [("DD116", [1])]


@pytest.mark.parametrize(
    ("mode", "place"),
    [("lock", "lock.acquire()"), ("regex", 're.match(r"(a+)+$"')],
    ids=["lock", "regex that keeps the GIL"],
)
def test_a_rank_in_code_of_its_own_is_named(jobs: Start, mode: str, place: str) -> None:
    job = jobs(mode)
    stand_still(2)

    found = hang_dump("--pid", str(job.pids[0]), "--json").document["findings"]

    assert [(f["code"], f["ranks"]) for f in found] == [("DD116", [1])]
    lines = [number for number, line in enumerate(VICTIM.read_text().splitlines(), start=1) if place in line]
    assert found[0]["place"]["line"] in lines
    assert found[0]["places"][1]["ranks"] == [0]
    assert found[0]["evidence"].get("holds the GIL", False) == (mode == "regex")


def test_what_each_rank_waits_for_is_named_by_the_evidence_at_hand(jobs: Start, tmp_path: Path) -> None:
    """A FIFO, a file lock that another rank holds, a prompt, a lock that a thread holds which waits for one of the rank's own."""
    job = jobs("obstacles", ready=5, world=5, folder=tmp_path)
    stand_still(2)

    found = hang_dump("--pid", str(job.pids[0]), "--json").document["findings"]

    by_rank = {one["ranks"][0]: one for one in found}
    assert {one["code"] for one in found} == {"DD116"}
    assert sorted(by_rank) == [0, 1, 3, 4], "rank 2 only asks for the lock that rank 0 keeps while it waits for all"
    fixes = {rank: one["remedies"][0]["change"] for rank, one in by_rank.items()}
    opened, prompt = line_of('open("fifo")'), line_of("    breakpoint()")
    assert f"open() of the FIFO {tmp_path}/fifo waits" in by_rank[1]["title"]
    assert fixes[1].startswith(f"start what opens the other end of {tmp_path}/fifo before victim.py:{opened}")
    assert by_rank[0]["title"].startswith(f"holds the lock on {tmp_path}/cache.lock while it waits in all_reduce")
    assert fixes[0].startswith(f"release {tmp_path}/cache.lock on rank 0 before victim.py:")
    assert by_rank[3]["title"].startswith("has been at a prompt of pdb")
    assert by_rank[3]["place"]["line"] == prompt
    assert fixes[3].startswith(f"remove the breakpoint at victim.py:{prompt}")
    assert "it holds `loss_lock` and waits for `log_lock`, which thread" in by_rank[4]["title"]
    first, second = (
        line_of("    with loss_lock:\n        taken.wait"),
        line_of("        with log_lock:\n            taken.set"),
    )
    assert f"victim.py:{first} takes `loss_lock` first, victim.py:{second} takes `log_lock` first" in fixes[4]


def test_a_stopped_rank_is_named_and_stays_as_it_was(jobs: Start) -> None:
    job = jobs("stop")
    os.kill(job.pids[1], signal.SIGSTOP)

    look = hang_dump("--pid", str(job.pids[0]))

    assert look.code == 3
    assert look.first_line.startswith(f"hang: rank 1 is not running: pid {job.pids[1]} is stopped by a signal")
    assert f"kill -CONT {job.pids[1]}" in look.text
    assert "misbehave" in look.text  # its stack was read all the same
    assert states(job.pids[1:]) == {psutil.STATUS_STOPPED}
    assert psutil.STATUS_STOPPED not in states(job.pids[:1])


def test_a_worker_that_sleeps_in_getitem_is_named_with_its_line(jobs: Start) -> None:
    job = jobs("loader")
    stand_still(2)

    found = hang_dump("--pid", str(job.pids[1]), "--json").document["findings"]

    assert [(f["code"], f["ranks"], f["place"]["function"]) for f in found] == [("DD115", [1], "__getitem__")]
    assert found[0]["evidence"]["pid"] in {child.pid for child in psutil.Process(job.pids[1]).children(recursive=True)}


def test_children_of_mp_spawn_are_ranks_although_nothing_in_their_environment_says_so(launched: Start) -> None:
    job = launched([sys.executable, str(VICTIM), "spawn"])
    stand_still()

    look = hang_dump("--pid", str(job.pids[0]))

    assert look.code == 3, look.text + look.errors
    assert look.first_line.startswith("hang: rank 1 has been at `time.sleep(600)`")
    assert "ranks 0-1 of 2" in look.text


def test_a_barrier_in_a_function_that_one_rank_calls_is_named_with_the_condition_of_that_call(jobs: Start) -> None:
    job = jobs("apart")
    stand_still()

    found = hang_dump("--pid", str(job.pids[0]), "--json").document["findings"]

    assert [(f["code"], f["ranks"], f["place"]["line"]) for f in found] == [("DD112", [1], line_of("dist.barrier()"))]
    assert f"`step == 3 and rank == ODD` (line {line_of('rank == ODD:')})" in found[0]["why"]


def test_ranks_in_different_collectives_are_told_apart(jobs: Start) -> None:
    job = jobs("apart_by_value")
    stand_still()

    found = hang_dump("--pid", str(job.pids[0]), "--json").document["findings"]

    assert [(f["code"], f["ranks"]) for f in found] == [("DD101", [0, 1])]
    roles = {place["role"]: place["ranks"] for place in found[0]["places"] if place["ranks"]}
    assert roles == {"waits in all_reduce": [0], "waits in barrier": [1]}


def test_ranks_that_have_made_different_numbers_of_groups_are_told_apart(jobs: Start) -> None:
    job = jobs("groups")
    stand_still()

    found = hang_dump("--pid", str(job.pids[0]), "--json").document["findings"]

    assert [(f["code"], f["ranks"], f["undecided"]) for f in found] == [("DD119", [0, 1], True)]
    assert found[0]["place"]["line"] == line_of("dist.new_group()  # of all")
    roles = {place["role"]: place["ranks"] for place in found[0]["places"] if place["ranks"]}
    assert roles == {"waits in new_group number 1": [0], "waits in new_group number 2": [1]}


def test_receives_that_wait_for_each_other_are_a_ring(jobs: Start) -> None:
    job = jobs("cycle")
    stand_still()

    found = hang_dump("--pid", str(job.pids[0]), "--json").document["findings"]

    assert [(f["code"], f["ranks"]) for f in found] == [("DD114", [0, 1])]
    assert found[0]["title"] == "every rank receives first: a ring of 2 recvs"


def test_a_rank_that_never_came_to_init_is_named_with_what_it_does_instead(jobs: Start) -> None:
    job = jobs("init")
    stand_still(2)

    found = hang_dump("--pid", str(job.pids[0]), "--json").document["findings"]

    assert [(f["code"], f["ranks"]) for f in found] == [("DD118", [1])]
    assert found[0]["place"]["function"] == "main"
    assert found[0]["evidence"]["arrived"] == [0]


def test_a_healthy_job_gives_nothing_stuck_and_goes_on(jobs: Start) -> None:
    job = jobs("healthy")

    look = hang_dump("--pid", str(job.pids[0]))

    assert look.code == 0, look.text
    assert look.first_line.startswith("nothing stuck: 2 ranks")
    assert all(process.poll() is None for process in job.processes)
    assert not states(job.pids) & {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}


def test_two_jobs_at_once_are_told_apart(jobs: Start) -> None:
    stuck, healthy = jobs("sleep"), jobs("healthy")
    stand_still()

    document = hang_dump("--json").document

    reports = [document, *document["other_jobs"]]
    # Other jobs of this machine may be among them, with ranks that are gone.
    pids = [
        sorted(one["pid"] for one in report["stacks"] if one["role"] == "rank" and one["pid"]) for report in reports
    ]
    assert sorted(stuck.pids) in pids
    assert sorted(healthy.pids) in pids
    assert [f["code"] for f in reports[pids.index(sorted(stuck.pids))]["findings"]] == ["DD116"]
    assert reports[pids.index(sorted(healthy.pids))]["findings"] == []


def test_variables_of_the_user_stay_with_the_user_unless_asked_for(jobs: Start) -> None:
    job = jobs("sleep")
    stand_still()

    plain, asked = (
        hang_dump("--pid", str(job.pids[0]), "--json"),
        hang_dump("--pid", str(job.pids[0]), "--json", "--locals"),
    )

    users = [f for p in plain.document["stacks"] for t in p["threads"] for f in t["frames"] if f["path"] == str(VICTIM)]
    assert users
    assert all("arguments" not in frame for frame in users)
    assert "<Tensor" in asked.text
    assert "<Tensor" not in plain.text


# Whoever tests as root may look everywhere; as nobody, without capabilities, the kernel refuses.
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_refused_ptrace_is_said_with_the_setting_that_allows_it(jobs: Start) -> None:
    job = jobs("undumpable", ready=1)
    look = hang_dump("--pid", str(job.pids[0]), prefix=NOBODY)

    if look.code not in (4, 5) and ("Permission denied" in look.errors or "No module named" in look.errors):
        pytest.skip("nobody may not run this interpreter, or not read this checkout")
    assert look.code == 5, look.text + look.errors
    assert look.first_line.startswith("could not look: rank 0 the stacks cannot be read: the kernel refuses ptrace")
    assert (
        f"the process belongs to uid 0, you are uid 65534: `sudo -u '#0' distdoctor hang-dump --pid {job.pids[0]}`"
        in look.text
    )
    assert "is sleeping" in look.text or "is running" in look.text  # it wakes now and then


def test_a_dead_pid_is_nothing_to_inspect() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()

    look = hang_dump("--pid", str(gone.pid))

    assert look.code == 4
    assert f"there is no process {gone.pid}" in look.errors


def test_a_process_without_python_is_nothing_to_inspect() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        look = hang_dump("--pid", str(sleeper.pid))
    finally:
        sleeper.kill()
        sleeper.wait()

    assert look.code == 4
    assert f"process {sleeper.pid} (sleep 60) is no Python process" in look.errors


def test_any_python_process_can_be_looked_at_alone() -> None:
    code = "import time\ndef wait():\n    time.sleep(60)\nprint('ready', flush=True)\nwait()\n"
    alone = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert alone.stdout is not None
        alone.stdout.readline()
        stand_still(0.3)
        look = hang_dump("--pid", str(alone.pid), patience=0.2)
    finally:
        alone.kill()
        alone.communicate()

    assert look.code in (0, 3), look.errors
    assert "wait" in look.text


def test_native_frames_come_on_top_and_change_no_verdict(jobs: Start) -> None:
    job = jobs("lock")
    stand_still(2)

    look = hang_dump("--pid", str(job.pids[0]), "--native")

    assert look.code == 3, look.text
    assert "--native freezes each process" in look.errors
    assert look.first_line.startswith("hang: rank 1 has been at `lock.acquire()`")
    assert "libc.so" in look.text
    if pystack.program() is not None:
        assert "threads without Python\n" in look.text
        assert "pt_gloo_runloop  " in look.text
        assert "waitRecv" in look.text  # rank 0's all_reduce, in gloo's own thread
    assert not states(job.pids) & {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
