"""Jobs over two hosts with a kernel, and pids, in common and nothing else: every verdict is that of the whole job."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launching import Finished
from network import Hosts, finished

from distdoctor.recording.trace.run_folder import read_job, read_run

pytestmark = [pytest.mark.job, pytest.mark.slow]

TRAIN = """
for step in range(20):
    dist.all_reduce(t)
"""
FINISH = "dist.destroy_process_group()"


def findings(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "diagnosis.json").read_text())["findings"]
    return found


def said(done: list[Finished]) -> str:
    return "\n".join(one.out + one.err for one in done)


def test_a_rank_that_is_killed_and_restarted_leaves_a_job_that_finished(
    hosts: Hosts, script: Callable[..., Path]
) -> None:
    first = (
        'if rank == 1 and not os.path.exists("tried"):\n    open("tried", "w").close()\n    os.kill(os.getpid(), 9)\n'
    )
    script(first + TRAIN + FINISH)

    env = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"
    }  # else torch 2.15 hands the addresses of ranks that are gone to the next start
    done = finished(hosts.torchrun(1, "--max-restarts", 1, env=env))

    assert [one.code for one in done] == [0, 0], said(done)
    job = read_job(hosts.folder / "run")
    assert job is not None
    assert (job.attempt, [start.number for start in job.earlier]) == (1, [0])
    assert not findings(hosts.folder / "run")
    assert all("(SIGKILL); attempt 2 finished" in one.err for one in done), said(done)
    assert read_run(hosts.folder / "run").ranks.keys() == {0, 1}
    assert {path.name for path in (hosts.folder / "run").glob("*.trace")} == {
        f"rank-0000{rank}.a{attempt}.trace" for rank in (0, 1) for attempt in (0, 1)
    }


def codes(done: Finished) -> set[str]:
    return {word for word in done.out.split() if word[:2] == "DD" and word[2:5].isdigit()}


@pytest.mark.parametrize("separate", [False, True])
def test_a_host_in_another_collective_is_named_on_both_hosts(
    hosts: Hosts, script: Callable[..., Path], separate: bool
) -> None:
    script(TRAIN + "if rank == 1:\n    dist.barrier()\ndist.all_reduce(t)\n" + FINISH)

    done = finished(hosts.torchrun(1, separate=separate))

    for one in done:
        assert "DD112" in codes(one), said(done)
        assert "rank 1" in one.out
        assert "look at the network" not in one.out.lower()


@pytest.mark.parametrize("separate", [True, False])
def test_a_killed_rank_is_named_on_both_hosts_whichever_ends_first(
    hosts: Hosts, script: Callable[..., Path], separate: bool
) -> None:
    script("if rank == 1:\n    os.kill(os.getpid(), 9)\n" + TRAIN + FINISH)

    done = finished(hosts.torchrun(1, separate=separate))

    assert [one.code for one in done] == [1, 1], said(done)
    for one in done:
        assert "DD110" in codes(one), said(done)
        assert "rank 1" in one.out
        assert "SIGKILL" in one.out
        assert "vanished" not in one.out


DIVERGES = """
from torch import nn
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    model(torch.ones(2, 4)).sum().backward()
    if rank == 1 and step >= 4:
        for parameter in model.parameters():
            parameter.grad += 0.5
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_host_whose_ranks_end_late_is_awaited_and_not_said_to_be_lost(
    hosts: Hosts, script: Callable[..., Path]
) -> None:
    script(
        "if rank == 1:\n    raise ValueError('a bad batch')\n"
        "try:\n    dist.all_reduce(t)\nexcept RuntimeError:\n    time.sleep(5)\n    raise\n"
    )

    done = finished(hosts.torchrun(1, separate=True))

    for one in done:
        assert one.out.startswith("DD110 error  rank 1  "), one.out + one.err
        assert "DD132" not in one.out, one.out
        assert "nothing came from" not in one.err, one.err


def test_gradients_that_differ_between_hosts_are_never_healthy(hosts: Hosts, script: Callable[..., Path]) -> None:
    script(DIVERGES + FINISH)

    done = finished(hosts.torchrun(1, separate=True))

    assert [one.code for one in done] == [1, 1], said(done)
    assert all("DD202" in codes(one) for one in done), said(done)


def test_a_healthy_job_without_a_shared_folder_is_one_job(hosts: Hosts, script: Callable[..., Path]) -> None:
    script(TRAIN + FINISH)

    done = finished(hosts.torchrun(1, separate=True))

    assert [one.code for one in done] == [0, 0], said(done)
    assert all("2 ranks" in one.err and "healthy" in one.err for one in done), said(done)


def test_a_cut_link_is_an_end_that_both_hosts_report(hosts: Hosts, script: Callable[..., Path]) -> None:
    script("open(f'at-{rank}', 'w').close()\nfor step in range(4000):\n    dist.all_reduce(t)\n    time.sleep(0.02)\n")
    commands = hosts.torchrun(1, "--on-hang", "abort", "--hang-after", "15", separate=True)
    for rank in (0, 1):
        commands[rank].wait_for(lambda at=hosts.folder / f"at-{rank}": at.exists())  # type: ignore[misc]

    hosts.cut(2)
    done = finished(commands)

    assert all("could not start" not in one.err for one in done), said(done)
    assert all("healthy" not in one.err for one in done), said(done)
    for one, silent in zip(done, ("ddh2", "ddh1"), strict=True):
        assert f"1 of 2 hosts have answered, nothing came from {silent};" in one.err, said(done)
    for one, other in zip(done, ((1, "ddh2"), (0, "ddh1")), strict=True):
        assert "DD132" in codes(one), said(done)
        assert f"{other[1]} has given no sign of life" in one.out
        assert f"rank {other[0]} " in one.out


def test_a_scheduler_that_ends_the_job_is_no_ranks_fault(hosts: Hosts, script: Callable[..., Path]) -> None:
    script("open(f'at-{rank}', 'w').close()\nfor step in range(4000):\n    dist.all_reduce(t)\n    time.sleep(0.02)\n")
    commands = hosts.torchrun(1)
    for rank in (0, 1):
        commands[rank].wait_for(lambda at=hosts.folder / f"at-{rank}": at.exists())  # type: ignore[misc]

    hosts.signal(1, signal.SIGTERM)
    time.sleep(1)  # a scheduler goes host by host: rank 1 has lost its peer before anybody asks it to end
    hosts.signal(2, signal.SIGTERM)
    done = finished(commands)

    assert all("ended from outside by SIGTERM" in one.err for one in done), said(done)
    assert not any(codes(one) for one in done), said(done)


TRAINS_ON = "open(f'at-{rank}', 'w').close()\nfor step in range(40000):\n    dist.all_reduce(t)\n    time.sleep(0.02)\n"


def test_a_launcher_that_is_killed_is_missed_while_its_ranks_train_on(
    hosts: Hosts, script: Callable[..., Path]
) -> None:
    script(TRAINS_ON)
    hosts.keep_up(2)
    commands = hosts.torchrun(1, separate=True)
    for rank in (0, 1):
        commands[rank].wait_for(lambda at=hosts.folder / f"at-{rank}": at.exists())  # type: ignore[misc]

    hosts.signal(2, signal.SIGKILL)
    told = commands[0].hear("DD132", within=30)

    assert "trains on without its launcher: the one on ddh2 has given no sign of life for" in told
    assert 3 <= float(told.partition("no sign of life for ")[2].partition(" s")[0]) <= 6, told
    hosts.signal(1, signal.SIGTERM)
    commands[0].finish()


def test_the_launcher_of_the_store_that_is_killed_is_why_the_other_host_ends(
    hosts: Hosts, script: Callable[..., Path]
) -> None:
    script(TRAINS_ON)
    hosts.keep_up(1)
    commands = hosts.torchrun(1, separate=True)
    for rank in (0, 1):
        commands[rank].wait_for(lambda at=hosts.folder / f"at-{rank}": at.exists())  # type: ignore[misc]

    hosts.signal(1, signal.SIGKILL)
    done = commands[1].finish()

    assert codes(done) == {"DD132"}, done.out + done.err
    assert "rank 0  lost its launcher: the one on ddh1 ended without a word, and the job's store with it" in done.out
    assert done.code == 1


def test_a_host_that_goes_down_is_named_with_its_ranks(hosts: Hosts, script: Callable[..., Path]) -> None:
    script(TRAINS_ON)
    commands = hosts.torchrun(1, separate=True)
    for rank in (0, 1):
        commands[rank].wait_for(lambda at=hosts.folder / f"at-{rank}": at.exists())  # type: ignore[misc]

    hosts.go_down(2)
    done = commands[0].finish()

    assert "DD132" in codes(done), done.out + done.err
    assert "rank 1  is lost, or cut off from ddh1: ddh2 has given no sign of life for" in done.out
    assert "DD110" not in codes(done), done.out


def test_of_three_hosts_the_one_that_is_cut_off_is_named_on_the_other_two(
    three_hosts: Hosts, script: Callable[..., Path]
) -> None:
    script(TRAINS_ON)
    commands = three_hosts.torchrun(1, "--on-hang", "report", separate=True)
    for rank in range(3):
        commands[rank].wait_for(lambda at=three_hosts.folder / f"at-{rank}": at.exists())  # type: ignore[misc]

    cut = time.monotonic()
    three_hosts.cut(3)
    told = [commands[host].hear("DD132", within=30) for host in (0, 1)]
    seconds = time.monotonic() - cut
    for host in (1, 2):
        three_hosts.signal(host, signal.SIGTERM)
    done = finished(commands[:2])

    for words in told:
        assert "ddh3 has given no sign of life for" in words
        assert "ddh1 has given" not in words
        assert "ddh2 has given" not in words
    assert all("2 of 3 hosts have answered, nothing came from ddh3;" in one.err for one in done), said(done)
    assert seconds < 8  # 5 where a processor is free


@pytest.mark.parametrize("separate", [True, False])
def test_a_rank_that_stands_in_its_own_code_is_told_live_on_both_hosts_that_met_by_ipv6(
    hosts: Hosts, script: Callable[..., Path], separate: bool
) -> None:
    script(TRAIN + "if rank == 1:\n    time.sleep(1000)\ndist.all_reduce(t)\n")
    commands = hosts.torchrun(1, "--on-hang", "report", separate=separate, kind="static6")

    told = [command.hear("DD116", within=60) for command in commands]
    for host in (1, 2):
        hosts.signal(host, signal.SIGTERM)
    finished(commands)

    for words in told:
        assert "rank 1" in words.partition("DD116")[2].partition("\n")[0], words
        assert "time.sleep" in words.partition("DD116")[0] + words.partition("DD116")[2]
        assert "look at the network" not in words.lower()


SAME_ORDER_AND_NAN = """
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
data = TensorDataset(torch.arange(32.0).reshape(32, 1).expand(32, 4).clone())
sampler = DistributedSampler(data, shuffle=True)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.001)
for epoch in range(4):
    for (inputs,) in DataLoader(data, batch_size=4, sampler=sampler):
        if epoch == 3 and rank == 1:
            inputs = inputs * float("nan")
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
"""


def test_orders_and_numbers_of_all_hosts_are_one_finding_each_without_a_shared_folder(
    hosts: Hosts, script: Callable[..., Path]
) -> None:
    script(SAME_ORDER_AND_NAN + FINISH)

    done = finished(hosts.torchrun(1, separate=True))

    for host, one in enumerate(done, 1):
        told = {finding["code"]: finding for finding in findings(hosts.folder / f"run{host}")}
        assert one.code == 1, said(done)
        assert told["DD301"]["ranks"] == [0, 1], said(done)
        assert (told["DD801"]["ranks"], told["DD801"]["confidence"]) == ([1], "certain"), said(done)


def test_a_host_that_never_comes_is_missed_by_name(hosts: Hosts, script: Callable[..., Path]) -> None:
    script(TRAIN + FINISH)
    words = ["--nnodes", 2, *hosts.meeting(1), "--rdzv-conf", "join_timeout=8", "--run-dir", "run", "train.py"]
    alone = hosts.start(1, "run", *words)

    done = alone.finish()

    assert done.code == 1, said([done])
    assert "1 of 2 hosts have come: ddh1" in done.err
    assert "healthy" not in done.err


@pytest.mark.skipif("DISTDOCTOR_OTHER_TORCH" not in os.environ, reason="DISTDOCTOR_OTHER_TORCH names no second torch")
def test_hosts_with_different_torches_tell_one_verdict(hosts: Hosts, script: Callable[..., Path]) -> None:
    script(TRAIN + "if rank == 1:\n    dist.barrier()\ndist.all_reduce(t)\n" + FINISH)
    words = ["run", "--nnodes", 2, "--run-dir"]
    other = {"PYTHONPATH": os.environ.get("DISTDOCTOR_OTHER_TORCH", "")}
    first = hosts.start(1, *words, "run1", *hosts.meeting(1), "train.py")
    second = hosts.start(2, *words, "run2", *hosts.meeting(2), "train.py", env=other)

    done = finished([first, second])

    assert all("DD112" in codes(one) for one in done), said(done)
    assert all("rank 1" in one.out for one in done)


HOST_0_JUDGED, HOST_0_SILENT = "ddh1 has judged for all 2 hosts", "1 of 2 hosts has answered, nothing came from ddh1"


@pytest.mark.parametrize("separate", [True, False])
def test_of_many_hosts_host_0_judges_and_the_other_says_the_same(
    hosts: Hosts, script: Callable[..., Path], separate: bool
) -> None:
    script(DIVERGES + FINISH)

    done = finished(replace(hosts, one_judges=True).torchrun(1, separate=separate))

    assert [one.code for one in done] == [1, 1], said(done)
    assert all("DD202" in codes(one) for one in done), said(done)
    assert [HOST_0_JUDGED in one.err for one in done] == [False, True], said(done)
    if separate:
        told = [json.loads((hosts.folder / f"run{host}" / "diagnosis.json").read_text()) for host in (1, 2)]
        assert [one.pop("judged_by", "") for one in told] == ["", "ddh1"]
        assert [told[0][name] == told[1][name] for name in ("findings", "coverage", "examined", "verdict")] == [
            True
        ] * 4


def test_of_many_hosts_all_tell_a_healthy_job(hosts: Hosts, script: Callable[..., Path]) -> None:
    script(TRAIN + FINISH)

    done = finished(replace(hosts, one_judges=True).torchrun(1, separate=True))

    assert [one.code for one in done] == [0, 0], said(done)
    assert all("2 ranks" in one.err and "healthy" in one.err for one in done), said(done)


@pytest.mark.parametrize("separate", [True, False])
def test_of_many_hosts_a_hang_ends_with_one_verdict(hosts: Hosts, script: Callable[..., Path], separate: bool) -> None:
    script(TRAIN + "if rank == 1:\n    dist.barrier()\ndist.all_reduce(t)\n" + FINISH)

    done = finished(replace(hosts, one_judges=True).torchrun(1, separate=separate))

    for one in done:
        assert "DD112" in codes(one), said(done)
        assert "rank 1" in one.out


def test_of_many_hosts_all_tell_live_what_host_0_finds_by_the_stacks_of_another(
    hosts: Hosts, script: Callable[..., Path]
) -> None:
    script(TRAIN + "if rank == 1:\n    time.sleep(3000)\ndist.all_reduce(t)\n" + FINISH)

    options = ("--on-hang", "abort", "--hang-after", "30")
    done = finished(replace(hosts, one_judges=True).torchrun(1, *options, separate=True))

    for one in done:
        live = one.err.partition("the job hangs")[0]
        assert "found while the job runs" in live, said(done)
        assert "DD116" in live, said(done)
        assert "rank 1" in one.out, said(done)
