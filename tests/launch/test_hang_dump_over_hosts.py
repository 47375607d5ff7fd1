"""One look at a job on two hosts that nobody prepared, through whatever leads to them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import Command, Finished
from network import Hosts

pytestmark = [pytest.mark.job, pytest.mark.slow]

TRAIN = """
open(f"at-{rank}", "w").close()
while not (rank == 1 and os.path.exists("enough")):
    dist.all_reduce(t)
    time.sleep(0.02)
open("stands", "w").close()
time.sleep(600)
"""


def test_hosts_look_together_and_who_keeps_silent_is_named(
    hosts: Hosts, script: Callable[..., Path], start: Callable[..., Command]
) -> None:
    script(TRAIN)
    commands = hosts.plain_torchrun(1, "train.py")
    for rank in (0, 1):
        commands[rank].wait_for(lambda at=hosts.folder / f"at-{rank}": at.exists())  # type: ignore[misc]
    path = os.pathsep.join([str(hosts.ssh()), os.environ["PATH"]])
    (hosts.folder / "hostfile").write_text("ddh1 slots=1  # the first\nddh2:1\n")

    def look(target: str, *more: str) -> Finished:
        words = ["hang-dump", "--on", target, "--remote-command", f"{sys.executable} -m distdoctor", "--patience", "1"]
        return start(*words, *more, env={"PATH": path}).finish()

    moving = look("@hostfile")
    assert moving.code == 0, moving.out + moving.err
    assert "rank 0 on ddh1, rank 1 on ddh2, of 2" in moving.out

    half = look("ssh:ddh1,asleep,nowhere", "--each-within", "6")
    assert half.code == 5, half.out + half.err
    assert half.out.startswith("nothing stuck where it could be seen"), half.out
    assert (
        "1 of 2 ranks seen: rank 1 ran elsewhere, and nothing came from there; host asleep did not answer within 6 s"
        in half.out
    )
    assert (
        "host nowhere answered with exit code 1: ssh: connect to host nowhere port 22: Connection refused" in half.err
    )

    (hosts.folder / "enough").touch()
    commands[1].wait_for(lambda: (hosts.folder / "stands").exists())
    hung = look("ssh:ddh1,ddh2", "--samples", "4")
    assert hung.code == 3, hung.out + hung.err
    assert hung.out.startswith("hang: rank 1 has been at `time.sleep(600)`"), hung.out
    assert (hosts.folder / ".distdoctor" / "runs" / "latest" / "seen-hang-dump.json").exists()

    partly = json.loads(look("ssh:ddh1,asleep", "--each-within", "6", "--json", "--no-keep").out)
    assert all(1 not in one["ranks"] or one["confidence"] == "possible" for one in partly["findings"]), partly[
        "findings"
    ]
    assert partly["coverage"]["elsewhere"] == [1]


def test_hosts_of_which_none_answers_are_an_error(hosts: Hosts, start: Callable[..., Command]) -> None:
    path = os.pathsep.join([str(hosts.ssh()), os.environ["PATH"]])

    done = start("hang-dump", "--on", "ssh:nowhere", env={"PATH": path}).finish()

    assert done.code == 5
    assert "none of 1 hosts could look: host nowhere answered with exit code 1" in done.err
