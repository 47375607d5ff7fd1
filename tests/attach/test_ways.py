"""How targets of `hang-dump --on` become commands; squeue, scontrol and kubectl are programs on the PATH."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from distdoctor.attach.over_hosts import HostAnswer, ask_all
from distdoctor.attach.ways import WayToHost, ways_to
from distdoctor.errors import CouldNotLook, NothingToInspect, WrongUse


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on the PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def install(folder: Path, name: str, prints: str = "", fails: str = "") -> None:
    path = folder / name
    end = f"sys.exit({fails!r})" if fails else ""
    path.write_text(f"#!{sys.executable}\nimport sys\nsys.stdout.write({prints!r})\n{end}\n")
    path.chmod(0o755)


def test_ssh_gets_each_host_once_and_quotes_for_the_shell_over_there(programs: Path) -> None:
    install(programs, "ssh")

    one, two = ways_to("ssh:gpu1, me@gpu2,gpu1", 10.0)

    assert (one.host, two.host) == ("gpu1", "me@gpu2")
    assert one.command(["distdoctor", "a b"])[-4:] == ["--", "gpu1", "distdoctor", "'a b'"]
    assert "BatchMode=yes" in one.lead


def test_a_host_file_is_read_as_launchers_write_it(programs: Path) -> None:
    install(programs, "ssh")
    hosts = programs / "hostfile"
    hosts.write_text("# the cluster\ngpu1 slots=8\n\ngpu2:8\nfd77::2\n")

    assert [way.host for way in ways_to(f"@{hosts}", 10.0)] == ["gpu1", "gpu2", "fd77::2"]
    assert [way.host for way in ways_to(f"ssh:@{hosts}", 10.0)] == ["gpu1", "gpu2", "fd77::2"]


@pytest.mark.parametrize(
    "target",
    [
        "gpu1",
        "ssh:-oProxyCommand=x",
        "ssh:a;b",
        "ssh:$(x)",
        "srun:1 --uid=0",
        "srun:",
        "kubectl:--all",
        "kubectl:A_B:app=x",
    ],
)
def test_what_is_no_name_is_refused(programs: Path, target: str) -> None:
    for name in ("ssh", "srun", "kubectl"):
        install(programs, name)

    with pytest.raises(WrongUse):
        ways_to(target, 10.0)


def test_nobody_is_nothing_to_inspect(programs: Path) -> None:
    install(programs, "ssh")

    with pytest.raises(NothingToInspect, match="leads to no host"):
        ways_to("ssh:", 10.0)


def test_a_slurm_job_is_one_step_a_node_beside_its_own(programs: Path) -> None:
    install(programs, "srun")
    install(programs, "squeue", "gpu[01-02]\n")
    install(programs, "scontrol", "gpu01\ngpu02\n")

    ways = ways_to("srun:4711", 10.0)

    assert [way.host for way in ways] == ["gpu01", "gpu02"]
    assert ways[1].command(["x", "a b"]) == [
        *("srun", "--jobid", "4711", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist", "gpu02"),
        *("x", "a b"),
    ]


def test_a_slurm_job_that_is_not_there_is_an_error_of_slurm(programs: Path) -> None:
    install(programs, "srun")
    install(programs, "squeue", fails="slurm_load_jobs error: Invalid job id specified")

    with pytest.raises(CouldNotLook, match="Invalid job id"):
        ways_to("srun:4711", 10.0)


def test_pods_that_do_not_run_are_named_and_not_asked(programs: Path) -> None:
    pods = [("train-0", "Running"), ("train-1", "Failed")]
    listed = {"items": [{"metadata": {"name": name}, "status": {"phase": phase}} for name, phase in pods]}
    install(programs, "kubectl", json.dumps(listed))

    ways = ways_to("kubectl:research:app=train,tier in (a,b)", 10.0)

    assert ways[0].command(["x"]) == ["kubectl", "exec", "--namespace", "research", "train-0", "--", "x"]
    assert [way.trouble for way in ways] == ["", "does not run (its phase is Failed)"]


@pytest.mark.parametrize(
    ("program", "trouble"),
    [
        ("import time; time.sleep(60)", "did not answer within 0.5 s"),
        ("import sys; sys.exit(127)", "knows no such program (no word); --remote-command says how to call it"),
        ("print('{}')", "answered with exit code 0: no word"),
        ("import sys; sys.exit('distdoctor: cannot\\x1b[2J be read')", "answered with exit code 1: cannot [2J be read"),
        ('print(\'{"bundle": "AAAA"}\')', "the answer of here is no host bundle"),
    ],
    ids=["silent", "not installed", "no document", "an error over there", "a damaged document"],
)
def test_what_is_no_answer_is_told_in_one_clause(program: str, trouble: str) -> None:
    way = WayToHost("here", (sys.executable, "-c"))

    (answer,) = ask_all([way], [program], 0.5 if "sleep" in program else 20.0)

    assert (answer.recordings, answer.trouble) == ((), trouble)


def test_a_host_without_a_job_is_no_silent_host() -> None:
    said = (
        "import sys; print('distdoctor: no distributed training job runs on this host', file=sys.stderr); sys.exit(4)"
    )

    assert ask_all([WayToHost("here", (sys.executable, "-c"))], [said], 20.0) == [HostAnswer("here", is_idle=True)]
