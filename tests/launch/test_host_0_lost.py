"""Of many hosts the one that judges is lost: each of the others says within seconds what it knows, and who is silent. Where all
have recorded into one folder, one of them judges what lies there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from commands import Said
from launching import Command, Finished
from network import Hosts, finished

pytestmark = [pytest.mark.job, pytest.mark.slow]

SECONDS = 8.0  # 5 where a processor is free
READY = "open(f'at-{rank}', 'w').close()\n"
TRAINS_ON = READY + "for step in range(40000):\n    dist.all_reduce(t)\n    time.sleep(0.02)\n"
HANGS = READY + "if rank == 1:\n    dist.barrier()\ndist.all_reduce(t)\n"
SILENT = "1 of 3 hosts has answered, nothing came from ddh1, which judges for all"
UNREAD, OWN = "left a trace that was not read here; `distdoctor examine run` reads", "ran elsewhere, and nothing came"
IN_ITS_PLACE = " has judged in its place"


@dataclass(frozen=True)
class Job:
    """A job over three hosts of which host 0, `ddh1`, judges."""

    hosts: Hosts
    commands: list[Command]

    def wait_for(self, *names: str) -> None:
        for name in names:
            self.commands[0].wait_for((self.hosts.folder / name).exists)

    def lose_host_0(self) -> list[Finished]:
        """What the others leave behind, which must come in time."""
        self.hosts.go_down(1)
        began = time.monotonic()
        done = finished(self.commands[1:])
        assert time.monotonic() - began < SECONDS, said(done)
        return done


@pytest.fixture
def begin(three_hosts: Hosts, script: Callable[..., Path]) -> Callable[..., Job]:
    def begun(body: str, *options: object, store_on: int = 1, separate: bool = False, **about: dict[str, str]) -> Job:
        script(body)
        hosts = replace(three_hosts, one_judges=True, store_on=store_on)
        return Job(hosts, hosts.torchrun(1, *options, separate=separate, **about))

    return begun


def said(done: list[Finished]) -> str:
    return "\n".join(one.out + one.err for one in done)


def one_has_judged(done: list[Finished]) -> bool:
    """Whether one host has seen all ranks, and the other has its verdict, or its own part where that came too late."""
    judges = [one for one in done if UNREAD not in one.err and IN_ITS_PLACE not in one.err]
    return len(judges) == 1 and "ranks seen" not in judges[0].err


def codes(done: Finished) -> set[str]:
    return {word for word in done.out.split() if word[:2] == "DD" and word[2:5].isdigit()}


@pytest.mark.parametrize("store_on", [1, 2])  # it goes with host 0, or is on another host
@pytest.mark.parametrize("separate", [True, False])
def test_the_host_that_judges_goes_down_while_all_train(
    begin: Callable[..., Job], store_on: int, separate: bool
) -> None:
    job = begin(TRAINS_ON, store_on=store_on, separate=separate)
    job.wait_for("at-0", "at-1", "at-2")

    done = job.lose_host_0()

    for rank, one in enumerate(done, 1):
        assert (one.code, codes(one)) == (1, {"DD132"}), said(done)
        assert SILENT in one.err, said(done)
        assert one.out.startswith("DD132 error  rank 0  "), said(done)
        assert not separate or (f"1 of 3 ranks seen on ddh{rank + 1}" in one.out and OWN in one.err), said(done)
        assert "left no recording" not in one.out + one.err, said(done)
    assert separate or one_has_judged(done), said(done)


@pytest.mark.parametrize("separate", [True, False])
def test_the_host_that_judges_goes_down_while_all_stand(begin: Callable[..., Job], separate: bool) -> None:
    job = begin(HANGS, "--on-hang", "report", store_on=2, separate=separate)
    told = [command.hear("the job hangs", within=60) for command in job.commands]

    done = job.lose_host_0()

    assert all("rank 1" in words.partition("DD112")[2].partition("\n")[0] for words in told), told
    for one in done:
        assert codes(one) <= {"DD112", "DD132"}, said(done)
        assert one.out.startswith("DD112 error  rank 1 "), said(done)
        assert SILENT in one.err, said(done)


def test_the_host_that_judges_goes_down_while_it_judges(
    begin: Callable[..., Job], toy_plugin: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "site" / "toydoctor.py").write_text(
        "import pathlib, socket, time\n"
        "from distdoctor.plugin_api import WARNING, Recording, check\n"
        "\n"
        "@check('DD198', 'toy-line', severity=WARNING, live=False)\n"
        "def slow(recording: Recording):\n"
        "    if socket.gethostname() == 'ddh1':\n"
        f"        pathlib.Path({str(tmp_path / 'judging')!r}).touch()\n"
        "        time.sleep(600)\n"
        "    return ()\n"
        "\n"
        "def distdoctor_checks():\n"
        "    return [slow]\n"
    )
    path = os.pathsep.join([toy_plugin["PYTHONPATH"], os.environ.get("PYTHONPATH", "")])
    job = begin("dist.all_reduce(t)\ndist.destroy_process_group()", store_on=2, env={"PYTHONPATH": path})
    job.wait_for("judging")

    done = job.lose_host_0()

    for one in done:
        assert SILENT in one.err, said(done)
    assert one_has_judged(done), said(done)


def test_what_hosts_left_in_one_folder_is_examined_whole_though_the_one_that_judges_is_gone(
    begin: Callable[..., Job], say: Callable[..., Said], tmp_path: Path
) -> None:
    job = begin(TRAINS_ON)
    job.wait_for("at-0", "at-1", "at-2")
    job.lose_host_0()

    document = json.loads(say("examine", tmp_path / "run", "--output-format", "json").out)

    assert [finding["code"] for finding in document["findings"]] == ["DD132"]
    assert document["coverage"]["whole"] == [0, 1, 2]
