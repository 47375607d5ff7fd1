"""What hosts hand each other through a real store: what they have alike is written once, and read once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch.distributed as dist

from distdoctor.launch.exchange import Exchange
from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.recording.recording import Recording
from distdoctor.testing.gradients import trained_job

HOSTS = 3


def parts() -> list[Recording]:
    """What each of three hosts recorded, one rank on each."""
    trained = trained_job(HOSTS, parameters={f"layer{number}.weight": "[4]" for number in range(40)}).initial()
    for _ in range(3):
        trained.step()
    whole = trained.recording()
    return [replace(whole, ranks={rank: log}) for rank, log in whole.ranks.items()]


def exchanges(server: dist.TCPStore) -> list[Exchange]:
    """One for each host."""
    hosts = []
    for host in range(HOSTS):
        rendezvous = Rendezvous()
        rendezvous.store, rendezvous.hosts, rendezvous.host_number = dist.PrefixStore("job", server), HOSTS, host
        hosts.append(Exchange(rendezvous))
    return hosts


def test_what_hosts_have_alike_is_written_once_and_comes_back_whole() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    hosts = exchanges(server)

    keys = []
    for one, part in zip(hosts[1:], parts()[1:], strict=True):
        one.give(part, final=True)
        keys.append(server.num_keys())
    got = hosts[0].take_last_words(time.monotonic() + 5)

    assert keys[1] - keys[0] == 2  # the bundle, and the word that tells where it lies
    assert not hosts[0].silent
    for found, part in zip(got, parts()[1:], strict=True):
        ((rank, log),) = found.ranks.items()
        assert log.texts == part.ranks[rank].texts
        assert log.environment == part.ranks[rank].environment
        assert log.rows("tensors").tobytes() == part.ranks[rank].rows("tensors").tobytes()


def test_a_host_that_lives_and_is_slow_is_awaited_for_longer_than_one_that_is_gone() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    first, second, slow = exchanges(server)
    second.give(parts()[1], final=True)
    asked: list[list[int]] = []

    def are_alive(hosts: Sequence[int]) -> bool:
        asked.append([*hosts])
        slow.give(parts()[2], final=True)
        return True

    assert len(first.take_last_words(time.monotonic() + 0.2)) == 1
    assert first.silent == [2]
    assert len(first.take_last_words(time.monotonic() + 0.2, are_alive)) == 2
    assert asked == [[2]]
    assert not first.silent
