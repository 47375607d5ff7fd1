"""Jobs whose hosts come, go and come back: a sound one is healthy whatever became of its starts, a sick one is told right."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launching import Command, Finished
from network import Hosts, finished

from distdoctor.recording.trace.run_folder import read_job, read_run

pytestmark = [pytest.mark.job, pytest.mark.slow]
# Each situation with run folders of the hosts' own (`separate`) or with one for all: half a minute each, so in one of the ways.
Script = Callable[..., Path]

# else torch hands the addresses of ranks that are gone to the next start
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
FINISH = "dist.destroy_process_group()"
TRAIN = "for step in range(20):\n    dist.all_reduce(t)\n"
# Until there is a file, which one rank may see before another: they decide together.
WHILE = (
    "def together(*names):\n"
    "    there = torch.tensor(float(all(map(os.path.exists, names))))\n"
    "    dist.all_reduce(there, dist.ReduceOp.MIN)\n    time.sleep(0.02)\n    return bool(there)\n"
)
TRAIN_UNTIL = WHILE + "open(f'at-{world}-{rank}', 'w').close()\nwhile not together('enough'):\n    dist.all_reduce(t)\n"


def said(done: list[Finished]) -> str:
    return "\n".join(one.out + one.err for one in done)


def findings(hosts: Hosts, folder: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((hosts.folder / folder / "diagnosis.json").read_text())["findings"]
    return found


def start(
    hosts: Hosts, host: int, *more: object, nodes: str = "2", folder: str = "run", env: dict[str, str] | None = None
) -> Command:
    """A launcher with one rank. Where a job may start with fewer hosts, it waits two seconds for more and not torch's thirty."""
    options = ["--nnodes", nodes, "--nproc-per-node", 1, *hosts.meeting(host), "--run-dir", folder]
    options += ["--rdzv-conf", "last_call_timeout=2"] if ":" in nodes else []
    return hosts.start(host, "run", *options, *more, "train.py", env={**OWN_STORE, **(env or {})})


def folder_of(host: int, separate: bool) -> str:
    return f"run{host}" if separate else "run"


def until(command: Command, path: Path) -> None:
    command.wait_for(path.exists)


@pytest.mark.parametrize("separate", [True])
def test_a_host_that_is_taken_away_leaves_a_healthy_job_to_the_others(
    hosts: Hosts, script: Script, separate: bool
) -> None:
    script(TRAIN_UNTIL + FINISH)
    first, second = (
        start(hosts, host, "--max-restarts", 3, nodes="1:2", folder=folder_of(host, separate)) for host in (1, 2)
    )
    until(first, hosts.folder / "at-2-1")

    hosts.signal(2, signal.SIGTERM)
    until(first, hosts.folder / "at-1-0")
    (hosts.folder / "enough").touch()
    done = finished([first, second])

    assert done[0].code == 0, said(done)
    assert not findings(hosts, folder_of(1, separate)), said(done)
    assert "ended from outside by SIGTERM" in done[1].err, said(done)
    assert not done[1].out, said(done)


@pytest.mark.parametrize("separate", [False])
def test_a_host_that_joins_later_is_no_illness(hosts: Hosts, script: Script, separate: bool) -> None:
    script(TRAIN_UNTIL + FINISH)
    first = start(hosts, 1, "--max-restarts", 1, nodes="1:2", folder=folder_of(1, separate))
    until(first, hosts.folder / "at-1-0")

    second = start(hosts, 2, "--max-restarts", 1, nodes="1:2", folder=folder_of(2, separate))
    until(first, hosts.folder / "at-2-0")
    until(second, hosts.folder / "at-2-1")
    (hosts.folder / "enough").touch()
    done = finished([first, second])

    assert [one.code for one in done] == [0, 0], said(done)
    assert not any(findings(hosts, folder_of(host, separate)) for host in (1, 2)), said(done)
    assert all("2 ranks" in one.err and "healthy" in one.err for one in done), said(done)


@pytest.mark.parametrize("separate", [True])
def test_a_launcher_that_its_scheduler_starts_again_joins_a_healthy_job(
    hosts: Hosts, script: Script, separate: bool
) -> None:
    script(
        WHILE + "open(f'at-{rank}', 'a').write('x')\nwhile not together('enough'):\n    dist.all_reduce(t)\n" + FINISH
    )
    first, second = (start(hosts, host, "--max-restarts", 3, folder=folder_of(host, separate)) for host in (1, 2))
    until(first, hosts.folder / "at-1")

    hosts.go_down(2)
    second.process.wait()
    second = start(hosts, 2, "--max-restarts", 3, folder=folder_of(2, separate))
    first.wait_for(lambda: all((hosts.folder / f"at-{rank}").read_text() == "xx" for rank in (0, 1)))
    (hosts.folder / "enough").touch()
    done = finished([first, second])

    assert [one.code for one in done] == [0, 0], said(done)
    assert not any(findings(hosts, folder_of(host, separate)) for host in (1, 2)), said(done)
    assert all("2 ranks" in one.err and "healthy" in one.err for one in done), said(done)


def test_a_job_that_runs_again_in_its_shared_folder_is_recorded_anew(hosts: Hosts, script: Script) -> None:
    script(
        "if os.path.exists('hangs') and rank == 1:\n    dist.barrier()\ndist.all_reduce(t)\n"
        "open(f'at-{rank}', 'w').close()\n"
        "while os.path.exists('stays'):\n    dist.all_reduce(t)\n    time.sleep(0.02)\n"
        "if os.path.exists('fails') and rank == 1:\n    raise ValueError('a bad batch')\n" + TRAIN + FINISH
    )
    told = {}
    for mark, code in (("hangs", 3), ("fails", 1), ("stays", 1), ("", 0)):
        if mark:
            (hosts.folder / mark).touch()
        commands = [start(hosts, host) for host in (1, 2)]
        if mark == "stays":
            for rank, command in enumerate(commands):
                until(command, hosts.folder / f"at-{rank}")
            for host in (1, 2):
                hosts.signal(host, signal.SIGTERM)
        done = finished(commands)
        assert [one.code for one in done] == [code] * 2, said(done)
        told[mark] = [(one["code"], one["ranks"]) for one in findings(hosts, "run") if one["severity"] == "error"]
        for path in hosts.folder.glob("at-*"):
            path.unlink()
        (hosts.folder / (mark or "none")).unlink(missing_ok=True)

    assert told == {"hangs": [("DD112", [1])], "fails": [("DD110", [1])], "stays": [], "": []}
    assert all("2 ranks" in one.err and "healthy" in one.err for one in done), said(done)
    recording = read_run(hosts.folder / "run")
    assert {rank: log.attempt for rank, log in recording.ranks.items()} == {0: 3, 1: 3}
    assert not recording.troubles


def test_two_jobs_at_once_on_one_host_are_two_healthy_jobs(
    start: Callable[..., Command], script: Script, tmp_path: Path
) -> None:
    script(WHILE + TRAIN + "open(f'{os.environ[\"JOB\"]}-{rank}', 'w').close()\n"
           "while not together('a-1', 'b-1'):\n    dist.all_reduce(t)\n" + FINISH)  # fmt: skip

    done = finished([start("run", "--standalone", "--nproc", 2, "train.py", env={"JOB": job}) for job in "ab"])

    assert [one.code for one in done] == [0, 0], said(done)
    assert all("2 ranks" in one.err and "healthy" in one.err for one in done), said(done)
    folders = [path for path in (tmp_path / ".distdoctor" / "runs").iterdir() if not path.is_symlink()]
    assert len(folders) == 2
    assert all(read_run(folder).ranks.keys() == {0, 1} for folder in folders)


@pytest.mark.parametrize("separate", [False])
def test_a_rank_that_fails_in_every_start_is_named_with_its_line(hosts: Hosts, script: Script, separate: bool) -> None:
    script(TRAIN + "if rank == 1:\n    raise ValueError('a bad batch')\n" + "dist.all_reduce(t)\n" + FINISH)

    done = finished([start(hosts, host, "--max-restarts", 1, folder=folder_of(host, separate)) for host in (1, 2)])

    assert [one.code for one in done] == [1, 1], said(done)
    for host in (1, 2):
        (found,) = (one for one in findings(hosts, folder_of(host, separate)) if one["severity"] == "error")
        assert (found["code"], found["ranks"], found["confidence"]) == ("DD110", [1], "certain"), said(done)
        assert found["place"]["line"] == 10, found["place"]
    # A rank that raises may be aborted by torch on its way out: then it is that end which is told (DD130).
    ended = re.compile(r"attempt 1 was ended by rank 1 \((exit code 1|SIGABRT)\); attempt 2 was ended by rank 1")
    assert all(ended.search(one.err) for one in done), said(done)


@pytest.mark.parametrize("separate", [False])
def test_ranks_that_disagree_after_a_host_has_joined_are_told_of_the_new_start_alone(
    hosts: Hosts, script: Script, separate: bool
) -> None:
    script(
        "open(f'at-{world}-{rank}', 'w').close()\n"
        "while world == 1:\n    dist.all_reduce(t)\n    time.sleep(0.02)\n"
        + TRAIN + "if rank == 1:\n    dist.barrier()\ndist.all_reduce(t)\n" + FINISH
    )  # fmt: skip
    first = start(hosts, 1, "--max-restarts", 1, nodes="1:2", folder=folder_of(1, separate))
    until(first, hosts.folder / "at-1-0")

    done = finished([first, start(hosts, 2, "--max-restarts", 1, nodes="1:2", folder=folder_of(2, separate))])

    assert [one.code for one in done] == [3, 3], said(done)
    for host in (1, 2):
        (found,) = (one for one in findings(hosts, folder_of(host, separate)) if one["severity"] == "error")
        assert (found["code"], found["ranks"]) == ("DD112", [1]), said(done)
    job = read_job(hosts.folder / folder_of(1, separate))
    assert job is not None
    assert (job.attempt, job.world_size) == (1, 2)
